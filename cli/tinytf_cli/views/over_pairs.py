"""One question over many pairs: the strongest rows with their intervals, the map of means, best and worst examples."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tinytf.cause.over_pairs import OverPairs
from tinytf.sentences import percent
from tinytf.text.printable import printable
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.ablate import check_line, control_line
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Cell, Column, Figure, Heading, Heat, Line, Piece, Span, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import (
    LONG_STACK,
    folded,
    head_map,
    interval,
    map_digits,
    note,
    numbered,
    one_form,
    signed_bars,
    size_column,
    stopped,
    uneven,
)
from tinytf_cli.views.patch import agreement
from tinytf_cli.views.steps import as_array, largest

TABLE_ROWS = 16
"""The most rows of a table whose rows are in the model's order, unless all are shown."""
_POSITIONS, _LEAST = 10, 0.005
"""The most positions of a map, and the least that one of them has moved, unless all are shown."""
_EFFECTS = {"attribute": "terms", "ablate": "changes"}
"""What the effects of a question are; shares of the lead for any other."""
_TEXT = 48
"""The most characters of an example's text."""


@dataclass(frozen=True)
class OverPairsDisplay(Display):
    """``top`` is how many rows the table lists, and half of it how many of the best and of the worst examples.

    ``all`` shows every row, example, and number of a large map.
    """

    top: int = 6
    all: bool = False


@draws(OverPairs, OverPairsDisplay)
def over_pairs(report: OverPairs, terminal: Terminal, display: OverPairsDisplay) -> Iterator[Block]:
    """What was asked of which pairs, the strongest rows, the map of means, and the examples."""
    first, others = report.quantities[0], report.quantities[1:]
    yield from banner(model_of(report))
    source = ", ".join(printable(words, spaces=False) for words in (report.pairs, *report.where))
    yield Heading(in_words(report.asked), report.over)
    yield note(f"{source}: {report.words}")
    yield from stopped(report.interrupted, len(report.examples), report.n_pairs, "pairs")
    yield from uneven(report.uneven)
    clean, corrupt = report.leads
    words: list[Piece] = [f"{report.metric.words} is on average "]
    if report.right is not None:
        words = [f"answered right: {percent(report.right)}; the answer leads on average by "]
    words += [Figure(clean.value, "%+.3f"), " after the clean texts, ", Figure(corrupt.value, "%+.3f")]
    yield Line([*words, f" after the corrupt ones{report.metric.in_unit and f', in{report.metric.in_unit}'}"], indent=2)
    differs: list[Piece] = ["clean − corrupt: ", Figure(report.effect.value, "%+.3f", "strong")]
    if report.effect.low is not None and report.effect.high is not None:
        differs += [" (", Figure(report.effect.low, "%+.3f"), " … ", Figure(report.effect.high, "%+.3f"), ")"]
    yield Line(differs, indent=2)
    names, ranked = [row.name for row in report.rows], report.quantities[0].ranked
    in_order = report.in_order or len(names) == 1
    rows = list(range(len(names))) if in_order else ranked if display.all else ranked[: display.top]
    yield Heading(
        "means" if in_order else f"strongest of {len(names):,}", "over the pairs, with 95 % bootstrap intervals"
    )
    yield note(f"{first.name}: {first.meaning}")
    for quantity in others:
        yield note(f"{in_words(quantity.name)}: {'median ' * quantity.median}{quantity.meaning}")
    most = None if display.all or not in_order else TABLE_ROWS
    yield from folded(_table(report, rows), [names[row] for row in rows], most, "rows")
    if report.control is not None:
        row, _, measured = report.confirmed()
        of = "random controls" if len(names) == 1 else f"{names[row]} over the {measured:,} pairs that did not pick it"
        yield from control_line(report.control, _EFFECTS.get(report.asked, "shares"), of)
    if report.asked == "lens":
        starts = [f"in {share} % of the pairs {_start(report, share / 100)}" for share in (50, 90)]
        yield note(f"the answer leads for good: {', '.join(starts)}")
    if report.agreement is not None:
        yield from agreement(report.agreement)
    if report.map_axes is not None and report.axis != "unit" and len(names) > 1:
        yield from _map(report, display.all)
    yield from _examples(report, display)
    yield from check_line(*report.checks)


def _start(report: OverPairs, share: float) -> str:
    row = report.leads_in(share)
    return "nowhere" if row is None else f"from {row} on"


def in_words(name: str) -> str:
    return name.replace("_", " ")


