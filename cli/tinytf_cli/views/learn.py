"""A lesson as blocks: what the step is for, its numbers, the question, and what the answer is."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.cells import cell_len

from tinytf.lessons.data import Figures, Lesson
from tinytf.lessons.live import Live
from tinytf.lessons.titles import TITLES
from tinytf.report import SCHEMA_VERSION, text_data
from tinytf.trace.summary import visible
from tinytf_cli.numbers import number, number_format
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Cell, Column, Figure, Heading, Heat, Line, Meter, Span, Table, Values
from tinytf_cli.views.steps import as_array, labels, largest

_DIMS = 8
_MARGIN = 9
_ROWS = 16
"""Rows of a table or map in a text that is no screen."""


def _labelled(label: Span, *words: Span) -> Line:
    """A paragraph with a word in the margin that says what it is."""
    gap = Span(" " * (_MARGIN - cell_len(label.text)))
    said = f"{label.text}: " + "".join(span.text for span in words)
    return Line([label, gap, *words], hanging=_MARGIN, said=said)


def _padded(spans: Sequence[Span], width: int) -> list[Span]:
    return [*spans, Span(" " * (width - sum(cell_len(span.text) for span in spans)))]


class LessonView:
    """One lesson; ``chosen`` is the choice that its question was answered with, from 0, or None.

    Of every vector ``dims`` dimensions are shown as numbers.
    """

    def __init__(self, live: Live, lesson: Lesson, chosen: int | None = None, *, dims: int = _DIMS) -> None:
        self.live, self.lesson, self.chosen, self.dims = live, lesson, chosen, dims

    @property
    def has_more(self) -> bool:
        """Whether the answer has numbers of its own."""
        return bool(self.lesson.revealed or self.lesson.revealed_figures)

    def why(self) -> Iterator[Block]:
        """What the step is for, its formula, and the line of PyTorch."""
        lesson = self.lesson
        yield _labelled(Span("why", "dim"), Span(lesson.why))
        yield _labelled(Span("formula", "dim"), Span(lesson.formula, lesson.role))
        yield _labelled(Span("PyTorch", "dim"), Span(lesson.pytorch))

    def numbers(self, rows: int) -> Iterator[Block]:
        """The live numbers to look at before the answer, at most ``rows`` of each table or map."""
        yield from self._numbers(self.lesson.figures, self.lesson.shown, rows)

    def revealed(self, rows: int) -> Iterator[Block]:
        """Those that hold the answer, where it has its own; else those of before."""
        lesson = self.lesson
        figures = lesson.revealed_figures or (None if lesson.revealed else lesson.figures)
        yield from self._numbers(figures, lesson.revealed or (() if lesson.revealed_figures else lesson.shown), rows)

    def both(self, rows: int) -> Iterator[Block]:
        """Those of before and, where they are others, those that hold the answer."""
        lesson = self.lesson
        if not (lesson.revealed_figures or set(lesson.shown) <= set(lesson.revealed)):
            yield from self.numbers(rows)
            yield Line("")
        yield from self.revealed(rows)

    def _numbers(self, figures: Figures | None, addresses: Sequence[str], rows: int) -> Iterator[Block]:
        if figures is not None:
            yield from _figures(figures, rows, self.lesson.role)
        cells = [address for address in addresses if "[" in address]
        if cells:
            yield from self._vectors(cells)
        for address in addresses:
            if address not in cells:
                yield from self._step(address, rows)

    def question(self, terminal: Terminal) -> Iterator[Block]:
        """The question and its choices, side by side where they are short."""
        asked = self.lesson.question
        yield _labelled(Span("predict", "attention"), Span(asked.text, "strong"))
        choices = [self._choice(place) for place in range(len(asked.choices))]
        wide = max(map(cell_len, asked.choices)) + len("1 ") + len(" ✓") + 3  # as wide before an answer as behind it
        abreast = max(1, (terminal.width - _MARGIN) // wide)
        abreast = abreast if abreast >= len(choices) else min(2, abreast)
        for first in range(0, len(choices), abreast):
            row = choices[first : first + abreast]
            yield Line([span for spans in row for span in _padded(spans, wide)], indent=_MARGIN, single=abreast > 1)

    def _choice(self, place: int) -> list[Span]:
        asked = self.lesson.question
        if self.chosen is None:
            return [Span(str(place + 1), "strong"), Span(f" {asked.choices[place]}")]
        if place == asked.answer:
            return [Span(f"{place + 1} {asked.choices[place]} ✓", "good")]
        if place == self.chosen:
            return [Span(f"{place + 1} {asked.choices[place]} ✗", "bad")]
        return [Span(f"{place + 1} {asked.choices[place]}", "dim")]

    def answer(self) -> Line:
        """Why the right choice is right, and whether it was the one that was chosen."""
        asked = self.lesson.question
        right = asked.answer + 1
        if self.chosen is None:
            return _labelled(Span("answer", "dim"), Span(f"{right}  ", "strong"), Span(asked.reveal))
        if self.chosen == asked.answer:
            return _labelled(Span("right", "good"), Span(asked.reveal))
        return _labelled(Span(f"no, {right}", "bad"), Span(asked.reveal))

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The whole lesson for paper, the answer behind the question."""
        lesson = self.lesson
        yield Heading(f"{lesson.number} {lesson.name}", lesson.title, lesson.role)
        yield from self.why()
        yield Line("")
        yield from self.numbers(_ROWS)
        yield Line("")
        yield from self.question(terminal)
        yield self.answer()
        if self.has_more:
            yield Line("")
            yield from self.revealed(_ROWS)

    def _vectors(self, addresses: Sequence[str]) -> Iterator[Block]:
        """Rows of several steps, each with digits and a scale of its own."""
        found = np.stack([self.live.at(address) for address in addresses]).astype(np.float32)
        yield Values(list(addresses), found, self.dims, self.lesson.role, several=True)

    def _step(self, address: str, rows: int) -> Iterator[Block]:
        trace = self.live.trace
        where = trace.address(address)
        step = where.step
        assert step is not None
        values = as_array(trace[where])
        names = labels(trace)
        keep = self._around(rows)
        said = f"  {step.title} = {step.formula}" if step.formula else f"  {step.title}"
        yield Line([Span(address, step.role), Span(said, "dim")], single=True)
        if step.is_map:
            allowed = visible(trace, step, 0)
            seen = None if allowed is None else allowed.cpu().numpy()
            shares = step.is_distribution
            limit = 1.0 if shares else largest(values, seen)
            part = None if seen is None else seen[keep]
            yield Heat(values[keep], [names[i] for i in keep], names, "unit" if shares else "signed", part, limit)
        else:
            yield Values([names[i] for i in keep], values[keep], self.dims, step.role)
        if len(keep) < len(names):
            which = f"tokens {keep[0]} to {keep[-1]}" if len(keep) > 1 else f"token {keep[0]}"
            yield Line(Span(f"  {which} of {len(names)}", "dim"))

    def _around(self, rows: int) -> list[int]:
        """The tokens up to the one that the question is about, and those after it where there is room."""
        count, focus = self.live.length, self.lesson.focus
        first = max(0, min(focus, count - 1) + 1 - rows)
        return list(range(first, min(count, first + rows)))

    def data(self) -> dict[str, Any]:
        """The lesson with the numbers at its addresses."""
        addresses = dict.fromkeys((*self.lesson.shown, *self.lesson.revealed))
        return {**self.lesson.to_dict(), "values": {address: self.live.at(address).tolist() for address in addresses}}


