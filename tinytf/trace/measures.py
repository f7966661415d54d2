"""What a condition measures of a recorded trace: one number, and where it stands."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tinytf.errors import AddressError, UsageError
from tinytf.parts.row import Step
from tinytf.steps.table import StepTable
from tinytf.trace.address import Address
from tinytf.trace.trace import Trace, visible


def _finite(values: Tensor) -> Tensor:
    return values[torch.isfinite(values)]


def _of_finite(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], float]:
    def measure(values: Tensor) -> float:
        finite = _finite(values).double()
        return float(function(finite)) if finite.numel() else math.nan

    return measure


def _entropy(rows: Tensor) -> float:
    """Of the shares of each row's sum, which is 1 but for weights beside a sink."""
    rows = rows.double()
    return float(torch.special.entr(rows / rows.sum(dim=-1, keepdim=True).clamp(min=1e-300)).sum(dim=-1).mean())


MEASURES: dict[str, tuple[Callable[[Tensor], float], str]] = {
    "mean": (_of_finite(torch.mean), "the mean"),
    "max": (_of_finite(torch.max), "the largest"),
    "min": (_of_finite(torch.min), "the smallest"),
    "std": (_of_finite(lambda values: values.std(correction=0)), "the standard deviation"),
    "norm": (_of_finite(torch.linalg.vector_norm), "the length: the root of the sum of squares"),
    "entropy": (_entropy, "of weights and probs: the mean entropy of a row, in nats"),
    "nan": (lambda values: float(torch.isnan(values).sum()), "how many are NaN"),
    "inf": (lambda values: float(torch.isinf(values).sum()), "how many are infinite"),
}
"""The measures of a step's finite and unmasked numbers."""

OUTCOMES = {
    "prob": "prob(·ball): how probable the token is next, read from the residual stream by the final norm and head",
    "rank": "rank(·ball): its rank there; 1 is the most probable",
}
"""The measures of a token, at the steps that are the residual stream, its final norm, logits or probabilities."""

_PLACED: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda values: torch.where(torch.isfinite(values), values, -math.inf),
    "min": lambda values: -torch.where(torch.isfinite(values), values, math.inf),
    "nan": lambda values: torch.isnan(values).double(),
    "inf": lambda values: torch.isinf(values).double(),
    "value": lambda values: torch.zeros_like(values),
}
"""The measures that are about one cell, each with a function that is largest there."""


@dataclass(frozen=True)
class Term:
    """A number of a condition: a ``measure`` (``value``: of one cell) ``of`` an address, a token, or (empty) the step.

    One of the ``last`` run is that of the trace before.
    """

    measure: str
    of: str = ""
    last: bool = False

    def __str__(self) -> str:
        words = self.of if self.measure == "value" else f"{self.measure}({self.of})" if self.of else self.measure
        return f"last({words})" if self.last else words


@dataclass(frozen=True)
class Numbers:
    """Some of a step's numbers (…, rows, columns): the indices of each axis, and which cells are not masked."""

    step: Step
    layer: int | None
    values: Tensor
    indices: tuple[Sequence[int], ...]
    allowed: Tensor | None = None

    def measured(self, name: str) -> float:
        """A measure; NaN where these numbers do not have it."""
        if name == "value":
            return float(self.values) if self.values.numel() == 1 else math.nan
        if name == "entropy":
            return MEASURES[name][0](self.values) if self.step.is_distribution else math.nan
        return MEASURES[name][0](self.values if self.allowed is None else self.values[..., self.allowed])

    def place(self, name: str, trace: Trace, shown: Callable[[int], str] = str) -> str:
        """The cell that a measure is about, with its tokens; empty for a measure of all.

        ``shown`` names a token or class that the head predicts.
        """
        if name not in _PLACED:
            return ""
        scored = _PLACED[name](self.values.double())
        scored = scored if self.allowed is None else scored.masked_fill(~self.allowed, -math.inf)
        spots = torch.unravel_index(scored.argmax(), scored.shape)
        found = [axis[int(spot)] for axis, spot in zip(self.indices, spots, strict=True)]
        axes, part = list(self.step.axes), None
        if self.step.is_split:
            part, found, axes = found[0], found[1:], axes[1:]
        where = Address(self.step, None if self.layer is None else (self.layer,), None if part is None else (part,))
        names: dict[str, Callable[[int], str]] = {
            **dict.fromkeys(("token", "query", "key"), lambda at: trace.tokens[at].shown),
            **dict.fromkeys(self.step.axes[-1:] if self.step.is_vocabulary else (), shown),
        }
        named = [f"{axis} {names[axis](at)}" for axis, at in zip(axes, found, strict=True) if axis in names]
        cell = replace(where, cell=tuple(map(str, found)))
        return f"{cell}, {', '.join(named)}" if named else str(cell)


