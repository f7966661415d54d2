"""A switch: numbers times the sigmoids of others, or times one sigmoid for a whole row.

One sigmoid a row gates a shared expert (Qwen2-MoE); one a number gates heads (Qiu et al. 2025, "Gated Attention for
Large Language Models"). Laguna gates heads by softplus instead, ln(1 + e^s).
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tinytf.steps.operations.operation import Consumer, Operation, Quantity, Summand, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working, single


@dataclass(frozen=True)
class Switch(Operation):
    """x·f(s) with f the sigmoid or softplus: (…, T, C), and scores (…, T, 1) or (…, T, C) -> (…, T, C)."""

    function: str = "sigmoid"

    words = "a product"
    pointwise = True

    @property
    def _symbol(self) -> str:
        return "σ" if self.function == "sigmoid" else self.function

    def factor(self, score: Tensor) -> Tensor:
        """What multiplies x."""
        return torch.sigmoid(score) if self.function == "sigmoid" else F.softplus(score)

    def forward(self, *inputs: Tensor) -> Tensor:
        x, score = inputs
        return x * self.factor(score)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        x, score = (wide(tensor) for tensor in site.inputs())
        share = torch.sigmoid(score)
        of_factor = g * x if score.shape == x.shape else (g * x).sum(dim=-1, keepdim=True)
        # in the order of autograd's rounding
        of_score = of_factor * share * (1 - share) if self.function == "sigmoid" else of_factor * share
        return (g * self.factor(score)).to(g.dtype), of_score.to(g.dtype)

    def code(self, site: Site) -> str:
        x, score = site.names
        function = "torch.sigmoid" if self.function == "sigmoid" else "F.softplus"
        return f"{site.variable} = {x} * {function}({score})"

    def arithmetic(self, cell: Cell) -> Working:
        token, width = cell.index
        is_single = cell.site.source_steps[1].axes[-1] == "switch"
        x, score = cell.source(0, token, width), cell.source(1, token, 0 if is_single else width)
        s, name = score.value, self._symbol
        factor = (1 + math.tanh(s / 2)) / 2 if name == "σ" else max(s, 0.0) + math.log1p(math.exp(-abs(s)))
        before = (Value(score.step.name, s), Value(name, factor, f"{name}({score.step.name})"))
        factors = [(x.step.name, x.value), (name, factor)]
        series = single(f"{x.step.name} · {name}", factors, (x, score))
        return Working(((x, 2), (score, 2)), series, before=before)

    def summand(self, to: Consumer) -> Summand:
        g, x, score = to.incoming, to.input_at_row(0), to.input_at_row(1)
        if to.number == 0:
            factor = Quantity(f"{self._symbol}({score.name})", self.factor(score.values))
            return Summand(f"{g.name}·{factor.name}", g.values * factor.values, (), (g, score), (factor,))
        share = Quantity(f"σ({score.name})", torch.sigmoid(score.values))
        is_sigmoid = self.function == "sigmoid"
        slope = share.values * torch.sigmoid(-score.values) if is_sigmoid else share.values
        words = "s·(1 − s)" if is_sigmoid else "s"
        if len(score.values) == len(x.values):
            result = g.values * x.values * slope
            return Summand(f"{g.name}⊙{x.name}·{words}", result, (f"s = {share.name}",), (g, x, score), (share,))
        along = (g.values * x.values).sum().reshape(1)
        formula = f"(Σ {g.name}⊙{x.name})·{words}"
        return Summand(formula, along * slope, (f"s = {share.name}",), (g, x, score), (share,))
