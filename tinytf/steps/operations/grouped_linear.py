"""A linear map by groups: each of several equal parts of a vector times a matrix of its own (Iandola et al. 2020)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.linear import Linear
from tinytf.steps.operations.operation import Operation, Parameter, Pass, dimension, summed, width_of
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Term, Working, product


@dataclass(frozen=True)
class GroupedLinear(Linear):
    """A product with a matrix of ``groups`` blocks on its diagonal, G, which are stored below one another, (out, in/G).

    So output number i sees the group of inputs ⌊i·G/out⌋ alone. ``within`` names the axis of a group of inputs, if that
    of all inputs says less.
    """

    groups: int
    within: str = ""

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        weight, bias = super().parameters(step)
        return replace(weight, axes=(self.within or f"{step.reads}/{self.groups}", weight.axes[1])), bias

    def make_module(self, config: ModelConfig, step: Step) -> nn.Module:
        return Operation.make_module(self, config, step)

    def _blocks(self, weight: Tensor) -> Tensor:
        return weight.unflatten(0, (self.groups, -1))  # (out, in/G) -> (G, out/G, in/G)

    def matrix(self, module: Any) -> Tensor:
        """The whole matrix (out, in), 0 outside of the blocks."""
        return torch.block_diag(*self._blocks(module.weight))

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        x = inputs[0].unflatten(-1, (self.groups, -1))  # (…, in) -> (…, G, in/G)
        y = torch.einsum("...gi,goi->...go", x, self._blocks(module.weight)).flatten(-2)
        return y if module.bias is None else y + module.bias

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        """gᵀ·x within each group, summed over the tokens."""
        g = self._flat(site, g)
        parts = zip(*(tensor.unflatten(-1, (self.groups, -1)).unbind(-2) for tensor in (g, site.input())), strict=True)
        yield f"{site.path}.weight", torch.cat([of_group.mT @ x for of_group, x in parts])
        if site.module.bias is not None:
            yield f"{site.path}.bias", summed(g)

    def _product(self, site: Site, x: str) -> str:
        matrix, *bias = self.operands(site)
        blocks = f"torch.block_diag(*{matrix}.unflatten(0, ({self.groups}, -1)))"
        return " + ".join([f"{x} @ {blocks}.T", *bias])

    def arithmetic(self, cell: Cell) -> Working:
        site = cell.site
        token, out = cell.index
        if cell.head is not None:
            head = cell.head // (site.config.heads_per_kv if "kv head" in site.step.axes else 1)
            out += head * width_of(site)
        weight, bias = site.module.weight, site.module.bias
        width = weight.shape[1]
        first = out * self.groups // len(weight) * width  # of the inputs in its group
        source = cell.source(0, token, first)
        series = product(
            (source.step.name, site.step.matrix),
            (source.row()[first : first + width], weight[out].cpu().double()),
            lambda i: dimension(source.step.axes[-1], first + i, site.config),
            lambda i: (cell.source(0, token, first + i),),
        )
        return Working(((source, 1),), series, None if bias is None else Term("bias", (), float(bias[out])))

    def multiply_adds(self, config: ModelConfig, step: Step, tokens: int, keys: int) -> int:
        return super().multiply_adds(config, step, tokens, keys) // self.groups
