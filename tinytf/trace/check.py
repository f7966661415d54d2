"""The self-check of a trace: every recorded step, computed again from the steps before it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from tinytf.parts.row import Step
from tinytf.short_repr import ShortRepr
from tinytf.steps.operations import Lookup, Positions
from tinytf.tolerance import Coarse, Compared, Ways, compare, telling
from tinytf.trace.site import Site
from tinytf.trace.trace import Trace

_CHUNK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Check(ShortRepr):
    """Every comparison, in the order of the steps, and the one that tells; a NaN anywhere fails.

    ``exchanged`` are the steps that an intervention replaced, which there is nothing to compare with.
    """

    REPR_FIRST = ("holds", "telling")

    items: tuple[Compared, ...]
    exchanged: tuple[str, ...] = ()

    @property
    def telling(self) -> Compared:
        return telling(self.items)

    @property
    def holds(self) -> bool:
        return self.telling.holds

    def to_dict(self) -> dict[str, Any]:
        told = self.telling
        return {
            "holds": self.holds,
            "steps": len(self.items),
            "difference": told.difference,
            "at": told.step,
            "what": told.what,
            "of": told.scale,
            "allowed": told.allowed,
            **({"exchanged": list(self.exchanged)} if self.exchanged else {}),
        }


def _ways(site: Site, what: str, found: Tensor, expected: Tensor) -> Ways:
    return Ways(site.name, what, found, expected, site.step.token_axis)


def _in_chunks(site: Site, own: list[int]) -> Iterator[Ways]:
    """The mixed values against the recorded ones, and the row sums of the weights, a few heads at a time.

    Only the heads in ``own`` are compared; an intervention replaced the others.
    """
    trace, layer, n_heads, length = site.trace, site.layer, site.config.n_heads, len(site.ids)
    weights = trace.steps.at(trace.steps.weights, layer)
    shares, sums_up = Site(trace, weights, layer), trace.steps.has(weights.name, layer) and weights.is_distribution
    count = max(1, min(n_heads, _CHUNK_BYTES // (4 * length * length)))
    sums: list[Tensor] = []
    wholes: list[Tensor] = []
    mixed: list[Tensor] = []
    for first in range(0, n_heads, count):
        heads = tuple(range(first, min(n_heads, first + count)))
        mixed.append(site.derive(heads))
        heads = tuple(head for head in heads if not trace.is_exchanged(weights.name, layer, head))
        if heads and sums_up:
            sums.append(trace.step(weights.name, layer, heads).sum(dim=-1))
            wholes.append(shares.operation.whole(shares, heads).to(sums[-1]).expand_as(sums[-1]))
    words = "each row sums to 1" if len(shares.sources) == 1 else "each row sums to 1 with the share of the sink"
    if sums:
        yield Ways(shares.name, words, torch.cat(sums), torch.cat(wholes))
    yield _ways(site, site.step.formula, torch.cat(mixed)[own], site.value[own])


def _again(trace: Trace, step: Step, layer: int | None) -> Iterator[Ways]:
    """A recorded step, computed again from the steps before it."""
    site = Site(trace, step, layer)
    if step.from_stream:
        if layer is not None and layer - 1 not in (-1, *trace.recording.layers):
            return  # the previous layer was not recorded
        words = "norm of the last block's output" if layer is None else "the previous block's output"
        yield _ways(site, words, site.value, site.derive())
    elif step.core:
        yield from _in_chunks(site, _own_heads(site))
    elif step.is_vocabulary:
        rows = list(trace.recording.logit_rows)
        if rows:
            again = trace.model.unembed(trace.last_hidden[rows])
            yield _ways(site, "unembedded last hidden state", trace.recorded_logits, again)
            shares = trace.steps.probabilities
            if trace.steps.chooses and shares is not None:
                sums = trace.at_logit_rows(shares).sum(dim=-1, dtype=torch.float64)
                yield Ways(shares.name, "sum to 1", sums, torch.ones_like(sums))
    else:
        words = "sum of embeddings" if step.name == trace.steps.embedded else step.formula
        own = _own_heads(site) if step.has_heads else slice(None)
        yield _ways(site, words, site.value[own], site.derive()[own])


def _own_heads(site: Site) -> list[int]:
    """The heads that no intervention replaced."""
    heads, name = range(len(site.value)), site.step.name
    return [head for head in heads if not site.trace.is_exchanged(name, site.layer, head)]


def _numbered(trace: Trace, step: Step, layer: int | None, number: int) -> Ways:
    """One of the comparisons of ``_again``."""
    return next(islice(_again(trace, step, layer), number, None))


@torch.no_grad()
def check(trace: Trace) -> Check:
    """Recompute every recorded step from those before it and compare; attention step by step, not fused.

    Also: each row of the weights sums to 1, each block's input is the previous block's output, the model's logits are
    those of the recorded last hidden state, and probabilities sum to 1. Steps that an intervention replaced are
    skipped, and named.
    """
    dtype, coarse, underived = trace.last_hidden.dtype, Coarse(trace.model.parameters()), trace.underived()
    items: list[Compared] = []
    for step, layer in trace.steps.rows:
        full = step.full_name(layer)
        here = step.recorded and step.operation is not None and layer in (None, *trace.recording.layers)
        if here and full not in trace.recording.exchanged and not isinstance(step.operation, (Lookup, Positions)):
            for number, ways in enumerate(_again(trace, step, layer)):
                items.append(compare(ways, dtype, coarse, partial(_numbered, underived, step, layer, number)))
    recorded = {f"L{layer}" for layer in trace.recording.layers}
    skipped = tuple(name for name in trace.recording.exchanged if re.split("[.H]", name)[0] in recorded)
    return Check(tuple(items), skipped)
