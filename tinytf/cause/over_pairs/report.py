"""The answer over many pairs: means with intervals, the share that the model answers right, best and worst examples."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from tinytf.cause.interventions.controls import Control
from tinytf.cause.interventions.grid import COLUMNS
from tinytf.cause.interventions.patch import NOTHING, brings_back, is_nothing, where_it_moves
from tinytf.cause.interventions.patch_estimate import Agreement, is_most
from tinytf.estimate import LEAST, Estimate, estimates, mean_of
from tinytf.metric import Measure
from tinytf.pairs.pair import Pair
from tinytf.report import Data, Report, Verified, derived
from tinytf.sentences import from_where_on, listed, plural
from tinytf.tables import Array

IN_ORDER = {"lens": -1, "score": 0}
"""Questions whose rows are not ranked, and the row that examples are ranked by."""
_ROWS = {"attribute": "parts", "ablate": "ablations", "patch": "patches", "patch_estimate": "patches"}
"""What the rows of a question about effects are."""


@dataclass(frozen=True)
class Row(Data):
    """What is measured: a head, a step, a stage. ``layer`` and ``column`` are its cell in a map, None outside it."""

    name: str
    layer: int | None = None
    column: int | None = None


@dataclass(frozen=True)
class Quantity:
    """One number for every pair and row: ``values`` (pairs, rows), NaN where a pair has none.

    ``means`` are over the pairs that have one; ``signed`` says that they may be below 0. With ``ratio``, they are the
    sum of the values divided by that of the leads that the corrupt texts lose, Σ values / Σ (clean − corrupt), so that
    no pair with a small loss dominates; ``each`` then names the value of one pair. With ``median`` they are medians,
    without an interval.
    """

    name: str
    meaning: str
    signed: bool = False
    ratio: bool = False
    median: bool = False
    each: str = ""
    values: Tensor = field(default_factory=lambda: torch.empty(0, 0), repr=False)
    means: tuple[Estimate, ...] = ()

    def with_values(self, values: Tensor, leads: Tensor, *, bootstrap: bool = True) -> Self:
        """The quantity with the values (pairs, rows) and the clean and corrupt ``leads`` (pairs, 2)."""
        counts = leads[:, 0] - leads[:, 1] if self.ratio else torch.ones(len(values), dtype=torch.float64)
        has_value = ~values.isnan()
        means = [Estimate(math.nan)] * values.shape[1]
        # rows that the same pairs have are resampled together
        for mask in has_value.T.unique(dim=0) if values.numel() else ():
            columns = (has_value == mask[:, None]).all(dim=0).nonzero().flatten().tolist()
            present = values[mask][:, columns]
            if not len(present):
                continue
            if self.median:
                of_columns = [Estimate(float(value)) for value in present.quantile(0.5, dim=0)]
            else:
                of_columns = estimates(present, counts[mask], seed=0, bootstrap=bootstrap)
            for column, estimate in zip(columns, of_columns, strict=True):
                means[column] = estimate
        return replace(self, values=values, means=tuple(means))

    def exceeds(self, row: int, leads: Tensor, sign: int = 0) -> list[bool]:
        """For each row whether the mean of ``row`` is clearly larger, by its size or times a ``sign``.

        That is where the 95 % interval of the difference, with the pairs resampled for both rows together, is above 0.
        """
        signs = torch.tensor([sign or (-1 if mean.value < 0 else 1) for mean in self.means], dtype=torch.float64)
        differences = signs[row] * self.values[:, [row]] - signs * self.values
        means = self.with_values(differences, leads).means
        return [mean.low is not None and mean.low > 0 for mean in means]

    @property
    def ranked(self) -> list[int]:
        """The rows by the size of their mean, the largest first; those without a mean are omitted."""
        sizes = [abs(estimate.value) for estimate in self.means]
        return sorted((row for row, size in enumerate(sizes) if size == size), key=lambda row: -sizes[row])

    def picked(self, leads: Tensor, some: Tensor, sign: int) -> int:
        """The row with the largest mean over ``some`` pairs (pairs,) bool: by its size, or times the ``sign``."""
        means = self.with_values(self.values[some], leads[some], bootstrap=False).means
        size = {row: sign * mean.value if sign else abs(mean.value) for row, mean in enumerate(means)}
        return max((row for row in size if size[row] == size[row]), key=size.__getitem__, default=0)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "meaning": self.meaning, "is": self.centre}

    @property
    def centre(self) -> str:
        """What its means are."""
        return "ratio of sums" if self.ratio else "median" if self.median else "mean"


@dataclass(frozen=True)
class Example(Data):
    """A pair with its leads after its clean and its corrupt text: logit(answer) − logit(versus), or another metric.

    ``right``: the model prefers the answer after the clean text; None for another metric.
    """

    pair: Pair
    clean_lead: float
    corrupt_lead: float
    right: bool | None


@dataclass(frozen=True, kw_only=True)
class OverPairs(Report):
    """One question asked of every pair: ``asked`` is the command's name, ``words`` says what was done or read.

    ``metric`` is what was followed in its runs, by default the lead of the answer.

    ``examples`` are the measured pairs, of ``n_pairs``; ``uneven`` are the lines of those that were left out, as their
    texts have different numbers of tokens, or the same. ``rows`` × ``quantities`` hold the numbers. ``sweep`` says what
    every row is one of, where steps were changed one by one; ``columns`` name the positions of its map. Examples are
    ranked by the first quantity of the row ``by``, an index. ``checks`` compare a padded batch with the run of one
    pair, and are the worst of what each pair must fulfil. ``random`` (pairs, controls) has the first quantity of random
    controls of a single row, which are ``random_sets``.
    """

    KIND = "over_pairs"
    EVENTS: ClassVar = {"rows": "row", "examples": "pair", "checks": "check"}

    asked: str
    metric: Measure
    words: str
    sweep: str | None
    pairs: str
    where: tuple[str, ...]
    n_pairs: int
    uneven: tuple[int, ...] = ()
    examples: tuple[Example, ...]
    rows: tuple[Row, ...]
    columns: tuple[str, ...]
    quantities: tuple[Quantity, ...]
    by: int
    checks: tuple[Verified, ...]
    random: Tensor = field(default_factory=lambda: torch.empty(0, 0), repr=False)
    random_sets: str = ""

    @property
    def interrupted(self) -> bool:
        return len(self.examples) < self.n_pairs

    @property
    def right(self) -> float | None:
        """The share of the pairs that the model answers right; None for a metric that is no lead."""
        return (
            sum(bool(example.right) for example in self.examples) / len(self.examples) if self.metric.is_lead else None
        )

    @property
    def _leads(self) -> Tensor:
        """The leads of the pairs after both texts, (pairs, 2)."""
        both = [[example.clean_lead, example.corrupt_lead] for example in self.examples]
        return torch.tensor(both, dtype=torch.float64)

    @property
    def leads(self) -> tuple[Estimate, Estimate]:
        """The mean lead of the answer after the clean and after the corrupt texts."""
        both = self._leads
        clean, corrupt = estimates(both, torch.ones(len(both), dtype=torch.float64), seed=0)
        return clean, corrupt

    @property
    def effect(self) -> Estimate:
        """How much larger the lead is after the clean text of a pair than after its corrupt one, on average."""
        clean, corrupt = self._leads.T
        return mean_of(clean - corrupt)

    def confirmed(self, sign: int = 0) -> tuple[int, Estimate, int]:
        """The row that half of the pairs picks, its mean over the others, and how many these are.

        Of all rows it is the one with the largest mean by its size, or with a ``sign`` itself or its negative. Pairs
        of the same texts and answers are on one side. Fewer than twice LEAST pairs pick it and measure it together,
        without an interval.
        """
        sides, leads, first, keys = self.sides, self._leads, self.quantities[0], self.keys
        if len(set(keys)) < 2 * LEAST or len(self.rows) == 1:
            every = torch.ones_like(sides)
            row = self.by if not sign else first.picked(leads, every, sign)
            mean = first.means[row]
            return row, mean if len(self.rows) == 1 else Estimate(mean.value), len(keys)
        row = first.picked(leads, sides, sign)
        return row, first.with_values(first.values[~sides][:, [row]], leads[~sides]).means[0], int((~sides).sum())

    def beside(self, sign: int = 0) -> tuple[Control | None, list[int]]:
        """The mean of the row of ``confirmed`` beside those of the other rows, over the pairs that measure it.

        Also the rows that it is not clearly larger than, the largest first: without any, it is the most. A single row
        stands beside its random controls. Pairs that also picked the row tell it from no other. An estimate is larger
        only if ``is_most`` says so too.
        """
        row, mean, _ = self.confirmed(sign)
        values, leads, what = self.quantities[0].values, self._leads, _ROWS[self.asked]
        picked = len(self.rows) > 1 and mean.low is None
        if len(self.rows) == 1:
            values, what = torch.cat((values, self.random), 1) if self.random_sets else values, self.random_sets
        elif not picked:
            values, leads = values[~self.sides], leads[~self.sides]
        measured = self.quantities[0].with_values(values, leads, bootstrap=False)
        means = [estimate.value for estimate in measured.means]
        others = [other for other, value in enumerate(means) if other != row and not math.isnan(value)]
        larger = [False] * len(means) if picked else measured.exceeds(row, leads, sign)
        if self.asked == "patch_estimate":
            larger = [yes and is_most(means[row], value) for yes, value in zip(larger, means, strict=True)]
        exceeded = sum(larger[other] for other in others)
        control = Control.of(
            f"other {what}" if len(self.rows) > 1 and not picked else what,
            means[row],
            [means[other] for other in others],
            picked=picked,
            exceeded=None if picked or len(values) < 2 else exceeded,
        )
        rest = (other for other in others if not larger[other])
        return control, sorted(rest, key=lambda other: -(sign or 1) * abs(means[other]))

    @derived
    def beside_by_size(self) -> tuple[Control | None, list[int]]:
        """``beside`` of the row that is the largest by its size."""
        return self.beside()

    @property
    def control(self) -> Control | None:
        """The row of ``confirmed`` beside others of its kind; None for questions that are of no effect."""
        return self.beside_by_size[0] if self.asked in _ROWS else None

    @property
    def keys(self) -> list[tuple[str, ...]]:
        """What each pair says: those that say the same are one."""
        return [(one.pair.clean, one.pair.corrupt, one.pair.answer, one.pair.versus) for one in self.examples]

    @property
    def sides(self) -> Tensor:
        """Which pairs pick a row for the others to measure, (pairs,) bool; those that say the same are on one side."""
        numbers = {key: number for number, key in enumerate(dict.fromkeys(self.keys))}
        return torch.tensor([numbers[key] % 2 == 0 for key in self.keys])

    @property
    def counts(self) -> Tensor:
        """What the first quantity is divided by, (pairs,): the effect of each pair for a share, else 1."""
        clean, corrupt = self._leads.T
        return clean - corrupt if self.quantities[0].ratio else torch.ones_like(clean)

    @property
    def strongest_mean(self) -> Estimate:
        """The first quantity's mean in the row ``by``."""
        return self.quantities[0].means[self.by]

    @property
    def leads_from(self) -> list[int | None]:
        """For each pair the first row from which on the answer leads; None where it does not lead in the last."""
        return [from_where_on([lead > 0 for lead in leads]) for leads in self.quantities[0].values.tolist()]

    def leads_in(self, share: float) -> str | None:
        """The first row from which on the answer leads in at least this share of the pairs; None if there is none."""
        starts = sorted(len(self.rows) if start is None else start for start in self.leads_from)
        start = starts[math.ceil(share * len(starts)) - 1]
        return self.rows[start].name if start < len(self.rows) else None

    @property
    def in_order(self) -> bool:
        """Whether its rows are shown in their order: stages of the model, or the two texts."""
        return self.asked in IN_ORDER

    def order(self) -> list[int]:
        """The examples by the first quantity of the row ``by``, the largest first; those without one are omitted."""
        values = self.quantities[0].values[:, self.by].tolist()
        return sorted((index for index, value in enumerate(values) if value == value), key=lambda i: -values[i])

    @property
    def agreement(self) -> Agreement | None:
        """How the means of estimates agree with those of exact patching; None if both were not measured."""
        if [quantity.name for quantity in self.quantities] != ["estimated", "exact"]:
            return None
        estimated, exact = ([mean.value for mean in quantity.means] for quantity in self.quantities)
        return Agreement.of([row.name for row in self.rows], estimated, exact)

    @property
    def axis(self) -> str:
        """What the column of a row is."""
        return "position" if self.columns else COLUMNS.get(self.sweep or "", "head")

    @property
    def map_axes(self) -> tuple[str, str] | None:
        """The axes of the map of means; None if the rows form none."""
        if any(row.column is not None for row in self.rows):
            return ("layer", self.axis)
        return ("all", "layer") if len(self.rows) > 1 and all(row.layer is not None for row in self.rows) else None

    def map_of(self, values: Sequence[float] | Tensor) -> Tensor:
        """Numbers of all rows as a map, (layers, columns) or (1, layers); NaN where it has no row."""
        cells = [
            (index, row.layer, row.column)
            for index, row in enumerate(self.rows)
            if row.layer is not None and (row.column is not None or self.map_axes == ("all", "layer"))
        ]
        across = self.map_axes == ("all", "layer")
        shape = [1 + max(cell[axis] or 0 for cell in cells) for axis in (1, 2)]
        result = torch.full(shape[::-1] if across else shape, math.nan, dtype=torch.float64)
        for index, layer, column in cells:
            result[(0, layer) if across else (layer, column or 0)] = float(values[index])
        return result

    def label(self, axis: str, index: int) -> str:
        return self.columns[index] if axis == "position" else super().label(axis, index)

    def in_a_sentence(self) -> str:
        """The row with the largest mean, with its interval; of the lens, from where on the answers lead on average."""
        return _SENTENCES[self.asked](self)

    @property
    def over(self) -> str:
        """``over 40 pairs``, or ``over 39 of 40 pairs``."""
        return f"over {of_pairs(len(self.examples), self.uneven)}"

    @property
    def of_file(self) -> dict[str, Any]:
        """The file of pairs, which of them were chosen, and how many were asked."""
        return {"name": self.pairs, "where": list(self.where), "count": self.n_pairs, "uneven": list(self.uneven)}

    def fields(self) -> dict[str, Any]:
        starts = self.leads_from if self.asked == "lens" else []
        leads_from = [None if start is None else self.rows[start].name for start in starts]
        return {
            "asked": self.asked,
            **self.members("metric"),
            "words": self.words,
            "sweep": self.sweep,
            "pairs": self.of_file,
            **self.members("interrupted", "right"),
            "lead": dict(zip(("clean", "corrupt"), (lead.to_dict() for lead in self.leads), strict=True)),
            **self.members("effect"),
            "quantities": [quantity.to_dict() for quantity in self.quantities],
            "rows": [
                {
                    **self.where_of(row),
                    **{quantity.name: quantity.means[index].to_dict() for quantity in self.quantities},
                }
                for index, row in enumerate(self.rows)
            ],
            "by": self.rows[self.by].name,
            **self.members("control"),
            **({} if self.agreement is None else self.members("agreement")),
            "examples": [
                {
                    "line": example.pair.number,
                    **example.to_dict(),
                    **({"leads_from": leads_from[i]} if leads_from else {}),
                    **{quantity.each or quantity.name: quantity.values[i].tolist() for quantity in self.quantities},
                }
                for i, example in enumerate(self.examples)
            ],
            **self.members("checks"),
        }

    def where_of(self, row: Row) -> dict[str, Any]:
        """A row's name, with its layer and its head, unit or position, if it has them."""
        places = {"layer": row.layer, self.axis: row.column}
        return {"name": row.name, **{name: number for name, number in places.items() if number is not None}}

    def metadata(self) -> dict[str, Any]:
        """As of any report, with the names of the rows and the lines of the pairs."""
        lines = [example.pair.number for example in self.examples]
        return {**super().metadata(), "rows": [row.name for row in self.rows], "lines": lines}

    def stored(self) -> list[Array]:
        """Each quantity (pairs, rows), its map of means, and the leads (pairs, 2), clean and corrupt."""
        arrays = [Array.of("leads", ["pair", "text"], self._leads)]
        for quantity in self.quantities:
            arrays.append(Array.of(quantity.each or quantity.name, ["pair", "row"], quantity.values))
            if self.map_axes is not None:
                values = [estimate.value for estimate in quantity.means]
                arrays.append(Array.of(f"map.{quantity.name}", self.map_axes, self.map_of(values)))
        return [*arrays, *([Array.of("random", ["pair", "control"], self.random)] if self.random_sets else [])]


