"""What exceeds a threshold that follows the row's mean and deviation: the Gaussian top-k of Gemma 3n."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.steps.operations.operation import Consumer, Operation, Quantity, Summand, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working


@dataclass(frozen=True)
class Exceed(Operation):
    """max(0, x − mean − ``deviations``·σ) of every row; σ² is the mean of (x − mean)²."""

    deviations: float

    words = "an excess over a threshold"

    def forward(self, *inputs: Tensor) -> Tensor:
        return (wide(inputs[0]) - self._threshold(inputs[0])).relu().to(inputs[0].dtype)

    def _threshold(self, x: Tensor) -> Tensor:
        x = wide(x)
        return x.mean(dim=-1, keepdim=True) + self.deviations * x.std(dim=-1, keepdim=True, unbiased=False)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return (self._gradient(g, site.input()).to(g.dtype),)

    def _gradient(self, g: Tensor, x: Tensor) -> Tensor:
        """ĝ − mean ĝ · (1 + deviations·(x − mean) / σ), where ĝ is g of what exceeds, else 0."""
        x, kept = wide(x), self._kept(wide(g), x)
        centred = x - x.mean(dim=-1, keepdim=True)
        sigma = centred.square().mean(dim=-1, keepdim=True).sqrt()
        return kept - kept.mean(dim=-1, keepdim=True) * (1 + self.deviations * centred / sigma)

    def _kept(self, g: Tensor, x: Tensor) -> Tensor:
        return g.masked_fill(x <= self._threshold(x), 0.0)

    def side(self, number: int, x: Tensor) -> Tensor | None:
        return wide(x) > self._threshold(x)

    def code(self, site: Site) -> str:
        x = f"{site.names[0]}.float()" if wide(site.input()) is not site.input() else site.names[0]
        back = f".to({site.names[0]}.dtype)" if x != site.names[0] else ""
        threshold = f"{x}.mean(-1, keepdim=True) + {self.deviations} * {x}.std(-1, keepdim=True, unbiased=False)"
        return f"{site.variable} = F.relu({x} - ({threshold})){back}"

    def arithmetic(self, cell: Cell) -> Working:
        source = cell.source(0, *cell.index)
        row = source.row()
        mean = float(row.mean())
        sigma = math.sqrt(float((row - mean).square().mean()))
        threshold = mean + self.deviations * sigma
        before = (
            Value("x", source.value, source.step.name),
            Value("mean", mean, "of the row"),
            Value("σ", sigma, "√(mean of (x − mean)²)"),
            Value("threshold", threshold, f"mean + {self.deviations:.4g} · σ"),
        )
        after = (Value("excess", max(0.0, source.value - threshold), "max(0, x − threshold)"),)
        return Working(((source, len(source.index) - 1),), before=before, after=after, leads=(source,))

    def summand(self, to: Consumer) -> Summand:
        g, x = to.incoming, to.input_at_row(0)
        values = wide(x.values)
        kept = Quantity("ĝ", self._kept(wide(g.values), values))
        deviations = Quantity("z", torch.tensor(self.deviations, dtype=values.dtype))
        result = self._gradient(g.values, x.values).to(g.values.dtype)
        lines = (
            f"ĝ = {g.name} where {x.name} > mean + z·σ, else 0",
            f"mean and σ are those of {x.name}",
        )
        steps = (kept, Quantity("mean", values.mean()), Quantity("σ", values.std(unbiased=False)))
        return Summand(f"ĝ − mean(ĝ)·(1 + z·({x.name} − mean) / σ)", result, lines, (g, x, deviations), steps)
