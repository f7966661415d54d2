"""The heads of some layers in one number each."""

from collections.abc import Iterator

import numpy as np

from tinytf.analysis.heads import MEASURES, MeasuredHeads
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Bar, Bars, Block, Heading, Heat
from tinytf_cli.views.steps import as_array

_BOUNDED = ("previous", "first", "self")


class MeasuredHeadsView:
    """A measure of every head of some layers, and the ``top`` largest."""

    def __init__(self, found: MeasuredHeads, top: int) -> None:
        self.found, self.top = found, top

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        found, values = self.found, as_array(self.found.values)
        yield Heading(f"heads by {found.by}", MEASURES[found.by][1], "attention")
        limit = 1.0 if found.by in _BOUNDED else float(np.nanmax(values, initial=0.0)) or 1.0
        rows = [f"L{layer}" for layer in found.layers]
        columns = [f"H{head}" for head in range(values.shape[1])]
        yield Heat(values, rows, columns, "unit", None, limit, asked=True, digits=2)
        best = found.ranked[: self.top]
        yield Heading("the largest", f"{len(best)} of {values.size}", "attention")
        yield Bars([Bar(f"L{layer}H{head}", value, f"{value:.2f}", "attention") for layer, head, value in best], limit)
