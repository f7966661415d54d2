"""A linear map in groups: each group of inputs is mapped to outputs of its own, as in the heads of Zamba's Mamba."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.operation import (
    ALONE,
    Consumer,
    Operation,
    Parameter,
    Pass,
    Quantity,
    Summand,
    dimension,
    into_heads,
    of_query_heads,
    side_by_side,
    width_of,
)
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Working, product


@dataclass(frozen=True)
class GroupLinear(Operation):
    """x·W of each of the ``groups``, (…, T, G·I) -> (…, T, out), with rows of W (out, I); ``within`` is the axis of I.

    It is split into heads where the step has heads.
    """

    groups: int
    within: str

    words = "a sum of products"
    side_by_side = True

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        out = step.axes[-1]
        if step.has_heads:
            out = f"{'n_kv_heads' if 'kv head' in step.axes else 'n_heads'}·{out}"
        return (Parameter(step.parameter, "weight", (self.within, out), transposed=True),)

    def forward(self, *inputs: Tensor) -> Tensor:
        x, weight = inputs
        return torch.einsum("...gi,goi->...go", self._grouped(x), weight.unflatten(0, (self.groups, -1))).flatten(-2)

    def _grouped(self, x: Tensor) -> Tensor:
        """(…, T, G·I) -> (…, T, G, I)."""
        return x.unflatten(-1, (self.groups, -1))

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return self.forward(*inputs, module.weight)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        output = self.run(site.module, ALONE, site.input())
        return of_query_heads(into_heads(output, width_of(site)), site, heads) if site.step.has_heads else output

    def _flat(self, site: Site, g: Tensor) -> Tensor:
        return side_by_side(g) if site.step.has_heads else g

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        """g·Wᵀ within each group."""
        weight = site.weight.detach().unflatten(0, (self.groups, -1))
        return (torch.einsum("tgo,goi->tgi", self._grouped(self._flat(site, g)), weight).flatten(-2),)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        """gᵀ·x within each group."""
        pairs = self._grouped(self._flat(site, g)), self._grouped(site.input())
        yield f"{site.path}.weight", torch.einsum("tgo,tgi->goi", *pairs).flatten(0, 1)

    def code(self, site: Site) -> str:
        (matrix,) = self.operands(site)
        split = f"({self.groups}, -1)"
        x, weight = f"{site.names[0]}.unflatten(1, {split})", f"{matrix}.unflatten(0, {split})"
        product = f'torch.einsum("tgi,goi->tgo", {x}, {weight}).flatten(1)'
        if not site.step.has_heads:
            return f"{site.variable} = {product}"
        heads, width = len(site.weight) // width_of(site), width_of(site)
        return f"{site.variable} = {product}.unflatten(-1, ({heads}, {width})).transpose(0, 1)"

    def arithmetic(self, cell: Cell) -> Working:
        site, (token, out) = cell.site, cell.index
        if cell.head is not None:
            head = cell.head // site.config.heads_per_kv if "kv head" in site.step.axes else cell.head
            out += head * width_of(site)
        weight, row = site.weight[out].detach().cpu().double(), cell.source(0, token, 0).row()
        start = out // (len(site.weight) // self.groups) * len(weight)
        series = product(
            (site.source_steps[0].name, site.step.matrix),
            (row[start : start + len(weight)], weight),
            lambda i: dimension(site.source_steps[0].axes[-1], start + i, site.config),
            lambda i: (cell.source(0, token, start + i),),
        )
        return Working(((cell.source(0, token, 0), 1),), series)

    def summand(self, to: Consumer) -> Summand:
        g = Quantity(to.symbol, self._flat(to.site, to.g)[to.row.place])
        weight = to.site.weight.detach().unflatten(0, (self.groups, -1))
        row = torch.einsum("go,goi->gi", self._grouped(g.values), weight).flatten()
        return Summand(f"{g.name}·{to.site.step.matrix}ᵀ", row, (f"in each of {self.groups} groups",), (g,))

    def multiply_adds(self, config: ModelConfig, step: Step, tokens: int, keys: int) -> int:
        (weight,) = self.parameters(step)
        return tokens * config.sizes[weight.axes[0]] * config.sizes[weight.axes[1]]
