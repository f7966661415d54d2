"""Two conditions compared: the answers of one question to two files of pairs, and the difference of their means."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.cause.over_pairs.report import OverPairs, Row, interval, without_effect
from tinytf.errors import UsageError
from tinytf.estimate import LEAST, Estimate, difference_of
from tinytf.report import Data, Report, Verified
from tinytf.tables import Array
from tinytf.text.printable import printable


@dataclass(frozen=True)
class RowDifference(Data):
    """The means of one row over the pairs of both files, and the first less the second with its interval."""

    LESS: ClassVar = ("row",)

    row: Row
    first: Estimate
    second: Estimate
    difference: Estimate


@dataclass(frozen=True, kw_only=True)
class OverPairsVersus(Report):
    """One question asked of two files of pairs, ``first`` and ``second``; ``differences`` are of its first quantity.

    An interval resamples the pairs of each file by themselves. ``by`` is the row with the largest difference, which
    half of the pairs of each file picks; ``confirmed`` is its difference over ``others``, the pairs that did not pick
    it: each row's own interval says nothing of having been picked from many. Of fewer than twice LEAST pairs in a file,
    ``confirmed`` has no interval.
    """

    KIND = "over_pairs_versus"
    EVENTS: ClassVar = {"rows": "row", "checks": "check"}

    first: OverPairs
    second: OverPairs
    differences: tuple[RowDifference, ...]
    by: int
    confirmed: Estimate
    others: tuple[int, int]

    @property
    def names(self) -> tuple[str, str]:
        """The names of both files, without their folders where that tells them apart."""
        first, second = (printable(Path(each.pairs).name, spaces=False) for each in (self.first, self.second))
        return (first, second) if first != second else (self.first.pairs, self.second.pairs)

    @property
    def checks(self) -> tuple[Verified, ...]:
        return (*self.first.checks, *self.second.checks)

    @property
    def interrupted(self) -> bool:
        return self.first.interrupted or self.second.interrupted

    @property
    def ranked(self) -> list[int]:
        """The rows by the size of their difference, the largest first; those without one are omitted."""
        sizes = [abs(row.difference.value) for row in self.differences]
        return sorted((row for row, size in enumerate(sizes) if size == size), key=lambda row: -sizes[row])

    @property
    def is_clear(self) -> bool:
        """Whether the row that half of the pairs picks differs over the others too."""
        return self.confirmed.is_clear

    def map_of(self) -> Tensor:
        """The differences as the map of the question; see ``OverPairs.map_of``."""
        return self.first.map_of([row.difference.value for row in self.differences])

    def label(self, axis: str, index: int) -> str:
        return self.first.label(axis, index)

    def in_a_sentence(self) -> str:
        """Whether the two files differ in a row that other pairs picked, and by how much."""
        if self.first.quantities[0].ratio:
            for file, report in zip(self.names, (self.first, self.second), strict=True):
                if no_effect := without_effect(report.effect, report.metric):
                    return f"In {file}, {no_effect}."
        name, what = self.differences[self.by].row.name, self.first.quantities[0].name
        where = " and ".join(self.names)
        size = interval(self.confirmed)
        over = f" over the {' and '.join(map(str, self.others))} pairs that did not pick it"
        over = over if self.confirmed.low is not None and len(self.differences) > 1 else ""
        if self.confirmed.low is None:
            return f"{where} differ most in {what} at {name}, by {size}; too few pairs to tell it from chance."
        if not self.is_clear:
            return f"{where} do not clearly differ in {what}: at {name} by {size}{over}."
        most = f", of {len(self.differences):,} rows the most" * (len(self.differences) > 1)
        return f"{where} differ in {what} at {name} by {size}{over}{most}."

    def fields(self) -> dict[str, Any]:
        first = self.first
        return {
            "asked": first.asked,
            "metric": first.metric.to_dict(),
            "words": first.words,
            "sweep": first.sweep,
            "pairs": [{**each.of_file, "effect": each.effect.to_dict()} for each in (first, self.second)],
            **self.members("interrupted"),
            "quantity": first.quantities[0].to_dict(),
            "rows": [{**first.where_of(each.row), **each.to_dict()} for each in self.differences],
            "by": self.differences[self.by].row.name,
            **self.members("confirmed", "is_clear"),
            "others": list(self.others),
            **self.members("checks"),
        }

    def stored(self) -> list[Array]:
        """The differences of all rows, and their map if they form one."""
        values = torch.tensor([each.difference.value for each in self.differences], dtype=torch.float64)
        axes = self.first.map_axes
        mapped = [] if axes is None else [Array.of("map.difference", axes, self.map_of())]
        return [Array.of("difference", ["row"], values), *mapped]


def versus_over(first: OverPairs, second: OverPairs) -> OverPairsVersus:
    """Compare the answers of one question to two sets of pairs: the difference of the means of each row.

    The sets are taken as independent: an interval resamples each by itself. Raises UsageError for answers to two
    questions, by two metrics, or with other rows, as those at positions of texts of other lengths.
    """
    for name, one, other in (
        ("question", first.asked, second.asked),
        ("metric", first.metric.to_dict(), second.metric.to_dict()),
    ):
        if one != other:
            raise UsageError(f"the two reports do not ask one {name}", "ask the same of both files of pairs")
    if [row.name for row in first.rows] != [row.name for row in second.rows]:
        message = f"{first.pairs} and {second.pairs} have other rows: {len(first.rows):,} and {len(second.rows):,}"
        raise UsageError(message, "where positions are swept, all texts need one length; sweep heads instead")
    sides = [report.sides for report in (first, second)]
    every = [torch.ones_like(side) for side in sides]
    differences = _differences((first, second), every)
    few = min(len(set(report.keys)) for report in (first, second)) < 2 * LEAST
    if few or len(first.rows) == 1:
        by = _largest(differences)
        confirmed = differences[by] if len(first.rows) == 1 else Estimate(differences[by].value)
        others = [len(side) for side in sides]
    else:
        by = _largest(_differences((first, second), sides))
        confirmed = _differences((first, second), [~side for side in sides], [by])[0]
        others = [int((~side).sum()) for side in sides]
    means = [report.quantities[0].means for report in (first, second)]
    return OverPairsVersus(
        first=first,
        second=second,
        differences=tuple(map(RowDifference, first.rows, *means, differences)),
        by=by,
        confirmed=confirmed,
        others=(others[0], others[1]),
        about=first.about,
    )


def _largest(differences: Sequence[Estimate]) -> int:
    """The row with the largest difference."""
    sizes = [abs(each.value) for each in differences]
    return max((row for row, size in enumerate(sizes) if size == size), key=sizes.__getitem__, default=0)


def _differences(
    reports: Sequence[OverPairs], some: Sequence[Tensor], rows: Sequence[int] | None = None
) -> list[Estimate]:
    """The difference of both reports' means in each of ``rows`` (None: all), over ``some`` pairs of each.

    A pair without a value counts for no row. It is NaN where a report has no value, and has no interval of medians.
    """
    chosen = list(range(len(reports[0].rows)) if rows is None else rows)
    if reports[0].quantities[0].median:
        medians = [[report.quantities[0].means[row].value for row in chosen] for report in reports]
        return [Estimate(one - other) for one, other in zip(*medians, strict=True)]
    values = [report.quantities[0].values[own][:, chosen] for report, own in zip(reports, some, strict=True)]
    counts = [report.counts[own] for report, own in zip(reports, some, strict=True)]
    result = [Estimate(math.nan)] * len(chosen)
    has_value = torch.cat([~of.isnan() for of in values])  # (pairs of both, rows)
    for mask in has_value.T.unique(dim=0):  # rows that the same pairs have are resampled together
        columns = (has_value == mask[:, None]).all(dim=0).nonzero().flatten().tolist()
        masks = mask.split([len(of) for of in values])
        if all(bool(own.any()) for own in masks):
            sums = [(of[own][:, columns], n[own]) for of, n, own in zip(values, counts, masks, strict=True)]
            for column, estimate in zip(columns, difference_of(*sums[0], *sums[1], seed=0), strict=True):
                result[column] = estimate
    return result
