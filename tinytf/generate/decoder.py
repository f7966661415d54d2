"""Decoding of one token: runs the rows of the program by kernels for one token, as fast as memory can be read.

Shapes: B batch, H query heads, G key-value heads, K keys, D head width, C d_model, V vocabulary; without a batch axis
where numpy computes one text.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from tinytf.config import Rope
from tinytf.errors import UsageError
from tinytf.in_file import InFile
from tinytf.memory import page_out
from tinytf.model.cache import KVCache, LayerCache
from tinytf.model.layout import joined, lay_out, products
from tinytf.model.transformer import Block, Head, Transformer
from tinytf.outputs import require_unfenced
from tinytf.parts.attention import Attention
from tinytf.steps import operations
from tinytf.steps.fused import FusedAttention
from tinytf.steps.linear import Linear
from tinytf.steps.one_token import (
    Array,
    CompiledKernels,
    Int8Kernels,
    Kernels,
    Map,
    NumpyKernels,
    Stored,
    multiplies_int8,
)
from tinytf.steps.operations import Choose, ChooseKeys, Operation, Rotate, Sight, Unembed
from tinytf.steps.operations.head_norm import GroupedNorm
from tinytf.steps.operations.linear import Unembedding
from tinytf.steps.operations.operation import Pass, StepModule, repeat_groups
from tinytf.steps.operations.rotate import rotary_table
from tinytf.steps.operations.scores import attention_scores
from tinytf.steps.operations.softmax import attention_weights
from tinytf.steps.program import STREAM, Fused, Instruction, Program
from tinytf.steps.table import table_of

Look = Callable[[int, Tensor], None]
Values = dict[str, Array]


@dataclass(frozen=True)
class Kind:
    """How a decoder computes. With ``compile`` torch generates the kernels, which takes a while and a C++ compiler.

    ``quantize`` converts the weights to int8 for decoding; the prompt is computed with the original weights.
    """

    compile: bool = False
    quantize: bool = False


PLAIN = Kind()


@dataclass(frozen=True, slots=True)
class _TokenPass:
    """The context of one token: a rotation for each RoPE, the visible span for each Sight, a Pass for each layer."""

    kernels: Kernels
    rotations: list[Map]
    spans: list[Any]
    contexts: list[Pass]


@dataclass(frozen=True, slots=True)
class _Compute:
    """Computes one step by its kernel."""

    kernel: Map
    inputs: tuple[str, ...]
    name: str

    def __call__(self, values: Values, now: _TokenPass, stored: Stored | None) -> None:
        values[self.name] = self.kernel(*[values[name] for name in self.inputs])


@dataclass(frozen=True, slots=True)
class _Project:
    """Computes several products of one vector as one; ``parts`` has the name, columns and heads (or 0) of each step."""

    kernel: Map
    source: str
    parts: tuple[tuple[str, int, int, int], ...]

    def __call__(self, values: Values, now: _TokenPass, stored: Stored | None) -> None:
        product = self.kernel(values[self.source])
        for name, start, stop, heads in self.parts:
            part = product if len(self.parts) == 1 else product[..., start:stop]
            values[name] = part.reshape(*part.shape[:-1], heads, -1) if heads else part


@dataclass(frozen=True, slots=True)
class _Rotate:
    """Rotates the first ``width`` dimensions by the position of the new token."""

    rotation: int
    width: int
    source: str
    name: str

    def __call__(self, values: Values, now: _TokenPass, stored: Stored | None) -> None:
        x, rotate = values[self.source], now.rotations[self.rotation]
        is_full = x.shape[-1] == self.width
        values[self.name] = (
            rotate(x) if is_full else now.kernels.concatenate(rotate(x[..., : self.width]), x[..., self.width :])
        )


@dataclass(frozen=True, slots=True)
class _Attend:
    """Computes the head outputs from queries, keys and values, and stores keys and values."""

    span: int
    scale: float
    inputs: tuple[str, ...]
    name: str

    def __call__(self, values: Values, now: _TokenPass, stored: Stored | None) -> None:
        q, k, v = [values[name] for name in self.inputs]
        assert stored is not None, "keys and values of a layer are stored"
        values[QUERIES] = q
        values[self.name] = now.kernels.attend(q, k, v, stored, now.spans[self.span], self.scale)


@dataclass(frozen=True, slots=True)
class _RunModules:
    """Runs rows without a kernel for one token by their modules, in a block or in the head."""

    rows: tuple[Instruction | Fused, ...]
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    layer: int

    def __call__(self, values: Values, now: _TokenPass, stored: Stored | None) -> None:
        tensors = {name: now.kernels.to_module(values[name]) for name in self.takes}
        for row in self.rows:
            tensors[row.name] = row(tensors, now.contexts[self.layer])
        for name in self.gives:
            values[name] = now.kernels.from_module(tensors[name])


Call = Callable[[Values, _TokenPass, Stored | None], None]
QUERIES = "<queries>"
"""The name under which the queries of a layer are stored beside its steps, for looking at attention."""


def _through(
    x: Array, layers: list[list[Call]], ends: list[str], stored: list[Stored], now: _TokenPass
) -> tuple[Array, list[Array]]:
    """Logits (…, V) from embeddings (…, C), and the queries (…, H, D) of every layer; the last layer is the head.

    ``ends`` names the last step of each layer.
    """
    queries = []
    for layer, calls in enumerate(layers):
        values = {STREAM: x}
        for call in calls:
            call(values, now, stored[layer] if layer < len(stored) else None)
        x = values[ends[layer]]
        if QUERIES in values:
            queries.append(values[QUERIES])
    return x, queries


def _compiled() -> Callable[..., tuple[Array, list[Array]]]:
    """``_through``, compiled by torch anew for every kind of model that a process opens.

    torch's cache of graphs on disk is off (that of machine code is not): for a graph with a dynamic length it once
    returned one from another process, compiled for the length of a full cache.
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
    """Computes one token per call with a decoder-only model; ``cache`` holds the earlier tokens.

    One object serves one generation. It lays the model's weights side by side (and leaves them so), or at its first
    token packs bfloat16 weights into a copy of its own. ``texts`` is the largest batch. Rows of the model's program
    run by kernels for one token; a row without one runs by its module, the reference. Raises UsageError for a model
    that it does not ``fit``, and where the ``kind`` is not available.
    """

    def __init__(self, model: Transformer, cache: KVCache, texts: int = 1, kind: Kind = PLAIN) -> None:
        if not self.fits(model):
            raise UsageError("the model has hooks, or is not a plain decoder", "run it through its modules instead")
        self.model, self.cache, self.config = model, cache, model.config
        self.kernels = _kernels_for(model, texts, kind)
        self._packs = self.kernels.copies(model.unembedding)
        if not self._packs:
            lay_out(model)  # before the prompt: its sums too depend on how a matrix lies
        self.ropes: list[Rope] = []
        self.sights: list[Sight] = []
        self.ends = [program.rows[-1].name for program in self._programs]
        self._run: Callable[..., tuple[Array, list[Array]]] = _compiled() if kind.compile else _through

    @property
    def _programs(self) -> list[Program]:
        return [*_blocks(self.model), self.model.require_head("nothing is predicted")]

    @cached_property
    def layers(self) -> list[list[Call]]:
        """The calls of each layer, and of the head.

        Where these hold copies of the weights, what was read of a mapped file is let go, block by block.
        """
        model, layers = self.model, []
        for number, program in enumerate(self._programs):
            layers.append(list(self._calls(program, number)))
            if self._packs:
                page_out([mapped.path for mapped in model.mapped])
        head = model.head
        assert isinstance(head, Head)
        norm = _same if isinstance(model.final_norm, nn.Identity) else self.kernels.norm(model.final_norm)
        layers[-1].insert(0, _Compute(norm, (STREAM,), head.takes))
        return layers

    @property
    def threads_of_torch(self) -> bool:
        """Whether torch does the work, rather than numpy."""
        return not isinstance(self.kernels, NumpyKernels)

    @property
    def can_look(self) -> bool:
        """Whether ``look`` can see the attention of every layer."""
        parts = [part for block in _blocks(self.model) for part in block.program]
        return sum(isinstance(part, Fused) and _has_kernel(part) for part in parts) == len(self.model.blocks)

    @staticmethod
    def fits(model: Transformer) -> bool:
        """Whether the model predicts the next token without choices or states, by tinytf's own modules without hooks.

        Edits of steps that a cache serves, such as a steering vector, fit: their rows run by their modules.
        Different rounding could choose another expert or key; and no kernel here keeps a state.
        """
        parts = [model.final_norm, model.head, *(part for block in _blocks(model) for part in block.modules())]
        is_plain = all(type(module) in _KNOWN for module in parts)
        has_choice = any(
            isinstance(row.operation, Choose | ChooseKeys)
            for block in _blocks(model)
            for row in getattr(block, "rows", ())
        )
        predicts_next = not model.config.looks_ahead and model.config.head.kind == "lm" and not has_choice
        is_plain = is_plain and not table_of(model.config).reads_beside
        is_plain = is_plain and all(block.mixer.called == Attention.called for block in model.config.blocks)
        is_plain = is_plain and not any(isinstance(parameter, InFile) for parameter in model.parameters())
        is_watched_by_others = is_watched(model) and not is_edited_alone(model)
        return is_plain and predicts_next and not is_watched_by_others and not torch.is_autocast_enabled("cpu")

    def _calls(self, program: Program, layer: int) -> Iterator[Call]:
        """The calls that compute a block or the head: kernels, and modules for the rows without a kernel."""
        groups: dict[Any, list[Instruction]] = {}
        for group in products(program):
            whole = all(map(_has_kernel, group))  # the module of an edited row computes it by itself
            groups |= {row: group if whole else [row] for row in group}
        rows = (row for part in program.program for row in (part.rows if _runs_by_rows(part) else (part,)))
        for has_kernel, parts in itertools.groupby(rows, _has_kernel):
            if has_kernel:
                yield from (call for part in parts for call in self._by_kernel(part, groups))
            else:
                yield _by_modules(tuple(parts), program, layer)

    def _by_kernel(self, part: Instruction | Fused, groups: dict[Any, list[Instruction]]) -> Iterator[Call]:
        if isinstance(part, Fused):
            assert isinstance(part.kernel, FusedAttention)
            yield _Attend(_number(self.sights, part.kernel.sight), part.kernel.scale, part.inputs, part.name)
        elif part in groups:
            if part is groups[part][0]:
                yield self._products(groups[part])
        elif isinstance(part.operation, Unembed):
            matrix, bias = self.model.unembedding.detach(), part.module.bias
            assert bias is None or isinstance(bias, Tensor)
            yield _Compute(self.kernels.product(matrix, bias, exact=True), part.inputs, part.name)
        elif isinstance(part.operation, Rotate):
            rope = part.operation.rope
            yield _Rotate(_number(self.ropes, rope), rope.width, part.inputs[0], part.name)
        else:
            kernel = part.operation.one_token(self.kernels, part.module)
            assert kernel is not None, "it has one"
            yield _Compute(kernel, part.inputs, part.name)

    def _products(self, rows: Sequence[Instruction]) -> _Project:
        sizes = [len(row.module.weight) for row in rows]  # type: ignore[arg-type]
        ends = list(itertools.accumulate(sizes))
        parts = tuple((row.name, end - size, end, row.heads) for row, size, end in zip(rows, sizes, ends, strict=True))
        return _Project(self.kernels.product(*joined(rows)), rows[0].inputs[0], parts)

    @torch.inference_mode()
    def __call__(self, ids: Tensor, look: Look | None = None) -> Tensor:
        """Logits (B, V) after one more token of each text: ids (B,).

        ``look`` is called with the number of each layer and the attention weights (B, H, K) of the new tokens to all K
        tokens so far. Raises UsageError where the cache is full.
        """
        with self.model.continuing(self.cache, 1):
            return self._next(ids, look)

    def _next(self, ids: Tensor, look: Look | None) -> Tensor:
        cache, kernels, layers, position = self.cache, self.kernels, self.layers, self.cache.position
        cache.require_room(len(ids), 1)
        embedded = self.model.embed(ids[:, None], start=position)[:, 0]  # (B, C)
        first_keys = [sight.first(position) for sight in self.sights]
        spans = [kernels.span_from(first, position, embedded.device) for first in first_keys]
        has_modules = any(isinstance(call, _RunModules) for calls in layers for call in calls)
        contexts = [Pass(start=position, cache=layer) for layer in cache.layers] if has_modules else []
        now = _TokenPass(kernels, [self._rotation(rope, position, embedded) for rope in self.ropes], spans, contexts)
        stored = [(layer.keys, layer.values) for layer in cache.layers if isinstance(layer, LayerCache)]
        logits, queries = self._run(kernels.from_torch(embedded), layers, self.ends, stored, now)
        if look is not None:
            attended = [call for calls in layers for call in calls if isinstance(call, _Attend)]
            for number, (q, call, (keys, _)) in enumerate(zip(queries, attended, stored, strict=True)):
                look(number, _weights(torch.as_tensor(q), keys, first_keys[call.span], position, call.scale))
        cache.advance(1)
        return kernels.to_torch(logits)

    def _rotation(self, rope: Rope, at: int, x: Tensor) -> Map:
        cosine, sine = rotary_table(at + 1, rope, x.device, x.dtype)
        return self.kernels.rotation(cosine[at], sine[at])


