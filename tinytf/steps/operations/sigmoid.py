"""The sigmoid, σ(x) = 1 / (1 + e^−x): the probability of a class by itself, or a strength between 0 and 1."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.steps.operations.operation import Consumer, Operation, Quantity, Summand
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working


@dataclass(frozen=True)
class Sigmoid(Operation):
    """σ of each number, in float32 or wider; ``rounded`` to the precision of the number."""

    rounded: bool = False

    words = "a sigmoid"

    def forward(self, *inputs: Tensor) -> Tensor:
        dtype = inputs[0].dtype
        return inputs[0].double().sigmoid().to(dtype if self.rounded else torch.promote_types(dtype, torch.float32))

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        """g·σ(x)·σ(−x)."""
        x = site.input()
        return ((g * x.to(g.dtype).sigmoid() * (-x.to(g.dtype)).sigmoid()).to(x.dtype),)

    def summand(self, to: Consumer) -> Summand:
        g, x = to.incoming, to.input_at_row(0)
        share = Quantity(f"σ({x.name})", x.values.to(g.values.dtype).sigmoid())
        result = (g.values * share.values * (-x.values.to(g.values.dtype)).sigmoid()).to(x.values.dtype)
        return Summand(f"{g.name}·s·(1 − s)", result, (f"s = {share.name}",), (g, x), (share,))

    def code(self, site: Site) -> str:
        back = "" if site.input().dtype == torch.float64 else ".float()"
        back = f".to({site.names[0]}.dtype)" if self.rounded else back
        return f"{site.variable} = torch.sigmoid({site.names[0]}.double()){back}"

    def arithmetic(self, cell: Cell) -> Working:
        source = cell.source(0, *cell.index)
        power = math.exp(-source.value)
        before = (Value("x", source.value, source.step.name), Value("e^−x", power))
        return Working(
            ((source, 2),), before=before, after=(Value("σ", 1 / (1 + power), "1 / (1 + e^−x)"),), leads=(source,)
        )
