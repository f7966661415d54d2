"""A sum of steps: residual connections, embeddings. A single step is passed on."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tinytf.steps.one_token import Kernels
from tinytf.steps.operations.operation import Consumer, Operation, Summand
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Series, Working


class Add(Operation):
    """The sum of all inputs, added in order."""

    words = "a sum"

    def forward(self, *inputs: Tensor) -> Tensor:
        total = inputs[0]
        for x in inputs[1:]:
            total = total + x
        return total

    def one_token(self, kernels: Kernels, module: Any) -> Callable[..., Any] | None:
        return self.forward

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return (g,) * len(site.source_steps)

    def code(self, site: Site) -> str:
        return f"{site.variable} = {' + '.join(site.names)}"

    def arithmetic(self, cell: Cell) -> Working:
        parts = [cell.source(number, *cell.index) for number in range(len(cell.site.source_steps))]
        names = [part.step.full_name(part.layer) for part in parts]
        values = torch.tensor([part.value for part in parts], dtype=torch.float64)
        return Working(tuple((part, 2) for part in parts), Series(values, lambda i: names[i], lambda i: (parts[i],)))

    def summand(self, to: Consumer) -> Summand:
        return Summand(to.symbol, to.incoming.values, inputs=(to.incoming,))
