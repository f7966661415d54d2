"""Scaling of each token by a factor that grows with its position, for queries of long texts (Llama 4)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinytf.steps.operations.operation import Consumer, Operation, Pass, Quantity, Summand
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working, single


def growth(positions: Tensor, scale: float, every: int, first: int) -> Tensor:
    """1 + scale·ln(1 + ⌊(position + first) / every⌋), in float32 (Nakanishi 2025, as in Llama 4)."""
    return 1 + scale * torch.log1p(torch.floor((positions.float() + first) / every))


@dataclass(frozen=True)
class Grow(Operation):
    """x · (1 + ``scale``·ln(1 + ⌊(position + ``first``) / ``every``⌋)) of each token."""

    scale: float
    every: int
    first: int

    words = "a multiplication"

    def factors(self, tokens: int, like: Tensor, start: int = 0) -> Tensor:
        """The factors of ``tokens`` tokens from position ``start`` on, (T, 1), in the dtype of ``like``."""
        positions = torch.arange(start, start + tokens, device=like.device)
        return growth(positions, self.scale, self.every, self.first).to(like.dtype)[:, None]

    def forward(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs  # (…, T, D)
        return x * self.factors(x.shape[-2], x)

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return inputs[0] * self.factors(inputs[0].shape[-2], inputs[0], now.start)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return (g * self.factors(g.shape[-2], g),)

    def code(self, site: Site) -> str:
        shifted = f"(torch.arange(T) + {self.first})" if self.first else "torch.arange(T)"
        factor_line = f"factor = 1 + {self.scale} * torch.log1p({shifted} // {self.every})"
        return f"{factor_line}\n{site.variable} = {site.names[0]} * factor[:, None]"

    def arithmetic(self, cell: Cell) -> Working:
        source, token = cell.source(0, *cell.index), cell.index[0]
        factor = float(self.factors(1, cell.site.value, token))
        periods = (token + self.first) // self.every
        before = (
            Value("factor", factor, f"1 + {self.scale:g}·ln(1 + {periods}), for {periods:,} times {self.every:,}"),
        )
        series = single(
            f"{source.step.name} · factor", [(source.step.name, source.value), ("factor", factor)], (source,)
        )
        return Working(((source, 2),), series, before=before, leads=(source,))

    def summand(self, to: Consumer) -> Summand:
        factor = self.factors(1, to.g, to.row.place)[0, 0]
        lines = (f"factor is that of position {to.row.place}",)
        return Summand(
            f"{to.symbol} · factor", to.incoming.values * factor, lines, (to.incoming, Quantity("factor", factor))
        )