def of_pairs(count: int, uneven: Sequence[int]) -> str:
    """``40 pairs``, or ``39 of 40 pairs`` where one is ``uneven``."""
    return f"{f'{count:,} of ' if uneven else ''}{plural(count + len(uneven), 'pair')}"


def interval(estimate: Estimate, form: str = "+.3g") -> str:
    """``+0.41 (+0.33 to +0.48)``; for one pair without an interval."""
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:{form}}"
    return f"{estimate.value:{form}} ({estimate.low:{form}} to {estimate.high:{form}})"


def percent_of(estimate: Estimate) -> str:
    """``26 % (23 to 29 %)``; of a share below 0, its size."""
    sign = -1 if estimate.value < 0 else 1
    shares = (estimate.value, *(estimate.low, estimate.high)[::sign])
    value, *ends = ("" if share is None else f"{round(100 * sign * share)}" for share in shares)
    return f"{value} % ({' to '.join(ends)} %)" if all(ends) else f"{value} %"


def _attribute(report: OverPairs) -> str:
    """The parts that add and take away most, each where its whole interval is on that side of 0."""
    told = []
    for sign, does in ((1, f"adds most to {report.metric.words}"), (-1, "takes most away")):
        row, mean, others = report.confirmed(sign)
        if mean.value * sign > 0 and (mean.is_clear or mean.low is None):
            unsure = _not_more(report, sign)
            does = does.replace("most ", "") if unsure or _few(report) else does
            told.append(f"{report.rows[row].name} {does}, {interval(mean)}{_by_others(report, mean, others)}{unsure}")
    if not told:
        return ""
    both = "; ".join(told) if any("not clearly" in words for words in told) else listed(told)
    return f"{report.over.capitalize()}, {both}{_few(report)}."


