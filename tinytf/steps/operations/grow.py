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
        return self._growth(positions).to(like.dtype)[:, None]

    def _growth(self, positions: Tensor) -> Tensor:
        return growth(positions, self.scale, self.every, self.first)

    def forward(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs  # (…, T, D)
        return x * self.factors(x.shape[-2], x)

    def run(self, module: Any, now: Pass, *inputs: Tensor) -> Tensor:
        return inputs[0] * self.factors(inputs[0].shape[-2], inputs[0], now.start)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return (g * self.factors(g.shape[-2], g),)

    def code(self, site: Site) -> str:
        shifted = f"(torch.arange(T) + {self.first})" if self.first else "torch.arange(T)"
        return f"factor = {self._growth_code(shifted)}\n{site.variable} = {site.names[0]} * factor[:, None]"

    def _growth_code(self, positions: str) -> str:
        return f"1 + {self.scale} * torch.log1p({positions} // {self.every})"

    def arithmetic(self, cell: Cell) -> Working:
        source, token = cell.source(0, *cell.index), cell.index[0]
        factor = float(self.factors(1, cell.site.value, token))
        before = (Value("factor", factor, self._growth_words(token)),)
        series = single(
            f"{source.step.name} · factor", [(source.step.name, source.value), ("factor", factor)], (source,)
        )
        return Working(((source, 2),), series, before=before, leads=(source,))

    def _growth_words(self, token: int) -> str:
        periods = (token + self.first) // self.every
        return f"1 + {self.scale:g}·ln(1 + {periods}), for {periods:,} times {self.every:,}"

    def summand(self, to: Consumer) -> Summand:
        factor = self.factors(1, to.g, to.row.place)[0, 0]
        lines = (f"factor is that of position {to.row.place}",)
        return Summand(
            f"{to.symbol} · factor", to.incoming.values * factor, lines, (to.incoming, Quantity("factor", factor))
        )


@dataclass(frozen=True)
class GrowFrom(Grow):
    """x · (1 + ``scale``·ln(max(1, (position + ``first``) / ``every``))) of each token or query (Inkling, 2026)."""

    def _growth(self, positions: Tensor) -> Tensor:
        return 1 + self.scale * torch.log(((positions.float() + self.first) / self.every).clamp(min=1.0))

    def _growth_code(self, positions: str) -> str:
        return f"1 + {self.scale} * torch.log(({positions} / {self.every}).clamp(min=1))"

    def _growth_words(self, token: int) -> str:
        return f"1 + {self.scale:g}·ln(max(1, {token + self.first} / {self.every:,}))"
