"""The view of an explanation: the values, the terms and their sum, the inputs, and whether it all adds up."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tinytf.look.explain import TEMPERATURES, Explained, Explanation
from tinytf.steps.operations.working import Value
from tinytf_cli.numbers import number_format
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import (
    Block,
    Cell,
    Column,
    Curve,
    Curves,
    Figure,
    Heading,
    Line,
    Piece,
    Signed,
    Span,
    Table,
)
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import BLANK, full_scale, not_finite, verdict

_EXACT = "%.7g"


@dataclass(frozen=True)
class ExplainDisplay(Display):
    """``homework`` leaves blanks for the numbers that the arithmetic gives."""

    homework: bool = False

    @property
    def conceals(self) -> bool:
        return self.homework


@draws(Explained, ExplainDisplay)
def explain(report: Explained, terminal: Terminal, display: ExplainDisplay) -> Iterator[Block]:
    """The requested cell, then what it came from, step by step."""
    yield from banner(model_of(report), report.encoding)
    into = {lead: cell.address for cell in reversed(report.cells) for lead in cell.leads_to}
    for cell in report.cells:
        yield from _explanation(cell, into.get(cell.address, ""), display.homework)
    if display.homework:
        return
    yield from _temperatures(report)
    yield Line("")
    if report.levels < report.depth:
        yield Line(Span(f"all {report.levels} levels of the {report.depth:,} asked for: nothing is below", "dim"))
    yield _check(report)


def _temperatures(report: Explained) -> Iterator[Block]:
    """The probability of some tokens as a curve over the temperature that divides the logits."""
    if not all(map(all, map(np.isfinite, report.by_temperature.values()))) or not report.by_temperature:
        return
    yield Heading(
        "temperature", "probability when it divides the logits: low ones favour the likeliest token", "output"
    )
    rows = list(zip(report.by_temperature.items(), ("output", "q", "k", "v"), strict=False))
    x = np.array(TEMPERATURES)
    yield Curves([Curve(name, x, np.array(y), role) for (name, y), role in rows], "temperature", "p", 6)


def _check(report: Explained) -> Line:
    """Whether the arithmetic gives the recorded numbers, and where it is furthest off."""
    worst = report.worst
    off, recorded = Figure(worst.difference, "%.1e"), Figure(worst.recorded, _EXACT)
    if report.first_not_finite:
        return not_finite(report.first_not_finite)
    if not worst.holds:
        differ: list[Piece] = [" and the recorded ", recorded, " differ by ", off, f" (allowed {worst.allowed:.1e})"]
        return verdict(False, [f"at {worst.address} ", Figure(worst.total, _EXACT), *differ])
    if len(report) > 1:
        cells = f"the terms add up to the recorded numbers of {len(report)} cells, off by "
        return verdict(True, [cells, off, f" at {worst.address}"])
    summed = not worst.after and len(worst.terms) + worst.rest.count > 1
    clause = "the terms add up" if summed else "the arithmetic comes"
    return verdict(True, [f"{clause} to the recorded ", recorded, ", off by ", off])


def _explanation(cell: Explanation, into: str, homework: bool) -> Iterator[Block]:
    """One cell; ``into`` is the address of the earlier cell that it goes into, or empty."""
    yield Heading(cell.address, f"{cell.title}: {cell.formula}", cell.role)
    back = f"{cell.depth - 1} back, goes into {into} · " if into else ""
    yield Line(Span(f"{back}{cell.place} · {cell.kind}", "dim"), indent=2)
    if cell.note:
        yield Line(cell.note, indent=2)
    yield from _values(cell.before)
    if cell.terms:
        yield _terms(cell, homework)
    yield from _values(cell.after, homework)
    recorded: list[Piece] = [Span("   recorded ", "dim"), Figure(cell.recorded, _EXACT, "dim")]
    yield Line(["= ", BLANK] if homework else ["= ", Figure(cell.total, _EXACT, "strong"), *recorded], indent=2)
    for index, source in enumerate(cell.inputs):
        word = " and" if index else "from"
        yield Line([Span(f"{word} "), Span(source.address, "strong"), Span(f"   {source.formula}", "dim")], indent=2)


def _values(values: Sequence[Value], blank: bool = False) -> Iterator[Block]:
    if values:
        yield Table(
            [
                Column("", [value.name for value in values]),
                Column("", [BLANK if blank else Figure(value.value, _EXACT) for value in values], "right"),
                Column("", [Span(value.expression, "dim") for value in values], shrink=8),
            ],
            header=False,
        )


def _terms(cell: Explanation, homework: bool) -> Table:
    """The terms with a bar each, largest first, then the sum of the others, then the total.

    In ``homework`` only the sum of the others is given: its terms are not shown.
    """
    labels: list[Cell] = [term.label for term in cell.terms]
    sizes = [term.contribution for term in cell.terms]
    full = full_scale(sizes)
    if cell.rest.count:
        labels.append(Span(f"{cell.rest.count:,} more", "dim"))
        sizes.append(cell.rest.sum)
    if len(sizes) > 1 and cell.sum is not None:
        labels.append(Span("sum", "strong"))
        sizes.append(cell.sum)
    form = "%.6f" if full >= 1e-3 else "%.3e"  # so that the printed numbers add up within 1e-5 too
    bars: list[Cell] = [Signed(size, full, form) for size in sizes[: len(cell.terms)]]
    bars += [Figure(size, form) for size in sizes[len(cell.terms) :]]
    if homework:
        given = len(cell.terms) if cell.rest.count else -1
        bars = [bar if index == given else BLANK for index, bar in enumerate(bars)]
    factors = [
        Column(name, _factors(cell, index, len(labels)), "right", drop=1)
        for index, name in enumerate(cell.factor_names)
    ]
    return Table([Column("term", labels, shrink=12, said=""), *factors, Column(cell.term_name, bars)])


def _factors(cell: Explanation, index: int, rows: int) -> list[Cell]:
    """One factor of each term, as a column of ``rows`` cells."""
    values = [term.factors[index] if term.factors else None for term in cell.terms]
    form = number_format(np.array([value for value in values if value is not None], dtype=np.float32))
    cells: list[Cell] = ["" if value is None else Figure(value, form) for value in values]
    return cells + [""] * (rows - len(cells))
