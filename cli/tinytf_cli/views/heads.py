"""The view of a census: what each head is, a map of one score, and a table sorted by it."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tinytf.analysis.census import SCORES, Census
from tinytf.analysis.heads import LABELS, Label, Named
from tinytf.loading import Model
from tinytf.text.printable import printable
from tinytf_cli.numbers import number
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Array, Block, Cell, Column, Heading, Heat, Line, Meter, Span, Table

if TYPE_CHECKING:
    pass

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
_UNBOUNDED = ("entropy", "distance")  # the other scores are 0…1
_ROWS_ON_A_SCREEN = 16
_DIGITS = {"distance": "%.1f"}
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
    """A census, drawn; without a ``top`` the table has as many heads as suit."""

    def __init__(self, model: Model, found: Census) -> None:
        self.model, self.found = model, found
        self.values: Array = found.score(found.key).numpy().astype(np.float32)

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """What was read, what the heads are, the map and the table."""
        yield from banner(self.model)
        yield from self._material()
        yield from self._labels(terminal)
        yield Heading(f"heads by {self.found.by}", self._where(self.found.key), "attention")
        yield Line(Span(SCORES[self.found.key], "dim"), indent=2)
        limit = float(np.nanmax(self.values, initial=0.0)) or 1.0
        rows, columns = (
            [f"{sign}{i}" for i in range(size)] for sign, size in zip("LH", self.values.shape, strict=True)
        )
        seen = None if np.isfinite(self.values).all() else np.isfinite(self.values)
        bounded = self.found.key not in _UNBOUNDED
        yield Heat(self.values, rows, columns, "unit", seen, 1.0 if bounded else limit, asked=True, digits=2)
        yield from self._table(terminal)

    def _where(self, score: str) -> str:
        on = self.found.measured_on(score)
        return "on text" if on is self.found.text else f"on {self._random}"

    @property
    def _random(self) -> str:
        return "random tokens said twice"

    def _material(self) -> Iterator[Block]:
        census = self.found
        several = "s" if census.repeats.sequences > 1 else ""
        said = f"{census.repeats.sequences} sequence{several} of {census.length} {self._random}, seed {census.seed}"
        yield Heading("what the heads looked at", "", "attention")
        if census.first_loss is not None and census.second_loss is not None:
            said += f": loss {census.first_loss:.2f} in the first copy, {census.second_loss:.2f} in the second"
        elif self.model.config.causal:
            said += "; no loss: this model has no head that predicts"
        else:
            said += "; no loss: this model reads both ways and predicts no next token"
        yield Line(said, indent=2)
        if census.text is None:
            yield Line(
                "no text: every score is from the random tokens; name a file or folder to read the others on text",
                indent=2,
            )
            return
        corpus = printable(census.corpus, spaces=False)
        windows = f"{census.text.sequences} window{'s' if census.text.sequences > 1 else ''}"
        yield Line(f"{windows} of {census.text.tokens} tokens of {corpus}", indent=2)

    def _labels(self, terminal: Terminal) -> Iterator[Block]:
        names = [named.name for row in self.found.labels for named in row]
        counts = Counter(names)
        yield Heading("what each head is", "the first of these that it reaches", "attention")
        found = [label for label in LABELS if counts[label.name]]
        none = counts["–"]
        rest = [Span("no pattern", "strong")] if none else []
        yield Table(
            [
                Column(
                    "",
                    [*(Span(_letter(one.name), _ROLES[one.name]) for one in found), *(Span(_NOTHING) for _ in rest)],
                    said="",
                ),
                Column("", [*(Span(label.name, "strong") for label in found), *rest], said=""),
                Column(
                    "",
                    [*(str(counts[label.name]) for label in found), *(str(none) for _ in rest)],
                    "right",
                    said="heads:",
                ),
                Column("", [*(_threshold(label) for label in found), *("" for _ in rest)], drop=1, said=""),
                Column("", [*(Span(label.meaning, "dim") for label in found), *("" for _ in rest)], shrink=30, said=""),
            ],
            header=False,
        )
        yield Line("")
        wide = len(self.found.labels[0]) * 2 + 6 <= terminal.width
        for layer, labels in enumerate(self.found.labels):
            yield self._letters(layer, labels, " " if wide else "")

    def _letters(self, layer: int, labels: tuple[Named, ...], gap: str) -> Line:
        width = len(f"L{len(self.found.labels) - 1}")
        spans = [Span(f"L{layer}".ljust(width) + " ")]
        for named in labels:
            letter = _letter(named.name) if named.label else _NOTHING
            spans.append(Span(letter + gap, _ROLES.get(named.name, "dim")))
        found = [f"H{head} {named.name}" for head, named in enumerate(labels) if named.label]
        return Line(spans, indent=2, said=f"Layer {layer}: {', '.join(found) or 'no head with a pattern'}.")

    def _table(self, terminal: Terminal) -> Iterator[Block]:
        order = self.found.order()
        top = self.found.top or (_ROWS_ON_A_SCREEN if terminal.cuts else len(order))
        chosen = order[:top]
        labels = [self.found.labels[layer][head] for layer, head in chosen]
        title = "every head" if len(chosen) == len(order) else f"the first {len(chosen)} of {len(order)} heads"
        yield Heading(title, f"by {self.found.by}, the highest first", "attention")
        yield Table(
            [
                Column("head", [Span(f"L{layer}H{head}", "strong") for layer, head in chosen], said=""),
                Column("is", [Span(named.name, _ROLES.get(named.name, "dim")) for named in labels]),
                *(self._column(title, score, drop, chosen) for title, score, drop in _COLUMNS if self._has(score)),
                Column("evidence", [Span(named.evidence, "dim") for named in labels], shrink=38),
            ]
        )

    def _has(self, score: str) -> bool:
        return score in self.found.measured_on(score).values

    def _column(self, title: str, score: str, drop: int, chosen: list[tuple[int, int]]) -> Column:
        values = [float(self.found.score(score)[place]) for place in chosen]
        sought = score == self.found.by
        cells: list[Cell] = [number(value, _DIGITS.get(score, "%.2f")) if value == value else "–" for value in values]
        if score == "offset":
            weights = [float(self.found.score("offset_weight")[place]) for place in chosen]
            cells = [
                f"{value:+.0f}: {weight:.2f}" if value else f"0: {weight:.2f}"
                for value, weight in zip(values, weights, strict=True)
            ]
        elif sought and score not in _UNBOUNDED:
            cells = [Meter(value, f"{value:.2f}", "attention") if value == value else "–" for value in values]
        align = "left" if isinstance(cells[0], Meter) else "right"
        return Column(title, cells, align, drop=0 if sought else drop, said=score.replace("_", " "))


def _letter(name: str) -> str:
    return name[0].upper()


def _threshold(label: Label) -> Span:
    return Span(f"{label.score.replace('_', ' ')} ≥ {label.least}", "dim")
