"""The measures in conditions on a trace: each gives one number, and the cell that it comes from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from tinytf.errors import AddressError, UsageError
from tinytf.parts.row import TEXT_AXES, Step
from tinytf.steps.table import StepTable
from tinytf.text.tokenizer import Token
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
    """The mean entropy of the rows, in nats; rows are scaled to sum to 1, which matters for weights beside a sink."""
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
"""The measures of a token, at steps of the residual stream, at the final norm, the logits and the probabilities."""

_CELLS = ("mean", "max", "min", "value")
"""The measures that lie between the least and the largest of the numbers."""
_CELL_SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda values: torch.where(torch.isfinite(values), values, -math.inf),
    "min": lambda values: -torch.where(torch.isfinite(values), values, math.inf),
    "nan": lambda values: torch.isnan(values).double(),
    "inf": lambda values: torch.isinf(values).double(),
    "value": lambda values: torch.zeros_like(values),
}
"""The measures that come from one cell, each with a function that is largest at that cell."""


@dataclass(frozen=True)
class Term:
    """A number in a condition: a ``measure`` (``value`` for one cell) ``of`` an address, a token or, if "", the step.

    With ``last`` it is the number in the previous run.
    """

    measure: str
    of: str = ""
    last: bool = False

    def __str__(self) -> str:
        words = self.of if self.measure == "value" else f"{self.measure}({self.of})" if self.of else self.measure
        return f"last({words})" if self.last else words


@dataclass(frozen=True)
class Numbers:
    """Numbers of a step (…, rows, columns), with their indices on each axis and, in ``allowed``, the unmasked cells."""

    step: Step
    layer: int | None
    values: Tensor
    indices: tuple[Sequence[int], ...]
    allowed: Tensor | None = None

    def measured(self, name: str) -> float:
        """The value of a measure; NaN if these numbers lack it."""
        if name == "value":
            return float(self.values) if self.values.numel() == 1 else math.nan
        if name == "entropy":
            return MEASURES[name][0](self.values) if self.step.holds_shares else math.nan
        return MEASURES[name][0](self.values if self.allowed is None else self.values[..., self.allowed])

    def place(self, name: str, trace: Trace, shown: Callable[[int], str] = str) -> str:
        """The cell that a measure comes from, with its tokens; empty for a measure of all cells.

        ``shown`` gives the name of a token or class that the head predicts.
        """
        if name not in _CELL_SCORES:
            return ""
        scores = _CELL_SCORES[name](self.values.double())
        scores = scores if self.allowed is None else scores.masked_fill(~self.allowed, -math.inf)
        argmax = torch.unravel_index(scores.argmax(), scores.shape)
        index = [axis[int(n)] for axis, n in zip(self.indices, argmax, strict=True)]
        axes, part = list(self.step.axes), None
        if self.step.is_split:
            part, index, axes = index[0], index[1:], axes[1:]
        address = Address(self.step, None if self.layer is None else (self.layer,), None if part is None else (part,))
        names: dict[str, Callable[[int], str]] = {
            **{axis: partial(_shown_at, trace.tokens_on(axis)) for axis in TEXT_AXES},
            **dict.fromkeys(self.step.axes[-1:] if self.step.is_vocabulary else (), shown),
        }
        labels = [f"{axis} {names[axis](i)}" for axis, i in zip(axes, index, strict=True) if axis in names]
        cell = replace(address, cell=tuple(map(str, index)))
        return f"{cell}, {', '.join(labels)}" if labels else str(cell)


def numbers(
    trace: Trace, step: Step, layer: int | None, heads: tuple[int, ...] | None = None, cell: Sequence[str] = ()
) -> Numbers:
    """The numbers of a step: of all heads or some, and of the rows and columns that ``cell`` selects.

    A word of the cell is an index, a token or a slice. Raises AddressError for one that does not exist.
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
            group = trace.config.at(layer).heads_per_kv if "kv head" in step.axes else 1
            axes[0] = heads or [part * group for part in axes[0]]
    allowed = visible(trace, step, layer, heads[0] if heads is not None and len(heads) == 1 else None)
    first = len(axes) - min(2, len(axes))
    for i, word in enumerate(cell):
        axis = first + i
        if step.is_vocabulary and not i:
            continue
        picked = _picked(trace, word, step.axes[axis], len(axes[axis]))
        index = torch.tensor([*picked], device=values.device)
        values, axes[axis] = values.index_select(axis, index), picked
        allowed = None if allowed is None else allowed.index_select(i, index)
    return Numbers(step, layer, values, tuple(axes), allowed)


