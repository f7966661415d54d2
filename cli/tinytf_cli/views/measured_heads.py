"""The heads of some layers in one number each."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from tinytf.analysis.heads import MEASURES
from tinytf.trace.trace import Trace
from tinytf_cli.paint.terminal import Terminal
from tinytf_cli.views.blocks import Bar, Bars, Block, Heading, Heat
from tinytf_cli.views.steps import as_array

_BOUNDED = ("previous", "first", "self")


class MeasuredHeads:
    """A measure of every head of ``layers``, and the ``top`` largest."""

    def __init__(self, trace: Trace, by: str, layers: tuple[int, ...], top: int) -> None:
        self.trace, self.by, self.layers, self.top = trace, by, layers, top
        measured = [MEASURES[by][0](trace.step("weights", layer).float()) for layer in layers]
        self.values = as_array(torch.stack(measured))

    @property
    def ranked(self) -> list[tuple[int, int, float]]:
        """Layer, head and number of each, the largest first; those that have none are left out."""
        found = [
            (layer, head, float(value))
            for layer, row in zip(self.layers, self.values, strict=True)
            for head, value in enumerate(row)
            if np.isfinite(value)
        ]
        return sorted(found, key=lambda one: -one[2])

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        yield Heading(f"heads by {self.by}", MEASURES[self.by][1], "attention")
        limit = 1.0 if self.by in _BOUNDED else float(np.nanmax(self.values, initial=0.0)) or 1.0
        rows = [f"L{layer}" for layer in self.layers]
        columns = [f"H{head}" for head in range(self.values.shape[1])]
        yield Heat(self.values, rows, columns, "unit", None, limit, asked=True, digits=2)
        best = self.ranked[: self.top]
        yield Heading("the largest", f"{len(best)} of {self.values.size}", "attention")
        yield Bars([Bar(f"L{layer}H{head}", value, f"{value:.2f}", "attention") for layer, head, value in best], limit)

    def data(self) -> dict[str, Any]:
        return {
            "by": self.by,
            "layers": list(self.layers),
            "values": self.values.tolist(),
            "largest": [{"layer": layer, "head": head, "value": value} for layer, head, value in self.ranked],
        }
