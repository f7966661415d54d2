"""Does the trace add up? Every recorded step is computed again from the steps before it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tinytf.trace.derive import embedding_sum, probabilities
from tinytf.trace.trace import Trace

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""Largest difference allowed, relative to the largest value of the step (or to 1 where that is smaller)."""

_CHUNK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Item:
    """One comparison: the largest absolute ``difference`` at ``step``, and the largest value that it was of."""

    step: str
    what: str
    difference: float
    scale: float

    @property
    def relative(self) -> float:
        """The difference in units of the scale (or of 1); infinite where either is no finite number."""
        finite = math.isfinite(self.difference) and math.isfinite(self.scale)
        return self.difference / max(1.0, self.scale) if finite else math.inf


@dataclass(frozen=True)
class Check:
    """The outcome: every comparison, and the worst of them; ``holds`` is false for a NaN anywhere.

    ``exchanged`` are the steps that an intervention put there: there is nothing that they could be compared with.
    """

    items: tuple[Item, ...]
    tolerance: float
    exchanged: tuple[str, ...] = ()

    @property
    def worst(self) -> Item:
        return max(self.items, key=lambda item: item.relative)

    @property
    def holds(self) -> bool:
        return self.worst.relative <= self.tolerance

    def to_dict(self) -> dict[str, Any]:
        worst = self.worst
        return {
            "holds": self.holds,
            "steps": len(self.items),
            "largest_difference": worst.difference,
            "at": worst.step,
            "what": worst.what,
            "relative_to": max(1.0, worst.scale),
            "tolerance": self.tolerance,
            **({"exchanged": list(self.exchanged)} if self.exchanged else {}),
        }


def _compare(step: str, what: str, found: Tensor, expected: Tensor) -> Item:
    difference = (found.double() - expected.double()).abs().max() if found.numel() else torch.zeros(())
    scale = expected.double().abs().max() if expected.numel() else torch.zeros(())
    return Item(step, what, float(difference), float(scale))


def _attention(trace: Trace, layer: int) -> Iterator[Item]:
    """weights·v against the recorded heads, and the sums of the rows, a few heads at a time."""
    length, n_heads = len(trace.tokens), trace.config.n_heads
    count = max(1, min(n_heads, _CHUNK_BYTES // (4 * length * length)))
    sums: list[Tensor] = []
    mixed: list[Tensor] = []
    for first in range(0, n_heads, count):
        heads = tuple(range(first, min(n_heads, first + count)))
        weights = trace.step("weights", layer, heads)
        sums.append(weights.sum(dim=-1))
        mixed.append(weights @ trace.step("v", layer, heads))
    row_sums = torch.cat(sums)
    yield _compare(f"L{layer}.weights", "each row sums to 1", row_sums, torch.ones_like(row_sums))
    own = [head for head in range(n_heads) if not trace.is_exchanged("heads", layer, head)]
    yield _compare(f"L{layer}.heads", "weights·v", torch.cat(mixed)[own], trace.step("heads", layer)[own])


def _layer(trace: Trace, layer: int) -> Iterator[Item]:
    block: Any = trace.model.blocks[layer]
    step, table, pre = partial(trace.step, layer=layer), trace.steps.by_name, trace.config.norm_order == "pre"
    if not layer or layer - 1 in trace.recording.layers:
        before = trace.step("out" if pre else "norm2", layer - 1) if layer else trace.model_input
        yield _compare(f"L{layer}.in", "what came out before goes in", step("in"), before)
    for name in ("q", "k", "v"):
        projected = getattr(block.attention, name)(step(table[name].inputs[0]))
        again = projected.unflatten(-1, (-1, trace.config.d_head)).transpose(0, 1)
        yield _compare(f"L{layer}.{name}", table[name].formula, step(name), again)
    yield from _attention(trace, layer)
    yield _compare(f"L{layer}.attn", table["attn"].formula, step("attn"), block.attention.o(step("concat")))
    for name, linear in (("ffn.hidden", "up"), ("ffn.gate", "gate")):
        if name in table:
            again = getattr(block.ffn, linear)(step(table[name].inputs[0]))
            yield _compare(f"L{layer}.{name}", table[name].formula, step(name), again)
    yield _compare(f"L{layer}.ffn", table["ffn"].formula, step("ffn"), block.ffn.down(step("ffn.act")))
    if pre:
        yield _compare(f"L{layer}.out", table["out"].formula, step("out"), step("mid") + step("ffn"))
    else:
        yield _compare(f"L{layer}.norm2", table["norm2"].formula, step("norm2"), block.norm2(step("sum")))


def _layer_of(name: str) -> int:
    return int(name[1:].partition(".")[0].partition("H")[0])


@torch.no_grad()
def check(trace: Trace) -> Check:
    """Recompute every recorded step from those before it and compare; the attention step by step, not fused.

    Also: each row of the weights sums to 1, each block's input is what came out before it, the logits that the
    model gave are those of the recorded last hidden state, probabilities sum to 1. Steps that an intervention put
    there are left out, and named.
    """
    items: list[Item] = []
    embeddings = embedding_sum(trace)
    if trace.config.embed_norm:
        embeddings = trace.model.embed.norm(embeddings)
    items.append(_compare("embed.norm" if trace.config.embed_norm else "embed.out", "sum of embeddings",
                          trace.model_input, embeddings))  # fmt: skip
    for layer in trace.recording.layers:
        items.extend(item for item in _layer(trace, layer) if item.step not in trace.recording.exchanged)
    if trace.config.final_norm:
        last = trace.step("out", trace.config.n_layers - 1)
        again = trace.model.final_norm(last)
        items.append(_compare("final.norm", "norm of the last block's output", trace.last_hidden, again))
    if trace.recording.logit_rows:
        rows = list(trace.recording.logit_rows)
        again = trace.model.unembed(trace.last_hidden[rows])
        items.append(_compare("logits", "unembedded last hidden state", trace.recorded_logits, again))
        sums = probabilities(trace.recorded_logits).sum(dim=-1, dtype=torch.float64)
        items.append(_compare("probs", "sum to 1", sums, torch.ones_like(sums)))
    dtype = trace.last_hidden.dtype
    here = tuple(name for name in trace.recording.exchanged if _layer_of(name) in trace.recording.layers)
    return Check(tuple(items), TOLERANCE.get(dtype, 1e-5), here)