def _picked(trace: Trace, word: str, axis: str, size: int) -> Sequence[int]:
    """The indices that a word of a cell selects on an axis."""
    picked = trace.pick_indices(word, axis, size)
    return [picked] if isinstance(picked, int) else picked


def measure(trace: Trace, name: str, step: Step, layer: int | None, heads: tuple[int, ...] | None = None) -> float:
    """One measure of a step, over all heads or some; NaN if the step lacks it."""
    return numbers(trace, step, layer, heads).measured(name) if step.is_tensor else math.nan


def range_of(term: Term, step: Step | None) -> tuple[float, float]:
    """The least and the largest value that a term can have at ``step``, whatever the model and the text."""
    if term.measure == "prob" or (step is not None and step.holds_shares and term.measure in _CELLS):
        return 0.0, 1.0
    least = {**dict.fromkeys(("std", "norm", "entropy", "nan", "inf"), 0.0), "rank": 1.0}
    return least.get(term.measure, -math.inf), math.inf


def has_outcome(table: StepTable, step: Step) -> bool:
    """Whether the probability and the rank of a token can be read at a step."""
    stream = (table.embedded, table.input, table.mid_stream, table.output, table.final)
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
        logits = model.unembed(model.finish_rows(trace.step(step.name, layer), [position]))[0].double()
    return float(logits.softmax(-1)[token]) if name == "prob" else float((logits > logits[token]).sum() + 1)


@dataclass(frozen=True)
class Moment:
    """A step of a trace where a condition is evaluated, with the selected heads and cell, and the trace ``before``.

    ``find`` gives the id of a token or class that the head predicts, and ``shown`` its name.
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
        """The value of a term; NaN if the step or the text lacks it, or there is no previous run."""
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
            return _joint_measure(self._numbers(trace, term), term.measure)
        except (AddressError, UsageError):
            return math.nan

    def said(self, term: Term) -> str:
        """A term with its value and its cell, for the reader; empty if it has no value."""
        value, cell = self.value(term), ""
        if math.isnan(value) or (term.measure in ("nan", "inf") and not value):
            return ""
        if not term.last and term.measure not in OUTCOMES:
            candidates = self._numbers(self.trace, term)
            source = next(
                (candidate for candidate in candidates if candidate.measured(term.measure) == value), candidates[0]
            )
            cell = source.place(term.measure, self.trace, self.shown)
            if not cell and not term.of and self.heads:
                cell = str(Address(self.step, None if self.layer is None else (self.layer,), self.heads))
        name = "" if term.measure == "value" else f"{term} "
        return f"{name}{value:.4g}" + (f" at {cell}" if cell else "")

    def _numbers(self, trace: Trace, term: Term) -> list[Numbers]:
        if not term.of:
            return [numbers(trace, trace.steps.at(self.step.name, self.layer), self.layer, self.heads, self.cell)]
        layer_step = trace.steps.by_name.get(term.of)
        if layer_step is not None and layer_step.in_layer:  # a step of this layer and these heads
            heads = self.heads if layer_step.is_split and layer_step.letter == self.step.letter else None
            return [numbers(trace, trace.steps.at(layer_step.name, self.layer), self.layer, heads)]
        address = trace.address(term.of)
        if address.step is None:
            raise AddressError(f"{term.of} names no step")
        steps = [(trace.steps.at(address.step.name, layer), layer) for layer in address.layers or (None,)]
        return [numbers(trace, step, layer, address.heads, address.cell) for step, layer in steps]


def _joint_measure(parts: Sequence[Numbers], name: str) -> float:
    """One measure over the numbers of several layers."""
    if len(parts) == 1:
        return parts[0].measured(name)
    if name == "entropy":
        return sum(part.measured(name) for part in parts) / len(parts)
    unmasked = [part.values if part.allowed is None else part.values[..., part.allowed] for part in parts]
    return MEASURES[name][0](torch.cat([values.flatten() for values in unmasked]))


def _shown_at(tokens: Sequence[Token], position: int) -> str:
    return tokens[position].shown
