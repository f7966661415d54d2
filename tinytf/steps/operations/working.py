"""The arithmetic of one cell: its summands as tensors, and the values before and after them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.steps.operations.protocols import Cell

PRODUCT = "contribution"
"""The word for a summand that is the product of its factors."""


@dataclass(frozen=True)
class Term:
    """One summand: its label, the recorded or learned numbers that it multiplies, and its contribution.

    ``factors`` belong to the explanation's ``factor_names``; a bias or a passed-on number has none.
    """

    label: str
    factors: tuple[float, ...]
    contribution: float


@dataclass(frozen=True)
class Rest:
    """The number of terms that are not listed, their sum, and the sum of their absolute values."""

    count: int
    sum: float
    absolute: float


@dataclass(frozen=True)
class Value:
    """A named intermediate number and its expression, which is empty for a recorded or learned number."""

    name: str
    value: float
    expression: str = ""


@dataclass(frozen=True, eq=False)
class Series:
    """Summands (n,) of one form, in float64.

    ``factors`` are the numbers (n,) that each summand multiplies, under their ``names``; ``label`` names a summand,
    ``origin`` returns the recorded cells that it comes from. ``called`` is PRODUCT, or what a summand computes.
    """

    values: Tensor
    label: Callable[[int], str]
    origin: Callable[[int], tuple[Cell, ...]] = lambda _: ()
    names: tuple[str, ...] = ()
    factors: tuple[Tensor, ...] = ()
    called: str = PRODUCT

    @property
    def lead(self) -> tuple[Cell, ...]:
        """The cells of the largest summand."""
        return self.origin(int(self.values.abs().argmax()))


def product(
    names: tuple[str, str],
    factors: tuple[Tensor, Tensor],
    label: Callable[[int], str],
    origin: Callable[[int], tuple[Cell, ...]],
) -> Series:
    """Summands that are each a product of two numbers."""
    return Series(factors[0] * factors[1], label, origin, names, factors)


def single(label: str, factors: Sequence[tuple[str, float]], cells: tuple[Cell, ...] = ()) -> Series:
    """One summand, the product of named numbers."""
    values = [torch.tensor([value], dtype=torch.float64) for _, value in factors]
    result = torch.stack(values).prod(dim=0)
    return Series(result, lambda _: label, lambda _: cells, tuple(name for name, _ in factors), tuple(values))


@dataclass(frozen=True, eq=False)
class Working:
    """How one number is computed: values ``before`` the sum, summands and a ``bias``, values ``after`` the sum.

    The number is the last value of ``after``, or the sum where ``after`` is empty. ``inputs`` are the cells, rows or
    columns that it is computed from, each as a cell and the number of its indices that count. ``leads`` are the cells
    to look at next; by default those of the largest summand.
    """

    inputs: tuple[tuple[Cell, int], ...]
    series: Series | None = None
    bias: Term | None = None
    before: tuple[Value, ...] = ()
    after: tuple[Value, ...] = ()
    leads: tuple[Cell, ...] | None = None
    note: str = ""

    @property
    def sum(self) -> float | None:
        if self.series is None:
            return None
        return float(self.series.values.sum()) + (self.bias.contribution if self.bias else 0.0)

    @property
    def total(self) -> float:
        if self.after:
            return self.after[-1].value
        assert self.sum is not None, "an operation without a sum ends with a value"
        return self.sum

    @property
    def lead(self) -> tuple[Cell, ...]:
        if self.leads is not None or self.series is None:
            return self.leads or ()
        return self.series.lead

    @property
    def rounding(self) -> float:
        """The sum of the absolute values of all summands, to which rounding is relative."""
        if self.series is None or self.after:
            return 0.0
        return float(self.series.values.abs().sum()) + (abs(self.bias.contribution) if self.bias else 0.0)

    def terms(self, top: int) -> tuple[tuple[Term, ...], Rest]:
        """The ``top`` largest summands, and the sum of the others."""
        series = self.series
        if series is None:
            return (), Rest(0, 0.0, 0.0)
        chosen = series.values.abs().nan_to_num(nan=torch.inf).topk(min(top, len(series.values))).indices.tolist()
        terms = [
            Term(series.label(i), tuple(float(factor[i]) for factor in series.factors), float(series.values[i]))
            for i in chosen
        ]
        terms = sorted([*terms, *([self.bias] if self.bias else [])], key=lambda term: -abs(term.contribution))
        others = torch.ones_like(series.values, dtype=torch.bool)
        others[chosen] = False
        unlisted, rest = terms[top:], series.values[others]
        beside = torch.tensor([term.contribution for term in unlisted], dtype=torch.float64)
        rest = torch.cat((rest.cpu(), beside))
        return tuple(terms[:top]), Rest(len(rest), float(rest.sum()), float(rest.abs().sum()))
