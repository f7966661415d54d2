"""One vector per position: learned, or the fixed waves of Vaswani et al. 2017."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tinytf.steps.operations.operation import Operation, Parameter
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working, single

if TYPE_CHECKING:
    from tinytf.steps.table import Step


def position_rows(g: Tensor, count: int, offset: int = 0) -> Tensor:
    """g in the rows from ``offset`` on, 0 in all others: (T, C) -> (count, C)."""
    table = g.new_zeros(count, g.shape[-1])
    table[offset : offset + len(g)] = g
    return table


@dataclass(frozen=True)
class Positions(Operation):
    """Rows of a learned table from ``offset`` on, or sines and cosines."""

    learned: bool
    offset: int

    words = "a position"

    def parameters(self, step: "Step") -> tuple[Parameter, ...]:
        absent = "" if self.learned else "positions are sines and cosines, computed and not learned"
        return (Parameter(step.parameter, "weight", ("position", *step.axes[-1:]), absent=absent),)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        ids = torch.tensor([list(site.ids)], device=site.value.device)
        return site.module(ids, site.value.dtype)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        if self.learned:
            yield f"{site.path}.weight", position_rows(g, len(site.module.weight), self.offset)

    def code(self, site: Site) -> str:
        if self.learned:
            return f"{site.variable} = P[{f'{self.offset}:{self.offset} + T' if self.offset else ':T'}]"
        width = site.config.summed_width
        return (
            f"frequency = 10_000.0 ** (-torch.arange(0, {width}, 2, dtype=torch.float64) / {width})\n"
            "angle = torch.arange(T)[:, None] * frequency\n"
            f"{site.variable} = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1).to({site.value.dtype})"
        )

    def arithmetic(self, cell: Cell) -> Working:
        """A learned row, or sin and cos of position · 10000^(−2i/d_model) (Vaswani et al. 2017, section 3.5)."""
        (token, width), d_model = cell.index, cell.site.config.summed_width
        if self.learned:
            row = self.offset + token
            return Working((), single(f"P[{row},{width}]", [("P", float(cell.site.module.weight[row, width]))]))
        frequency = 10_000 ** (-(width // 2 * 2) / d_model)
        angle, wave = token * frequency, ("sin", "cos")[width % 2]
        before = (
            Value("frequency", frequency, f"10000^(−{width // 2 * 2}/{d_model}), radians a token"),
            Value("angle", angle, f"position {token} × frequency"),
        )
        value = (math.sin, math.cos)[width % 2](angle)
        after = Value(wave, value, f"{wave}(angle), as d{width} is {('even', 'odd')[width % 2]}")
        return Working((), before=before, after=(after,))
