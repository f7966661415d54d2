"""The view of a census: what each head is, a map of one score, and a table sorted by it."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from tinytf.loading import Model
from tinytf.look.census import SCORES, Census
from tinytf.look.heads import LABELS
from tinytf.text.printable import printable
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Array, Block, Cell, Column, Figure, Heading, Line, Meter, Span, Table
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
_ROWS = 8
"""How many heads the table has, unless more are asked for."""
_UNBOUNDED = ("entropy", "distance")  # the other scores are 0…1
# (title, score, which column goes first where width is short)
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


class HeadsView:
    """A census, drawn: what the heads are and a table of some; with ``mapped`` or all a map of the score too."""

    def __init__(self, model: Model, found: Census, mapped: bool = False, whole: bool = False) -> None:
        self.model, self.found, self.mapped, self.whole = model, found, mapped, whole
        self.values: Array = found.score(found.key).numpy().astype(np.float32)

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """What was read, what the heads are, the map and the table."""
        yield from banner(self.model)
        yield from self._material()
        yield from self._labels(terminal)
        if self.mapped or self.whole:
            yield from self._map()
        yield from self._table()

    def _map(self) -> Iterator[Block]:
        """The score of every head."""
        found, values = self.found, self.values
        on = "text" if found.measured_on(found.key) is found.text else _RANDOM
        yield Heading(f"heads by {found.by}", f"on {on}", "attention")
        yield note(SCORES[found.key])
        limit = (float(np.nanmax(values, initial=0.0)) or 1.0) if found.key in _UNBOUNDED else 1.0
        yield from head_map(values, "unit", limit, 2, self.whole)

    def _material(self) -> Iterator[Block]:
        census = self.found
        sequences = plural(census.repeats.sequences, "sequence")
        said = f"{sequences} of {census.length} {_RANDOM}, seed {census.seed}"
        if census.first_loss is not None and census.second_loss is not None:
            said += f": loss {census.first_loss:.2f} in the first copy, {census.second_loss:.2f} in the second"
        elif self.model.config.causal:
            said += "; no loss: this model has no head that predicts"
        else:
            said += "; no loss: an encoder predicts no next token"
        yield Heading("what the heads read", "", "attention")
        yield Line(said, indent=2)
        if census.text is None:
            said = "no text: every score is from the random tokens; name a file or folder to measure the others on text"
        else:
            windows = plural(census.text.sequences, "window")
            said = f"{windows} of {census.text.tokens} tokens of {printable(census.corpus, spaces=False)}"
        yield Line(said, indent=2)

    def _labels(self, terminal: Terminal) -> Iterator[Block]:
        """How many heads are of each kind, and a letter for every head."""
        counts = Counter(named.name for row in self.found.labels for named in row)
        yield Heading("what each head is", "the first of these that it reaches", "attention")
        rows = [
            (
                Span(_letter(one.name), _ROLES[one.name]),
                one.name,
                counts[one.name],
                f"{one.score.replace('_', ' ')} ≥ {one.least}",
                one.meaning,
            )
            for one in LABELS
            if counts[one.name]
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
        yield Line("")
        layers, word, other = self.found.labels, "Layer", "H"
        if len(layers) > LONG_STACK:
            layers, word, other = tuple(zip(*layers, strict=True)), "Head", "L"
            yield note(f"heads down, layers 0 to {len(self.found.labels) - 1} across")
        gap = " " if len(layers[0]) * 2 + 6 <= terminal.width else ""
        width = len(f"{word[0]}{len(layers) - 1}")
        for row, labels in enumerate(layers):
            letters = [(_letter(one.name) if one.label else _NOTHING, _ROLES.get(one.name, "dim")) for one in labels]
            spans = [
                Span(f"{word[0]}{row}".ljust(width) + " "),
                *(Span(letter + gap, role) for letter, role in letters),
            ]
            found = [f"{other}{place} {one.name}" for place, one in enumerate(labels) if one.label]
            said = f"{word} {row}: {', '.join(found) or 'no head with a pattern'}."
            yield Line(spans, indent=2, said=said, single=True)

    def _table(self) -> Iterator[Block]:
        order = self.found.order()
        chosen = order[: self.found.top or (None if self.whole else _ROWS)]
        labels = [self.found.labels[layer][head] for layer, head in chosen]
        title = "every head" if len(chosen) == len(order) else f"the first {len(chosen)} of {len(order)} heads"
        yield Heading(
            title, f"by {self.found.by}, the highest first; --by maps a score, --all shows every head", "attention"
        )
        yield Table(
            [
                Column("head", [Span(f"L{layer}H{head}", "strong") for layer, head in chosen], said=""),
                Column("is", [Span(named.name, _ROLES.get(named.name, "dim")) for named in labels]),
                *(
                    self._column(title, score, drop, chosen)
                    for title, score, drop in _COLUMNS
                    if score in self.found.measured_on(score).values
                ),
                Column("evidence", [Span(named.evidence, "dim") for named in labels], drop=11),
            ]
        )

    def _column(self, title: str, score: str, drop: int, chosen: list[tuple[int, int]]) -> Column:
        values = [float(self.found.score(score)[place]) for place in chosen]
        said, drop = score.replace("_", " "), 0 if score == self.found.by else drop
        if score == self.found.by and score not in (*_UNBOUNDED, "offset"):
            bars = [Meter(value, Figure(value, "%.2f"), "attention") if value == value else "–" for value in values]
            return Column(title, bars, "left" if isinstance(bars[0], Meter) else "right", drop=drop, said=said)
        form = "%.1f" if score == "distance" else "%.2f"
        cells: list[Cell] = [Figure(value, form) if value == value else "–" for value in values]
        if score == "offset":
            weights = [float(self.found.score("offset_weight")[place]) for place in chosen]
            offsets = [f"{value:+.0f}" if value else "0" for value in values]
            cells = [f"{offset}: {weight:.2f}" for offset, weight in zip(offsets, weights, strict=True)]
        return Column(title, cells, "right", drop=drop, said=said)


def _letter(name: str) -> str:
    return name[0].upper()
