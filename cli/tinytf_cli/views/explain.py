"""The view of an explanation: the values, the terms and their sum, the inputs, and whether it all adds up."""

from collections.abc import Iterator, Sequence

import numpy as np

from tinytf.loading import Model
from tinytf.look.arithmetic import Explained, Explanation
from tinytf.steps.operations.working import Value
from tinytf_cli.numbers import number_format
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Cell, Column, Figure, Heading, Line, Piece, Signed, Span, Table
from tinytf_cli.views.parts import full_scale, not_finite, verdict


class ExplainView:
    """The explained cells, drawn; the requested one first."""

    def __init__(self, model: Model, found: Explained) -> None:
        self.model, self.found = model, found

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The requested cell, then what it came from, step by step."""
        yield from banner(self.model, self.found.encoding)
        into = {lead: one.address for one in reversed(self.found.cells) for lead in one.leads_to}
        for one in self.found.cells:
            yield from _explanation(one, into.get(one.address, ""))
        yield Line("")
        if self.found.levels < self.found.depth:
            yield Line(
                Span(f"all {self.found.levels} levels of the {self.found.depth:,} asked for: nothing is below", "dim")
            )
        yield self._check()

    def _check(self) -> Line:
        one, several = self.found.worst, len(self.found) > 1
        off, recorded = Figure(one.difference, "%.1e"), Figure(one.recorded, _EXACT)
        if self.found.first_not_finite:
            return not_finite(self.found.first_not_finite)
        if not one.holds:
            differ: list[Piece] = [" and the recorded ", recorded, " differ by ", off, f" (allowed {one.allowed:.1e})"]
            return verdict(False, [f"at {one.address} ", Figure(one.total, _EXACT), *differ])
        if several:
            of = f"recorded numbers of {len(self.found)} cells, off by "
            return verdict(True, [f"the terms add up to the {of}", off, f" at {one.address}"])
        return verdict(True, [f"{_what(one)} to the recorded ", recorded, ", off by ", off])


def _what(one: Explanation) -> str:
    summed = not one.after and len(one.terms) + one.rest.count > 1
    return "the terms add up" if summed else "the arithmetic comes"


_EXACT = "%.7g"


def _explanation(one: Explanation, into: str) -> Iterator[Block]:
    """One cell; ``into`` is the cell that it goes into, earlier in the list."""
    yield Heading(one.address, f"{one.title}: {one.formula}", one.role)
    back = f"{one.depth - 1} back, goes into {into} · " if into else ""
    yield Line(Span(f"{back}{one.place} · {one.kind}", "dim"), indent=2)
    if one.note:
        yield Line(one.note, indent=2)
    yield from _values(one.before)
    if one.terms:
        yield _terms(one)
    yield from _values(one.after)
    recorded: list[Piece] = [Span("   recorded ", "dim"), Figure(one.recorded, _EXACT, "dim")]
    yield Line(["= ", Figure(one.total, _EXACT, "strong"), *recorded], indent=2)
    for place, source in enumerate(one.inputs):
        word = " and" if place else "from"
        yield Line([Span(f"{word} "), Span(source.address, "strong"), Span(f"   {source.formula}", "dim")], indent=2)


def _values(values: Sequence[Value]) -> Iterator[Block]:
    if values:
        yield Table(
            [
                Column("", [value.name for value in values]),
                Column("", [Figure(value.value, _EXACT) for value in values], "right"),
                Column("", [Span(value.expression, "dim") for value in values], shrink=8),
            ],
            header=False,
        )


def _terms(one: Explanation) -> Table:
    """The terms with a bar each, largest first, then the sum of the others, then the total."""
    labels: list[Cell] = [term.label for term in one.terms]
    sizes = [term.contribution for term in one.terms]
    full = full_scale(sizes)
    if one.rest.count:
        labels.append(Span(f"{one.rest.count:,} more", "dim"))
        sizes.append(one.rest.sum)
    if len(sizes) > 1 and one.sum is not None:
        labels.append(Span("sum", "strong"))
        sizes.append(one.sum)
    form = "%.6f" if full >= 1e-3 else "%.3e"  # so that the printed numbers add up within 1e-5 too
    bars: list[Cell] = [Signed(size, full, form) for size in sizes[: len(one.terms)]]
    bars += [Figure(size, form) for size in sizes[len(one.terms) :]]
    factors = [
        Column(name, _factors(one, place, len(labels)), "right", drop=1) for place, name in enumerate(one.factor_names)
    ]
    return Table([Column("term", labels, shrink=12, said=""), *factors, Column(one.term_name, bars)])


def _factors(one: Explanation, place: int, rows: int) -> list[Cell]:
    found = [term.factors[place] if term.factors else None for term in one.terms]
    form = number_format(np.array([value for value in found if value is not None], dtype=np.float32))
    cells: list[Cell] = ["" if value is None else Figure(value, form) for value in found]
    return cells + [""] * (rows - len(cells))
