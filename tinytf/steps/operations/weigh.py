"""The inputs or outputs of experts times the routing weights, and the sum over experts."""

import torch
from torch import Tensor

from tinytf.steps.operations.operation import Consumer, Operation, Quantity, Summand, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Series, Working, single


class Weigh(Operation):
    """(…, E, T, C), or (…, T, C) for all experts, and the weights (…, T, E) -> (…, E, T, C)."""

    words = "a product"

    def forward(self, *inputs: Tensor) -> Tensor:
        x, routes = inputs
        shared = x.dim() == routes.dim()
        return (x.unsqueeze(-3) if shared else x) * routes.transpose(-1, -2).unsqueeze(-1)

    def for_expert(self, module: object, number: int, *inputs: Tensor) -> Tensor:
        x, weight = inputs  # (N, C), (N,)
        return x * weight[:, None]

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        routes = site.input(1)
        return self.forward(site.input(0, heads), routes if heads is None else routes[:, list(heads)])

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        """g·w for x; Σ g·x over the dimensions for the weight."""
        x, routes = site.inputs()
        of_routes = (wide(g) * wide(x)).sum(dim=-1).T  # (E, T) -> (T, E)
        of_product = g * routes.T[..., None]  # (E, T, C)
        return of_product if x.dim() == 3 else of_product.sum(dim=0), of_routes.to(routes.dtype)

    def code(self, site: Site) -> str:
        x, routes = site.names
        return f"{site.variable} = {x} * {routes}.T[:, :, None]"

    def arithmetic(self, cell: Cell) -> Working:
        number, (token, width) = cell.head or 0, cell.index
        x, weight = cell.source(0, token, width), cell.source(1, token, number)
        factors = [(x.step.name, x.value), (weight.step.name, weight.value)]
        series = single(" · ".join(name for name, _ in factors), factors, (x, weight))
        return Working(((x, 2), (weight, 2)), series)

    def summand(self, to: Consumer) -> Summand:
        position, is_split = to.row.place, to.site.source_steps[0].is_split
        if to.number == 0 and not is_split:
            weights = to.site.input(1)[position]  # (E,)
            result = (weights[:, None] * to.g[:, position]).sum(dim=0)
            lines = (f"w = {to.site.source_steps[1].name} of each expert",)
            quantities = (Quantity("w", weights), Quantity(to.symbol, to.g[0, position]))
            return Summand(f"Σ w·{to.symbol} of each expert", result, lines, quantities)
        if to.number == 0:
            weight = Quantity("w", to.site.input(1)[position, to.row.head or 0])
            lines = (f"w = {to.site.source_steps[1].name}",)
            return Summand(f"w·{to.symbol}", weight.values * to.incoming.values, lines, (weight, to.incoming))
        x = to.site.input(0)[:, position] if is_split else to.site.input(0)[position]  # (E, C) or (C,)
        g = to.g[:, position]
        along = (wide(g) * wide(x)).sum(dim=-1).to(g.dtype)
        name = to.site.source_steps[0].name
        return Summand(f"Σ {to.symbol} ⊙ {name} of each expert", along, inputs=(Quantity(to.symbol, g[0]),))


class SumExperts(Operation):
    """(…, E, T, C) -> (…, T, C)."""

    words = "a sum over experts"

    def forward(self, *inputs: Tensor) -> Tensor:
        return inputs[0].sum(dim=-3)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        """Add one expert after the other, so that all outputs are never in memory at once."""
        parts = (site.input(0, (number,))[0] for number in range(site.config.experts))
        total = next(parts).clone()
        for part in parts:
            total += part
        return total

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return (g.expand(site.config.experts, *g.shape),)

    def code(self, site: Site) -> str:
        return f"{site.variable} = {site.names[0]}.sum(0)"

    def arithmetic(self, cell: Cell) -> Working:
        parts = [cell.source(0, *cell.index, head=number) for number in range(cell.site.config.experts)]
        values = torch.tensor([part.value for part in parts], dtype=torch.float64)
        series = Series(values, lambda i: f"expert {i}", lambda i: (parts[i],))
        return Working(tuple((part, 2) for part in parts if part.value), series)

    def summand(self, to: Consumer) -> Summand:
        return Summand(to.symbol, to.incoming.values, inputs=(to.incoming,))
