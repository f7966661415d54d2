"""Matrices whose rows and columns nearly sum to 1, by dividing both in turns (Sinkhorn and Knopp 1967)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.steps.operations.operation import Consumer, Operation, Summand, wide
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Value, Working


@dataclass(frozen=True)
class Sinkhorn(Operation):
    """The scores of a ``size`` × ``size`` matrix for each token (…, T, n·n) -> its balanced transpose (…, T, n·n).

    The softmax of every row, plus ``eps``, is divided by the sums of columns, then in every further round by those of
    rows and of columns again; ``eps`` is added to each of these sums (DeepSeek-V4, 2026).
    """

    size: int
    rounds: int
    eps: float

    words = "a balanced matrix"

    @property
    def _axes(self) -> tuple[int, ...]:
        """The axis along which each division sums."""
        return (-2, *(-1, -2) * (self.rounds - 1))

    def forward(self, *inputs: Tensor) -> Tensor:
        x = wide(inputs[0]).unflatten(-1, (self.size, -1)).softmax(dim=-1) + self.eps
        for axis in self._axes:
            x = x / (x.sum(dim=axis, keepdim=True) + self.eps)
        return x.mT.flatten(-2).to(inputs[0].dtype)

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        return (self._gradient(wide(g), wide(site.input())).to(g.dtype),)

    def _gradient(self, g: Tensor, scores: Tensor) -> Tensor:
        """Back through each division by S = Σ x + ε, (g − Σ g⊙y) / S with y = x / S, and through the softmax."""
        g, shares = g.unflatten(-1, (self.size, -1)).mT, scores.unflatten(-1, (self.size, -1)).softmax(dim=-1)
        x, passed = shares + self.eps, []
        for axis in self._axes:
            total = x.sum(dim=axis, keepdim=True) + self.eps
            x = x / total
            passed.append((axis, total, x))
        for axis, total, y in reversed(passed):
            g = (g - (g * y).sum(dim=axis, keepdim=True)) / total
        return (shares * (g - (g * shares).sum(dim=-1, keepdim=True))).flatten(-2)

    def code(self, site: Site) -> str:
        return (
            f"mixed = {site.names[0]}.unflatten(-1, ({self.size}, -1)).softmax(-1) + {self.eps}\n"
            f"for axis in {self._axes}:\n"
            f"    mixed = mixed / (mixed.sum(axis, keepdim=True) + {self.eps})\n"
            f"{site.variable} = mixed.mT.flatten(-2)"
        )

    def arithmetic(self, cell: Cell) -> Working:
        """Each division multiplies rows or columns, so that a cell is its share times a factor of either."""
        token, place = cell.index
        column, row = divmod(place, self.size)
        source = cell.source(0, token, row * self.size + column)
        scores = source.row().unflatten(0, (self.size, -1))
        shares = (scores - scores.logsumexp(dim=-1, keepdim=True)).exp() + self.eps
        of_rows, of_columns = torch.ones(self.size, dtype=torch.float64), torch.ones(self.size, dtype=torch.float64)
        for number in range(self.rounds):
            if number:
                of_rows = of_rows / (of_rows * (shares @ of_columns) + self.eps)
            of_columns = of_columns / (of_columns * (of_rows @ shares) + self.eps)
        share, factors = float(shares[row, column]), (float(of_rows[row]), float(of_columns[column]))
        before = (
            Value("x", source.value, f"from stream {row} to stream {column}"),
            Value("share", share, "softmax over the row, plus ε"),
            Value("of its row", factors[0], f"what {self.rounds - 1} rounds divide the row by, inverted"),
            Value("of its column", factors[1], f"what {self.rounds} rounds divide the column by, inverted"),
        )
        after = (Value("weight", math.prod((share, *factors)), "share · of its row · of its column"),)
        return Working(((source, 1),), before=before, after=after, leads=(source,))

    def summand(self, to: Consumer) -> Summand:
        g, x = to.incoming, to.input_at_row(0)
        result = self._gradient(wide(g.values), wide(x.values)).to(g.values.dtype)
        lines = (
            f"g = {g.name} transposed; back through each division by S = Σ x + ε: g = (g − Σ g⊙y) / S, y = x / S",
            f"p = softmax({x.name}) of each row",
        )
        return Summand("p ⊙ (g − Σ g⊙p)", result, lines, (g, x))
