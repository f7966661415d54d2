"""The view of parameters: what each is and which step it makes, its figures, and its numbers in several forms."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tinytf.loading import Model
from tinytf.look.parameters import ENERGY, Parameters, ParameterValues
from tinytf.steps.operations.operation import dimension
from tinytf.text.printable import printable
from tinytf_cli.numbers import number, number_format, plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import (
    Bar,
    Bars,
    Block,
    Curve,
    Curves,
    Figure,
    Heading,
    Heat,
    Labels,
    Line,
    Piece,
    Span,
    Values,
)
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import Extent, fold_note, middle_out, note
from tinytf_cli.views.steps import ALL, as_array, largest


@dataclass(frozen=True)
class ParametersDisplay(Display):
    """``dims`` is how many numbers of a row are shown, ``rows`` the most rows: 0 for all, None for what suits the
    terminal. ``banner`` names the model first."""

    dims: int | None = None
    rows: int | None = None
    banner: bool = True


@draws(Parameters, ParametersDisplay)
def parameters(report: Parameters, terminal: Terminal, display: ParametersDisplay) -> Iterator[Block]:
    """The model, then each parameter."""
    if display.banner:
        yield from banner(model_of(report))
    yield from parameter_blocks(model_of(report), report, Extent(display.dims, display.rows, terminal.cuts))


def parameter_blocks(model: Model, report: Parameters, extent: Extent) -> Iterator[Block]:
    """Each parameter, in the form that was asked for."""
    for parameter in report.found:
        yield from _blocks(_Drawing(model, parameter, extent))


@dataclass(frozen=True)
class _Drawing:
    """A parameter, and how much of it is shown."""

    model: Model
    parameter: ParameterValues
    extent: Extent


def _blocks(drawing: _Drawing) -> Iterator[Block]:
    parameter, values = drawing.parameter, drawing.parameter.values
    where, axes = parameter.where, zip(parameter.where.axes, values.shape, strict=True)
    sizes = " × ".join(f"{axis} {size:,}" for axis, size in axes)
    yield Heading(str(where), f"{sizes} of {parameter.name}" if sizes else parameter.name, where.step.role)
    if where.note:
        yield note(where.note)
    for word, token in parameter.tokens.items():
        yield note(f"{printable(word)} is token {token:,}, {drawing.model.tokenizer.shown(token)}")
    if not values.dim():
        yield from _number(parameter)
        return
    figures, form = parameter.statistics, number_format(as_array(values))
    mean, std, low, high = (Figure(value, form) for value in (figures.mean, figures.std, figures.min, figures.max))
    spread: list[Piece] = ["mean ", mean, ", std ", std, ", ", low, " … ", high, ", norm ", Figure(parameter.norm)]
    broken = f", {figures.not_finite:,} not finite" if figures.not_finite else ""
    yield Line([*spread, broken, f"; makes {', '.join(parameter.makes)}"], indent=2)
    yield from _WAYS[parameter.way](drawing)


def _number(parameter: ParameterValues) -> Iterator[Block]:
    """A single number of a parameter."""
    yield Line([Span("  "), Figure(float(parameter.values), "%.9g", "strong")])
    row: list[Piece] = [] if parameter.row_norm is None else ["; the norm of its row is ", Figure(parameter.row_norm)]
    yield note(["learned, so nothing computes it", *row])
    step = parameter.where.step
    yield note(f"it makes {' and '.join(parameter.makes)}: {step.title} = {step.formula}")


def _table(drawing: _Drawing) -> Iterator[Block]:
    """Rows as numbers and strips of colour; a vector is one row."""
    parameter, values = drawing.parameter, as_array(drawing.parameter.values)
    matrix = np.atleast_2d(values)
    keep = middle_out(len(matrix), drawing.extent.most(matrix))
    names = _names(drawing, 0) if values.ndim > 1 else [""]
    columns, first = _names(drawing, values.ndim - 1), drawing.extent.first(matrix)
    yield Values(names, matrix, first, parameter.where.step.role, columns, remedy=ALL).only(keep)
    yield from fold_note(names, keep, "rows")


def _map(drawing: _Drawing) -> Iterator[Block]:
    """A cell per number, or per strongest of several."""
    values = as_array(drawing.parameter.values)
    rows, columns = _names(drawing, 0), _names(drawing, 1)
    down, across = drawing.parameter.where.axes
    yield note(f"{down} down, {across} across")
    yield Heat(values, rows, columns, "signed", None, largest(values), every=drawing.extent.whole(values))


def _histogram(drawing: _Drawing) -> Iterator[Block]:
    """How many numbers lie in each of several equal intervals."""
    edges, counts = (part.numpy() for part in drawing.parameter.histogram)
    form = number_format(edges.astype(np.float32))
    names = [f"{number(float(low), form)} …" for low in edges[:-1]]
    width = max(map(len, names))
    most = max(int(counts.max()), 1)
    bars = [Bar(name.rjust(width), int(n), f"{n:,}", "residual") for name, n in zip(names, counts, strict=True)]
    yield note(f"how many of {int(counts.sum()):,} numbers lie between each value and the next")
    yield Bars(bars, most)


def _spectrum(drawing: _Drawing) -> Iterator[Block]:
    """The singular values, largest first, and how many of them carry most of the energy."""
    values = drawing.parameter.singular_values.cpu().numpy()
    share = f"{ENERGY:.0%}".replace("%", " %")
    carrying = f"{drawing.parameter.carrying:,} of {plural(len(values), 'singular value')}"
    first, last = Figure(float(values[0])), Figure(float(values[-1]))
    yield Line([Span(f"{carrying} carry {share} of the energy (Σσ²)", "strong"), "; ", first, " to ", last], indent=2)
    yield Curves([Curve("σ", np.arange(1, len(values) + 1), values, "residual")], "singular value", "σ")


def _norms(drawing: _Drawing) -> Iterator[Block]:
    """The L2 norm of each row, the largest first."""
    norms, axis = drawing.parameter.row_norms.cpu().numpy(), drawing.parameter.row_axis
    order = np.argsort(-norms, kind="stable")
    keep = middle_out(len(order), drawing.extent.most(norms[:, None]))
    form = number_format(norms.astype(np.float32))
    all_names = _names(drawing, axis)
    names = [all_names[int(order[i])] for i in keep]
    values = [float(norms[order[i]]) for i in keep]
    bars = [Bar(name, value, Figure(value, form)) for name, value in zip(names, values, strict=True)]
    yield note(f"norm by {drawing.parameter.where.axes[axis]}, the largest first")
    yield Bars(bars, float(norms.max()) or 1.0)
    yield from fold_note(range(1, len(order) + 1), keep, "ranks")


def _names(drawing: _Drawing, axis: int) -> Labels:
    """The labels of the indices of an axis."""
    name, model = drawing.parameter.where.axes[axis], drawing.model

    def label(number: int) -> str:
        if name == "vocab":
            return model.tokenizer.shown(number)
        if name == "label":
            return model.shown(number)
        return f"{name} {number}" if name in ("position", "type") else dimension(name, number, model.config)

    return Labels(label, drawing.parameter.places[axis])


_WAYS: dict[str, Callable[[_Drawing], Iterator[Block]]] = {
    "table": _table,
    "map": _map,
    "histogram": _histogram,
    "spectrum": _spectrum,
    "norms": _norms,
}
