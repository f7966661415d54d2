"""One more token through the whole stack: the rows of the program by kernels for one token, as fast as memory is read.

Shapes: B batch, H query heads, G key-value heads, K keys, D head width, C d_model, V vocabulary; where one text goes
through numpy there is no batch axis.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from tinytf.config import Rope
from tinytf.errors import UsageError
from tinytf.generate.kernels import Array, CompiledKernels, Int8Kernels, Kernels, Map, NumpyKernels, Stored
from tinytf.generate.layout import joined, lay_out, products
from tinytf.generate.matrices import multiplies_int8
from tinytf.model.cache import KVCache, LayerCache
from tinytf.model.transformer import Block, Head, Transformer
from tinytf.outputs import require_unfenced
from tinytf.parts.attention import Attention
from tinytf.steps import operations
from tinytf.steps.fused import FusedAttention
from tinytf.steps.linear import Linear
from tinytf.steps.operations import Choose, Operation, Rotate, Sight, Unembed
from tinytf.steps.operations.head_norm import HeadwiseNorm
from tinytf.steps.operations.linear import Unembedding
from tinytf.steps.operations.operation import Pass, StepModule, repeat_groups
from tinytf.steps.operations.rotate import rotary_table
from tinytf.steps.operations.scores import attention_scores
from tinytf.steps.operations.softmax import attention_weights
from tinytf.steps.program import STREAM, Fused, Instruction, Program

Look = Callable[[int, Tensor], None]
Values = dict[str, Array]


@dataclass(frozen=True)
class Kind:
    """How a decoder computes. ``compile`` has torch write the kernels: it takes a while and a C++ compiler.

    ``quantize`` turns the weights into int8 for decoding; the prompt is computed with the original weights.
    """

    compile: bool = False
    quantize: bool = False


PLAIN = Kind()


@dataclass(frozen=True, slots=True)
class _Now:
    """What belongs to one token: a rotation for each kind of RoPE, a place for each kind of sight, and each layer."""

    kernels: Kernels
    rotations: list[Map]
    places: list[Any]
    around: list[Pass]


@dataclass(frozen=True, slots=True)
class _Made:
    """One step, of others."""

    kernel: Map
    inputs: tuple[str, ...]
    name: str

    def __call__(self, values: Values, now: _Now, stored: Stored | None) -> None:
        values[self.name] = self.kernel(*[values[name] for name in self.inputs])


@dataclass(frozen=True, slots=True)
class _Products:
    """Steps that are products of one vector, as one: each with its columns, and its heads (0 where it has none)."""

    kernel: Map
    source: str
    parts: tuple[tuple[str, int, int, int], ...]

    def __call__(self, values: Values, now: _Now, stored: Stored | None) -> None:
        made = self.kernel(values[self.source])
        for name, start, stop, heads in self.parts:
            part = made if len(self.parts) == 1 else made[..., start:stop]
            values[name] = part.reshape(*part.shape[:-1], heads, -1) if heads else part


@dataclass(frozen=True, slots=True)
class _Turned:
    """A rotation of the first ``width`` dimensions by the new token's position."""

    rotation: int
    width: int
    source: str
    name: str

    def __call__(self, values: Values, now: _Now, stored: Stored | None) -> None:
        x, turn = values[self.source], now.rotations[self.rotation]
        whole = x.shape[-1] == self.width
        values[self.name] = turn(x) if whole else now.kernels.joined(turn(x[..., : self.width]), x[..., self.width :])


@dataclass(frozen=True, slots=True)
class _Attended:
    """From queries, keys and values to what the heads give; keys and values are stored."""

    place: int
    scale: float
    inputs: tuple[str, ...]
    name: str

    def __call__(self, values: Values, now: _Now, stored: Stored | None) -> None:
        q, k, v = [values[name] for name in self.inputs]
        assert stored is not None, "keys and values of a layer are stored"
        values[QUERIES] = q
        values[self.name] = now.kernels.attend(q, k, v, stored, now.places[self.place], self.scale)


@dataclass(frozen=True, slots=True)
class _Modules:
    """Rows without a kernel for one token, by the modules that run them: those of a block, or of the head."""

    rows: tuple[Instruction | Fused, ...]
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    layer: int

    def __call__(self, values: Values, now: _Now, stored: Stored | None) -> None:
        inside = {name: now.kernels.whole(values[name]) for name in self.takes}
        for row in self.rows:
            inside[row.name] = row(inside, now.around[self.layer])
        for name in self.gives:
            values[name] = now.kernels.alone(inside[name])


Call = Callable[[Values, _Now, Stored | None], None]
QUERIES = "<queries>"
"""Where the queries of a layer are kept beside its steps, for who looks at attention."""


def _through(
    x: Array, layers: list[list[Call]], ends: list[str], stored: list[Stored], now: _Now
) -> tuple[Array, list[Array]]:
    """Logits (…, V) of embeddings (…, C), and the queries (…, H, D) of every layer; the last one is the head."""
    queries = []
    for number, calls in enumerate(layers):
        values = {STREAM: x}
        for call in calls:
            call(values, now, stored[number] if number < len(stored) else None)
        x = values[ends[number]]
        if QUERIES in values:
            queries.append(values[QUERIES])
    return x, queries


