"""The view of parameters: what each is and makes, its figures, and its numbers in one of several ways."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tinytf.loading import Model
from tinytf.look.parameters import ENERGY, Parameters, ParameterValues
from tinytf.steps.operations.operation import dimension
from tinytf.text.printable import printable
from tinytf_cli.numbers import number, number_format, plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Bar, Bars, Block, Curve, Curves, Figure, Heading, Heat, Line, Piece, Span, Values
from tinytf_cli.views.parts import fold_note, middle_out, note, row_limit
from tinytf_cli.views.steps import as_array, largest

_NAMED = 64
"""Rows and columns of a map with a name of their own; more have numbers, since they are pooled."""


class ParametersView:
    """Some parameters, drawn: ``dims`` numbers of a row, at most ``rows`` rows."""

    def __init__(self, model: Model, found: Parameters, dims: int = 8, rows: int | None = None) -> None:
        self.model, self.found, self.dims, self.rows = model, found, dims, rows

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The model, then each parameter."""
        yield from banner(self.model)
        yield from parameter_blocks(self.model, self.found, self.dims, row_limit(terminal, self.rows))


def parameter_blocks(model: Model, found: Parameters, dims: int, rows: int | None) -> Iterator[Block]:
    """Each parameter in its way."""
    for one in found.found:
        yield from _Drawn(model, one, dims, rows).blocks()


@dataclass(frozen=True)
class _Drawn:
    """One parameter, and how much of it is shown."""

    model: Model
    one: ParameterValues
    dims: int
    rows: int | None

    def blocks(self) -> Iterator[Block]:
        one, values = self.one, self.one.values
        sizes = " × ".join(f"{axis} {size:,}" for axis, size in zip(one.where.axes, values.shape, strict=True))
        yield Heading(str(one.where), f"{sizes} of {one.name}" if sizes else one.name, one.where.step.role)
        if one.where.note:
            yield note(one.where.note)
        for word, token in one.tokens.items():
            yield note(f"{printable(word)} is token {token:,}, {self.model.tokenizer.shown(token)}")
        if not values.dim():
            yield from self._number()
            return
        found, form = one.statistics, number_format(as_array(values))
        mean, std, low, high = (Figure(value, form) for value in (found.mean, found.std, found.min, found.max))
        broken = f", {found.not_finite:,} not finite" if found.not_finite else ""
        said: list[Piece] = ["mean ", mean, ", std ", std, ", ", low, " … ", high, ", norm ", Figure(one.norm), broken]
        yield Line([*said, f"; makes {', '.join(one.makes)}"], indent=2)
        yield from _WAYS[one.way](self)

    def _number(self) -> Iterator[Block]:
        one = self.one
        yield Line([Span("  "), Figure(float(one.values), "%.9g", "strong")])
        row: list[Piece] = [] if one.row_norm is None else ["; the norm of its row is ", Figure(one.row_norm)]
        yield note(["learned, so nothing computes it", *row])
        step = one.where.step
        yield note(f"it makes {' and '.join(one.makes)}: {step.title} = {step.formula}")

    def table(self) -> Iterator[Block]:
        """Rows as numbers and strips of colour; a vector is one row."""
        one, values = self.one, as_array(self.one.values)
        matrix = np.atleast_2d(values)
        keep = middle_out(len(matrix), self.rows)
        names = self._names(0, keep) if values.ndim > 1 else [""]
        tokens = one.where.axes[-1] in ("vocab", "label")
        across = self._names(values.ndim - 1, range(min(self.dims, matrix.shape[1]))) if tokens else ()
        yield Values(names, matrix[keep], self.dims, one.where.step.role, columns=across)
        yield from fold_note(range(len(matrix)), keep, "rows")

    def map(self) -> Iterator[Block]:
        """A cell per number, or for the strongest of several."""
        values = as_array(self.one.values)
        rows, columns = (
            self._names(axis, range(size)) if size <= _NAMED else [str(i) for i in range(size)]
            for axis, size in enumerate(values.shape)
        )
        yield note(f"{self.one.where.axes[0]} down, {self.one.where.axes[1]} across")
        yield Heat(values, rows, columns, "signed", None, largest(values))

    def histogram(self) -> Iterator[Block]:
        """How many numbers lie in each of some equal intervals."""
        edges, counts = (part.numpy() for part in self.one.histogram)
        form = number_format(edges.astype(np.float32))
        names = [f"{number(float(low), form)} …" for low in edges[:-1]]
        width = max(map(len, names))
        most = max(int(counts.max()), 1)
        bars = [Bar(name.rjust(width), int(n), f"{n:,}", "residual") for name, n in zip(names, counts, strict=True)]
        yield note(f"how many of {int(counts.sum()):,} numbers lie from each value on")
        yield Bars(bars, most)

    def spectrum(self) -> Iterator[Block]:
        """The singular values, largest first, and how many of them carry most of the energy."""
        values = self.one.singular_values.cpu().numpy()
        share = f"{ENERGY:.0%}".replace("%", " %")
        said = f"{self.one.carrying:,} of {plural(len(values), 'singular value')} carry {share} of the energy (Σσ²)"
        first, last = Figure(float(values[0])), Figure(float(values[-1]))
        yield Line([Span(said, "strong"), "; ", first, " to ", last], indent=2)
        yield Curves([Curve("σ", np.arange(1, len(values) + 1), values, "residual")], "singular value", "σ")

    def norms(self) -> Iterator[Block]:
        """The L2 norm of each row, the largest first."""
        norms, axis = self.one.row_norms.cpu().numpy(), self.one.row_axis
        order = np.argsort(-norms, kind="stable")
        keep = middle_out(len(order), self.rows)
        form = number_format(norms.astype(np.float32))
        names = self._names(axis, [int(order[i]) for i in keep])
        values = [float(norms[order[i]]) for i in keep]
        bars = [Bar(name, value, Figure(value, form)) for name, value in zip(names, values, strict=True)]
        yield note(f"norm by {self.one.where.axes[axis]}, the largest first")
        yield Bars(bars, float(norms.max()) or 1.0)
        yield from fold_note(range(1, len(order) + 1), keep, "ranks")

    def _names(self, axis: int, numbers: Sequence[int]) -> list[str]:
        """What some numbers of an axis are called."""
        name, places = self.one.where.axes[axis], self.one.places[axis]
        numbers = [places[number] for number in numbers]
        if name == "vocab":
            return [self.model.tokenizer.shown(i) for i in numbers]
        if name == "label":
            return [self.model.shown(i) for i in numbers]
        if name in ("position", "type"):
            return [f"{name} {i}" for i in numbers]
        return [dimension(name, i, self.model.config) for i in numbers]


_WAYS: dict[str, Callable[[_Drawn], Iterator[Block]]] = {
    "table": _Drawn.table,
    "map": _Drawn.map,
    "histogram": _Drawn.histogram,
    "spectrum": _Drawn.spectrum,
    "norms": _Drawn.norms,
}
