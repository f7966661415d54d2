"""A trace to hover over: every number at some addresses, with its arithmetic in words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

from torch import Tensor

from tinytf.errors import UsageError
from tinytf.look.explain.data import Explanation
from tinytf.look.explain.follow import explain
from tinytf.look.overview import overview
from tinytf.look.prediction import Prediction, predictions
from tinytf.parts.row import TEXT_AXES
from tinytf.report import DRAWN_BY, About, Data, Report, Verified
from tinytf.sentences import plural
from tinytf.steps.operations.working import PRODUCT
from tinytf.text_model import TextModel
from tinytf.trace.address import Address
from tinytf.trace.trace import Text, Trace, is_masked

MOST = 5_000
"""The most numbers of a page: each is explained, in about a millisecond."""
_TERMS = 4


@dataclass(frozen=True)
class ExplainedNumber(Data):
    """One number, None where it is masked, and its arithmetic in words."""

    address: str
    value: float | None
    arithmetic: str


@dataclass(frozen=True)
class ExplainedMap(Data):
    """A step as a table: the labels of its ``rows`` and ``columns``, and a number for each of both."""

    LESS: ClassVar = ("shares",)

    address: str
    title: str
    formula: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    numbers: tuple[tuple[ExplainedNumber, ...], ...]
    shares: bool


@dataclass(frozen=True)
class TracePage(Report):
    """Every number at some addresses of a trace, explained; ``check`` is that of the number that agrees least."""

    KIND = "page"
    EVENTS: ClassVar = {"tokens": "token", "maps": "map", "check": "check"}
    TABLE = ("maps", "numbers")

    maps: tuple[ExplainedMap, ...]
    predictions: tuple[Prediction, ...]
    check: Verified

    def in_a_sentence(self) -> str:
        """How many numbers there are, and where."""
        count = sum(len(row) for table in self.maps for row in table.numbers)
        return f"{plural(count, 'number')} of {plural(len(self.maps), 'step')}, each with its arithmetic."

    def fields(self) -> dict[str, Any]:
        return self.members("maps", "check")

    def to_html(self) -> str:
        """A page of its own: hover over a number, or go to it with Tab, to read its arithmetic."""
        page: str = import_module(DRAWN_BY).page(self)
        return page

    def _repr_html_(self) -> str:
        return self.to_html()


def page(model: TextModel, text: Text, at: Sequence[str] = ()) -> TracePage:
    """Explain every number at the addresses of ``at``, each one head or one vector a token, in a text or its trace.

    By default these are the steps from scores to output of the head that adds most to the predicted logit. Raises
    UsageError for more than MOST numbers, AddressError as ``explain`` does.
    """
    trace = model.trace(text)
    predicted = predictions(trace, model, top=1)
    addresses = [trace.address(text) for text in at or _of_strongest_head(model, trace, predicted)]
    count = sum(trace[address].numel() for address in addresses)
    if count > MOST:
        raise UsageError(
            f"a page holds {MOST:,} numbers at most, and these are {count:,}", "name fewer steps, or heads"
        )
    worst: list[Explanation] = []
    maps = tuple(_explained(model, trace, address, worst) for address in addresses)
    least = max(worst, key=lambda cell: cell.difference / cell.allowed)
    check = Verified(f"the arithmetic gives the recorded {least.address}", least.difference, least.allowed)
    return TracePage(maps=maps, predictions=predicted, check=check, about=About(model, trace.encoding))


def _of_strongest_head(model: TextModel, trace: Trace, predicted: tuple[Prediction, ...]) -> Iterator[str]:
    """The core steps of the head that adds most to the predicted logit, or to the stream, up to its output."""
    layer, head, _ = overview(trace, predicted, model.shown).ranked[0]
    steps = (step for step in trace.steps.layer_steps if step.core and trace.steps.has(step.name, layer))
    return (f"L{layer}H{head}.{step.name}" for step in steps)


def _explained(model: TextModel, trace: Trace, address: Address, worst: list[Explanation]) -> ExplainedMap:
    values = trace[address]
    if values.dim() != 2 or address.step is None or address.cell:
        raise UsageError(f"{address} is not one table", "name one head, such as L1H2.weights, or a vector a token")
    step, layer = address.step, None if address.layers is None else address.layers[0]
    axes = step.axes[-2:]
    seen = trace.seen(address) if is_masked(trace.steps.at(step.name, layer)) else None

    def label(axis: str, number: int) -> str:
        return trace.tokens_on(axis)[number].shown if axis in TEXT_AXES else f"d{number}"

    def number(row: int, column: int, value: float) -> ExplainedNumber:
        cell = explain(model, trace, f"{address}[{row},{column}]", top=_TERMS)[0]
        worst.append(cell)
        masked = seen is not None and not bool(seen[row, column])
        return ExplainedNumber(cell.address, None if masked else value, in_words(cell))

    numbers = tuple(
        tuple(number(row, column, value) for column, value in enumerate(line))
        for row, line in enumerate(_listed(values))
    )
    rows, columns = (tuple(label(axis, i) for i in range(size)) for axis, size in zip(axes, values.shape, strict=True))
    return ExplainedMap(str(address), step.title, step.formula, rows, columns, numbers, step.holds_shares)


def _listed(values: Tensor) -> list[list[float]]:
    rows: list[list[float]] = values.double().tolist()
    return rows


def in_words(cell: Explanation) -> str:
    """The arithmetic of a number: what comes before, its largest terms, their sum, what comes after."""
    lines = [f"{cell.place}", cell.note] if cell.note else [cell.place]
    lines += [f"{value.name} = {value.value:.6g}" for value in cell.before]
    for term in cell.terms:
        if cell.term_name == PRODUCT:
            computed = " × ".join(f"{factor:.4g}" for factor in term.factors)
        else:
            named = zip(cell.factor_names, term.factors, strict=True)
            computed = ", ".join([*(f"{name} {factor:.4g}" for name, factor in named), cell.term_name])
        lines.append(f"{term.label}: {computed + ' = ' if computed else ''}{term.contribution:+.5g}")
    if cell.rest.count:
        lines.append(f"{cell.rest.count:,} more: {cell.rest.sum:+.5g}")
    if cell.sum is not None:
        lines.append(f"sum = {cell.sum:.6g}")
    lines += [f"{value.name} = {value.value:.6g}" for value in cell.after]
    return "\n".join([*lines, f"= {cell.total:.7g}, recorded {cell.recorded:.7g}"])