def _figures(figures: Figures, rows: int, role: str) -> Iterator[Block]:
    count = len(figures.rows)
    spread = figures.layers and 1 < rows < count
    places = [round(i * (count - 1) / (rows - 1)) for i in range(rows)] if spread else list(range(min(rows, count)))
    kept = [figures.rows[place] for place in places]
    columns = []
    for place, title in enumerate(figures.titles):
        cells = [row[place] for row in kept]
        if figures.share == place:
            shares = [float(cell) for cell in cells]
            shown = [number(share, "%.4f" if share >= 1e-4 or not share else "%.1e") for share in shares]
            width = max(map(len, shown))
            meters = [Meter(share, text.rjust(width), role) for share, text in zip(shares, shown, strict=True)]
            columns.append(Column(title, meters, narrow=shown))
        else:
            texts = all(isinstance(cell, str) for cell in cells)
            columns.append(Column(title, _cells(cells), "left" if texts else "right", shrink=8 if texts else 0))
    yield Table(columns, header=any(figures.titles))
    if len(kept) < len(figures.rows):
        yield Line(Span(f"  {len(figures.rows) - len(kept)} of {len(figures.rows)} rows are left out", "dim"))


def _cells(values: Sequence[str | int | float]) -> list[Cell]:
    """Numbers of a column with the same digits, where they are not of quite different sizes."""
    floats = [value for value in values if isinstance(value, float)]
    sizes = [abs(value) for value in floats if value]
    even = sizes and max(sizes) < 30 * min(sizes)
    form = number_format(np.array(floats, dtype=np.float32)) if even else ""
    return [
        value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else Figure(value, form)
        for value in values
    ]


class LessonsView:
    """Several lessons as one text; each is made when it is its turn."""

    def __init__(self, live: Live, made: Sequence[Lesson]) -> None:
        self.live, self.views = live, [LessonView(live, one) for one in made]

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """One lesson after the other."""
        yield from banner(self.live.model, self.live.encoding)
        for view in self.views:
            yield from view.blocks(terminal)

    def data(self) -> dict[str, Any]:
        """The lessons as one JSON object."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "lessons",
            "model": self.live.model.to_dict(),
            **text_data(self.live.encoding),
            "seed": self.live.seed,
            "lessons": [view.data() for view in self.views],
        }

    def events(self) -> Iterator[Mapping[str, Any]]:
        """The same data, one event a line."""
        data = self.data()
        tokens, found = data.pop("tokens"), data.pop("lessons")
        yield {"type": data.pop("kind"), **data}
        for token in tokens:
            yield {"type": "token", **token}
        for one in found:
            yield {"type": "lesson", **one}


def list_blocks(_: Terminal) -> Iterator[Block]:
    """Number, name and title of every lesson."""
    numbers = [str(place) for place in range(1, len(TITLES) + 1)]
    yield Table([Column("#", numbers, "right"), Column("lesson", list(TITLES)), Column("", list(TITLES.values()))])


def list_data() -> dict[str, Any]:
    rows = [{"number": place, "name": name, "title": title} for place, (name, title) in enumerate(TITLES.items(), 1)]
    return {"schema_version": SCHEMA_VERSION, "kind": "lesson_list", "lessons": rows}


def list_events() -> Iterator[Mapping[str, Any]]:
    data = list_data()
    found = data.pop("lessons")
    yield {"type": data.pop("kind"), **data}
    for one in found:
        yield {"type": "lesson", **one}
