"""A bias of each distance, mixed for every query from learned profiles over distances (Inkling, 2026)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.operation import Consumer, Operation, Parameter, Pass, Summand
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Term, Working, product


@dataclass(frozen=True)
class Profile(Operation):
    """Scores (…, H, Q, K) + r·P[query − key] of each head's r (…, H, Q, R); P (R, ``extent``) is 0 beyond."""

    extent: int

    words = "a sum of products"

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        return (Parameter(step.parameter, "weight", ("profile", "profile distance")),)

    def _distances(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The distance of each query and key, within the extent, and whether it is: both (Q, K)."""
        queries, keys = scores.shape[-2:]
        place = torch.arange(keys, device=scores.device)
        back = place[keys - queries :, None] - place
        return back.clamp(0, self.extent - 1), (back >= 0) & (back < self.extent)

    def forward(self, *inputs: Tensor) -> Tensor:
        scores, mixture, profiles = inputs
        back, within = self._distances(scores)
        bias = (mixture @ profiles).gather(-1, back.expand(scores.shape))
        return scores + bias.masked_fill(~within, 0.0)

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return self.forward(*inputs, module.weight)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        return self.forward(*site.inputs(heads), site.module.weight)

    def _by_distance(self, g: Tensor) -> Tensor:
        """The gradient of the bias of each query and distance: (H, Q, K) -> (H, Q, extent)."""
        back, within = self._distances(g)
        return g.new_zeros(*g.shape[:-1], self.extent).scatter_add(-1, back.expand(g.shape), g * within)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return g, self._by_distance(g) @ site.module.weight.detach().mT

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        yield f"{site.path}.weight", (site.input(1).mT @ self._by_distance(g)).sum(dim=0)  # (R, extent)

    def code(self, site: Site) -> str:
        scores, mixture = site.names
        (profiles,) = self.operands(site)
        return (
            "back = torch.arange(T)[:, None] - torch.arange(T)\n"
            f"bias = ({mixture} @ {profiles}).gather(-1, back.clamp(0, {self.extent - 1}).expand({scores}.shape))\n"
            f"{site.variable} = {scores} + bias * ((back >= 0) & (back < {self.extent}))"
        )

    def arithmetic(self, cell: Cell) -> Working:
        query, key = cell.index
        score, mixture = cell.source(0, query, key), cell.source(1, query, 0)
        profiles, back = cell.site.module.weight.detach().cpu().double(), query - key
        inside = 0 <= back < self.extent
        of_distance = profiles[:, back] if inside else torch.zeros(len(profiles), dtype=torch.float64)
        series = product(
            (mixture.step.name, f"{cell.step.matrix}[{back}]" if inside else "0"),
            (mixture.row(), of_distance),
            lambda i: f"profile {i}",
            lambda i: (cell.source(1, query, i),),
        )
        return Working(((score, 2), (mixture, 1)), series, Term(score.step.name, (), score.value))

    def summand(self, to: Consumer) -> Summand:
        g = to.incoming
        if to.number == 0:
            return Summand(g.name, g.values, inputs=(g,))
        rows = self._by_distance(to.g)[to.head_of(to.site.step), to.row.place]
        result = rows @ to.site.module.weight.detach().mT
        return Summand(f"Σ {g.name}·P[query − key]", result, ("over the keys within the extent",), (g,))

    def multiply_adds(self, config: ModelConfig, step: Step, tokens: int, keys: int) -> int:
        return tokens * config.n_heads * self.extent * config.profiles
