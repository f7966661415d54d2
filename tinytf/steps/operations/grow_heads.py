"""Scaling of the queries of each head by a number that grows with the position, as it learned (Mistral Large 4)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.parts.row import Step
from tinytf.steps.operations.operation import Consumer, Operation, Parameter, Pass, Quantity, Summand, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working, single


@dataclass(frozen=True)
class GrowHeads(Operation):
    """x · (s·ln(1 + position) + b), with s and b of each head: (…, H, T, D), or heads ``width`` wide side by side."""

    width: int = 0

    words = "a multiplication"

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        axis = "index_head" if self.width else "head"
        names = {"scale": "weight", "shift": "bias"}
        return tuple(Parameter(f"{step.name}.{name}", kind, (axis,)) for name, kind in names.items())

    def initialise(self, module: nn.Module, std: float, generator: torch.Generator) -> None:
        """s = 0 and b = 1, which change nothing."""
        module.get_parameter("weight").zero_()
        module.get_parameter("bias").fill_(1.0)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self._grown(0, *inputs)

    def _grown(self, start: int, *inputs: Tensor) -> Tensor:
        x, scale, shift = inputs
        factors = self._logs(x, start) * scale.to(x.dtype) + shift.to(x.dtype)  # (T, H)
        if self.width:
            return (x.unflatten(-1, (-1, self.width)) * factors[..., None]).flatten(-2)
        return x * factors.T[..., None]

    def _logs(self, x: Tensor, start: int = 0) -> Tensor:
        """ln(1 + position) of each token, (T, 1)."""
        return torch.arange(1 + start, 1 + start + x.shape[-2], device=x.device).float().log().to(x.dtype)[:, None]

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return self._grown(now.start, *inputs, module.weight, module.bias)

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        chosen = slice(None) if heads is None else list(heads)
        return self.forward(site.input(0, heads), site.module.weight[chosen], site.module.bias[chosen])

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return (self.forward(g, site.module.weight.detach(), site.module.bias.detach()),)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Σ g·x·ln(1 + position) and Σ g·x over the tokens and numbers of each head."""
        along = wide(g) * wide(site.input())
        by_head = along.unflatten(-1, (-1, self.width)).sum(-1) if self.width else along.sum(-1).T  # (T, H)
        for name, part in (("weight", by_head * self._logs(by_head)), ("bias", by_head)):
            yield f"{site.path}.{name}", part.sum(0).to(site.module.weight.dtype)

    def code(self, site: Site) -> str:
        (x,), (scale, shift) = site.names, self.operands(site)
        factors = f"factors = torch.arange(1, T + 1).log()[:, None] * {scale} + {shift}"
        heads = f"({x}.unflatten(-1, (-1, {self.width})) * factors[:, :, None]).flatten(1)"
        return f"{factors}\n{site.variable} = {heads if self.width else f'{x} * factors.T[:, :, None]'}"

    def _numbers(self, site: Site, head: int) -> tuple[float, float]:
        return float(site.module.weight[head]), float(site.module.bias[head])

    def arithmetic(self, cell: Cell) -> Working:
        source, token = cell.source(0, *cell.index), cell.index[0]
        scale, shift = self._numbers(cell.site, cell.index[1] // self.width if self.width else cell.head or 0)
        factor = scale * float(torch.tensor(1.0 + token).log()) + shift
        before = (Value("factor", factor, f"{scale:.4g}·ln({token + 1}) + {shift:.4g}"),)
        factors = [(source.step.name, source.value), ("factor", factor)]
        series = single(f"{source.step.name} · factor", factors, (source,))
        return Working(((source, 2),), series, before=before, leads=(source,))

    def summand(self, to: Consumer) -> Summand:
        module, place = to.site.module, torch.tensor(1.0 + to.row.place).log()
        every = (place * module.weight + module.bias).detach()
        factor = every.repeat_interleave(self.width) if self.width else every[to.row.head or 0]
        lines = (f"factor is that of position {to.row.place}",)
        result = to.incoming.values * factor
        return Summand(f"{to.symbol} · factor", result, lines, (to.incoming, Quantity("factor", factor)))
