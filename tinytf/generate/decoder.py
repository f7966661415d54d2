"""One more token through the whole stack: the arithmetic of the modules without their calls, as fast as memory is read.

Shapes: B batch, H query heads, G key-value heads, K keys, D head width, C d_model, V vocabulary; where one text goes
through numpy there is no batch axis.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from tinytf.errors import UsageError
from tinytf.generate.implemented import unimplemented
from tinytf.generate.kernels import Array, CompiledKernels, Int8Kernels, Kernels, Map, NumpyKernels, Stored
from tinytf.generate.layout import joined, lay_out
from tinytf.generate.matrices import multiplies_int8
from tinytf.model.cache import KVCache
from tinytf.model.transformer import Block, Head, Transformer
from tinytf.outputs import require_unfenced
from tinytf.steps.linear import Linear
from tinytf.steps.operations.activate import ACTIVATIONS
from tinytf.steps.operations.linear import Unembedding
from tinytf.steps.operations.operation import StepModule, repeat_groups
from tinytf.steps.operations.rotate import rotary_table
from tinytf.steps.operations.scale import scale_scores
from tinytf.steps.operations.scores import attention_scores
from tinytf.steps.operations.softmax import attention_weights

Look = Callable[[int, Tensor], None]


@dataclass(frozen=True)
class Kind:
    """How a decoder computes. ``compile`` has torch write the kernels: it takes a while and a C++ compiler.

    ``quantize`` turns the weights into int8 for decoding; the prompt is computed with the original weights.
    """

    compile: bool = False
    quantize: bool = False


PLAIN = Kind()


@dataclass(frozen=True, slots=True)
class _Layer:
    """Everything of a block: its norms by their slots, q, k and v as one matrix, and gate and up as one."""

    parallel: bool
    shared: bool
    n_heads: int
    groups: int
    gate: int
    into_attention: Map | None
    qkv: Map
    q_norm: Map | None
    k_norm: Map | None
    o: Map
    attn_norm: Map | None
    after_attention: Map | None
    into_ffn: Map | None
    wide: Map
    activation: Map
    down: Map
    ffn_norm: Map | None
    after_ffn: Map | None


def _normed(x: Array, norm: Map | None) -> Array:
    return x if norm is None else norm(x)


def _project(x: Array, layer: _Layer, rotate: Map | None, join: Map) -> tuple[Array, Array, Array]:
    """Queries (…, H, D), keys and values (…, G, D) of what attention reads (…, C), normed and rotated."""
    qkv = layer.qkv(x)
    heads = qkv.reshape(*qkv.shape[:-1], layer.n_heads + 2 * layer.groups, -1)  # (…, H + 2G, D)
    qk, v = heads[..., : -layer.groups, :], heads[..., -layer.groups :, :]
    if layer.q_norm is not None and layer.k_norm is not None:
        qk = join((layer.q_norm(qk[..., : layer.n_heads, :]), layer.k_norm(qk[..., layer.n_heads :, :])))
    if rotate is not None:
        qk = rotate(qk)
    return qk[..., : layer.n_heads, :], qk[..., layer.n_heads :, :], v


def _finish(x: Array, read: Array, heads: Array, layer: _Layer) -> Array:
    """The block's output (…, C) of its input, what attention read of it, and attention's heads (…, H·D)."""
    mid = _normed(x + _normed(layer.o(heads), layer.attn_norm), layer.after_attention)
    wide = layer.wide(read if layer.shared else _normed(x if layer.parallel else mid, layer.into_ffn))
    hidden = layer.activation(wide[..., : layer.gate or None])
    ffn = layer.down(hidden * wide[..., layer.gate :] if layer.gate else hidden)
    return _normed(mid + _normed(ffn, layer.ffn_norm), layer.after_ffn)


def _through(
    x: Array,
    layers: list[_Layer],
    stored: list[Stored],
    place: Any,
    rotate: Map | None,
    norm: Map | None,
    head: Map,
    kernels: Kernels,
) -> tuple[Array, list[Array]]:
    """Logits (…, V) of embeddings (…, C), and the queries (…, H, D) of every layer; keys and values are stored."""
    queries = []
    for layer, cached in zip(layers, stored, strict=True):
        read = _normed(x, layer.into_attention)
        q, k, v = _project(read, layer, rotate, kernels.joined)
        queries.append(q)
        x = _finish(x, read, kernels.attend(q, k, v, cached, place), layer)
    return head(_normed(x, norm)), queries


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
    packed, in a copy that lasts as long as this object. ``texts`` is the largest batch. It is a second forward pass;
    that of the modules is the truth, and ``fits`` says whether this one may replace it. Raises UsageError where it may
    not, or where the ``kind`` is not available.
    """

    def __init__(self, model: Transformer, cache: KVCache, texts: int = 1, kind: Kind = PLAIN) -> None:
        if not self.fits(model):
            raise UsageError("the model has hooks, or is no plain decoder", "run it through its modules instead")
        lay_out(model)
        self.model, self.cache, self.config = model, cache, model.config
        assert model.head is not None
        self.kernels = _kernels_for(model, texts, kind)
        self.head = self.kernels.product(model.unembedding.detach(), model.head.decoder.bias, exact=True)
        self.final_norm = self.kernels.norm(model.final_norm)
        self.layers = [self._layer(block) for block in _blocks(model)]
        self._run: Callable[..., tuple[Array, list[Array]]] = _compiled() if kind.compile else _through

    @property
    def threads_of_torch(self) -> bool:
        """Whether its work is done by torch, rather than by numpy."""
        return not isinstance(self.kernels, NumpyKernels)

    @staticmethod
    def fits(model: Transformer) -> bool:
        """Whether its configuration is implemented here, and its parts are tinytf's own, without hooks."""
        replaced = [model.final_norm, model.head, *(part for block in _blocks(model) for part in block.modules())]
        plain = all(type(module) in _KNOWN for module in replaced)
        usual = not is_watched(model) and not torch.is_autocast_enabled("cpu")
        return plain and usual and not unimplemented(model.config)

    def _layer(self, block: Any) -> _Layer:
        config, kernels = self.config, self.kernels
        rows = {row.name: row for row in block.rows}

        def norm(name: str, *reads: str) -> Map | None:
            """The norm of that name, where it is there and takes one of the steps that it ``reads``."""
            row = rows.get(name)
            return None if row is None or row.inputs[0] not in reads else kernels.norm(row.module)

        def product(*names: str) -> Map:
            return kernels.product(*joined([rows[name].module for name in names if name in rows]))

        return _Layer(
            parallel="mid" not in rows,
            shared=config.shared_norm,
            n_heads=config.n_heads,
            groups=config.n_kv_heads,
            gate=config.d_ff if config.gated else 0,
            into_attention=norm("norm1", "in"),
            qkv=product("q", "k", "v"),
            q_norm=norm("q_norm", "q"),
            k_norm=norm("k_norm", "k"),
            o=product("attn"),
            attn_norm=norm("attn_norm", "attn"),
            after_attention=norm("norm1", "mid"),
            into_ffn=norm("norm2", "mid", "in"),
            wide=product("ffn.gate", "ffn.hidden"),
            activation=kernels.pointwise(ACTIVATIONS[config.activation]),
            down=product("ffn"),
            ffn_norm=norm("ffn_norm", "ffn"),
            after_ffn=norm("norm2", "sum"),
        )

    @torch.inference_mode()
    def __call__(self, ids: Tensor, look: Look | None = None) -> Tensor:
        """Logits (B, V) after one more token of each text: ids (B,).

        ``look`` is called with every layer's number and the attention weights (B, H, K) of the new tokens to all K so
        far. Raises UsageError where the cache is full.
        """
        cache, kernels, at = self.cache, self.kernels, self.cache.position
        cache.require_room(len(ids), 1)
        embedded = self.model.embed(ids[:, None], start=at)[:, 0]  # (B, C)
        x, rotate = kernels.arriving(embedded), self._rotation(at, embedded)
        first = max(0, at + 1 - self.config.window) if self.config.window else 0
        place = kernels.place(first, at, embedded.device)
        stored = [(layer.keys, layer.values) for layer in cache.layers]
        logits, queries = self._run(x, self.layers, stored, place, rotate, self.final_norm, self.head, kernels)
        if look is not None:
            for number, (q, (keys, _)) in enumerate(zip(queries, stored, strict=True)):
                look(number, _weights(torch.as_tensor(q), keys, first, at))
        cache.advance(1)
        found, scale = kernels.leaving(logits), self.config.logit_scale
        return found if scale == 1 else found * scale

    def _rotation(self, at: int, x: Tensor) -> Map | None:
        if self.config.positions != "rotary":
            return None
        cosine, sine = rotary_table(at + 1, self.config.rope, x.device, x.dtype)
        return self.kernels.rotation(cosine[at], sine[at])


_KNOWN = {
    Block, StepModule, Linear, nn.Module, nn.LayerNorm, nn.RMSNorm, nn.Identity, nn.Dropout, Head, Unembedding,
}  # fmt: skip
"""The modules whose arithmetic is repeated here; a module that replaces one of them is not implemented."""


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


def _weights(q: Tensor, stored: Tensor, first: int, at: int) -> Tensor:
    """Attention weights (B, H, K) of the queries (…, H, D) at ``at``; 0 for what a window hides."""
    keys = repeat_groups(stored[:, :, first : at + 1], q.shape[-2])  # (B, H, K, D)
    scores = attention_scores(q.reshape(len(keys), -1, 1, q.shape[-1]), keys)  # (B, H, 1, K)
    return F.pad(attention_weights(scale_scores(scores, q.shape[-1]))[:, :, 0], (first, 0))