def _compiled() -> Callable[..., tuple[Array, list[Array]]]:
    """``_through`` by torch's compiler, which compiles it again for every kind of model that a process opens.

    Graphs do not come from torch's cache on disk (machine code still does): for a graph with a dynamic length it once
    returned that of another process, compiled for the length of a full cache.
    """
    require_unfenced("compile kernels")
    run: Callable[..., tuple[Array, list[Array]]] = torch.compile(_through)
    for limits in (
        torch._dynamo.config.patch(recompile_limit=64),
        torch._inductor.config.patch(fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        run = limits(run)
    return run


class Decoder:
    """A decoder-only model that computes one token per call; the tokens before are in ``cache``.

    It is made for one generation: weights are laid side by side when it is made (and stay so), bfloat16 weights are
    packed, in a copy that lasts as long as this object. ``texts`` is the largest batch. It runs the model's program by
    kernels for one token, and rows that have none by their modules, which are the truth. Raises UsageError for a model
    that it does not ``fit``, and where the ``kind`` is not available.
    """

    def __init__(self, model: Transformer, cache: KVCache, texts: int = 1, kind: Kind = PLAIN) -> None:
        if not self.fits(model):
            raise UsageError("the model has hooks, or is no plain decoder", "run it through its modules instead")
        lay_out(model)
        self.model, self.cache, self.config = model, cache, model.config
        self.kernels = _kernels_for(model, texts, kind)
        self.ropes: list[Rope] = []
        self.sights: list[Sight] = []
        head = model.require_head("nothing is predicted")
        assert isinstance(head, Head)
        self.layers = [list(self._calls(program, n)) for n, program in enumerate((*_blocks(model), head))]
        self.by_modules = any(isinstance(call, _Modules) for calls in self.layers for call in calls)
        norm = _same if isinstance(model.final_norm, nn.Identity) else self.kernels.norm(model.final_norm)
        self.layers[-1].insert(0, _Made(norm, (STREAM,), head.takes))
        self.ends = [program.rows[-1].name for program in (*_blocks(model), head)]
        self._run: Callable[..., tuple[Array, list[Array]]] = _compiled() if kind.compile else _through

    @property
    def threads_of_torch(self) -> bool:
        """Whether its work is done by torch, rather than by numpy."""
        return not isinstance(self.kernels, NumpyKernels)

    @property
    def looks(self) -> bool:
        """Whether the attention of every layer can be looked at."""
        return sum(isinstance(call, _Attended) for calls in self.layers for call in calls) == len(self.model.blocks)

    @staticmethod
    def fits(model: Transformer) -> bool:
        """Whether it predicts the next token, without a choice, and its modules are tinytf's own, without hooks.

        Where experts are chosen, other kernels' rounding may choose another one; no kernel here keeps a state.
        """
        parts = [model.final_norm, model.head, *(part for block in _blocks(model) for part in block.modules())]
        plain = all(type(module) in _KNOWN for module in parts)
        chooses = any(
            isinstance(row.operation, Choose) for block in _blocks(model) for row in getattr(block, "rows", ())
        )
        predicts = not model.config.looks_ahead and model.config.head.kind == "lm" and not chooses
        plain = plain and all(block.mixer.called == Attention.called for block in model.config.blocks)
        return plain and predicts and not is_watched(model) and not torch.is_autocast_enabled("cpu")

    def _calls(self, program: Program, layer: int) -> Iterator[Call]:
        """The rows of a block, or of the head, each by its kernel; those without one by their modules."""
        joint = {row: group for group in products(program) for row in group}
        for known, some in itertools.groupby(program.program, _has_kernel):
            if known:
                yield from (call for part in some for call in self._by_kernel(part, joint))
            else:
                yield _by_modules(tuple(some), program, layer)

    def _by_kernel(self, part: Instruction | Fused, joint: dict[Any, list[Instruction]]) -> Iterator[Call]:
        if isinstance(part, Fused):
            assert isinstance(part.kernel, FusedAttention)
            yield _Attended(_number(self.sights, part.kernel.sight), part.kernel.scale, part.inputs, part.name)
        elif part in joint:
            if part is joint[part][0]:
                yield self._products(joint[part])
        elif isinstance(part.operation, Unembed):
            matrix, bias = self.model.unembedding.detach(), part.module.bias
            assert bias is None or isinstance(bias, Tensor)
            yield _Made(self.kernels.product(matrix, bias, exact=True), part.inputs, part.name)
        elif isinstance(part.operation, Rotate):
            rope = part.operation.rope
            yield _Turned(_number(self.ropes, rope), rope.width, part.inputs[0], part.name)
        else:
            kernel = part.operation.one_token(self.kernels, part.module)
            assert kernel is not None, "it has one"
            yield _Made(kernel, part.inputs, part.name)

    def _products(self, rows: Sequence[Instruction]) -> _Products:
        sizes = [len(row.module.weight) for row in rows]  # type: ignore[arg-type]
        ends = list(itertools.accumulate(sizes))
        parts = tuple((row.name, end - size, end, row.heads) for row, size, end in zip(rows, sizes, ends, strict=True))
        return _Products(self.kernels.product(*joined(rows)), rows[0].inputs[0], parts)

    @torch.inference_mode()
    def __call__(self, ids: Tensor, look: Look | None = None) -> Tensor:
        """Logits (B, V) after one more token of each text: ids (B,).

        ``look`` is called with every layer's number and the attention weights (B, H, K) of the new tokens to all K so
        far. Raises UsageError where the cache is full.
        """
        cache, kernels, at = self.cache, self.kernels, self.cache.position
        cache.require_room(len(ids), 1)
        embedded = self.model.embed(ids[:, None], start=at)[:, 0]  # (B, C)
        firsts = [sight.first(at) for sight in self.sights]
        places = [kernels.place(first, at, embedded.device) for first in firsts]
        around = [Pass(start=at, cache=layer) for layer in cache.layers] if self.by_modules else []
        now = _Now(kernels, [self._rotation(rope, at, embedded) for rope in self.ropes], places, around)
        stored = [(layer.keys, layer.values) for layer in cache.layers if isinstance(layer, LayerCache)]
        logits, queries = self._run(kernels.arriving(embedded), self.layers, self.ends, stored, now)
        if look is not None:
            attended = [call for calls in self.layers for call in calls if isinstance(call, _Attended)]
            for number, (q, call, (keys, _)) in enumerate(zip(queries, attended, stored, strict=True)):
                look(number, _weights(torch.as_tensor(q), keys, firsts[call.place], at, call.scale))
        cache.advance(1)
        return kernels.leaving(logits)

    def _rotation(self, rope: Rope, at: int, x: Tensor) -> Map:
        cosine, sine = rotary_table(at + 1, rope, x.device, x.dtype)
        return self.kernels.rotation(cosine[at], sine[at])


def _same(x: Array) -> Array:
    return x


def _number(known: list[Any], one: Any) -> int:
    if one not in known:
        known.append(one)
    return known.index(one)


_KNOWN = {
    Block, StepModule, Linear, nn.Module, nn.LayerNorm, nn.RMSNorm, HeadwiseNorm, nn.Identity, nn.Dropout, Head,
    Unembedding,
}  # fmt: skip
"""The modules whose arithmetic kernels repeat; where another stands for one of them, its rows run by their modules."""


def without_kernel(model: Transformer) -> tuple[str, ...]:
    """The titles of the steps of a model that no kernel makes for one token."""
    programs = (*_blocks(model), *(() if model.head is None else (model.head,)))
    parts = [part for program in programs for part in program.program if not _has_kernel(part)]
    rows = [row for part in parts for row in (part.rows if isinstance(part, Fused) else (part,))]
    return tuple(dict.fromkeys(row.step.title for row in rows if not row.operation.fused))


def _has_kernel(part: Instruction | Fused) -> bool:
    if isinstance(part, Fused):
        return isinstance(part.kernel, FusedAttention)
    operation = type(part.operation)
    own = operation.one_token is not Operation.one_token or operation.pointwise
    return not part.step.core and (own or operation in (operations.Linear, Unembed, Rotate))


def _by_modules(parts: tuple[Instruction | Fused, ...], program: Program, layer: int) -> _Modules:
    made = {part.name for part in parts}
    takes = dict.fromkeys(name for part in parts for name in part.inputs if name not in made)
    later = {name for row in program.rows if row not in parts for name in row.inputs} | {program.rows[-1].name}
    return _Modules(parts, tuple(takes), tuple(part.name for part in parts if part.name in later), layer)


def is_watched(model: Transformer) -> bool:
    """Whether a hook is on any module, or on all."""
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    return hooked or bool(_global_forward_hooks or _global_forward_pre_hooks)


def _kernels_for(model: Transformer, texts: int, kind: Kind) -> Kernels:
    parameters = list(model.parameters())
    on_processor = all(parameter.is_cpu for parameter in parameters)
    if kind.quantize:
        if not on_processor or not multiplies_int8():
            raise UsageError("int8 weights are for decoding on the processor, with a torch that has their operator")
        return Int8Kernels(compiled=kind.compile)
    if kind.compile:
        return CompiledKernels(compiled=True)
    plain = texts == 1 and on_processor and all(parameter.dtype is torch.float32 for parameter in parameters)
    return NumpyKernels() if plain else Kernels()


def _blocks(model: Transformer) -> list[Any]:
    return list(model.blocks)


def _weights(q: Tensor, stored: Tensor, first: int, at: int, scale: float) -> Tensor:
    """Attention weights (B, H, K) of the queries (…, H, D) at ``at``; 0 for what a window hides."""
    keys = repeat_groups(stored[:, :, first : at + 1], q.shape[-2])  # (B, H, K, D)
    scores = attention_scores(q.reshape(len(keys), -1, 1, q.shape[-1]), keys)  # (B, H, 1, K)
    return F.pad(attention_weights(scores * scale)[:, :, 0], (first, 0))
