"""The view of a feed-forward's activation: the curves that models use, and the text's own numbers on them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from tinytf.look.activations import QUANTILES, REACH, Activations
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Column, Curve, Curves, Figure, Heading, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import folded, note, row_limit, size_column, titled
from tinytf_cli.views.tokens import pieces

_ROLES = ("dim", "q", "v", "ffn", "attention")
_AT = (-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0)


@dataclass(frozen=True)
class ActivationsDisplay(Display):
    """``rows`` is the most tokens of the table: 0 for all, None for what suits the terminal."""

    rows: int | None = None


@draws(Activations, ActivationsDisplay)
def activations(report: Activations, terminal: Terminal, display: ActivationsDisplay) -> Iterator[Block]:
    """The curves with the text's points, a table of values, and a row for each token."""
    yield from banner(model_of(report))
    yield pieces(report.encoding)
    yield titled(f"L{report.layer} uses {report.gated or report.name}", f": {report.formula}")
    yield Heading("curves", "lines: the functions; points: the units of this text", "ffn")
    yield Curves([*_points(report), *_curves(report)], "input", "output", height=14)
    if report.beyond:
        yield note(f"{report.beyond:,} of {report.inputs.numel():,} inputs lie beyond ±{REACH:g}, out of the picture")
    yield from _values(report)
    yield from _tokens(report, row_limit(terminal, display.rows, screen=8))


def _points(report: Activations) -> Iterator[Curve]:
    """The outputs of the text; with a gate, one curve each for hidden units above and below 0."""
    inside = report.inputs.abs() <= REACH
    if report.hidden is None:
        yield _scattered("this text", report.inputs[inside], report.outputs[inside], "output")
        return
    for word, side, role in (("above", report.hidden > 0, "k"), ("below", report.hidden <= 0, "embed")):
        chosen = inside & side
        yield _scattered(f"times hidden {word} 0", report.inputs[chosen], report.outputs[chosen], role)


def _scattered(label: str, x: Tensor, y: Tensor, role: str) -> Curve:
    order = x.argsort()
    return Curve(label, x[order].double().numpy(), y[order].double().numpy().astype(np.float64), role, points=True)


def _curves(report: Activations) -> Iterator[Curve]:
    """The layer's own activation first, so that it is drawn on top."""
    grid = report.grid.double().numpy()
    for name, role in sorted(zip(report.curves, _ROLES, strict=False), key=lambda curve: curve[0] != report.name):
        yield Curve(name, grid, report.curves[name].double().numpy(), role)


def _values(report: Activations) -> Iterator[Block]:
    indices = [int((report.grid - x).abs().argmin()) for x in _AT]
    names = list(report.curves)
    yield Heading("values", "at round inputs", "ffn")
    yield Table(
        [
            Column("", names),
            *(
                Column(f"{x:g}", [Figure(float(report.curves[name][index]), "%.4f") for name in names], "right")
                for x, index in zip(_AT, indices, strict=True)
            ),
        ]
    )
    low, *_, high = report.quantiles
    middle = "  ".join(
        f"{100 * q:.0f} %: {x:.2f}" for q, x in zip(QUANTILES, report.quantiles, strict=True) if 0 < q < 1
    )
    yield note(f"inputs of this text from {low:.2f} to {high:.2f}; quantiles of all of them")
    yield note(middle)


def _tokens(report: Activations, most: int | None) -> Iterator[Block]:
    names = [token.shown for token in report.encoding.tokens]
    columns = [
        Column("token", names, shrink=8),
        size_column("inputs below 0", [token.below for token in report.places], "ffn", "%.2f", 1.0),
        size_column("silent", [token.silent for token in report.places], "ffn", "%.2f", 1.0),
        Column("largest output", [Figure(token.largest) for token in report.places], "right"),
    ]
    yield Heading("tokens", f"of {report.outputs.shape[1]:,} units; silent: an output within 0.01 of 0", "ffn")
    yield from folded(Table(columns), range(len(names)), most, "tokens", "--rows 0")
