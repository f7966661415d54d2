"""The census of heads: the kind of each head, a map of one score, and a table sorted by it."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tinytf.look.heads.across import SCORES_ACROSS, CrossScores
from tinytf.look.heads.census import SCORES, Census
from tinytf.look.heads.kinds import LABELS
from tinytf.text.printable import printable
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Cell, Column, Figure, Heading, Line, Meter, Span, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import LONG_STACK, head_map, note

_ROLES = {
    "induction": "attention",
    "duplicate": "k",
    "previous": "q",
    "self": "v",
    "offset": "ffn",
    "first": "residual",
    "broad": "embed",
}
_NOTHING = "·"
_RANDOM = "repeated random tokens"
_HEADS = 8
"""Heads in the table by default."""
_UNBOUNDED = ("entropy", "distance")  # the other scores are 0…1
# (title, score, drop): if the table is too wide, the column with the highest drop goes first
_COLUMNS = (
    ("induction", "induction", 1),
    ("dupl.", "duplicate", 3),
    ("prev.", "previous", 2),
    ("first", "first", 4),
    ("self", "self", 5),
    ("offset", "offset", 6),
    ("entropy", "entropy_share", 7),
    ("nats", "entropy", 10),
    ("distance", "distance", 8),
    ("alike", "agreement", 9),
)


@dataclass(frozen=True)
class CensusDisplay(Display):
    """``mapped`` draws a map of the score; ``all`` also does, and lists every head in the table."""

    mapped: bool = False
    all: bool = False


@draws(Census, CensusDisplay)
def heads(report: Census, terminal: Terminal, display: CensusDisplay) -> Iterator[Block]:
    """What the heads read, the kind of each head, the map of the score if requested, and the table of heads."""
    model = model_of(report)
    yield from banner(model)
    yield from _material(report, model.config.causal)
    yield from _kinds(report)
    yield from _letters(report, terminal.width)
    if display.mapped or display.all:
        yield from _map(report, display.all)
    yield from _table(report, display.all)
    if report.across is not None:
        yield from _across(report.across, report.top or (None if display.all else _HEADS))


def _across(across: CrossScores, most: int | None) -> Iterator[Block]:
    """The heads of cross-attention, by how they follow the source."""
    chosen = across.ranked[:most]
    on = f"on {printable(across.of, spaces=False)}, {plural(across.pairs, 'pair')}"
    yield Heading("heads across", f"from the target to the source, {on}", "attention")
    named = [Column("head", [Span(f"L{layer}H{head}", "strong") for layer, head in chosen], said="")]
    columns = (
        Column(name.replace("_share", ""), [Figure(float(values[at]), "%+.2f" if name == "monotone" else "%.2f")
               for at in chosen], "right")
        for name, values in across.values.items()
    )  # fmt: skip
    yield Table([*named, *columns])
    for name, (_, words) in SCORES_ACROSS.items():
        yield note(f"{name.replace('_share', '')}: {words}")
    yield note("induction, the token before and offsets are of one text, so these heads have none")


def _map(report: Census, every: bool) -> Iterator[Block]:
    """A map of the score of every head."""
    key = report.key
    values = report.score(key).numpy().astype(np.float32)
    source = "text" if report.measured_on(key) is report.text else _RANDOM
    yield Heading(f"heads by {report.by}", f"on {source}", "attention")
    yield note(SCORES[key])
    limit = (float(np.nanmax(values, initial=0.0)) or 1.0) if key in _UNBOUNDED else 1.0
    yield from head_map(values, "unit", limit, 2, every)


def _material(report: Census, causal: bool) -> Iterator[Block]:
    """The random tokens and the model's loss on them, then the text."""
    sequences = plural(report.repeats.sequences, "sequence")
    words = f"{sequences} of {report.length} {_RANDOM}, seed {report.seed}"
    if report.first_loss is not None and report.second_loss is not None:
        words += f": loss {report.first_loss:.2f} in the first copy, {report.second_loss:.2f} in the second"
    elif causal:
        words += "; no loss: this model has no head that predicts"
    else:
        words += "; no loss: an encoder predicts no next token"
    yield Heading("what the heads read", "", "attention")
    yield Line(words, indent=2)
    if report.across is not None:
        words = "each is a target whose source is its first copy"
    elif report.text is None:
        words = "no text: every score is from the random tokens; name a file or folder to measure the others on text"
    else:
        windows = plural(report.text.sequences, "window")
        words = f"{windows} of {report.text.tokens} tokens of {printable(report.corpus, spaces=False)}"
        words = f"the first {words}; --count reads more" if report.unread else words
    yield Line(words, indent=2)


