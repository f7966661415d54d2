"""Keys in two parts: the dimensions that all heads share, then each head's own (DeepSeek-V2, 2024)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tinytf.steps.one_token import Kernels
from tinytf.steps.operations.operation import Consumer, Operation, Quantity, Summand
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Working, single


def join_keys(shared: Tensor, own: Tensor) -> Tensor:
    """The shared dimensions (…, T, R) before those of each head (…, H, T, D): (…, H, T, R + D)."""
    shared = shared.unsqueeze(-3).expand(*own.shape[:-1], -1)
    return torch.cat((shared, own), dim=-1)


class Join(Operation):
    """[shared | own] in every head."""

    words = "a concatenation"

    def forward(self, *inputs: Tensor) -> Tensor:
        return join_keys(*inputs)

    def one_token(self, kernels: Kernels, module: Any) -> Callable[..., Any] | None:
        return kernels.pointwise(lambda shared, own: join_keys(shared[..., None, :], own[..., None, :])[..., 0, :])

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        """Every head uses the shared part, so its gradient is the sum over heads."""
        width = site.input(0).shape[-1]
        return g[..., :width].sum(dim=0), g[..., width:]

    def code(self, site: Site) -> str:
        shared, own = site.names
        return f"{site.variable} = torch.cat(({shared}.expand(len({own}), -1, -1), {own}), dim=-1)"

    def arithmetic(self, cell: Cell) -> Working:
        (token, column), width = cell.index, cell.site.input(0).shape[-1]
        source = cell.source(0, token, column) if column < width else cell.source(1, token, column - width)
        label = "shared by all heads" if column < width else "the head's own"
        return Working(((source, 2),), single(label, [(source.step.name, source.value)], (source,)))

    def summand(self, to: Consumer) -> Summand:
        width, g = to.site.input(0).shape[-1], to.incoming
        if to.number == 1:
            own = Quantity(f"{to.symbol}[{width}…{len(g.values) - 1}]", g.values[width:])
            return Summand(own.name, own.values, ("the dimensions after the shared ones",), (own,))
        heads = [Quantity(f"{to.symbol}, head {head}", row[:width]) for head, row in enumerate(to.g[:, to.row.place])]
        total = torch.stack([head.values for head in heads]).sum(dim=0)
        where = ("summed over all heads, which share it",)
        return Summand(f"Σ {to.symbol}[0…{width - 1}]", total, where, tuple(heads))
