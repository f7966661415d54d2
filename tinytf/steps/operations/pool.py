"""Pooling: the tokens of a text become one vector."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinytf.steps.operations.mask import real_tokens
from tinytf.steps.operations.operation import Consumer, Operation, Pass, Quantity, Summand, in_float32, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Working, product, single

_CODE = {
    "mean": "{x}.mean(0)",
    "sqrt": "{x}.sum(0) / len({x}) ** 0.5",
    "weighted": "(torch.arange(1, len({x}) + 1)[:, None] * {x}).sum(0) / (len({x}) * (len({x}) + 1) / 2)",
    "first": "{x}[0]",
    "last": "{x}[-1]",
    "max": "{x}.amax(0)",
}


class MeanOfTokens(Operation):
    """(…, T, C) -> (…, T, C): every row is the mean of all tokens, without padding."""

    words = "the mean of the tokens"
    over_tokens = True

    def forward(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return wide(x).mean(-2, keepdim=True).to(x.dtype).expand_as(x)

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        if now.padding_mask is None:
            return self.forward(x)
        real = real_tokens(now.padding_mask, x.shape[-2])[:, 0]  # (B, T, 1)
        return ((wide(x) * real).sum(-2, keepdim=True) / real.sum(-2, keepdim=True)).to(x.dtype).expand_as(x)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return ((g.sum(0, keepdim=True) / len(g)).expand_as(g),)

    def code(self, site: Site) -> str:
        x, name = site.input(), site.names[0]
        mean = f"{in_float32(name, x)}.mean(0, keepdim=True)"
        return f"{site.variable} = {mean if wide(x) is x else f'{mean}.to({name}.dtype)'}.expand_as({name})"

    def arithmetic(self, cell: Cell) -> Working:
        source = cell.source(0, 0, cell.index[-1])
        column = source.column()
        series = product(
            ("weight", source.step.name),
            (torch.full((len(column),), 1 / len(column), dtype=torch.float64), column),
            lambda i: f"{i} {cell.token(i)}",
            lambda i: (cell.source(0, i, cell.index[-1]),),
        )
        return Working(((source, 0),), series)

    def summand(self, to: Consumer) -> Summand:
        """Every token has the T-th part of the sum of all rows' gradients."""
        total = to.g.sum(0)
        return Summand(
            f"Σ {to.symbol}[i] / T", total / len(to.g), ("the gradients of all rows, summed",),
            (Quantity(f"Σ {to.symbol}[i]", total),),
        )  # fmt: skip


@dataclass(frozen=True)
class Pool(Operation):
    """One vector from all tokens (T, C) -> (C,), by ``kind``: a word of ``tinytf.parts.pooling.FORMULAS``."""

    kind: str

    words = "tokens, pooled"
    over_tokens = True

    def shares(self, x: Tensor) -> Tensor:
        """What each token gives to the pooled vector, (T, C) -> (T, C): their sum is that vector.

        A maximum is given by the first token that has it, in each dimension by another one.
        """
        x, length = wide(x), x.shape[-2]
        if self.kind == "mean":
            return x / length
        if self.kind == "sqrt":
            return x / length**0.5
        places = torch.arange(length, device=x.device)[:, None]
        if self.kind == "weighted":
            return x * ((places + 1).to(x.dtype) / (length * (length + 1) / 2))
        giving = {"first": 0, "last": length - 1}.get(self.kind)
        return torch.where(places == (x.argmax(-2, keepdim=True) if giving is None else giving), x, 0.0)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.shares(inputs[0]).sum(dim=-2).to(inputs[0].dtype)

    def code(self, site: Site) -> str:
        x, name = site.input(), site.names[0]
        pooled = _CODE[self.kind].format(x=in_float32(name, x))
        return f"{site.variable} = " + (pooled if wide(x) is x else f"({pooled}).to({name}.dtype)")

    def arithmetic(self, cell: Cell) -> Working:
        (dimension,) = cell.index
        column = cell.source(0, 0, dimension).column()
        length = len(column)
        one = {"first": 0, "last": length - 1, "max": int(column.argmax())}.get(self.kind)
        if one is not None:
            source = cell.source(0, one, dimension)
            term = single(f"{one} {cell.token(one)}", [(source.step.name, source.value)], (source,))
            return Working(((source, 2),), term)
        share = {
            "mean": [1 / length] * length,
            "sqrt": [1 / math.sqrt(length)] * length,
            "weighted": [2 * (place + 1) / (length * (length + 1)) for place in range(length)],
        }[self.kind]
        source = cell.source(0, 0, dimension)
        series = product(
            ("weight", source.step.name),
            (torch.tensor(share, dtype=torch.float64), column),
            lambda i: f"{i} {cell.token(i)}",
            lambda i: (cell.source(0, i, dimension),),
        )
        return Working(((source, 0),), series)
