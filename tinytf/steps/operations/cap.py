"""Soft capping: numbers stay within (−cap, cap), and those near 0 hardly change (Gemma 2, Riviere et al. 2024)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.steps.operations.operation import Consumer, Operation, Quantity, Summand, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working


def cap_gradient(g: Tensor, x: Tensor, cap: float) -> Tensor:
    """g ⊙ (1 − tanh²(x / cap))."""
    return (g * (1 - (wide(x) / cap).tanh().square())).to(g.dtype)


@dataclass(frozen=True)
class Cap(Operation):
    """cap · tanh(x / cap)."""

    cap: float

    words = "a soft cap"
    pointwise = True

    def forward(self, *inputs: Tensor) -> Tensor:
        return (inputs[0] / self.cap).tanh() * self.cap

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return (cap_gradient(g, site.input(), self.cap),)

    def code(self, site: Site) -> str:
        return f"{site.variable} = {self.cap} * torch.tanh({site.names[0]} / {self.cap})"

    def arithmetic(self, cell: Cell) -> Working:
        source = cell.source(0, *cell.index)
        before = (Value("x", source.value, source.step.name), Value("cap", self.cap))
        share = math.tanh(source.value / self.cap)
        after = (Value("tanh", share, "tanh(x / cap)"), Value("capped", share * self.cap, "tanh · cap"))
        return Working(((source, 2),), before=before, after=after, leads=(source,))

    def summand(self, to: Consumer) -> Summand:
        g, x = to.incoming, to.input_at_row(0)
        slope = Quantity("1 − tanh²", 1 - (wide(x.values) / self.cap).tanh().square())
        cap = Quantity("cap", torch.tensor(self.cap, dtype=to.g.dtype))
        result = (g.values * slope.values).to(g.values.dtype)
        lines = (f"tanh is that of {x.name} / cap",)
        return Summand(f"{g.name} ⊙ (1 − tanh²)", result, lines, (g, x, cap), (slope,))
