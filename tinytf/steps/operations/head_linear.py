"""A linear map within each head: its numbers times a matrix of its own, as in the gates of Griffin (De et al. 2024)."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.operation import ALONE, Consumer, Operation, Parameter, Pass, Summand
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Term, Working, product


class HeadLinear(Operation):
    """x·W + b of each head, (…, H, T, D), with rows of W (H·D, D), out × in, and of b (H·D,)."""

    words = "a sum of products"

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        width = step.axes[-1]
        out = f"n_heads·{width}"
        return (
            Parameter(step.parameter, "weight", (width, out), transposed=True),
            Parameter(step.parameter.replace("W", "b"), "bias", (out,)),
        )

    def forward(self, *inputs: Tensor) -> Tensor:
        x, weight, bias = inputs
        heads = x.shape[-3]
        return x @ weight.unflatten(0, (heads, -1)).mT + bias.view(heads, 1, -1)

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return self.forward(*inputs, module.weight, module.bias)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        output = self.run(site.module, ALONE, site.input())
        return output if heads is None else output[list(heads)]

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        """g·Wᵀ within each head."""
        return (g @ self._by_head(site),)

    @staticmethod
    def _by_head(site: Site) -> Tensor:
        """The matrices (H, out, in)."""
        matrices: Tensor = site.module.weight.detach().unflatten(0, (len(site.value), -1))
        return matrices

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        """gᵀ·x within each head, and the sum of g over the tokens."""
        yield f"{site.path}.weight", (g.mT @ site.input()).flatten(0, 1)
        yield f"{site.path}.bias", g.sum(dim=1).flatten()

    def code(self, site: Site) -> str:
        matrix, bias = self.operands(site)
        heads = len(site.value)
        return (
            f"{site.variable} = {site.names[0]} @ {matrix}.unflatten(0, ({heads}, -1)).mT + {bias}.view({heads}, 1, -1)"
        )

    def arithmetic(self, cell: Cell) -> Working:
        (token, out), head = cell.index, cell.head or 0
        first = cell.source(0, token, 0)
        series = product(
            (first.step.name, cell.step.matrix),
            (first.row(), self._by_head(cell.site)[head, out].cpu().double()),
            lambda i: f"d{i}",
            lambda i: (cell.source(0, token, i),),
        )
        bias = float(cell.site.module.bias[head * cell.site.value.shape[-1] + out])
        return Working(((first, 1),), series, Term("bias", (), bias))

    def summand(self, to: Consumer) -> Summand:
        g, head = to.incoming, to.row.head or 0
        where = (f"W = {to.site.step.matrix} of head {head}",)
        return Summand(f"{g.name}·Wᵀ", g.values @ self._by_head(to.site)[head], where, (g,))

    def multiply_adds(self, config: ModelConfig, step: Step, tokens: int, keys: int) -> int:
        return tokens * config.n_heads * config.sizes[step.axes[-1]] ** 2
