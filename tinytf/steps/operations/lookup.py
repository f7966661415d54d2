"""Rows of a table, looked up: token embeddings and token types."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.operation import Operation, Parameter, Pass
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working, single

TOKEN_TABLE = "embed.tokens.weight"


def table_gradient(g: Tensor, ids: Tensor, count: int, factor: float = 1.0) -> Tensor:
    """factor·g added to the row of each token: (T, C) and ids (T,) -> (count, C)."""
    return g.new_zeros(count, g.shape[-1]).index_add_(0, ids, factor * g)


class Embedding(nn.Module):
    """A table of ``count`` vectors, multiplied by ``scale`` when they are looked up; not initialised.

    nn.Embedding initialises itself, which on the meta device imports a compiler and takes a second.
    """

    def __init__(self, count: int, width: int, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, width))
        self.scale = scale

    def forward(self, ids: Tensor) -> Tensor:
        vectors = F.embedding(ids, self.weight)  # (B, T) -> (B, T, C)
        return vectors if self.scale == 1.0 else vectors * self.scale


@dataclass(frozen=True)
class Lookup(Operation):
    """The row of each token in the table, times ``scale`` (0: the model's).

    For ``types`` it is that of the token's type, which is 1 in the second text of a pair. In a table with only so many
    ``rows`` (0: one for each token), the first is also that of all later tokens.
    """

    types: bool = False
    scale: float = 0.0
    rows: int = 0

    words = "a lookup"

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        return (Parameter(step.parameter, "weight", (self._axis, *step.axes[-1:])),)

    @property
    def _axis(self) -> str:
        return "type" if self.types else "layer_vocab" if self.rows else "vocab"

    def make_module(self, config: ModelConfig, step: Step) -> nn.Module:
        count = config.sizes[self._axis]
        scale = self.scale or (1.0 if self.types else config.embed_scale)
        return Embedding(count, config.sizes[step.axes[-1]], scale)

    def arguments(self, now: Pass, *inputs: Tensor) -> tuple[Any, ...]:
        if not self.types:
            return (now.ids if not self.rows or now.ids is None else now.ids.where(now.ids < self.rows, 0),)
        return (torch.zeros_like(now.ids) if now.token_types is None and now.ids is not None else now.token_types,)

    def ids(self, site: Site) -> list[int]:
        """The rows of the table that the tokens take."""
        ids = site.types if self.types else site.ids
        return [number if number < self.rows or not self.rows else 0 for number in ids]

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        return site.module(torch.tensor(self.ids(site), device=site.module.weight.device))

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        table = site.module
        ids = torch.tensor(self.ids(site), device=g.device)
        yield f"{site.path}.weight", table_gradient(g, ids, len(table.weight), table.scale)

    def code(self, site: Site) -> str:
        types = f"torch.tensor({list(site.types)})" if any(site.types) else "torch.zeros_like(ids)"
        ids = f"ids.where(ids < {self.rows}, 0)" if self.rows else "ids"
        rows = types if self.types else ids
        return f"{site.variable} = {site.step.matrix}[{rows}]" + (" * embed_scale" if site.module.scale != 1.0 else "")

    def operands(self, site: Site) -> dict[str, Tensor]:
        return {**super().operands(site), "embed_scale": torch.tensor(site.module.scale, dtype=torch.float64)}

    def arithmetic(self, cell: Cell) -> Working:
        token, width = cell.index
        row, table = self.ids(cell.site)[token], cell.site.module
        letter = cell.step.matrix
        factors = [(letter, float(table.weight[row, width]))]
        if table.scale != 1.0:
            factors.append(("scale", table.scale))
        before = () if self.types else (Value("id", row, f"of {cell.token(token)}"),)
        return Working((), single(f"{letter}[{row},{width}]", factors), before=before)
