"""Talking heads: a learned matrix mixes the attention maps of all heads (Shazeer et al. 2020)."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.operation import Consumer, Operation, Parameter, Pass, Quantity, Summand, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Working, product


class MixHeads(Operation):
    """x·W over heads: each head's map (…, H, Q, K) becomes a sum over all heads, by its column of W (H, H)."""

    words = "a sum of products"
    mixes_heads = True

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        return (Parameter(step.parameter, "weight", ("head", "head"), transposed=True),)

    def initialise(self, module: nn.Module, std: float, generator: torch.Generator) -> None:
        """The identity: no mixing at first."""
        nn.init.eye_(module.get_parameter("weight"))

    def forward(self, *inputs: Tensor) -> Tensor:
        x, matrix = inputs
        return (x.movedim(-3, -1) @ matrix.to(x.dtype).T).movedim(-1, -3)

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return self.forward(*inputs, module.weight)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        matrix = site.module.weight
        return self.forward(site.input(), matrix if heads is None else matrix[list(heads)])

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        """g·Wᵀ over heads."""
        return (self.forward(g, site.module.weight.T),)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        """gᵀ·x over all queries and keys."""
        gradient = wide(g).flatten(1) @ wide(site.input()).flatten(1).T  # (H, Q·K)·(Q·K, H)
        yield f"{site.path}.weight", gradient.to(site.module.weight.dtype)

    def code(self, site: Site) -> str:
        (matrix,) = self.operands(site)
        return f'{site.variable} = torch.einsum("hqk,gh->gqk", {site.names[0]}, {matrix}.to({site.names[0]}.dtype))'

    def arithmetic(self, cell: Cell) -> Working:
        query, key = cell.index
        first, weights = cell.source(0, query, key, head=0), cell.site.module.weight[cell.head]
        series = product(
            (first.step.name, cell.site.step.matrix),
            (cell.site.input()[:, query, key].cpu().double(), weights.cpu().double()),
            lambda head: f"head {head}",
            lambda head: (cell.source(0, query, key, head=head),),
        )
        return Working(((first, 2),), series)

    def summand(self, to: Consumer) -> Summand:
        head, matrix = to.row.head or 0, to.site.step.matrix
        weights, rows = to.site.module.weight[:, head].detach().to(to.g.dtype), to.g[:, to.row.place]  # (H,), (H, K)
        quantities = [Quantity(f"{to.symbol}, head {number}", row) for number, row in enumerate(rows)]
        lines = (f"w = {matrix}[{head}], from head {head} to each",)
        return Summand(f"Σ w·{to.symbol} over heads", weights @ rows, lines, (Quantity("w", weights), *quantities))

    def multiply_adds(self, config: ModelConfig, step: Step, tokens: int, keys: int) -> int:
        return tokens * keys * config.n_heads**2