def _few(report: OverPairs) -> str:
    """That as many pairs pick a row and measure it, if they are too few to do so apart."""
    few = len(report.rows) > 1 and report.confirmed()[1].low is None
    return "; too few pairs to call it the most" * few


def _not_more(report: OverPairs, sign: int = 0) -> str:
    """The largest row that the one of ``confirmed`` is not clearly larger than; empty if it is the most."""
    _, others = report.beside(sign) if sign else report.beside_by_size
    return f", not clearly more than {report.rows[others[0]].name}" if others and not _few(report) else ""


def _by_others(report: OverPairs, mean: Estimate, others: int) -> str:
    """How many pairs a mean is of, which did not pick its row."""
    own = mean.low is not None and others < len(report.examples)
    return f" over the {others:,} that did not pick it" if own else ""


def _ablate(report: OverPairs) -> str:
    row, mean, others = report.confirmed()
    name, before = report.rows[row].name, report.leads[0].value
    over = _by_others(report, mean, others) or f" {report.over}"
    unclear = mean.low is not None and not mean.is_clear
    if len(report.rows) == 1:
        moves = "does not clearly move" if unclear else "moves"
        return f"Ablating {name} {moves} {report.metric.words}, {before:+.3g}: by {interval(mean)}{over}."
    moved = f"{report.metric.words}, {before:+.3g}, by {interval(mean)}{over}"
    if unclear:
        return f"Of {len(report.rows):,} ablations, none clearly matters: that of {name} moves {moved}."
    if not_most := _not_more(report) or _few(report):
        return f"Of {len(report.rows):,} ablations, that of {name} moves {moved}{not_most}."
    return f"Of {len(report.rows):,} ablations, that of {name} matters most: it moves {moved}."


