"""Disentangled attention: scores from the content of tokens and from their distance (He et al. 2021, DeBERTa).

Distances have embeddings, which W_K maps to keys and W_Q to queries, like those of tokens. A query also scores the keys
of distances (content to position), and a key the queries of distances (position to content).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.linear import weight_gradient
from tinytf.steps.operations.operation import (
    Consumer,
    Operation,
    Parameter,
    Pass,
    Quantity,
    Summand,
    in_float32,
    into_heads,
    side_by_side,
    wide,
)
from tinytf.steps.operations.positions import sinusoidal_table
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Term, Value, Working, product, single


def rows_of(distance: Tensor, reach: int, farthest: int) -> Tensor:
    """The row in the table of distances for each distance, query − key.

    Row ``reach`` is distance 0; the further a key is before its query, the larger its row, up to 2·reach − 1. With a
    ``farthest``, distances from reach / 2 on share rows, which widen up to that distance. The logarithm is in float32,
    as in the training of the checkpoints.
    """
    if farthest:
        exact = reach // 2
        magnitude = distance.abs().clamp(min=exact)
        share = torch.log(magnitude.float() / exact) / torch.log(torch.tensor((farthest - 1) / exact))
        far = exact + torch.ceil(share * (exact - 1)).long()
        distance = torch.where(magnitude == exact, distance, far * distance.sign())
    return (distance + reach).clamp(0, 2 * reach - 1)


@lru_cache(maxsize=8)
def distance_rows(queries: int, keys: int, reach: int, farthest: int, device: torch.device) -> Tensor:
    """The row of every query and key, (Q, K); the queries are the last of the K tokens."""
    with torch.inference_mode(False):
        position = torch.arange(keys, device=device)
        return rows_of(position[keys - queries :, None] - position, reach, farthest)


def rows_in_text(config: ModelConfig, tokens: int) -> list[int]:
    """The rows of the distances that occur in a text of ``tokens`` tokens."""
    rows: list[int] = rows_of(torch.arange(1 - tokens, tokens), config.distances, config.farthest).unique().tolist()
    return rows


def distances_in_words(config: ModelConfig) -> list[str]:
    """Where a key is from its query, for each row of the table: ``3 before``, ``5-7 after``; – for an unused row."""
    distances = torch.arange(1 - config.context, config.context)
    rows, words = rows_of(distances, config.distances, config.farthest), []
    for row in range(2 * config.distances):
        in_row = sorted(distances[rows == row].abs().tolist())
        span = "-".join(map(str, dict.fromkeys((in_row[0], in_row[-1])))) if in_row else "–"
        words.append(span + (" before" if row > config.distances else " after" if row < config.distances else ""))
    return words


class Table(Operation):
    """All rows of a learned table, independent of the text."""

    words = "a row of a table"

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        return (Parameter(step.parameter, "weight", step.axes),)

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        rows: Tensor = module.weight[None]  # (1, distances, C)
        return rows

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        rows: Tensor = site.module()[0].detach()
        return rows

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        yield f"{site.path}.weight", g

    def code(self, site: Site) -> str:
        return f"{site.variable} = {site.step.matrix}"

    def arithmetic(self, cell: Cell) -> Working:
        letter, (row, width) = cell.step.matrix, cell.index
        return Working((), single(f"{letter}[{row},{width}]", [(letter, float(cell.site.module.weight[row, width]))]))


@dataclass(frozen=True)
class WaveKeys(Operation):
    """The keys (H, 2·``reach``, ``width``) of all distances, from their sines, then cosines (Dai et al. 2019).

    Row ``reach`` is distance 0, as in ``rows_of``.
    """

    reach: int
    width: int

    words = "a sum of products"

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        return (Parameter(step.parameter, "weight", ("d_model", f"n_heads·{step.axes[-1]}"), transposed=True),)

    def _waves(self, weight: Tensor) -> Tensor:
        """The waves of every distance, (2·reach, C)."""
        half = weight.shape[-1] // 2
        ahead = sinusoidal_table(self.reach + 1, 2 * half, weight.device, weight.dtype, half)
        behind = torch.cat((-ahead[1:, :half], ahead[1:, half:]), dim=-1).flip(0)
        return torch.cat((behind, ahead[:-1]))

    def _keys(self, weight: Tensor, width: int) -> Tensor:
        return into_heads(self._waves(weight) @ weight.T, width)

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return self._keys(module.weight, self.width)[None]

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        keys = self._keys(site.module.weight, self.width)
        return keys if heads is None else keys[list(heads)]

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        yield f"{site.path}.weight", weight_gradient(side_by_side(g), self._waves(site.module.weight))

    def code(self, site: Site) -> str:
        (matrix,) = self.operands(site)
        half = site.module.weight.shape[-1] // 2
        return (
            f"frequency = torch.pow(10_000, torch.arange({half}) / {half}).reciprocal()\n"
            f"angle = torch.arange({-self.reach}, {self.reach})[:, None] * frequency\n"
            f"waves = torch.cat((angle.sin(), angle.cos()), dim=-1).to({matrix}.dtype)\n"
            f"{site.variable} = (waves @ {matrix}.T).unflatten(-1, ({len(site.value)}, -1)).transpose(0, 1)"
        )

    def arithmetic(self, cell: Cell) -> Working:
        (row, out), weight = cell.index, cell.site.module.weight.detach()
        own = weight[(cell.head or 0) * self.width + out].cpu().double()
        waves = self._waves(weight)[row].cpu().double()
        series = product(("wave", cell.step.matrix), (waves, own), lambda i: f"d{i}", lambda _: ())
        return Working((), series, before=(Value("distance", row - self.reach, f"row {row} − {self.reach}"),))


@dataclass(frozen=True)
class ByDistance(Operation):
    """x + y·t: y is the row of the query, or with ``of_keys`` the row of the key, and t the row of their distance.

    The table of distances has 2·``reach`` rows; ``distance_rows`` says which row is whose.
    """

    reach: int
    farthest: int
    of_keys: bool

    words = "a sum of products"

    def _rows(self, x: Tensor) -> Tensor:
        return distance_rows(*x.shape[-2:], self.reach, self.farthest, x.device)

    def forward(self, *inputs: Tensor) -> Tensor:
        x, content, table = (wide(x) for x in inputs)
        products, rows = content @ table.transpose(-2, -1), self._rows(x)  # (…, H, T, distances)
        if self.of_keys:
            return x + products.gather(-1, rows.T.expand(*products.shape[:-1], -1)).transpose(-2, -1)
        return x + products.gather(-1, rows.expand(*products.shape[:-1], -1))

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        content, table = site.input(1), site.input(2)
        rows, aligned_g = (self._rows(g).T, g.transpose(-2, -1)) if self.of_keys else (self._rows(g), g)
        of_products = g.new_zeros(*content.shape[:-1], table.shape[-2])  # (H, T, distances)
        of_products.scatter_add_(-1, rows.expand(len(g), -1, -1), aligned_g)
        of_content, of_table = of_products @ wide(table), of_products.transpose(-2, -1) @ wide(content)
        return g, of_content.to(content.dtype), of_table.to(table.dtype)

    def code(self, site: Site) -> str:
        x, content, table = (in_float32(name, site.input(i)) for i, name in enumerate(site.names))
        lines = ["distance = torch.arange(T)[:, None] - torch.arange(T)[None, :]"]
        if self.farthest:
            exact = self.reach // 2
            widest = (self.farthest - 1) / exact
            lines += [
                f"magnitude = distance.abs().clamp(min={exact})",
                f"share = torch.log(magnitude.float() / {exact}) / torch.log(torch.tensor({widest}))",
                f"far = {exact} + torch.ceil(share * {exact - 1}).long()",
                f"distance = torch.where(magnitude == {exact}, distance, far * distance.sign())",
            ]
        lines.append(f"row = (distance + {self.reach}).clamp(0, {2 * self.reach - 1})")
        way = "hkd,hqkd->hqk" if self.of_keys else "hqd,hqkd->hqk"
        lines.append(f'{site.variable} = {x} + torch.einsum("{way}", {content}, {table}[:, row])')
        return "\n".join(lines)

    def arithmetic(self, cell: Cell) -> Working:
        (query, key), score = cell.index, cell.source(0, *cell.index)
        length = len(cell.site.ids)
        row = int(distance_rows(length, length, self.reach, self.farthest, torch.device("cpu"))[query, key])
        content, of_distance = cell.source(1, key if self.of_keys else query, 0), cell.source(2, row, 0)
        series = product(
            (content.step.name, of_distance.step.name),
            (content.row(), of_distance.row()),
            lambda i: f"d{i}",
            lambda i: (cell.source(1, content.index[0], i), cell.source(2, row, i)),
        )
        values = (
            Value("distance", query - key, f"query {query} − key {key}"),
            Value("row", row, f"of {2 * self.reach} for distances"),
        )
        inputs = ((score, 2), (content, 1), (of_distance, 1))
        return Working(inputs, series, Term(score.step.name, (), score.value), before=values)

    def summand(self, to: Consumer) -> Summand:
        if to.number == 0:
            return Summand(to.symbol, to.incoming.values, inputs=(to.incoming,))
        head, position = to.row.head or 0, to.row.place
        g, rows = (map.transpose(-2, -1) if self.of_keys else map for map in (to.g[head], self._rows(to.g)))
        content, table = (wide(to.site.input(number)[head]) for number in (1, 2))
        kind, other_kind = ("key", "query") if self.of_keys else ("query", "key")
        names = [step.name for step in to.site.source_steps]
        if to.number == 1:
            quantity = Quantity(to.symbol, g[position])
            note = f"{names[2]} is the row of its distance to each {other_kind}"
            return Summand(f"{to.symbol}·{names[2]}", g[position] @ table[rows[position]], (note,), (quantity,))
        quantity = Quantity(f"{to.symbol} of each {kind}", torch.where(rows == position, g, 0.0).sum(dim=-1))
        note = f"summed over the cells of {to.symbol} whose distance has row {position}"
        return Summand(f"{to.symbol}ᵀ·{names[1]}", quantity.values @ content, (note,), (quantity,))

    def multiply_adds(self, config: ModelConfig, step: Step, tokens: int, keys: int) -> int:
        """The products of each query or key with all distances; every cell then picks one of them."""
        return tokens * 2 * self.reach * config.n_heads * config.d_head
