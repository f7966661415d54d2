"""Unit vectors: rows scaled to length 1."""

import math
from dataclasses import dataclass

from torch import Tensor

from tinytf.steps.operations.operation import Consumer, Operation, Quantity, Summand, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working


@dataclass(frozen=True)
class Unit(Operation):
    """x / √(Σx² + ε) over the last axis."""

    eps: float

    words = "a norm"

    def forward(self, *inputs: Tensor) -> Tensor:
        x = wide(inputs[0])
        return (x / self._length(x)).to(inputs[0].dtype)

    def _length(self, x: Tensor) -> Tensor:
        return (x.square().sum(dim=-1, keepdim=True) + self.eps).sqrt()

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        """(g − y·Σ g⊙y) / length."""
        return (self._gradient(g, site.input()).to(g.dtype),)

    def _gradient(self, g: Tensor, x: Tensor) -> Tensor:
        g, x = wide(g), wide(x)
        length = self._length(x)
        y = x / length
        return (g - y * (g * y).sum(dim=-1, keepdim=True)) / length

    def code(self, site: Site) -> str:
        x = f"{site.names[0]}.float()" if wide(site.input()) is not site.input() else site.names[0]
        back = f".to({site.names[0]}.dtype)" if x != site.names[0] else ""
        return f"{site.variable} = ({x} / ({x}.square().sum(-1, keepdim=True) + {self.eps}).sqrt()){back}"

    def arithmetic(self, cell: Cell) -> Working:
        source = cell.source(0, *cell.index)
        square = float(source.row().square().sum())
        length = math.sqrt(square + self.eps)
        before = (
            Value("x", source.value, source.step.name),
            Value("Σ x²", square, "over the row"),
            Value("ε", self.eps),
            Value("length", length, "√(Σ x² + ε)"),
        )
        after = (Value("unit", source.value / length, "x / length"),)
        return Working(((source, len(source.index) - 1),), before=before, after=after, leads=(source,))

    def summand(self, to: Consumer) -> Summand:
        g, x = to.incoming, to.input_at_row(0)
        length = self._length(wide(x.values))
        y = Quantity("y", wide(x.values) / length)
        result = self._gradient(g.values, x.values).to(g.values.dtype)
        lines = (f"y = {x.name} / length, length = √(Σ {x.name}² + ε)",)
        intermediates = (y, Quantity("length", length[0]))
        return Summand(f"({g.name} − y·Σ {g.name}⊙y) / length", result, lines, (g, x), intermediates)
