"""Scores of segments: a query scores its own segment and the others, by a vector for each (XLNet, Yang et al. 2019)."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tinytf.parts.row import Step
from tinytf.steps.operations.operation import Consumer, Operation, Parameter, Pass, Quantity, Summand
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Term, Value, Working, product


class BySegment(Operation):
    """x + q·G: G (2, H·D) holds a vector of each head for keys of the query's segment, then one for all other keys.

    A segment is the tokens of one type; a text without token types is one segment.
    """

    words = "a sum of products"

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        return (Parameter(step.parameter, "weight", ("segment", "n_heads·d_head")),)

    def _rows(self, types: Tensor) -> Tensor:
        """The row of G for each query and key, (…, 1, T, T)."""
        return (types[..., :, None] != types[..., None, :]).long().unsqueeze(-3)

    def _of_site(self, site: Site) -> Tensor:
        return self._rows(torch.tensor(site.types, device=site.input(1).device))

    def _vectors(self, module: Any, width: int) -> Tensor:
        vectors: Tensor = module.weight.unflatten(-1, (-1, width)).transpose(0, 1)
        return vectors  # (H, 2, D)

    def forward(self, *inputs: Tensor) -> Tensor:
        x, q, vectors, rows = inputs
        return x + (q @ vectors.transpose(-2, -1)).gather(-1, rows.expand(x.shape))

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        x, q = inputs
        types = q.new_zeros(len(q), q.shape[-2]) if now.token_types is None else now.token_types
        return self.forward(x, q, self._vectors(module, q.shape[-1]), self._rows(types))

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        x, q = site.inputs(heads)
        vectors = self._vectors(site.module, q.shape[-1])
        return self.forward(x, q, vectors if heads is None else vectors[list(heads)], self._of_site(site))

    def _of_products(self, site: Site, g: Tensor) -> Tensor:
        """The gradient of q·G, (H, T, 2)."""
        return g.new_zeros(*g.shape[:2], 2).scatter_add_(-1, self._of_site(site).expand(g.shape), g)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return g, self._of_products(site, g) @ self._vectors(site.module, site.input(1).shape[-1]).detach()

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        of_vectors = self._of_products(site, g).transpose(-2, -1) @ site.input(1)  # (H, 2, D)
        yield f"{site.path}.weight", of_vectors.transpose(0, 1).flatten(1)

    def code(self, site: Site) -> str:
        (x, q), (vectors,) = site.names, self.operands(site)
        return (
            f"types = torch.tensor({list(site.types)})\n"
            "other = (types[:, None] != types[None, :]).long()\n"
            f'products = torch.einsum("hqd,shd->hqs", {q}, {vectors}.unflatten(-1, ({len(site.value)}, -1)))\n'
            f"{site.variable} = {x} + products.gather(-1, other.expand(len({x}), -1, -1))"
        )

    def arithmetic(self, cell: Cell) -> Working:
        (query, key), score = cell.index, cell.source(0, *cell.index)
        row, q = int(cell.site.types[query] != cell.site.types[key]), cell.source(1, query, 0)
        series = product(
            (q.step.name, "G"),
            (q.row(), self._vectors(cell.site.module, len(q.row()))[cell.head or 0, row].detach().cpu().double()),
            lambda i: f"d{i}",
            lambda i: (cell.source(1, query, i),),
        )
        before = (Value("row", row, "another segment" if row else "the segment of the query"),)
        return Working(((score, 2), (q, 1)), series, Term(score.step.name, (), score.value), before=before)

    def summand(self, to: Consumer) -> Summand:
        if to.number == 0:
            return Summand(to.symbol, to.incoming.values, inputs=(to.incoming,))
        head, position = to.row.head or 0, to.row.place
        g = Quantity(f"{to.symbol} of each segment", self._of_products(to.site, to.g)[head, position])
        vectors = self._vectors(to.site.module, to.site.input(1).shape[-1]).detach()
        return Summand(f"{to.symbol}·G", g.values @ vectors[head], ("summed over the keys of each",), (g,))