def _same(x: Array) -> Array:
    return x


def _number(items: list[Any], item: Any) -> int:
    if item not in items:
        items.append(item)
    return items.index(item)


_KNOWN = {
    Block, StepModule, Linear, nn.Module, nn.LayerNorm, nn.RMSNorm, GroupedNorm, nn.Identity, nn.Dropout, Head,
    Unembedding,
}  # fmt: skip
"""The modules whose arithmetic the kernels repeat; a model with any other module does not ``fit``."""


def without_kernel(model: Transformer) -> tuple[str, ...]:
    """The titles of the steps of a model that have no kernel for one token."""
    programs = (*_blocks(model), *(() if model.head is None else (model.head,)))
    parts = [part for program in programs for part in program.program if not _has_kernel(part)]
    rows = [row for part in parts for row in (part.rows if isinstance(part, Fused) else (part,))]
    return tuple(dict.fromkeys(row.step.title for row in rows if not row.operation.fused))


def _has_kernel(part: Instruction | Fused) -> bool:
    if isinstance(part, Fused):
        return isinstance(part.kernel, FusedAttention) and not any(_hooks(row.module) for row in part.rows)
    if _hooks(part.module):
        return False
    operation = type(part.operation)
    has_one_token = operation.one_token is not Operation.one_token or operation.pointwise
    return not part.step.core and (has_one_token or operation in (operations.Linear, Unembed, Rotate))


