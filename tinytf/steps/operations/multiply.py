"""A multiplication of every number by one constant from the configuration."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinytf.steps.one_token import Kernels
from tinytf.steps.operations.operation import Consumer, Operation, Quantity, Summand
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Working, single


@dataclass(frozen=True)
class Multiply(Operation):
    """x · ``factor``."""

    factor: float

    words = "a multiplication"

    def forward(self, *inputs: Tensor) -> Tensor:
        return inputs[0] * self.factor

    def one_token(self, kernels: Kernels, module: Any) -> Callable[..., Any] | None:
        return self.forward

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return (g * self.factor,)

    def code(self, site: Site) -> str:
        return f"{site.variable} = {site.names[0]} * {self.factor}"

    def arithmetic(self, cell: Cell) -> Working:
        source = cell.source(0, *cell.index)
        factors = [(source.step.name, source.value), ("factor", self.factor)]
        return Working(((source, 2),), single(f"{source.step.name} · factor", factors, (source,)), leads=(source,))

    def summand(self, to: Consumer) -> Summand:
        factor = Quantity("factor", torch.tensor(self.factor, dtype=to.g.dtype))
        return Summand(f"{to.symbol} · factor", to.incoming.values * self.factor, inputs=(to.incoming, factor))