def _patch(report: OverPairs) -> str:
    if no_effect := without_effect(report.effect, report.metric):
        return f"{report.over.capitalize()}, {no_effect}."
    row, mean, others = report.confirmed()
    clean, corrupt = (lead.value for lead in report.leads)
    if report.metric.is_lead and not clean > corrupt:
        return (
            f"{report.over.capitalize()}, the answers lead no more after the clean texts than after the corrupt ones."
        )
    if moves := _where_it_moves(report):
        return moves
    estimated, name = report.asked == "patch_estimate", report.rows[row].name
    start = f"{report.over.capitalize()}, {'estimated by gradients, ' * estimated}"
    several = len(report.rows) > 1
    if several and (is_nothing(mean.value) or (mean.low is not None and not mean.is_clear)):
        return f"{start}no patch {NOTHING} {report.metric.effect}."
    moved = f"{'would ' * estimated}{brings_back(mean.value, '' if estimated else 's', percent_of(mean))}"
    if not report.quantities[0].signed:
        moved = f"would move, up or down, {percent_of(mean)}"
    more = f", the most of {len(report.rows):,} patches{_by_others(report, mean, others)}" if several else ""
    if several and (not_most := _not_more(report) or _few(report)):
        more = f"{_by_others(report, mean, others)}{not_most}, of {len(report.rows):,} patches"
    return f"{start}{name} of the clean run {moved} of {report.metric.effect}{more}."


