"""Softplus of a number plus a learned bias: the size of the step that a state takes at each token (Gu and Dao 2023)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinytf.parts.row import Step
from tinytf.steps.operations.operation import Consumer, Operation, Parameter, Pass, Quantity, Summand, in_float32, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working


@dataclass(frozen=True)
class Softplus(Operation):
    """log(1 + e^(x + b)), at least ``floor``, (…, H, T, D), with a learned b (H·D,); float32 or wider."""

    floor: float = 0.0

    words = "a softplus"

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        return (Parameter(f"{step.name}.b", "bias", (f"n_heads·{step.axes[-1]}",)),)

    def initialise(self, module: nn.Module, std: float, generator: torch.Generator) -> None:
        """Draw softplus(b) from 0.001 … 0.1, log-uniform."""
        bias = module.get_parameter("bias")
        step = bias.uniform_(math.log(1e-3), math.log(1e-1), generator=generator).exp()
        bias.copy_(step + torch.log(-torch.expm1(-step)))  # the inverse of softplus

    def forward(self, *inputs: Tensor) -> Tensor:
        x, bias = (wide(x) for x in inputs)
        return self._clipped(F.softplus(x + bias.view(x.shape[-3], 1, -1)))

    def _clipped(self, soft: Tensor) -> Tensor:
        return soft.clamp(min=self.floor) if self.floor else soft

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return self.forward(*inputs, module.bias)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        output = self.forward(site.input(), site.module.bias)
        return output if heads is None else output[list(heads)]

    def _slope(self, site: Site) -> Tensor:
        """σ(x + b), 0 at the floor, (H, T, D)."""
        x = wide(site.input())
        return self._slope_at(x + wide(site.module.bias.detach()).view(len(x), 1, -1))

    def _slope_at(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x) * (F.softplus(x) > self.floor)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return ((wide(g) * self._slope(site)).to(site.input().dtype),)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        yield f"{site.path}.bias", (wide(g) * self._slope(site)).sum(dim=1).flatten().to(site.module.bias.dtype)

    def code(self, site: Site) -> str:
        ((name, bias),) = self.operands(site).items()
        x = in_float32(site.names[0], site.input())
        floor = f".clamp(min={self.floor!r})" if self.floor else ""
        return f"{site.variable} = F.softplus({x} + {in_float32(name, bias)}.view({len(site.value)}, 1, -1)){floor}"

    def arithmetic(self, cell: Cell) -> Working:
        source, width = cell.source(0, *cell.index), cell.site.value.shape[-1]
        bias = float(cell.site.module.bias[(cell.head or 0) * width + cell.index[1]])
        x = source.value + bias
        soft = max(x, 0.0) + math.log1p(math.exp(-abs(x)))
        before = (Value("x", source.value, source.step.name), Value("b", bias))
        after = [Value("softplus", soft, "log(1 + e^(x + b))")]
        if self.floor:
            after.append(Value("Δ", max(soft, self.floor), f"at least {self.floor:g}"))
        return Working(((source, 2),), before=before, after=tuple(after), leads=(source,))

    def summand(self, to: Consumer) -> Summand:
        g, x = to.incoming, to.input_at_row(0)
        bias = wide(to.site.module.bias.detach()).view(len(to.g), -1)[to.row.head or 0]
        at_floor = ", 0 at the floor" if self.floor else ""
        slope = Quantity(f"σ({x.name} + b){at_floor}", self._slope_at(wide(x.values) + bias))
        result = (wide(g.values) * slope.values).to(x.values.dtype)
        return Summand(f"{g.name} ⊙ {slope.name}", result, (), (g, x, Quantity("b", bias)), (slope,))