def _runs_by_rows(part: Instruction | Fused) -> TypeGuard[Fused]:
    return isinstance(part, Fused) and not part.fits


def _by_modules(parts: tuple[Instruction | Fused, ...], program: Program, layer: int) -> _RunModules:
    names = {part.name for part in parts}
    takes = dict.fromkeys(name for part in parts for name in part.inputs if name not in names)
    needed = {name for row in program.rows if row not in parts for name in row.inputs} | {program.rows[-1].name}
    return _RunModules(parts, tuple(takes), tuple(part.name for part in parts if part.name in needed), layer)


def is_watched(model: Transformer) -> bool:
    """Whether any module of the model has a hook, or torch has a global one."""
    return any(map(_hooks, model.modules())) or bool(_global_forward_hooks or _global_forward_pre_hooks)


def is_edited_alone(model: Transformer) -> bool:
    """Whether every hook is an edit of a row in a block that a cache serves."""
    rows = [row.module for block in _blocks(model) for row in block.rows]
    count = len(model.by_position) + len(model.remembered)
    has_others = model.needs_whole_text or bool(_global_forward_hooks or _global_forward_pre_hooks)
    return not has_others and count == sum(map(_hooks, rows)) == sum(map(_hooks, model.modules()))


def _hooks(module: nn.Module) -> int:
    return len(module._forward_hooks) + len(module._forward_pre_hooks)


def _kernels_for(model: Transformer, texts: int, kind: Kind) -> Kernels:
    parameters = list(model.parameters())
    on_processor = all(parameter.is_cpu for parameter in parameters)
    if kind.quantize:
        if not on_processor or not multiplies_int8():
            raise UsageError("int8 weights are for decoding on the processor, with a torch that has their operator")
        return Int8Kernels(compiled=kind.compile)
    if kind.compile:
        return CompiledKernels(compiled=True)
    uses_numpy = texts == 1 and on_processor and all(parameter.dtype is torch.float32 for parameter in parameters)
    return NumpyKernels() if uses_numpy else Kernels()


def _blocks(model: Transformer) -> list[Any]:
    return list(model.blocks)


def _weights(q: Tensor, stored: Tensor, first: int, at: int, scale: float) -> Tensor:
    """Attention weights (B, H, K) of the queries (…, H, D) at position ``at``; 0 for hidden keys."""
    keys = repeat_groups(stored[:, :, first : at + 1], q.shape[-2])  # (B, H, K, D)
    scores = attention_scores(q.reshape(len(keys), -1, 1, q.shape[-1]), keys)  # (B, H, 1, K)
    return F.pad(attention_weights(scores * scale)[:, :, 0], (first, 0))
