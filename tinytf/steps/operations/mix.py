"""Weighted values: each query's sum of values, by its attention weights."""

from typing import ClassVar

from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.operation import (
    Consumer,
    Operation,
    Summand,
    by_group,
    in_float32,
    repeat_groups,
    repeats,
    wide,
)
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.scores import from_columns
from tinytf.steps.operations.working import Working, product


def mix_gradients(g: Tensor, weights: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of weights (H, Q, K) and v (G, K, D) from the gradient of weights·v (H, Q, D)."""
    grouped = by_group(wide(g), v)  # (G, H/G, Q, D)
    of_weights = (grouped @ wide(v)[:, None].transpose(-2, -1)).flatten(0, 1)
    of_v = (by_group(wide(weights), v).transpose(-2, -1) @ grouped).sum(dim=1)
    return of_weights.to(weights.dtype), of_v.to(v.dtype)


class Mix(Operation):
    """weights·v of each query head, summed in float32 and returned in the dtype of v."""

    words = "a sum of products"
    fused = True
    remembers: ClassVar[tuple[tuple[int, str], ...]] = ((1, "values"),)

    def forward(self, *inputs: Tensor) -> Tensor:
        weights, v = inputs
        return (weights @ repeat_groups(wide(v), weights.shape[-3])).to(v.dtype)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        return self.forward(site.input(0, heads), site.input(1, heads))

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return mix_gradients(g, site.input(0), site.input(1))

    def code(self, site: Site) -> str:
        weights, v = site.names
        shared = "" if repeats(site, 1) == 1 else f".repeat_interleave({repeats(site, 1)}, 0)"
        return f"{site.variable} = {weights} @ {in_float32(v, site.input(1))}{shared}"

    def arithmetic(self, cell: Cell) -> Working:
        query, width = cell.index
        weights, values = cell.source(0, query, 0), cell.source(1, 0, width)
        series = product(
            (weights.step.name, values.step.name),
            (weights.row(), values.column()),
            lambda i: f"{i} {cell.token(i)}",
            lambda i: (cell.source(0, query, i), cell.source(1, i, width)),
        )
        return Working(((weights, 1), (values, 0)), series)

    def summand(self, to: Consumer) -> Summand:
        if to.number == 0:
            value = wide(to.site.input(1))[to.head_of(to.site.source_steps[1])]  # (K, D)
            return Summand(f"{to.symbol}·vᵀ", wide(to.incoming.values) @ value.T, inputs=(to.incoming,))
        return from_columns(to, to.site.input(0), to.g, f"weightsᵀ·{to.symbol}", to.site.source_steps[0].name)

    def multiply_adds(self, config: ModelConfig, step: Step, tokens: int, keys: int) -> int:
        return tokens * keys * config.n_heads * config.value_width


class CrossMix(Mix):
    """Weighted values of another stack, which are the same for every new token."""

    remembers = ()
