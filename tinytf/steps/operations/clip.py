"""Clipping: numbers beyond a limit become the limit (MPT, OLMo and DBRX, of queries, keys and values)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.steps.operations.operation import Consumer, Operation, Quantity, Summand
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working


def clip_gradient(g: Tensor, x: Tensor, limit: float) -> Tensor:
    """The gradient of x: 0 where the limit replaced the number, else g; at the limit itself it is g, as in torch."""
    return g.masked_fill(x.abs() > limit, 0.0)


@dataclass(frozen=True)
class Clip(Operation):
    """x, limited to ±``limit``."""

    limit: float

    words = "a clipping"
    pointwise = True

    def forward(self, *inputs: Tensor) -> Tensor:
        return inputs[0].clamp(-self.limit, self.limit)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return (clip_gradient(g, site.input(), self.limit),)

    def side(self, number: int, x: Tensor) -> Tensor | None:
        return x.abs() <= self.limit

    def code(self, site: Site) -> str:
        return f"{site.variable} = {site.names[0]}.clamp(-{self.limit}, {self.limit})"

    def arithmetic(self, cell: Cell) -> Working:
        source = cell.source(0, *cell.index)
        clipped = min(max(source.value, -self.limit), self.limit)
        before = (Value("x", source.value, source.step.name), Value("limit", self.limit))
        after = Value("clipped", clipped, "x, as it is" if clipped == source.value else "the limit, on the side of x")
        return Working(((source, 2),), before=before, after=(after,), leads=(source,))

    def summand(self, to: Consumer) -> Summand:
        g, x = to.incoming, to.input_at_row(0)
        kept = Quantity("kept", (x.values.abs() <= self.limit).to(g.values.dtype))
        limit = Quantity("limit", torch.tensor(self.limit, dtype=g.values.dtype))
        lines = (f"kept is 1 where |{x.name}| ≤ limit, else 0",)
        return Summand(f"{g.name} ⊙ kept", g.values * kept.values, lines, (g, x, limit), (kept,))
