"""Explanations as data: of one cell, and of a cell with the cells that it was computed from."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tinytf.report import Data, Report, plain
from tinytf.sentences import percent
from tinytf.steps.operations.working import Rest, Term, Value


@dataclass(frozen=True)
class Input:
    """A row or cell of an earlier step that is an input, by its address, with that step's title and formula."""

    address: str
    title: str
    formula: str


@dataclass(frozen=True)
class Explanation(Data):
    """The arithmetic of the number at ``address``, in float64, from the recorded numbers before it.

    ``place`` is the cell in words, ``kind`` the operation. In reading order: the values ``before`` (a mean, an angle,
    the largest score); the ``terms`` (each a ``term_name``), largest first, with the ``rest``; their ``sum`` (None if
    nothing is summed); and the values ``after`` (a division, a tanh), the last of which is ``total``. ``recorded`` is
    the number of the trace, and ``allowed`` how far the two may differ. ``note`` says in words what the numbers do not,
    such as why a cell is masked. ``inputs`` are the input rows, and ``leads_to`` the cells of the largest term, one
    step back.
    """

    ALSO: ClassVar = ("holds",)

    address: str
    place: str
    depth: int
    title: str
    formula: str
    role: str
    kind: str
    note: str
    before: tuple[Value, ...]
    factor_names: tuple[str, ...]
    term_name: str
    terms: tuple[Term, ...]
    rest: Rest
    sum: float | None
    after: tuple[Value, ...]
    total: float
    recorded: float
    difference: float
    allowed: float
    inputs: tuple[Input, ...]
    leads_to: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether the arithmetic gives the recorded number; false for a NaN."""
        return self.difference <= self.allowed


TEMPERATURES = tuple(number / 10 for number in range(1, 41))


@dataclass(frozen=True)
class Explained(Report):
    """The explanations of ``cells``, the requested cell first, to at most ``depth`` levels.

    If one of the cells is NaN, ``first_not_finite`` names the first step of the pass with NaN or infinity. For a cell
    of ``probs``, ``by_temperature`` has the probability of its token, and of the likeliest others, at TEMPERATURES.
    """

    KIND = "explain"
    TABLE = ("explanations", "terms")
    EVENTS: ClassVar = {"tokens": "token", "explanations": "cell", "check": "check"}

    cells: tuple[Explanation, ...]
    depth: int = 1
    first_not_finite: str | None = None
    by_temperature: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def in_a_sentence(self) -> str:
        """The largest summand of a sum, with its share of the absolute values of all; empty for any other number.

        Most of it cancels where the sum is below half of those absolute values.
        """
        cell = self.cells[0]
        count = len(cell.terms) + cell.rest.count
        whole = math.fsum(abs(term.contribution) for term in cell.terms) + cell.rest.absolute
        if cell.after or count < 2 or not whole:
            return ""
        most = cell.terms[0]
        share = percent(abs(most.contribution) / whole)
        words = (
            f"{cell.address} ({cell.place}) is {cell.total:.4g}: the largest of its {count:,} summands is {most.label} "
        )
        words += f"({most.contribution:+.3g}), {share} of their absolute sum"
        cancels = "; most of the sum cancels" if abs(cell.total) < whole / 2 else ""
        return f"{words}{cancels}."

    @property
    def levels(self) -> int:
        """The number of levels, at most ``depth``."""
        return self.cells[-1].depth

    def __iter__(self) -> Iterator[Explanation]:
        return iter(self.cells)

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, index: int) -> Explanation:
        return self.cells[index]

    @property
    def worst(self) -> Explanation:
        """The cell whose arithmetic is furthest from the recorded number, relative to what is allowed."""
        return max(
            self.cells, key=lambda cell: math.inf if math.isnan(cell.difference) else cell.difference / cell.allowed
        )

    @property
    def holds(self) -> bool:
        return self.worst.holds

    def fields(self) -> dict[str, Any]:
        return {
            "explanations": plain(self.cells),
            **(
                {"by_temperature": {"temperatures": TEMPERATURES, **self.by_temperature}} if self.by_temperature else {}
            ),
            "check": {
                "holds": self.holds,
                "cells": len(self.cells),
                "largest_difference": self.worst.difference,
                "at": self.worst.address,
                "allowed": self.worst.allowed,
                **({"first_not_finite": self.first_not_finite} if self.first_not_finite else {}),
            },
        }