def _table(report: OverPairs, rows: Sequence[int]) -> Table:
    """Some rows: the first quantity with its interval, the means or medians of the others."""
    first, *others = report.quantities
    means = [first.means[row] for row in rows]
    ends = [end for mean in means for end in (mean.low, mean.high) if end is not None]
    values = [mean.value for mean in means]
    form = number_form([*values, *ends], first.signed)
    columns = [
        Column("", [Span(report.rows[row].name, "strong") for row in rows], said=""),
        signed_bars(first.name, values, form) if first.signed else size_column(first.name, values, "attention", form),
        Column("95 % interval", [interval(mean, form) for mean in means], "right"),
    ]
    for drop, quantity in enumerate(others, 1):
        column = [quantity.means[row].value for row in rows]
        digits = "%.0f" if quantity.median else number_form(column, quantity.signed)
        cells: list[Cell] = ["–" if value != value else Figure(value, digits) for value in column]
        columns.append(Column(in_words(quantity.name), cells, "right", drop=drop))
    return Table(columns)


def number_form(values: Sequence[float], signed: bool) -> str:
    """A format with three digits for shares, otherwise with three figures of the largest number."""
    if not signed and all(0 <= value <= 1 for value in values if value == value):
        return "%.3f"
    return one_form([max((abs(value) for value in values if value == value), default=0.0)], sign=signed)


def _map(report: OverPairs, every: bool) -> Iterator[Block]:
    """The map of the first quantity's means."""
    first, axis = report.quantities[0], report.map_axes[1] if report.map_axes else ""
    values = as_array(report.map_of([mean.value for mean in first.means]))
    most, scale = largest(values), "signed" if first.signed else "unit"
    digits = map_digits(most)
    yield Heading("all", f"{first.name}, of each {axis}", "attention")
    if axis == "head":
        yield from head_map(values, scale, most or 1.0, digits, whole=every)
    elif axis == "layer":
        yield Heat(values, [first.name], numbered("L", values.shape[1]), scale, None, most, True, digits)
    else:
        moved = np.nan_to_num(np.abs(values)).max(axis=0)
        keep = [position for position, move in enumerate(moved) if every or move >= _LEAST]
        keep = sorted(sorted(keep, key=lambda position: -moved[position])[: None if every else _POSITIONS])
        labels, layers = [report.columns[position] for position in keep], numbered("L", len(values))
        yield Heat(values[:, keep].T, labels, layers, scale, None, most, every or len(layers) <= LONG_STACK, digits)
        rest = f"; {values.shape[1] - len(keep)} positions that recover less are left out" * (
            len(keep) < values.shape[1]
        )
        yield note(f"positions down, with … where the tokens differ between pairs; layers across{rest}")


def _examples(report: OverPairs, display: OverPairsDisplay) -> Iterator[Block]:
    """The pairs with the largest and the smallest value in the row that examples are ranked by."""
    order, half = report.order(), max(1, display.top // 2)
    all_shown = display.all or len(order) <= 2 * half
    shown = order if all_shown else [*order[:half], *order[-half:]]
    first, name = report.quantities[0], report.rows[report.by].name
    which = "every pair" if all_shown else f"{half} highest and {half} lowest of {len(order):,}"
    subject = first.each or first.name
    yield Heading(
        "examples",
        f"{which} by {subject} of {name}{f', in{report.metric.in_unit}' * bool(first.each and report.metric.in_unit)}",
    )
    noun = "lead" if report.metric.is_lead else report.metric.noun
    values, form = [float(first.values[index, report.by]) for index in shown], "%+.2f" if noun == "lead" else "%.3g"
    pairs = [report.examples[index] for index in shown]
    leads = {f"corrupt {noun}": [example.corrupt_lead for example in pairs]}
    if subject != "lead":
        leads = {f"clean {noun}": [example.clean_lead for example in pairs], **leads}
    yield Table(
        [
            Column("line", [f"{example.pair.number:,}" for example in pairs], "right"),
            Column(subject, [Figure(value, number_form(values, first.signed), "strong") for value in values], "right"),
            *(Column(name, [Figure(x, form) for x in row], "right", drop=1) for name, row in leads.items()),
            Column("answer, versus", [f"{printable(e.pair.answer)} {printable(e.pair.versus)}" for e in pairs], drop=2),
            Column("clean text", [_ending(example.pair.clean) for example in pairs], shrink=16),
        ],
        rule_after=frozenset() if all_shown else frozenset({half - 1}),
    )


def _ending(text: str) -> str:
    """The end of a text, which the answer follows."""
    return printable(f"…{text[1 - _TEXT :]}" if len(text) > _TEXT else text, spaces=False)
