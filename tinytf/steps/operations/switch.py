"""A switch: what a shared expert gives, times the sigmoid of one number of the token (Qwen2-MoE)."""

import math

import torch
from torch import Tensor

from tinytf.steps.operations.operation import Consumer, Operation, Quantity, Summand, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working, single


class Switch(Operation):
    """x·σ(s): (…, T, C) and (…, T, 1) -> (…, T, C)."""

    words = "a product"
    pointwise = True

    def forward(self, *inputs: Tensor) -> Tensor:
        x, score = inputs
        return x * torch.sigmoid(score)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        x, score = (wide(one) for one in site.inputs())
        open_ = torch.sigmoid(score)
        of_score = (g * x).sum(dim=-1, keepdim=True) * open_ * (1 - open_)  # rounded as autograd's is
        return (g * open_).to(g.dtype), of_score.to(g.dtype)

    def code(self, site: Site) -> str:
        x, score = site.names
        return f"{site.variable} = {x} * torch.sigmoid({score})"

    def arithmetic(self, cell: Cell) -> Working:
        token, width = cell.index
        x, score = cell.source(0, token, width), cell.source(1, token, 0)
        share = (1 + math.tanh(score.value / 2)) / 2
        before = (Value(score.step.name, score.value), Value("σ", share, f"σ({score.step.name})"))
        factors = [(x.step.name, x.value), ("σ", share)]
        made = single(f"{x.step.name} · σ", factors, (x, score))
        return Working(((x, 2), (score, 2)), made, before=before)

    def summand(self, to: Consumer) -> Summand:
        g, x, score = to.incoming, to.input_at_row(0), to.input_at_row(1)
        share = Quantity(f"σ({score.name})", torch.sigmoid(score.values))
        if to.number == 0:
            return Summand(f"{g.name}·{share.name}", g.values * share.values, (), (g, score), (share,))
        along = (g.values * x.values).sum().reshape(1)
        result = along * share.values * torch.sigmoid(-score.values)
        return Summand(f"(Σ {g.name}⊙{x.name})·s·(1 − s)", result, (f"s = {share.name}",), (g, x, score), (share,))
