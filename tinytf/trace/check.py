"""The self-check of a trace: every recorded step, computed again from the steps before it."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinytf.brief import Brief
from tinytf.steps.operations import Lookup, Positions
from tinytf.steps.table import Step
from tinytf.tolerance import STEP, allowed
from tinytf.trace.site import Site
from tinytf.trace.trace import Trace

_CHUNK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Item:
    """One comparison at ``step``: the largest absolute ``difference``, and the largest value (``scale``)."""

    step: str
    what: str
    difference: float
    scale: float

    @property
    def relative(self) -> float:
        """The difference relative to the scale, or to 1 if that is larger; infinite where either is not finite."""
        finite = math.isfinite(self.difference) and math.isfinite(self.scale)
        return self.difference / max(1.0, self.scale) if finite else math.inf


@dataclass(frozen=True)
class Check(Brief):
    """Every comparison, and the worst of them; a NaN anywhere fails.

    ``exchanged`` are the steps that an intervention replaced, which there is nothing to compare with.
    """

    SAID = ("holds", "worst")

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


def _in_chunks(site: Site, own: Sequence[int]) -> Iterator[Item]:
    """The mixed values against the recorded ones, and the row sums of the weights, a few heads at a time.

    Only the heads in ``own`` are compared; an intervention replaced the others.
    """
    trace, layer, n_heads, length = site.trace, site.layer, site.config.n_heads, len(site.ids)
    weights = site.source_steps[0]
    shares = Site(trace, weights, layer)
    count = max(1, min(n_heads, _CHUNK_BYTES // (4 * length * length)))
    sums: list[Tensor] = []
    wholes: list[Tensor] = []
    mixed: list[Tensor] = []
    for first in range(0, n_heads, count):
        heads = tuple(range(first, min(n_heads, first + count)))
        mixed.append(site.derive(heads))
        heads = tuple(head for head in heads if not trace.is_exchanged(weights.name, layer, head))
        if heads:
            sums.append(trace.step(weights.name, layer, heads).sum(dim=-1))
            wholes.append(shares.operation.whole(shares, heads).to(sums[-1]).expand_as(sums[-1]))
    words = "each row sums to 1" if len(shares.sources) == 1 else "each row sums to 1 with the share of the sink"
    if sums:
        yield _compare(shares.name, words, torch.cat(sums), torch.cat(wholes))
    own = list(own)
    yield _compare(site.name, site.step.formula, torch.cat(mixed)[own], site.value[own])


def _again(trace: Trace, step: Step, layer: int | None) -> Iterator[Item]:
    """A recorded step, computed again from the steps before it."""
    site = Site(trace, step, layer)
    if step.from_stream:
        if layer is not None and layer - 1 not in (-1, *trace.recording.layers):
            return  # the previous layer was not recorded
        words = "norm of the last block's output" if layer is None else "the previous block's output"
        yield _compare(site.name, words, site.value, site.derive())
    elif step.core:
        own = [head for head in range(site.config.n_heads) if not trace.is_exchanged(step.name, layer, head)]
        yield from _in_chunks(site, own)
    elif step.is_vocabulary:
        rows = list(trace.recording.logit_rows)
        if rows:
            again = trace.model.unembed(trace.last_hidden[rows])
            yield _compare(site.name, "unembedded last hidden state", trace.recorded_logits, again)
            shares = trace.steps.probabilities
            if trace.steps.chooses and shares is not None:
                sums = trace.at_logit_rows(shares).sum(dim=-1, dtype=torch.float64)
                yield _compare(shares.name, "sum to 1", sums, torch.ones_like(sums))
    else:
        words = "sum of embeddings" if step.name == trace.steps.embedded else step.formula
        yield _compare(site.name, words, site.value, site.derive())


@torch.no_grad()
def check(trace: Trace) -> Check:
    """Recompute every recorded step from those before it and compare; attention step by step, not fused.

    Also: each row of the weights sums to 1, each block's input is the previous block's output, the model's logits are
    those of the recorded last hidden state, and probabilities sum to 1. Steps that an intervention replaced are
    skipped, and named.
    """
    items: list[Item] = []
    for step, layer in trace.steps.rows:
        full = step.full_name(layer)
        here = step.recorded and step.operation is not None and layer in (None, *trace.recording.layers)
        if here and full not in trace.recording.exchanged and not isinstance(step.operation, (Lookup, Positions)):
            items.extend(_again(trace, step, layer))
    dtype = trace.last_hidden.dtype
    recorded = {f"L{layer}" for layer in trace.recording.layers}
    skipped = tuple(name for name in trace.recording.exchanged if re.split("[.H]", name)[0] in recorded)
    return Check(tuple(items), allowed(STEP, dtype), skipped)
