"""A clamped gate: (up + 1) ⊙ gate·σ(α·gate), neither larger than a limit (gpt-oss, OpenAI 2025), or without the 1."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.steps.operations.operation import Consumer, Operation, Quantity, Summand, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working, single


def clamped_glu(gate: Tensor, up: Tensor, alpha: float, limit: float, added: float) -> Tensor:
    """(up + ``added``) ⊙ gate·σ(α·gate), with gate clamped to at most ``limit`` and up to ±``limit``."""
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + added) * (gate * torch.sigmoid(gate * alpha))


@dataclass(frozen=True)
class ClampedGlu(Operation):
    """(up + ``added``) ⊙ g·σ(``alpha``·g) with g = min(gate, ``limit``) and up within ±``limit``."""

    alpha: float
    limit: float
    added: float = 1.0

    words = "an activation"
    pointwise = True

    def forward(self, *inputs: Tensor) -> Tensor:
        gate, up = inputs
        return clamped_glu(gate, up, self.alpha, self.limit, self.added)

    @property
    def _up(self) -> str:
        return f"up + {self.added:g}"

    def _parts(self, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        """The derivative by the gate, without its factor of up, and the one by up; 0 beyond the limit."""
        gate, up = wide(gate), wide(up)
        share = torch.sigmoid(self.alpha * gate)
        slope = share * (1 + self.alpha * gate * (1 - share)) * (gate <= self.limit)
        clamped = gate.clamp(max=self.limit)
        return slope, clamped * torch.sigmoid(self.alpha * clamped) * (up.abs() <= self.limit)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        gate, up = site.inputs()
        slope, of_up = self._parts(gate, up)
        added = wide(up).clamp(-self.limit, self.limit) + self.added
        return (g * slope * added).to(g.dtype), (g * of_up).to(g.dtype)

    def side(self, number: int, x: Tensor) -> Tensor | None:
        return x.abs() <= self.limit if number else x <= self.limit

    def code(self, site: Site) -> str:
        gate, up = site.names
        clamped = f"g = {gate}.clamp(max={self.limit})"
        product = f"({up}.clamp(-{self.limit}, {self.limit}) + {self.added}) * g * torch.sigmoid({self.alpha} * g)"
        return f"{clamped}\n{site.variable} = {product}"

    def arithmetic(self, cell: Cell) -> Working:
        gate, up = cells = [cell.source(number, *cell.index) for number in (0, 1)]
        clamped_gate, clamped_up = min(gate.value, self.limit), max(-self.limit, min(up.value, self.limit))
        share = (1 + math.tanh(self.alpha * clamped_gate / 2)) / 2
        before = (
            Value("gate", gate.value, gate.step.name),
            Value("g", clamped_gate, f"no larger than {self.limit:g}"),
            Value("σ(α·g)", share, f"α = {self.alpha:g}"),
            Value("up", up.value, up.step.name),
            Value(self._up, clamped_up + self.added, f"up within ±{self.limit:g}"),
        )
        factors = [("g", clamped_gate), ("σ(α·g)", share), (self._up, clamped_up + self.added)]
        series = single(" · ".join(name for name, _ in factors), factors, tuple(cells))
        return Working(tuple((cell_in, 2) for cell_in in cells), series, before=before)

    def summand(self, to: Consumer) -> Summand:
        g, gate, up = to.incoming, to.input_at_row(0), to.input_at_row(1)
        slope, of_up = self._parts(gate.values, up.values)
        limits = f"{gate.name} up to {self.limit:g}, {up.name} within ±{self.limit:g}; beyond, the derivative is 0"
        if to.number == 1:
            act = Quantity(f"glu({gate.name})", of_up)
            where = (f"glu(x) = x·σ({self.alpha:g}·x)", limits)
            return Summand(f"{g.name} ⊙ {act.name}", g.values * act.values, where, (g, gate), (act,))
        derivative = Quantity(f"glu′({gate.name})", slope)
        added = Quantity(f"{up.name} + {self.added:g}", wide(up.values).clamp(-self.limit, self.limit) + self.added)
        where = (f"glu′(x) = σ(αx)·(1 + αx·σ(−αx)), α = {self.alpha:g}", limits)
        result = g.values * derivative.values * added.values
        expression = f"{g.name} ⊙ {derivative.name} ⊙ ({added.name})"
        return Summand(expression, result, where, (g, gate, up), (derivative, added))
