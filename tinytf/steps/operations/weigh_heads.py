"""Heads times the weights of their experts, where the heads of a token are chosen (Zhang et al. 2022)."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from tinytf.steps.one_token import Kernels
from tinytf.steps.operations.operation import Consumer, Operation, Quantity, Summand, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Working, single


class WeighHeads(Operation):
    """(…, H, T, D) and the weights (…, T, E) -> (…, H, T, D); head h is one of expert h mod E."""

    words = "a product"

    def forward(self, *inputs: Tensor) -> Tensor:
        x, routes = inputs
        by_expert = x.unflatten(-3, (-1, routes.shape[-1]))  # (…, H/E, E, T, D)
        return (by_expert * routes.mT.unsqueeze(-3).unsqueeze(-1)).flatten(-4, -3)

    def one_token(self, kernels: Kernels, module: Any) -> Callable[..., Any] | None:
        return kernels.pointwise(
            lambda x, routes: self.forward(x.unsqueeze(-2), routes.unsqueeze(-2)).squeeze(-2)  # (…, H, D), (…, E)
        )

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        weighed = self.forward(*site.inputs())
        return weighed if heads is None else weighed[list(heads)]

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        """g·w for x; Σ g·x over the heads of each expert for its weight."""
        x, routes = site.inputs()
        along = (wide(g) * wide(x)).sum(dim=-1).unflatten(0, (-1, routes.shape[-1]))  # (H/E, E, T)
        return self.forward(g, routes), along.sum(dim=0).T.to(routes.dtype)

    def code(self, site: Site) -> str:
        (x, routes), count = site.names, site.config.experts
        return f"{site.variable} = ({x}.unflatten(0, (-1, {count})) * {routes}.T[:, :, None]).flatten(0, 1)"

    def arithmetic(self, cell: Cell) -> Working:
        expert, (token, width) = (cell.head or 0) % cell.site.config.experts, cell.index
        x, weight = cell.source(0, token, width), cell.source(1, token, expert)
        factors = [(x.step.name, x.value), (weight.step.name, weight.value)]
        series = single(" · ".join(name for name, _ in factors), factors, (x, weight))
        return Working(((x, 2), (weight, 2)), series)

    def summand(self, to: Consumer) -> Summand:
        (x, routes), position, (name, weights) = to.site.inputs(), to.row.place, to.site.source_steps
        if to.number == 0:
            weight = Quantity("w", routes[position, (to.row.head or 0) % routes.shape[-1]])
            lines = (f"w = {weights.name}",)
            return Summand(f"w·{to.symbol}", weight.values * to.incoming.values, lines, (weight, to.incoming))
        g = to.g[:, position]  # (H, D)
        along = (wide(g) * wide(x[:, position])).sum(dim=-1).unflatten(0, (-1, routes.shape[-1])).sum(dim=0)
        formula = f"Σ {to.symbol} ⊙ {name.name} of the heads of each expert"
        return Summand(formula, along.to(g.dtype), inputs=(Quantity(to.symbol, g[0]),))
