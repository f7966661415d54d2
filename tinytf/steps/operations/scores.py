"""Attention scores: how well each query fits each key, q·kᵀ."""

from typing import ClassVar

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.operation import (
    Consumer,
    Operation,
    Quantity,
    Summand,
    by_group,
    in_float32,
    repeat_groups,
    repeats,
    wide,
)
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Working, product


def attention_scores(q: Tensor, k: Tensor) -> Tensor:
    """q·kᵀ: (…, Q, D) and (…, K, D) -> (…, Q, K)."""
    return q @ k.transpose(-2, -1)


def scores_gradients(g: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of q (H, Q, D) and k (G, K, D) from that of q·kᵀ (H, Q, K); a shared key sums over query heads."""
    grouped = by_group(g, k)  # (G, H/G, Q, K)
    of_q = (grouped @ wide(k)[:, None]).flatten(0, 1)
    of_k = (grouped.transpose(-2, -1) @ by_group(wide(q), k)).sum(dim=1)
    return of_q.to(q.dtype), of_k.to(k.dtype)


def from_columns(to: Consumer, maps: Tensor, rows: Tensor, expression: str, symbol: str) -> Summand:
    """The gradient of a key or value: the sum over the queries that look at it, in all query heads that share it."""
    columns = [Quantity(f"{symbol}[·,{to.row.place}], head {h}", maps[h, :, to.row.place]) for h in to.query_heads]
    parts = [
        Quantity(f"from head {h}", column.values @ rows[h].to(column.values.dtype))
        for h, column in zip(to.query_heads, columns, strict=True)
    ]
    has_several = len(parts) > 1
    where = (f"summed over the query heads {to.query_heads[0]} to {to.query_heads[-1]}, which share it",)
    result = torch.stack([part.values for part in parts]).sum(dim=0).to(rows.dtype)
    return Summand(
        expression, result, where if has_several else (), tuple(columns), tuple(parts) if has_several else ()
    )


class Scores(Operation):
    """q·kᵀ of each query head with its key head; 16-bit numbers are multiplied in float32, as in fused kernels."""

    words = "a sum of products"
    fused = True
    remembers: ClassVar[tuple[tuple[int, str], ...]] = ((1, "keys"),)

    def forward(self, *inputs: Tensor) -> Tensor:
        q, k = (wide(x) for x in inputs)
        return attention_scores(q, repeat_groups(k, q.shape[-3]))

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        # input(1, heads) repeats a shared key head for each of its query heads, so the head axes match.
        return self.forward(site.input(0, heads), site.input(1, heads))

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return scores_gradients(g, site.input(0), site.input(1))

    def code(self, site: Site) -> str:
        q, k = (in_float32(name, site.input(i)) for i, name in enumerate(site.names))
        shared = "" if repeats(site, 1) == 1 else f".repeat_interleave({repeats(site, 1)}, 0)"
        return f"{site.variable} = {q} @ {k}{shared}.transpose(-2, -1)"

    def arithmetic(self, cell: Cell) -> Working:
        query, key = cell.source(0, cell.index[0], 0), cell.source(1, cell.index[1], 0)
        series = product(
            (query.step.name, key.step.name),
            (query.row(), key.row()),
            lambda i: f"d{i}",
            lambda i: (cell.source(0, cell.index[0], i), cell.source(1, cell.index[1], i)),
        )
        return Working(((query, 1), (key, 1)), series)

    def summand(self, to: Consumer) -> Summand:
        if to.number == 0:
            key = wide(to.site.input(1))[to.head_of(to.site.source_steps[1])]  # (K, D)
            return Summand(f"{to.symbol}·k", to.incoming.values @ key, inputs=(to.incoming,))
        return from_columns(to, to.g, to.site.input(0), f"{to.symbol}ᵀ·q", to.symbol)

    def multiply_adds(self, config: ModelConfig, step: Step, tokens: int, keys: int) -> int:
        return tokens * keys * config.n_heads * config.d_head


class CrossScores(Scores):
    """Scores of the keys of another stack, which are the same for every new token."""

    remembers = ()
