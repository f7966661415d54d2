"""Residual streams brought to the size of the first: AltUp in Gemma 3n."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.steps.operations.operation import Consumer, Operation, Quantity, Summand, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working

_LEAST = 1e-5
"""The least mean square that a stream is divided by the root of."""


def root_mean_square(x: Tensor, least: float = 0.0) -> Tensor:
    """√(mean of squares over the last axis, at least ``least``)."""
    return wide(x).square().mean(dim=-1, keepdim=True).clamp(min=least).sqrt()


@dataclass(frozen=True)
class MatchStreams(Operation):
    """x (…, T, C) and ``others`` streams (…, T, n·C) side by side, these times the size of x over their own.

    A size is √(mean of squares).
    """

    others: int

    words = "a scaling to one size"

    def forward(self, *inputs: Tensor) -> Tensor:
        x, others = inputs
        streams = self.apart(others)
        matched = (streams * self.ratio(x, streams)).to(x.dtype)
        return torch.cat((x, matched.flatten(-2)), dim=-1)

    def apart(self, others: Tensor) -> Tensor:
        """(…, n·C) -> (…, n, C)."""
        return others.unflatten(-1, (self.others, -1))

    def ratio(self, x: Tensor, streams: Tensor) -> Tensor:
        """The factor of each stream: (…, T, C) and (…, T, n, C) -> (…, T, n, 1)."""
        return root_mean_square(x).unsqueeze(-2) / root_mean_square(streams, _LEAST)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return self._gradients(wide(site.input(0)), wide(site.input(1)), wide(g), g.dtype)

    def _gradients(self, x: Tensor, others: Tensor, g: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Of x: g + Σ (g⊙s) / |s| · x / (C·|x|); of a stream s: |x| / |s| · (g − s·mean(g⊙s) / |s|²), both per row."""
        streams, width = self.apart(others), x.shape[-1]
        of_x, of_streams = g[..., :width], self.apart(g[..., width:])
        size, sizes = root_mean_square(x), root_mean_square(streams, _LEAST)
        along = (of_streams * streams).sum(dim=-1, keepdim=True)  # (…, n, 1)
        grows = streams.square().mean(dim=-1, keepdim=True) > _LEAST
        through = size.unsqueeze(-2) / sizes * (of_streams - grows * streams * along / width / sizes.square())
        of_x = of_x + (along / sizes).sum(dim=-2) * x / (width * size)
        return of_x.to(dtype), through.flatten(-2).to(dtype)

    def code(self, site: Site) -> str:
        x, others = site.names
        return (
            f"streams = {others}.unflatten(-1, ({self.others}, -1))\n"
            f"sizes = streams.square().mean(-1, keepdim=True).clamp(min={_LEAST}).sqrt()\n"
            f"matched = streams * {x}.square().mean(-1, keepdim=True).sqrt()[:, None] / sizes\n"
            f"{site.variable} = torch.cat(({x}, matched.flatten(-2)), dim=-1)"
        )

    def arithmetic(self, cell: Cell) -> Working:
        token, column = cell.index
        width = cell.site.input(0).shape[-1]
        first = cell.source(0, token, column % width)
        if column < width:
            after = (Value("matched", first.value, "as it is"),)
            return Working(((first, 2),), after=after, leads=(first,))
        start = column - column % width - width
        source = cell.source(1, token, column - width)
        size, own = (float(row.square().mean()) for row in (first.row(), source.row()[start : start + width]))
        before = (
            Value("x", source.value, source.step.name),
            Value("size", math.sqrt(size), f"√(mean of {first.step.name}²)"),
            Value("own size", math.sqrt(max(own, _LEAST)), "√(mean of x² over the stream)"),
        )
        matched = Value("matched", source.value * before[1].value / before[2].value, "x · size / own size")
        return Working(((source, 1), (first, 1)), before=before, after=(matched,), leads=(source,))

    def summand(self, to: Consumer) -> Summand:
        g, x, others = to.incoming, to.input_at_row(0), to.input_at_row(1)
        gradients = self._gradients(wide(x.values), wide(others.values), wide(g.values), g.values.dtype)
        lines = ("|·| is √(mean of squares), and s each other stream with its part of the gradient",)
        if to.number == 0:
            expression = f"{g.name} + Σ ({g.name}⊙s) / |s| · {x.name} / (C·|{x.name}|)"
        else:
            expression = f"|{x.name}| / |s| · ({g.name} − s·mean({g.name}⊙s) / |s|²)"
        sizes = (Quantity(f"|{x.name}|", root_mean_square(x.values)[0]),)
        return Summand(expression, gradients[to.number], lines, (g, x, others), sizes)
