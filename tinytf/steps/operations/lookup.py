"""Rows of a table, looked up: token embeddings and token types."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.parts.row import Step
from tinytf.steps.operations.operation import Operation, Parameter
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working, single

TOKEN_TABLE = "embed.tokens.weight"


def table_gradient(g: Tensor, ids: Tensor, count: int, factor: float = 1.0) -> Tensor:
    """factor·g added to the row of each token: (T, C) and ids (T,) -> (count, C)."""
    return g.new_zeros(count, g.shape[-1]).index_add_(0, ids, factor * g)


@dataclass(frozen=True)
class Lookup(Operation):
    """The row of each token in the table; for ``types`` row 0, since a trace is of one text."""

    types: bool = False

    words = "a lookup"

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        return (Parameter(step.parameter, "weight", ("type" if self.types else "vocab", *step.axes[-1:])),)

    def _ids(self, site: Site) -> list[int]:
        return [0 if self.types else token for token in site.ids]

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        return site.module(torch.tensor(self._ids(site), device=site.module.weight.device))

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        table = site.module
        ids = torch.tensor(self._ids(site), device=g.device)
        yield f"{site.path}.weight", table_gradient(g, ids, len(table.weight), table.scale)

    def code(self, site: Site) -> str:
        rows = "torch.zeros_like(ids)" if self.types else "ids"
        return f"{site.variable} = {site.step.matrix}[{rows}]" + (" * embed_scale" if site.module.scale != 1.0 else "")

    def operands(self, site: Site) -> dict[str, Tensor]:
        return {**super().operands(site), "embed_scale": torch.tensor(site.module.scale, dtype=torch.float64)}

    def arithmetic(self, cell: Cell) -> Working:
        token, width = cell.index
        row, table = self._ids(cell.site)[token], cell.site.module
        letter = cell.step.matrix
        factors = [(letter, float(table.weight[row, width]))]
        if table.scale != 1.0:
            factors.append(("scale", table.scale))
        before = () if self.types else (Value("id", row, f"of {cell.token(token)}"),)
        return Working((), single(f"{letter}[{row},{width}]", factors), before=before)
