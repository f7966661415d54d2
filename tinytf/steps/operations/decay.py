"""The logarithm of the decay of a state at each token, in each head (Gu and Dao 2023; Yang et al. 2024)."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.parts.row import Step
from tinytf.steps.operations.operation import Consumer, Operation, Parameter, Pass, Quantity, Summand, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working


class Decay(Operation):
    """−e^A·x, (…, H, T, 1), with a learned A for each head; float32 or wider."""

    words = "a decay"

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        return (Parameter(f"{step.name}.A", "weight", ("n_heads·switch",)),)

    def initialise(self, module: nn.Module, std: float, generator: torch.Generator) -> None:
        """Draw rates e^A from 1 … 16, log-uniform."""
        module.get_parameter("weight").uniform_(0.0, math.log(16), generator=generator)

    def forward(self, *inputs: Tensor) -> Tensor:
        x, rate = (wide(x) for x in inputs)
        return -rate[:, None, None].exp() * x

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return self.forward(*inputs, module.weight)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        rows = slice(None) if heads is None else list(heads)
        return self.forward(site.input(0, heads), site.module.weight[rows])

    @staticmethod
    def _rate(site: Site) -> Tensor:
        """e^A, (H, 1, 1)."""
        return wide(site.module.weight.detach())[:, None, None].exp()

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return ((-wide(g) * self._rate(site)).to(site.input().dtype),)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        of_heads = (wide(g) * site.value).flatten(1).sum(dim=1)
        yield f"{site.path}.weight", of_heads.to(site.module.weight.dtype)

    def code(self, site: Site) -> str:
        ((name, weight),) = self.operands(site).items()
        rate = f"{name}.float()" if wide(weight) is not weight else name
        return f"{site.variable} = -{rate}[:, None, None].exp() * {site.names[0]}"

    def arithmetic(self, cell: Cell) -> Working:
        source, log_rate = cell.source(0, *cell.index), float(cell.site.module.weight[cell.head or 0])
        rate = math.exp(log_rate)
        before = (Value("x", source.value, source.step.name), Value("e^A", rate, f"A = {log_rate:.4g}"))
        after = (Value("decay", -rate * source.value, f"−e^A · {source.step.name}"),)
        return Working(((source, 2),), before=before, after=after, leads=(source,))

    def summand(self, to: Consumer) -> Summand:
        g, rate = to.incoming, self._rate(to.site)[to.row.head or 0, 0]
        result = (-wide(g.values) * rate).to(to.site.input().dtype)
        return Summand(f"−{g.name}·e^A", result, (), (g, Quantity("e^A", rate[0])))