def _kinds(report: Census) -> Iterator[Block]:
    """How many heads are of each kind."""
    counts = Counter(label.name for row in report.labels for label in row)
    yield Heading("what each head is", "the first of these that it reaches", "attention")
    rows = [
        (
            Span(_letter(label.name), _ROLES[label.name]),
            label.name,
            counts[label.name],
            f"{label.score.replace('_', ' ')} ≥ {label.least}",
            label.meaning,
        )
        for label in LABELS
        if counts[label.name]
    ]
    if counts["–"]:
        rows.append((Span(_NOTHING), "no pattern", counts["–"], "", ""))
    yield Table(
        [
            Column("", [letter for letter, *_ in rows], said=""),
            Column("", [Span(name, "strong") for _, name, *_ in rows], said=""),
            Column("", [str(count) for _, _, count, *_ in rows], "right", said="heads:"),
            Column("", [threshold and Span(threshold, "dim") for *_, threshold, _ in rows], drop=1, said=""),
            Column("", [meaning and Span(meaning, "dim") for *_, meaning in rows], shrink=30, said=""),
        ],
        header=False,
    )


def _letters(report: Census, width: int) -> Iterator[Block]:
    """The kind of every head as a letter, with layers down, or across if there are many."""
    yield Line("")
    rows, row_axis, column_letter = report.labels, "Layer", "H"
    if len(rows) > LONG_STACK:
        rows, row_axis, column_letter = tuple(zip(*rows, strict=True)), "Head", "L"
        yield note(f"heads down, layers 0 to {len(report.labels) - 1} across")
    gap = " " if len(rows[0]) * 2 + 6 <= width else ""
    indent = len(f"{row_axis[0]}{len(rows) - 1}")
    for row, labels in enumerate(rows):
        spans = [Span(f"{row_axis[0]}{row}".ljust(indent) + " ")]
        spans += [
            Span((_letter(head.name) if head.label else _NOTHING) + gap, _ROLES.get(head.name, "dim"))
            for head in labels
        ]
        patterns = [f"{column_letter}{column} {head.name}" for column, head in enumerate(labels) if head.label]
        sentence = f"{row_axis} {row}: {', '.join(patterns) or 'no head with a pattern'}."
        yield Line(spans, indent=2, said=sentence, single=True)


def _table(report: Census, every: bool) -> Iterator[Block]:
    """The scores of the first heads, and the kind of each."""
    order = report.order()
    chosen = order[: report.top or (None if every else _HEADS)]
    labels = [report.labels[layer][head] for layer, head in chosen]
    title = "every head" if len(chosen) == len(order) else f"the first {len(chosen)} of {len(order)} heads"
    advice = "--by maps a score" + "; --all shows every head" * (len(chosen) < len(order))
    yield Heading(title, f"by {report.by}, the highest first", "attention", advice)
    yield Table(
        [
            Column("head", [Span(f"L{layer}H{head}", "strong") for layer, head in chosen], said=""),
            Column("is", [Span(label.name, _ROLES.get(label.name, "dim")) for label in labels]),
            *(
                _column(report, title, score, drop, chosen)
                for title, score, drop in _COLUMNS
                if score in report.measured_on(score).values
            ),
            Column("evidence", [Span(label.evidence, "dim") for label in labels], drop=11),
        ]
    )


def _column(report: Census, title: str, score: str, drop: int, heads: list[tuple[int, int]]) -> Column:
    values = [float(report.score(score)[head]) for head in heads]
    spoken, drop = score.replace("_", " "), 0 if score == report.by else drop
    if score == report.by and score not in (*_UNBOUNDED, "offset"):
        bars = [Meter(value, Figure(value, "%.2f"), "attention") if value == value else "–" for value in values]
        return Column(title, bars, "left" if isinstance(bars[0], Meter) else "right", drop=drop, said=spoken)
    form = "%.1f" if score == "distance" else "%.2f"
    cells: list[Cell] = [Figure(value, form) if value == value else "–" for value in values]
    if score == "offset":
        weights = [float(report.score("offset_weight")[head]) for head in heads]
        offsets = [f"{value:+.0f}" if value else "0" for value in values]
        cells = [f"{offset}: {weight:.2f}" for offset, weight in zip(offsets, weights, strict=True)]
    return Column(title, cells, "right", drop=drop, said=spoken)


def _letter(name: str) -> str:
    return name[0].upper()
