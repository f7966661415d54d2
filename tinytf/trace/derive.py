"""Steps that are not recorded, computed from those that are, by the functions that the model runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tinytf.model.attention import Sight, attention_scores, attention_weights, mask_scores, scale_scores
from tinytf.model.parts import rotary_table, rotate

if TYPE_CHECKING:
    from tinytf.trace.trace import Trace

Heads = tuple[int, ...] | None
Derivation = Callable[["Trace", Any, int, Heads], Tensor]


def derive(trace: Trace, name: str, layer: int | None, heads: Heads) -> Tensor:
    """The tensor of a step that was not recorded; ``heads`` selects query heads where the step has them."""
    if layer is None:
        return _MODEL_STEPS[name](trace)
    block = trace.model.blocks[layer]
    return _LAYER_STEPS[name](trace, block, layer, heads)


def _of(trace: Trace, name: str, layer: int, heads: Heads = None) -> Tensor:
    return trace.step(name, layer, heads)


def _input(trace: Trace, name: str, layer: int, place: int = 0, heads: Heads = None) -> Tensor:
    return trace.step(trace.steps.by_name[name].inputs[place], layer, heads)


def _rotated(name: str) -> Derivation:
    def rotated(trace: Trace, block: Any, layer: int, heads: Heads) -> Tensor:
        x = _input(trace, name, layer, 0, heads)
        return rotate(x, *rotary_table(x.shape[-2], trace.config.rope, x.device, x.dtype))

    return rotated


def _scores(trace: Trace, block: Any, layer: int, heads: Heads) -> Tensor:
    # A shared key head is asked for by each of its query heads, so that both have the same head axis here.
    which = tuple(range(trace.config.n_heads)) if heads is None else heads
    grouped = trace.config.heads_per_kv > 1
    query = _input(trace, "scores", layer, 0, heads)
    key = _input(trace, "scores", layer, 1, which if grouped else heads)
    return attention_scores(query, key)  # (H, Q, K)


def _masked(trace: Trace, block: Any, layer: int, heads: Heads) -> Tensor:
    scaled = _of(trace, "scaled", layer, heads)
    return mask_scores(scaled, Sight.of(trace.config).allowed(scaled.shape[-1], None, scaled.device))


def _activated(trace: Trace, block: Any, layer: int, heads: Heads) -> Tensor:
    hidden = _of(trace, "ffn.hidden", layer)
    if trace.config.gated:
        return block.ffn.activation(_of(trace, "ffn.gate", layer)) * hidden
    return block.ffn.activation(hidden)


_LAYER_STEPS: dict[str, Derivation] = {
    "norm1": lambda t, b, layer, _: b.norm1(_input(t, "norm1", layer)),
    "q_norm": lambda t, b, layer, heads: b.attention.q_norm(_of(t, "q", layer, heads)),
    "k_norm": lambda t, b, layer, heads: b.attention.k_norm(_of(t, "k", layer, heads)),
    "q_rot": _rotated("q_rot"),
    "k_rot": _rotated("k_rot"),
    "scores": _scores,
    "scaled": lambda t, b, layer, heads: scale_scores(_of(t, "scores", layer, heads), t.config.d_head),
    "masked": _masked,
    "weights": lambda t, b, layer, heads: attention_weights(_input(t, "weights", layer, 0, heads)),
    "concat": lambda t, b, layer, _: _of(t, "heads", layer).transpose(0, 1).flatten(1),
    "mid": lambda t, b, layer, _: _of(t, "in", layer) + _of(t, "attn", layer),
    "norm2": lambda t, b, layer, _: b.norm2(_of(t, "mid", layer)),
    "ffn.act": _activated,
    "sum": lambda t, b, layer, _: _of(t, "norm1", layer) + _of(t, "ffn", layer),
}


def embedding_sum(trace: Trace) -> Tensor:
    """The sum of the recorded embeddings (T, C), in the order in which the model adds them."""
    parts = [
        trace.step(name) for name in ("embed.tokens", "embed.types", "embed.positions") if name in trace.steps.by_name
    ]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def probabilities(logits: Tensor) -> Tensor:
    """Softmax over the vocabulary, summed in float64 and given in float32 at least.

    (In float32 the sum over 50,000 tokens is off by about 1e-5; in half precision the small ones round away.)
    """
    return logits.softmax(dim=-1, dtype=torch.float64).to(torch.promote_types(logits.dtype, torch.float32))


def _head(trace: Trace) -> Any:
    return trace.model.head


_MODEL_STEPS: dict[str, Callable[[Trace], Tensor]] = {
    "embed.sum": embedding_sum,
    "pooled": lambda t: t.model.pool(t.last_hidden[None])[0],
    "head.dense": lambda t: _head(t).dense(t.last_hidden),
    "head.act": lambda t: _head(t).activation(t.step("head.dense")),
    "head.norm": lambda t: _head(t).norm(t.step("head.act")),
    "logits": lambda t: t.model.unembed(t.last_hidden),
    "probs": lambda t: probabilities(t.step("logits")),
}
