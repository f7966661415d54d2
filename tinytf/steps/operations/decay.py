"""The logarithm of the decay of a state at each token, in each head (Gu and Dao 2023; Yang et al. 2024)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.parts.row import Step
from tinytf.steps.operations.operation import Consumer, Operation, Parameter, Pass, Quantity, Summand, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working


@dataclass(frozen=True)
class Decay(Operation):
    """−e^A·x, (…, H, T, 1) or (…, H, T, D), with a learned A for each head; float32 or wider.

    With a ``bound`` it is −bound·σ(e^A·x), so that no decay is below −bound (GLM-5.3).
    """

    bound: float = 0.0

    words = "a decay"

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        return (Parameter(f"{step.name}.A", "weight", ("n_heads·switch",)),)

    def initialise(self, module: nn.Module, std: float, generator: torch.Generator) -> None:
        """Draw rates e^A from 1 … 16, log-uniform; with a bound all are 1."""
        if self.bound:
            module.get_parameter("weight").zero_()
        else:
            module.get_parameter("weight").uniform_(0.0, math.log(16), generator=generator)

    def at_rate(self, x: Tensor, rate: Tensor) -> Tensor:
        """The decay of ``x`` (…, H, T, D) at these rates (H, 1, 1)."""
        return -self.bound * torch.sigmoid(rate * x) if self.bound else -rate * x

    def forward(self, *inputs: Tensor) -> Tensor:
        x, log_rate = (wide(x) for x in inputs)
        return self.at_rate(x, log_rate[:, None, None].exp())

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return self.forward(*inputs, module.weight)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        rows = slice(None) if heads is None else list(heads)
        return self.forward(site.input(0, heads), site.module.weight[rows])

    @staticmethod
    def _rate(site: Site) -> Tensor:
        """e^A, (H, 1, 1)."""
        return wide(site.module.weight.detach())[:, None, None].exp()

    def _slope(self, value: Tensor) -> Tensor | float:
        """−∂/∂(e^A·x) of the decay at its ``value``: bound·σ·(1 − σ), else 1."""
        return -value * (1 + value / self.bound) if self.bound else 1.0

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return ((-wide(g) * self._rate(site) * self._slope(wide(site.value))).to(site.input().dtype),)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        of_x = -wide(g) * self._rate(site) * self._slope(wide(site.value))
        of_heads = (of_x * wide(site.input())).flatten(1).sum(dim=1)
        yield f"{site.path}.weight", of_heads.to(site.module.weight.dtype)

    def code(self, site: Site) -> str:
        ((name, weight),) = self.operands(site).items()
        rate = f"{name}.float()" if wide(weight) is not weight else name
        rate, x = f"{rate}[:, None, None].exp()", site.names[0]
        value = f"-{self.bound!r} * torch.sigmoid({rate} * {x})" if self.bound else f"-{rate} * {x}"
        return f"{site.variable} = {value}"

    def arithmetic(self, cell: Cell) -> Working:
        source, log_rate = cell.source(0, *cell.index), float(cell.site.module.weight[cell.head or 0])
        rate = math.exp(log_rate)
        before = (Value("x", source.value, source.step.name), Value("e^A", rate, f"A = {log_rate:.4g}"))
        after = [Value("decay", -rate * source.value, f"−e^A · {source.step.name}")]
        if self.bound:
            share = float(torch.sigmoid(torch.tensor(rate * source.value, dtype=torch.float64)))
            after = [
                Value("σ", share, f"σ(e^A · {source.step.name})"),
                Value("decay", -self.bound * share, f"−{self.bound:g} · σ"),
            ]
        return Working(((source, 2),), before=before, after=tuple(after), leads=(source,))

    def summand(self, to: Consumer) -> Summand:
        g, rate = to.incoming, self._rate(to.site)[to.row.head or 0, 0]
        quantities, expression = [g, Quantity("e^A", rate[0])], f"−{g.name}·e^A"
        result = -wide(g.values) * rate
        if self.bound:
            value = Quantity(to.site.step.name, wide(to.at_row(to.site.value)))
            quantities, expression = [*quantities, value], f"{expression}·b·σ·(1 − σ)"
            result = result * self._slope(value.values)
        lines = (f"σ = −{to.site.step.name} / b, b = {self.bound:g}",) if self.bound else ()
        return Summand(expression, result.to(to.site.input().dtype), lines, tuple(quantities))
