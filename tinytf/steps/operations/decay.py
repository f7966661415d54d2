"""The logarithm of the decay of a state at each token, in each head (Gu and Dao 2023; Yang et al. 2024)."""

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinytf.parts.row import Step
from tinytf.steps.operations.operation import Consumer, Operation, Parameter, Pass, Quantity, Summand, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working


class Decay(Operation):
    """−e^A·softplus(x + b), (…, H, T, 1), with a learned A and b for each head; float32 or wider."""

    words = "a decay"

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        axes = ("n_heads·switch",)
        return Parameter(f"{step.name}.A", "weight", axes), Parameter(f"{step.name}.b", "bias", axes)

    def initialise(self, module: nn.Module, std: float, generator: torch.Generator) -> None:
        """Draw rates e^A from 1 … 16 and steps softplus(b) from 0.001 … 0.1, both log-uniform."""
        rate, bias = module.get_parameter("weight"), module.get_parameter("bias")
        rate.uniform_(0.0, math.log(16), generator=generator)
        step = bias.uniform_(math.log(1e-3), math.log(1e-1), generator=generator).exp()
        bias.copy_(step + torch.log(-torch.expm1(-step)))  # the inverse of softplus

    def forward(self, *inputs: Tensor) -> Tensor:
        x, rate, bias = (wide(x) for x in inputs)
        return -rate[:, None, None].exp() * F.softplus(x + bias[:, None, None])

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return self.forward(*inputs, module.weight, module.bias)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        rows = slice(None) if heads is None else list(heads)
        return self.forward(site.input(0, heads), site.module.weight[rows], site.module.bias[rows])

    @staticmethod
    def _of_heads(site: Site) -> tuple[Tensor, Tensor]:
        """e^A and b, (H, 1, 1)."""
        rate, bias = (wide(parameter.detach())[:, None, None] for parameter in (site.module.weight, site.module.bias))
        return rate.exp(), bias

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        """−g·e^A·σ(x + b)."""
        rate, bias = self._of_heads(site)
        x = site.input()
        return ((-wide(g) * rate * torch.sigmoid(wide(x) + bias)).to(x.dtype),)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        rate, bias = self._of_heads(site)
        x, dtype = wide(site.input()) + bias, site.module.weight.dtype
        yield f"{site.path}.weight", (-wide(g) * rate * F.softplus(x)).flatten(1).sum(dim=1).to(dtype)
        yield f"{site.path}.bias", (-wide(g) * rate * torch.sigmoid(x)).flatten(1).sum(dim=1).to(dtype)

    def code(self, site: Site) -> str:
        rate, bias = (
            f"{name}.float()" if wide(parameter) is not parameter else name
            for name, parameter in self.operands(site).items()
        )
        x = f"{site.names[0]}.float()" if wide(site.input()) is not site.input() else site.names[0]
        return f"{site.variable} = -{rate}[:, None, None].exp() * F.softplus({x} + {bias}[:, None, None])"

    def arithmetic(self, cell: Cell) -> Working:
        source, head = cell.source(0, *cell.index), cell.head or 0
        rate, bias = float(cell.site.module.weight[head]), float(cell.site.module.bias[head])
        x = source.value + bias
        soft = max(x, 0.0) + math.log1p(math.exp(-abs(x)))
        before = (
            Value("x", source.value, source.step.name),
            Value("b", bias),
            Value("softplus", soft, "log(1 + e^(x + b))"),
            Value("e^A", math.exp(rate), f"A = {rate:.4g}"),
        )
        after = (Value("decay", -math.exp(rate) * soft, "−e^A · softplus"),)
        return Working(((source, 2),), before=before, after=after, leads=(source,))

    def summand(self, to: Consumer) -> Summand:
        rate, bias = (parameter[to.row.head or 0, 0] for parameter in self._of_heads(to.site))
        g, x = to.incoming, to.input_at_row(0)
        slope = Quantity(f"σ({x.name} + b)", torch.sigmoid(wide(x.values) + bias))
        result = (-wide(g.values) * rate * slope.values).to(x.values.dtype)
        quantities = (g, x, Quantity("e^A", rate[0]), Quantity("b", bias[0]))
        return Summand(f"−{g.name}·e^A·{slope.name}", result, (), quantities, (slope,))
