"""The weights of the chosen experts in PhiMoE: shares among near competitors (SparseMixer-2, Liu et al. 2024)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.steps.operations.operation import Consumer, Operation, Quantity, Summand, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Series, Value, Working


@dataclass(frozen=True)
class RouteNear(Operation):
    """The share of every chosen expert in a softmax over itself and its near competitors, times ``scale``.

    An expert with the router's number y competes with one of x where 0 ≤ x − y ≤ ``margin`` · max(|y|, x): a better
    one was chosen before it. The margin has no gradient.
    """

    margin: float
    scale: float

    words = "a share"
    deciding = (1,)

    def forward(self, *inputs: Tensor) -> Tensor:
        router, chosen = inputs
        own = self._shares(wide(router)).diagonal(dim1=-2, dim2=-1)  # (…, E)
        return (own.masked_fill(chosen == 0, 0.0) * self.scale).to(router.dtype)

    def _shares(self, x: Tensor) -> Tensor:
        """The share of each competitor of each expert: (…, E) -> (…, expert, competitor)."""
        return torch.softmax(x.unsqueeze(-2).expand(*x.shape, -1).masked_fill(~self._near(x), -torch.inf), dim=-1)

    def _near(self, x: Tensor) -> Tensor:
        """Which experts compete with each: (…, E) -> (…, expert, competitor)."""
        x = x.detach()
        own, other = x.unsqueeze(-1), x.unsqueeze(-2)
        return (other <= own) & (own - other <= self.margin * torch.maximum(other.abs(), own))

    def side(self, number: int, x: Tensor) -> Tensor | None:
        return None if number else self._near(x)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        router, chosen = site.inputs()
        return self._gradient(wide(g), wide(router), chosen != 0).to(g.dtype), torch.zeros_like(chosen)

    def _gradient(self, g: Tensor, x: Tensor, chosen: Tensor) -> Tensor:
        """The gradient of the router's outputs x: w ⊙ g, less what each expert takes from its competitors."""
        competitors = self._near(x) * torch.exp(x.unsqueeze(-2) - x.unsqueeze(-1)).clamp(max=1.0)
        weights = 1 / competitors.sum(dim=-1)
        pulled = g * chosen * self.scale * weights
        return pulled - ((pulled * weights).unsqueeze(-1) * competitors).sum(dim=-2)

    def code(self, site: Site) -> str:
        router, chosen = site.names
        times = "" if self.scale == 1.0 else f" * {self.scale!r}"
        lines = (
            f"own, other = {router}[..., :, None], {router}[..., None, :]",
            f"near = (other <= own) & (own - other <= {self.margin!r} * torch.maximum(other.abs(), own))",
            "total = torch.exp(other - own).masked_fill(~near, 0.0).sum(-1)",
            f"{site.variable} = (1 / total).masked_fill({chosen} == 0, 0.0){times}",
        )
        return "\n".join(lines)

    def arithmetic(self, cell: Cell) -> Working:
        source, choice = cell.source(0, *cell.index), cell.source(1, *cell.index)
        if not choice.value:
            nothing = (Value("weight", 0.0, "not chosen"),)
            return Working(
                ((source, 2), (choice, 2)), after=nothing, leads=(choice,), note="the token is not sent there"
            )
        x, expert = source.row(), cell.index[1]
        competitors = self._near(x)[expert].nonzero().flatten().tolist()
        values = (x[competitors] - x[expert]).exp()
        share = 1 / float(values.sum())
        after = [Value("share", share, "1 / sum")]
        if self.scale != 1.0:
            after.append(Value("weight", share * self.scale, f"· {self.scale:g}"))
        series = Series(values, lambda i: f"expert {competitors[i]}", called="e^(x − its own)")
        before = (Value("its own", float(x[expert]), f"of expert {expert}; others at most {self.margin:.0%} below"),)
        return Working(((source, 1), (choice, 2)), series, before=before, after=tuple(after), leads=(source,))

    def summand(self, to: Consumer) -> Summand:
        g, x, chosen = to.incoming, to.input_at_row(0), to.input_at_row(1)
        result = self._gradient(wide(g.values), wide(x.values), chosen.values != 0).to(g.values.dtype)
        scale = "" if self.scale == 1.0 else f"{self.scale:g}·"
        lines = (
            f"g = {scale}c ⊙ {g.name}",
            f"c = {to.site.source_steps[1].name}",
            f"p = shares of the competitors of each expert in {x.name}, w = its own",
        )
        return Summand(
            "w ⊙ g − Σ w⊙g⊙p over experts", result, lines, (Quantity("g", g.values), x, Quantity("c", chosen.values))
        )
