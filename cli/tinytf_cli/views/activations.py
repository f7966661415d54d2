"""The view of a feed-forward's activation: the curves that models use, and the text's own numbers on them."""

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from tinytf.loading import Model
from tinytf.look.activations import QUANTILES, REACH, Activations
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Column, Curve, Curves, Figure, Heading, Table
from tinytf_cli.views.parts import folded, note, row_limit, size_column, titled
from tinytf_cli.views.tokens import pieces

_ROLES = ("dim", "q", "v", "ffn", "attention")
_AT = (-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0)


class ActivationsView:
    """The activation of one layer."""

    def __init__(self, model: Model, found: Activations, rows: int | None) -> None:
        self.model, self.found, self.rows = model, found, rows

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The curves with the text's points, a table of values, and a row for each token."""
        found = self.found
        yield from banner(self.model)
        yield pieces(found.encoding)
        count = found.inputs.numel()
        said = f": {found.formula}; {100 * found.below:.0f} % of its {count:,} inputs are below 0"
        yield titled(f"L{found.layer} uses {found.gated or found.name}", said)
        yield Heading("curves", "lines: the functions; points: the units of this text", "ffn")
        yield Curves([*self._points(), *self._curves()], "input", "output", height=14)
        if found.beyond:
            yield note(f"{found.beyond:,} of {count:,} inputs lie beyond ±{REACH:g}, out of the picture")
        yield from self._values()
        yield from self._tokens(terminal)

    def _points(self) -> Iterator[Curve]:
        """The outputs of the text; with a gate, apart for hidden units above and below 0."""
        found = self.found
        inside = found.inputs.abs() <= REACH
        if found.hidden is None:
            yield _scattered("this text", found.inputs[inside], found.outputs[inside], "output")
            return
        for word, side, role in (("above", found.hidden > 0, "k"), ("below", found.hidden <= 0, "embed")):
            chosen = inside & side
            yield _scattered(f"times hidden {word} 0", found.inputs[chosen], found.outputs[chosen], role)

    def _curves(self) -> Iterator[Curve]:
        """The layer's own activation first, so that it is drawn on top."""
        found, grid = self.found, self.found.grid.double().numpy()
        for name, role in sorted(zip(found.curves, _ROLES, strict=False), key=lambda one: one[0] != found.name):
            yield Curve(name, grid, found.curves[name].double().numpy(), role)

    def _values(self) -> Iterator[Block]:
        found = self.found
        at = [int((found.grid - x).abs().argmin()) for x in _AT]
        names = list(found.curves)
        yield Heading("values", "at round inputs", "ffn")
        yield Table(
            [
                Column("", names),
                *(
                    Column(f"{x:g}", [Figure(float(found.curves[name][place]), "%.4f") for name in names], "right")
                    for x, place in zip(_AT, at, strict=True)
                ),
            ]
        )
        low, *_, high = found.quantiles
        middle = "  ".join(
            f"{100 * q:.0f} %: {x:.2f}" for q, x in zip(QUANTILES, found.quantiles, strict=True) if 0 < q < 1
        )
        yield note(f"inputs of this text from {low:.2f} to {high:.2f}; quantiles of all of them")
        yield note(middle)

    def _tokens(self, terminal: Terminal) -> Iterator[Block]:
        found, names = self.found, [token.shown for token in self.found.encoding.tokens]
        columns = [Column("token", names, shrink=8)]
        for title, shares in (
            ("inputs below 0", [one.below for one in found.places]),
            ("silent", [one.silent for one in found.places]),
        ):
            columns.append(size_column(title, shares, "ffn", "%.2f", 1.0))
        columns.append(Column("largest output", [Figure(one.largest) for one in found.places], "right"))
        yield Heading("tokens", f"of {found.outputs.shape[1]:,} units; silent: an output within 0.01 of 0", "ffn")
        most = row_limit(terminal, self.rows, screen=8)
        yield from folded(Table(columns), range(len(names)), most, "tokens", "--rows 0")


def _scattered(label: str, x: Tensor, y: Tensor, role: str) -> Curve:
    order = x.argsort()
    return Curve(label, x[order].double().numpy(), y[order].double().numpy().astype(np.float64), role, points=True)
