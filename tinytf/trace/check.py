"""The self-check of a trace: recompute every recorded step from the steps before it, and compare."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from tinytf.counting import counted
from tinytf.parts.row import Step
from tinytf.short_repr import ShortRepr
from tinytf.steps.operations import Lookup, Positions
from tinytf.tolerance import Coarse, Comparison, TwoResults, compare, worst_or_first_failure
from tinytf.trace.faults import first_not_finite, overflow_at
from tinytf.trace.site import Site
from tinytf.trace.trace import Trace

_CHUNK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Check(ShortRepr):
    """All comparisons in the order of the steps, and the ``telling`` one: a failure, or the largest; any NaN fails.

    ``exchanged`` are the steps that an intervention replaced; they cannot be compared. If numbers are not finite,
    ``first_not_finite`` names the first such step of the pass, which may be one that is not compared, and ``overflow``
    says what it reaches if that is too large for its type.
    """

    REPR_FIRST = ("holds", "telling")

    items: tuple[Comparison, ...]
    exchanged: tuple[str, ...] = ()
    first_not_finite: str | None = None
    overflow: str = ""

    @property
    def telling(self) -> Comparison:
        telling = worst_or_first_failure(self.items)
        if telling.is_finite or self.first_not_finite is None:
            return telling
        return replace(telling, step=self.first_not_finite, what="every number is finite")

    @property
    def holds(self) -> bool:
        return self.telling.holds

    def to_dict(self) -> dict[str, Any]:
        telling = self.telling
        return {
            "holds": self.holds,
            "steps": len(self.items),
            "difference": telling.difference,
            "at": telling.step,
            "what": telling.what,
            "of": telling.scale,
            "allowed": telling.allowed,
            **({"exchanged": list(self.exchanged)} if self.exchanged else {}),
            **({"overflow": self.overflow} if self.overflow else {}),
        }


def _ways(site: Site, what: str, value: Tensor, expected: Tensor) -> TwoResults:
    return TwoResults(site.name, what, value, expected, site.step.token_axis)


def _in_chunks(site: Site, original_heads: list[int]) -> Iterator[TwoResults]:
    """Compare the mixed values with the recorded ones, and the row sums of the weights, a few heads at a time.

    Only ``original_heads`` are compared; an intervention replaced the others.
    """
    trace, layer, n_heads, length = site.trace, site.layer, site.config.n_heads, len(site.ids)
    weights = trace.steps.at(trace.steps.weights, layer)
    weights_site, sums_to_one = (
        Site(trace, weights, layer),
        trace.steps.has(weights.name, layer) and weights.holds_shares,
    )
    count = max(1, min(n_heads, _CHUNK_BYTES // (4 * length * length)))
    sums: list[Tensor] = []
    expected_sums: list[Tensor] = []
    mixed: list[Tensor] = []
    for first in range(0, n_heads, count):
        heads = tuple(range(first, min(n_heads, first + count)))
        mixed.append(site.derive(heads))
        heads = tuple(head for head in heads if not trace.is_exchanged(weights.name, layer, head))
        if heads and sums_to_one:
            sums.append(trace.step(weights.name, layer, heads).sum(dim=-1))
            expected_sums.append(weights_site.operation.whole(weights_site, heads).to(sums[-1]).expand_as(sums[-1]))
    label = "each row sums to 1" if len(weights_site.sources) == 1 else "each row sums to 1 with the share of the sink"
    if sums:
        yield TwoResults(weights_site.name, label, torch.cat(sums), torch.cat(expected_sums))
    yield _ways(site, site.step.formula, torch.cat(mixed)[original_heads], site.value[original_heads])


def _recompute(trace: Trace, step: Step, layer: int | None) -> Iterator[TwoResults]:
    """Recompute a recorded step from the steps before it; yield each comparison."""
    site = Site(trace, step, layer)
    if step.from_stream:
        if layer is not None and layer - 1 not in (-1, *trace.recording.layers):
            return  # the previous layer was not recorded
        label = "norm of the last block's output" if layer is None else "the previous block's output"
        yield _ways(site, label, site.value, site.derive())
    elif step.core:
        yield from _in_chunks(site, _original_heads(site))
    elif step.is_vocabulary:
        rows = list(trace.recording.logit_rows)
        if rows:
            recomputed = trace.model.unembed(trace.last_hidden[rows])
            yield _ways(site, "unembedded last hidden state", trace.recorded_logits, recomputed)
            probabilities = trace.steps.probabilities
            if trace.steps.chooses and probabilities is not None:
                sums = trace.at_logit_rows(probabilities).sum(dim=-1, dtype=torch.float64)
                yield TwoResults(probabilities.name, "sum to 1", sums, torch.ones_like(sums))
    else:
        label = "sum of embeddings" if step.name == trace.steps.embedded else step.formula
        heads = _original_heads(site) if step.has_heads else slice(None)
        yield _ways(site, label, site.value[heads], site.derive()[heads])


def _original_heads(site: Site) -> list[int]:
    """The heads that no intervention replaced."""
    heads, name = range(len(site.value)), site.step.name
    return [head for head in heads if not site.trace.is_exchanged(name, site.layer, head)]


def _comparison(trace: Trace, step: Step, layer: int | None, number: int) -> TwoResults:
    """The ``number``-th comparison of ``_recompute``."""
    return next(islice(_recompute(trace, step, layer), number, None))


@torch.no_grad()
def check(trace: Trace) -> Check:
    """Recompute every recorded step from the steps before it and compare; attention runs step by step, not fused.

    Also check that each row of the weights sums to 1, each block's input is the previous block's output, the model's
    logits follow from the recorded last hidden state, and probabilities sum to 1. Steps that an intervention replaced
    are skipped, and named.
    """
    dtype, coarse, underived = trace.last_hidden.dtype, Coarse(trace.model.parameters()), trace.underived()
    items: list[Comparison] = []
    for step, layer in counted("steps checked:", trace.steps.rows):
        name = step.full_name(layer)
        is_recorded = step.recorded and step.operation is not None and layer in (None, *trace.recording.layers)
        if (
            is_recorded
            and name not in trace.recording.exchanged
            and not isinstance(step.operation, (Lookup, Positions))
        ):
            for number, ways in enumerate(_recompute(trace, step, layer)):
                items.append(compare(ways, dtype, coarse, partial(_comparison, underived, step, layer, number)))
    recorded = {f"L{layer}" for layer in trace.recording.layers}
    replaced = dict.fromkeys(trace.recording.exchanged)
    skipped = tuple(exchanged for exchanged in replaced if re.split("[.H]", exchanged)[0] in recorded)
    first = None if all(item.is_finite for item in items) else first_not_finite(trace)
    return Check(tuple(items), skipped, first, overflow_at(trace, first) if first else "")
