"""Some cells of a trace explained: the one that was asked for, and what it came from."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from tinytf.analysis.arithmetic import Explanation
from tinytf.report import Report


@dataclass(frozen=True)
class Explained(Report):
    """The explanations of ``cells``, the one that was asked for first."""

    KIND = "explanation"
    EVENTS: ClassVar = {"tokens": "token", "explanations": "cell", "check": "check"}

    cells: tuple[Explanation, ...]

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
            "explanations": [one.to_dict() for one in self.cells],
            "check": {
                "holds": self.holds,
                "cells": len(self.cells),
                "largest_difference": self.worst.difference,
                "at": self.worst.address,
                "allowed": self.worst.allowed,
            },
        }