def without_effect(effect: Estimate, metric: Measure) -> str:
    """That clean and corrupt texts have one ``metric``, where the interval of their difference has 0; else empty."""
    if effect.low is None or effect.is_clear:
        return ""
    what = "the lead" if metric.is_lead else metric.words
    return f"the pairs have no clear effect: clean texts raise {what} by {interval(effect)}, so no share is given"


def _where_it_moves(report: OverPairs) -> str:
    """Where the clean stream restores the lead first and at last, as in ``where_it_moves``; empty for other sweeps."""
    if report.sweep != "residual" or not report.columns:
        return ""
    shares = report.map_of([mean.value for mean in report.quantities[0].means])  # (layers, positions)
    start, end = int(shares[0].argmax()), int(shares[-1].argmax())
    names = [f"position {report.columns[column].removesuffix(' …')}" for column in (start, end)]
    moved = where_it_moves(shares, (start, end), (names[0], names[1]))
    what = f"{report.over.capitalize()}, what decides is {moved}: patched there, at least half of "
    what = f"{what}{'the lead' if report.metric.is_lead else report.metric.effect} comes back."
    return what if moved else ""


def _lens(report: OverPairs) -> str:
    """The row from which on the whole interval of the mean lead is above 0."""
    means = report.quantities[0].means
    first = from_where_on([(mean.value if mean.low is None else mean.low) > 0 for mean in means])
    if first is None:
        return f"{report.over.capitalize()}, the answer has no clear lead in the end: {interval(means[-1])}."
    start = f"the answer leads on average from {report.rows[first].name} on"
    return f"{report.over.capitalize()}, {start}, by {interval(means[first])} in logits."


def _attention(report: OverPairs) -> str:
    mean, name = report.strongest_mean, report.rows[report.by].name
    weight = f"with {percent_of(mean)} of its weight"
    return f"{report.over.capitalize()}, {name} looks most at the tokens that differ, {weight}."


def _heads(report: OverPairs) -> str:
    mean, name = report.strongest_mean, report.rows[report.by].name
    score = f"the highest {report.quantities[0].name} score, {interval(mean, '.3g')}"
    return f"{report.over.capitalize()}, {name} has {score}."


def _score(report: OverPairs) -> str:
    right, (clean, corrupt) = sum(bool(example.right) for example in report.examples), report.leads
    leads = (
        f"the answer leads by {interval(clean)} after the clean text and by {interval(corrupt)} after the corrupt one"
    )
    return f"The model answers {right:,} of {len(report.examples):,} pairs right: on average {leads}."


_SENTENCES: Mapping[str, Callable[[OverPairs], str]] = {
    "attribute": _attribute,
    "ablate": _ablate,
    "patch": _patch,
    "patch_estimate": _patch,
    "lens": _lens,
    "attention": _attention,
    "heads": _heads,
    "score": _score,
}
