"""Two vectors of each token side by side."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tinytf.steps.one_token import Kernels
from tinytf.steps.operations.operation import Consumer, Operation, Quantity, Summand
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Working, single


class Append(Operation):
    """[x | y] of each token, (…, T, C) and (…, T, E) -> (…, T, C + E)."""

    words = "a concatenation"

    def forward(self, *inputs: Tensor) -> Tensor:
        before = torch.broadcast_shapes(*(x.shape[:-1] for x in inputs))
        return torch.cat([x.expand(*before, -1) for x in inputs], dim=-1)

    def one_token(self, kernels: Kernels, module: Any) -> Callable[..., Any] | None:
        return kernels.pointwise(self.forward)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        width = site.input(0).shape[-1]
        return g[..., :width], g[..., width:]

    def code(self, site: Site) -> str:
        return f"{site.variable} = torch.cat(({', '.join(site.names)}), dim=-1)"

    def arithmetic(self, cell: Cell) -> Working:
        (token, column), width = cell.index, cell.site.input(0).shape[-1]
        number, inner = (0, column) if column < width else (1, column - width)
        source = cell.source(number, token, inner)
        label = f"d{inner} of {source.step.name}"
        return Working(((source, 2),), single(label, [(source.step.name, source.value)], (source,)))

    def summand(self, to: Consumer) -> Summand:
        width, g = to.site.input(0).shape[-1], to.incoming
        first, last = (0, width) if to.number == 0 else (width, len(g.values))
        part = Quantity(f"{to.symbol}[{first}…{last - 1}]", g.values[first:last])
        return Summand(part.name, part.values, (f"the numbers of {to.row.step.name}",), (part,))
