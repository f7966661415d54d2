"""A division of every number by one constant: of scores by √d_head (Vaswani et al. 2017, equation 1)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.steps.operations.operation import Consumer, Operation, Quantity, Summand
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working


def scale_scores(scores: Tensor, d_head: int) -> Tensor:
    """scores / √d_head."""
    return scores / math.sqrt(d_head)


@dataclass(frozen=True)
class Scale(Operation):
    """x / ``divisor``; ``called`` is the divisor's name, ``expression`` its formula."""

    divisor: float
    called: str
    expression: str

    words = "a division"
    fused = True

    def forward(self, *inputs: Tensor) -> Tensor:
        return inputs[0] / self.divisor

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return (g / self.divisor,)

    def code(self, site: Site) -> str:
        divisor = f"{site.config.d_head}**0.5" if self.called == "√d_head" else self.divisor
        return f"{site.variable} = {site.names[0]} / {divisor}"

    def arithmetic(self, cell: Cell) -> Working:
        source = cell.source(0, *cell.index)
        before = (Value("score", source.value), Value(self.called, self.divisor, self.expression))
        after = (Value("scaled", source.value / self.divisor, f"score / {self.called}"),)
        return Working(((source, 2),), before=before, after=after, leads=(source,))

    def summand(self, to: Consumer) -> Summand:
        divisor = Quantity(
            "√d" if self.called == "√d_head" else self.called, torch.tensor(self.divisor, dtype=to.g.dtype)
        )
        quantities = (to.incoming, divisor)
        return Summand(f"{to.symbol} / {self.divisor:.4g}", to.incoming.values / self.divisor, inputs=quantities)
