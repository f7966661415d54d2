"""A switch: numbers times the sigmoids of others, or times one sigmoid for a whole row.

One sigmoid a row gates a shared expert (Qwen2-MoE); one a number gates heads (Qiu et al. 2025, "Gated Attention for
Large Language Models").
"""

import math

import torch
from torch import Tensor

from tinytf.steps.operations.operation import Consumer, Operation, Quantity, Summand, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working, single


class Switch(Operation):
    """x·σ(s): (…, T, C), and scores (…, T, 1) or (…, T, C) -> (…, T, C)."""

    words = "a product"
    pointwise = True

    def forward(self, *inputs: Tensor) -> Tensor:
        x, score = inputs
        return x * torch.sigmoid(score)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        x, score = (wide(tensor) for tensor in site.inputs())
        share = torch.sigmoid(score)
        of_share = g * x if score.shape == x.shape else (g * x).sum(dim=-1, keepdim=True)
        of_score = of_share * share * (1 - share)  # in the order of autograd's rounding
        return (g * share).to(g.dtype), of_score.to(g.dtype)

    def code(self, site: Site) -> str:
        x, score = site.names
        return f"{site.variable} = {x} * torch.sigmoid({score})"

    def arithmetic(self, cell: Cell) -> Working:
        token, width = cell.index
        is_single = cell.site.source_steps[1].axes[-1] == "switch"
        x, score = cell.source(0, token, width), cell.source(1, token, 0 if is_single else width)
        share = (1 + math.tanh(score.value / 2)) / 2
        before = (Value(score.step.name, score.value), Value("σ", share, f"σ({score.step.name})"))
        factors = [(x.step.name, x.value), ("σ", share)]
        series = single(f"{x.step.name} · σ", factors, (x, score))
        return Working(((x, 2), (score, 2)), series, before=before)

    def summand(self, to: Consumer) -> Summand:
        g, x, score = to.incoming, to.input_at_row(0), to.input_at_row(1)
        share = Quantity(f"σ({score.name})", torch.sigmoid(score.values))
        if to.number == 0:
            return Summand(f"{g.name}·{share.name}", g.values * share.values, (), (g, score), (share,))
        if len(score.values) == len(x.values):
            result = g.values * x.values * share.values * torch.sigmoid(-score.values)
            return Summand(f"{g.name}⊙{x.name}·s·(1 − s)", result, (f"s = {share.name}",), (g, x, score), (share,))
        along = (g.values * x.values).sum().reshape(1)
        result = along * share.values * torch.sigmoid(-score.values)
        return Summand(f"(Σ {g.name}⊙{x.name})·s·(1 − s)", result, (f"s = {share.name}",), (g, x, score), (share,))
