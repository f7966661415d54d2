"""Pairs of prompts: how the model answers them, the first of them, and what was left out."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tinytf.pairs.pair import Pair, PairSet
from tinytf.text.printable import printable
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Column, Figure, Heading, Line, Span, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import note, stopped

_SHOWN = 8
"""The pairs in the table, unless all are shown."""
_BESIDE, _LEAST = 36, 24
"""The columns of a table beside a text, and the fewest that a text is cut to."""


@dataclass(frozen=True)
class PairSetDisplay(Display):
    """``all`` shows every pair."""

    all: bool = False


@draws(PairSet, PairSetDisplay)
def pair_set(report: PairSet, terminal: Terminal, display: PairSetDisplay) -> Iterator[Block]:
    """A line for each text of the first pairs, with its answer, the difference of logits if scored, and the labels."""
    if report.about is not None:
        yield from banner(model_of(report))
    seed = "" if report.seed is None else f", seed {report.seed}"
    yield Heading(printable(report.name, spaces=False), f"{plural(len(report.pairs), 'pair')}{seed}")
    shown = report.pairs if display.all else report.pairs[:_SHOWN]
    yield _table(report, shown, terminal)
    if len(shown) < len(report.pairs):
        yield note(f"the first {len(shown)} of {plural(len(report.pairs), 'pair')}", "--all shows every pair")
    if report.scores is not None:
        mean = report.scores.difference
        between = "" if mean.low is None else f", 95 % between {mean.low:+.3f} and {mean.high:+.3f}"
        yield Line("")
        yield Line(
            [
                "logit(answer) − logit(versus) after the clean texts: mean ",
                Figure(mean.value, "%+.3f", "strong"),
                between,
            ]
        )
    yield from stopped(report.interrupted, len(report.pairs), report.asked, "pairs", "")
    if len(report.pairs) < report.asked and not report.interrupted:
        yield note(f"{report.asked:,} were asked for, and no more different ones were found")
    for part in report.left_out:
        yield note(f"left out: {printable(str(part), spaces=False)}")


def _table(report: PairSet, pairs: Sequence[Pair], terminal: Terminal) -> Table:
    """Two rows a pair, its clean and its corrupt text, each with its answer."""
    room = max(_LEAST, terminal.width - _BESIDE) if terminal.cuts else sys.maxsize
    texts = [text for pair in pairs for text in _cut(pair, room)]
    answers = [
        Span(printable(word, spaces=False), role)
        for pair in pairs
        for word, role in ((pair.answer, "strong"), (pair.versus, ""))
    ]
    columns = [
        Column("#", [cell for pair in pairs for cell in (str(pair.number), "")], "right"),
        Column("clean, then corrupt", texts, said="text"),
        Column("answer", answers),
    ]
    if report.scores is not None:
        sides = zip(report.scores.clean, report.scores.corrupt, strict=True)
        differences = [difference for side, _ in zip(sides, pairs, strict=False) for difference in side]
        columns.append(Column("lead", [Figure(value, "%+.2f") for value in differences], "right"))
    if any(pair.labels for pair in pairs):
        labels = [", ".join(f"{name} {value}" for name, value in pair.labels.items()) for pair in pairs]
        cells = [Span(cell, "dim") for label in labels for cell in (printable(label, spaces=False), "")]
        columns.append(Column("labels", cells, drop=1))
    return Table(columns)


def _cut(pair: Pair, room: int) -> list[str]:
    """Both texts; where they are longer than the room, the part around their first difference."""
    texts = [printable(text, spaces=False) for text in (pair.clean, pair.corrupt)]
    differs = next((index for index, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), 0)
    cut = []
    for text in texts:
        start = max(0, min(differs - room // 2, len(text) - room))
        part = text[start : start + room]
        part = f"…{part[1:]}" if start else part
        cut.append(f"{part[:-1]}…" if start + room < len(text) else part)
    return cut
