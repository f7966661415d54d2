"""Explanations as data: of one cell, and of a cell with those that it came from."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from tinytf.report import Data, Report, plain
from tinytf.steps.operations.working import Rest, Term, Value


@dataclass(frozen=True)
class Input:
    """A row or cell of an earlier step that went in, by its address, with that step's title and formula."""

    address: str
    title: str
    formula: str


@dataclass(frozen=True)
class Explanation(Data):
    """How the number at ``address`` comes about, computed in float64 from the recorded numbers before it.

    ``place`` says the cell in words, ``kind`` the operation. In reading order: the values ``before`` (a mean, an angle,
    the largest score), the ``terms`` (each a ``term_name``), largest first, with the ``rest``, what they ``sum`` to
    (None where nothing is summed), and the values that come ``after`` (a division, a tanh), the last of which is
    ``total``. ``recorded`` is the number of the trace, and ``allowed`` how far the two may differ. ``note`` says in
    words what the numbers alone do not: why a cell is masked. ``inputs`` are the rows that went in, and ``leads_to``
    the cells of the largest term, one step back.
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


@dataclass(frozen=True)
class Explained(Report):
    """The explanations of ``cells``, the one that was asked for first; ``depth`` levels were asked for.

    ``first_not_finite`` names the first step of the pass with NaN or infinity, where one of the cells is NaN.
    """

    KIND = "explanation"
    TABLE = ("explanations", "terms")
    EVENTS: ClassVar = {"tokens": "token", "explanations": "cell", "check": "check"}

    cells: tuple[Explanation, ...]
    depth: int = 1
    first_not_finite: str | None = None

    @property
    def levels(self) -> int:
        """How many levels there are, at most ``depth``."""
        return self.cells[-1].depth

    def __iter__(self) -> Iterator[Explanation]:
        return iter(self.cells)

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, place: int) -> Explanation:
        return self.cells[place]

    @property
    def worst(self) -> Explanation:
        """The cell whose arithmetic is furthest from what was recorded, in units of what is allowed."""
        return max(self.cells, key=lambda one: math.inf if math.isnan(one.difference) else one.difference / one.allowed)

    @property
    def holds(self) -> bool:
        return self.worst.holds

    def fields(self) -> dict[str, Any]:
        return {
            "explanations": plain(self.cells),
            "check": {
                "holds": self.holds,
                "cells": len(self.cells),
                "largest_difference": self.worst.difference,
                "at": self.worst.address,
                "allowed": self.worst.allowed,
                **({"first_not_finite": self.first_not_finite} if self.first_not_finite else {}),
            },
        }