def numbers(
    trace: Trace, step: Step, layer: int | None, heads: tuple[int, ...] | None = None, cell: Sequence[str] = ()
) -> Numbers:
    """The numbers of a step, of all its heads or of some, and of the rows and columns that a ``cell`` leaves.

    A word of the cell is an index, a token or a slice. Raises AddressError for one that is not there.
    """
    if step.is_vocabulary:
        axes: list[Sequence[int]] = [list(trace.recording.logit_rows)]
        if cell:
            axes[0] = _picked(trace, cell[0], step.axes[0], len(trace.tokens))
        values = trace.vocabulary(step.name, axes[0])
        axes.append(range(values.shape[-1]))
    else:
        values = trace.step(step.name, layer, heads)
        axes = [range(size) for size in values.shape]
        if step.is_split:
            shared = trace.config.at(layer).heads_per_kv if "kv head" in step.axes else 1
            axes[0] = heads or [part * shared for part in axes[0]]
    allowed, first = visible(trace, step, layer), len(axes) - min(2, len(axes))
    for place, word in enumerate(cell):
        axis = first + place
        if step.is_vocabulary and not place:
            continue
        kept = _picked(trace, word, step.axes[axis], len(axes[axis]))
        index = torch.tensor([*kept], device=values.device)
        values, axes[axis] = values.index_select(axis, index), kept
        allowed = None if allowed is None else allowed.index_select(place, index)
    return Numbers(step, layer, values, tuple(axes), allowed)


def _picked(trace: Trace, word: str, axis: str, size: int) -> Sequence[int]:
    """The places that a word of a cell leaves on an axis."""
    found = trace.picked(word, axis, size)
    return [found] if isinstance(found, int) else found


def measure(trace: Trace, name: str, step: Step, layer: int | None, heads: tuple[int, ...] | None = None) -> float:
    """One measure of a step, of all its heads or of some; NaN where the step has no such measure."""
    return numbers(trace, step, layer, heads).measured(name) if step.is_tensor else math.nan


def has_outcome(table: StepTable, step: Step) -> bool:
    """Whether the probability and the rank of a token can be read at a step."""
    stream = (table.embedded, table.input, table.between, table.output, table.final)
    return step.is_vocabulary or step.name in stream


@torch.no_grad()
def outcome(trace: Trace, name: str, token: int, step: Step, layer: int | None) -> float:
    """The probability or the rank of a token after the last position that the head reads; NaN at other steps."""
    table, model, position = trace.steps, trace.model, trace.recording.logit_rows[-1]
    if not has_outcome(table, step):
        return math.nan
    if step.is_vocabulary or step.name == table.final:
        logits = trace.logits_at(position).double()
    else:
        logits = model.unembed(model.final_norm(trace.step(step.name, layer)[[position]]))[0].double()
    return float(logits.softmax(-1)[token]) if name == "prob" else float((logits > logits[token]).sum() + 1)


@dataclass(frozen=True)
class Moment:
    """A step of a trace, where terms have values: the heads and the cell that are looked at, and the run before.

    ``find`` gives the number of a token or class that the head predicts, and ``shown`` its name.
    """

    trace: Trace
    step: Step
    layer: int | None
    heads: tuple[int, ...] | None = None
    cell: tuple[str, ...] = ()
    before: Trace | None = None
    find: Callable[[str], int] | None = None
    shown: Callable[[int], str] = str

    def value(self, term: Term) -> float:
        """The value of a term; NaN where the step, the text or the run before has none."""
        trace = self.before if term.last else self.trace
        if trace is None:
            return math.nan
        try:
            if term.measure in OUTCOMES:
                return (
                    math.nan
                    if self.find is None
                    else outcome(trace, term.measure, self.find(term.of), self.step, self.layer)
                )
            return _joined(self._numbers(trace, term), term.measure)
        except (AddressError, UsageError):
            return math.nan

    def said(self, term: Term) -> str:
        """A term with its value, and the cell that it is about."""
        value, where = self.value(term), ""
        if math.isnan(value) or (term.measure in ("nan", "inf") and not value):
            return ""
        if not term.last and term.measure not in OUTCOMES:
            found = self._numbers(self.trace, term)
            holder = next((one for one in found if one.measured(term.measure) == value), found[0])
            where = holder.place(term.measure, self.trace, self.shown)
            if not where and not term.of and self.heads:
                where = str(Address(self.step, None if self.layer is None else (self.layer,), self.heads))
        name = "" if term.measure == "value" else f"{term} "
        return f"{name}{value:.4g}" + (f" at {where}" if where else "")

    def _numbers(self, trace: Trace, term: Term) -> list[Numbers]:
        if not term.of:
            return [numbers(trace, trace.steps.at(self.step.name, self.layer), self.layer, self.heads, self.cell)]
        near = trace.steps.by_name.get(term.of)
        if near is not None and near.in_layer:  # a step of this layer, and of these heads
            heads = self.heads if near.is_split and near.letter == self.step.letter else None
            return [numbers(trace, trace.steps.at(near.name, self.layer), self.layer, heads)]
        where = trace.address(term.of)
        if where.step is None:
            raise AddressError(f"{term.of} names no step")
        steps = [(trace.steps.at(where.step.name, layer), layer) for layer in where.layers or (None,)]
        return [numbers(trace, step, layer, where.heads, where.cell) for step, layer in steps]


def _joined(found: Sequence[Numbers], name: str) -> float:
    """A measure of the numbers of several layers together."""
    if len(found) == 1:
        return found[0].measured(name)
    if name == "entropy":
        return sum(one.measured(name) for one in found) / len(found)
    every = [one.values if one.allowed is None else one.values[..., one.allowed] for one in found]
    return MEASURES[name][0](torch.cat([values.flatten() for values in every]))
