"""A lesson as blocks: the purpose of the step, its numbers, the question, and the answer."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from rich.cells import cell_len

from tinytf.learn.course import Course
from tinytf.learn.lesson import Lesson, LiveTable, Map
from tinytf_cli.numbers import number, number_format
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import (
    Block,
    Cell,
    Column,
    Figure,
    Heading,
    Heat,
    Line,
    Meter,
    Miniature,
    Miniatures,
    Span,
    Table,
    Values,
)
from tinytf_cli.views.draw import Display, draws
from tinytf_cli.views.parts import numbered, spread

if TYPE_CHECKING:  # the list of lessons needs no torch
    from tinytf.learn.live import Live

_DIMS = 8
_MARGIN = 9
_MAP_LINES = 16
_TABLE_ROWS = 16
"""The rows of a table or map off a screen."""


def _labelled(label: Span, *words: Span) -> Line:
    """A paragraph with a label in the margin."""
    gap = Span(" " * (_MARGIN - cell_len(label.text)))
    spoken = f"{label.text}: " + "".join(span.text for span in words)
    return Line([label, gap, *words], hanging=_MARGIN, said=spoken)


class LessonView:
    """One lesson; ``chosen`` is the index of the reader's choice, from 0, or None.

    The right choice is marked once there is a choice, or if ``revealed``. ``dims`` dimensions of each vector are shown
    as numbers, and so many ``keys`` of each map, or all.
    """

    def __init__(
        self,
        live: "Live",
        lesson: Lesson,
        chosen: int | None = None,
        *,
        revealed: bool = False,
        dims: int = _DIMS,
        keys: int | None = None,
    ) -> None:
        self.live, self.lesson, self.chosen, self.dims, self.keys = live, lesson, chosen, dims, keys
        self.known = revealed or chosen is not None

    @property
    def has_more(self) -> bool:
        """Whether the answer has numbers of its own."""
        lesson = self.lesson
        return bool(lesson.revealed or lesson.revealed_figures or lesson.revealed_maps or lesson.pace)

    def why(self) -> Iterator[Block]:
        """The purpose of the step, its formula, and the line of PyTorch."""
        lesson = self.lesson
        yield _labelled(Span("why", "dim"), Span(lesson.why))
        yield _labelled(Span("formula", "dim"), Span(lesson.formula, lesson.role))
        yield _labelled(Span("PyTorch", "dim"), Span(lesson.pytorch))

    def numbers(self, rows: int) -> Iterator[Block]:
        """The live numbers to look at before the answer, at most ``rows`` of each table or map."""
        yield from self._numbers(self.lesson.figures, self.lesson.maps, self.lesson.shown, rows)

    def revealed(self, rows: int) -> Iterator[Block]:
        """The numbers of the answer, if it has its own."""
        lesson = self.lesson
        yield from self._numbers(lesson.revealed_figures, lesson.revealed_maps, lesson.revealed, rows)
        if lesson.pace is not None:
            from tinytf_cli.views.train_plan import pace_blocks

            yield from pace_blocks(lesson.pace, "this gradient", max(4, min(rows, 8)))

    def bare(self, rows: int) -> Iterator[Block]:
        """The numbers of the answer without their pictures, for a short screen."""
        lesson = self.lesson
        figures, addresses = lesson.figures if lesson.pace else lesson.revealed_figures, lesson.revealed
        yield from self._numbers(
            figures, () if figures or addresses else lesson.revealed_maps[: len(lesson.maps)], addresses, rows
        )

    def both(self, rows: int) -> Iterator[Block]:
        """The numbers of the answer, after the earlier ones unless the answer repeats them."""
        lesson = self.lesson
        if not (lesson.revealed_figures or lesson.revealed_maps or set(lesson.shown) <= set(lesson.revealed)):
            yield from self.numbers(rows)
            yield Line("")
        yield from self.revealed(rows)

    def _numbers(
        self, figures: LiveTable | None, maps: Sequence[Map], addresses: Sequence[str], rows: int
    ) -> Iterator[Block]:
        if figures is not None:
            yield from _figures(figures, rows, self.lesson.role)
        if maps:
            yield _miniatures(maps)
        rows_of_steps = [address for address in addresses if "[" in address]
        for _, group in groupby(rows_of_steps, lambda address: self.live.at(address).size):
            rows_alike = list(group)  # each has digits and a scale of its own
            values = np.stack([self.live.at(address) for address in rows_alike]).astype(np.float32)
            dims = self.dims if self.keys is None else self.dims - 2  # whole addresses are wide; one strip on a screen
            first, columns = min(dims, values.shape[1]), numbered("d", values.shape[1])
            yield Values(rows_alike, values, first, self.lesson.role, columns, several=True)
        for address in addresses:
            if address not in rows_of_steps:
                yield from self._step(address, rows)

    def question(self, terminal: Terminal) -> Iterator[Block]:
        """The question and its choices, side by side if they are short."""
        question = self.lesson.question
        yield _labelled(Span("predict", "attention"), Span(question.text, "strong"))
        count, wide = len(question.choices), max(map(cell_len, question.choices)) + len(" ✓") + 3
        per_row = max(1, (terminal.width - _MARGIN) // (wide + len("1 ")))
        per_row = per_row if per_row >= count else min(2, per_row)
        for first in range(0, count, per_row):
            row = range(first, min(count, first + per_row))
            spans = [span for choice in row for span in self._choice(choice, wide)]
            yield Line(spans, indent=_MARGIN, single=per_row > 1)

    def _choice(self, index: int, wide: int) -> Iterator[Span]:
        """A number and a choice, as wide before an answer as after it."""
        choice = self.lesson.question.choices[index]
        if not self.known:
            roles, mark = ("strong", ""), ""
        elif index == self.lesson.question.answer:
            roles, mark = ("good", "good"), " ✓"
        elif index == self.chosen:
            roles, mark = ("bad", "bad"), " ✗"
        else:
            roles, mark = ("dim", "dim"), ""
        yield Span(f"{index + 1} ", roles[0])
        yield Span(f"{choice}{mark}", roles[1])
        yield Span(" " * (wide - cell_len(f"{choice}{mark}")))

    def answer(self, chosen: int | None) -> Line:
        """Why the right choice is right, after why a wrong one is wrong if it was chosen."""
        question, reveal = self.lesson.question, Span(self.lesson.question.reveal)
        right = str(question.answer + 1)
        if chosen is None:
            return _labelled(Span("answer", "dim"), Span(f"{right}  ", "strong"), reveal)
        if chosen == question.answer:
            return _labelled(Span("right", "good"), reveal)
        return _labelled(Span(f"no, {right}", "bad"), Span(f"{question.reasons[chosen]} ", "strong"), reveal)

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The whole lesson for paper, the answer after the question."""
        lesson = self.lesson
        yield Heading(f"{lesson.number} {lesson.name}", lesson.title, lesson.role)
        yield from self.why()
        if lesson.figures or not lesson.maps:  # small maps begin with an empty line themselves
            yield Line("")
        yield from self.numbers(_TABLE_ROWS)
        yield Line("")
        yield from self.question(terminal)
        yield self.answer(self.chosen)
        if self.has_more:
            if lesson.revealed_figures or not lesson.revealed_maps:
                yield Line("")
            yield from self.revealed(_TABLE_ROWS)

    def _step(self, address: str, rows: int) -> Iterator[Block]:
        from tinytf_cli.views.steps import as_array, labels, labels_at, largest, row_labels, visible_array

        trace = self.live.trace
        where = trace.address(address)
        step = where.step
        assert step is not None
        values = as_array(trace[where])
        rows_of, keys_of = row_labels(trace, step), labels(trace, step.axes[-1])
        rows_kept, keys_kept = self._kept(len(rows_of), rows), self._kept(len(keys_of), self.keys or len(keys_of))
        title = f"{step.title} = {step.formula}" if step.formula else step.title
        axes = [("queries" if step.is_map else "tokens", rows_kept, len(rows_of))]
        axes += [("keys", keys_kept, len(keys_of))] if step.is_map else []
        part_of = [f"{axis} {kept[0]} to {kept[-1]} of {count}" for axis, kept, count in axes if len(kept) < count]
        shown = f"   {', '.join(part_of)}" if part_of else ""
        yield Line([Span(address, step.role), Span(shown, "strong"), Span(f"  {title}", "dim")], single=True)
        keep = list(rows_kept)
        if step.is_map:
            seen = visible_array(trace, step, 0)
            scale, limit = ("unit", 1.0) if step.holds_shares else ("signed", largest(values, seen))
            part = None if seen is None else seen[keep][:, list(keys_kept)]
            keys = keys_of[keys_kept.start : keys_kept.stop]
            yield Heat(values[keep][:, list(keys_kept)], [rows_of[i] for i in keep], keys, scale, part, limit)
        else:
            row_names, columns = labels_at(trace, where, values.shape)
            first = min(self.dims, values.shape[1])
            yield Values([row_names[i] for i in keep], values[keep], first, step.role, columns)

    def _kept(self, count: int, most: int) -> range:
        """The tokens up to the one that the question is about, and later ones if there is room: ``most`` of all."""
        first = max(0, min(self.lesson.focus, count - 1) + 1 - most)
        return range(first, min(count, first + most))


def _miniatures(maps: Sequence[Map]) -> Miniatures:
    miniatures = []
    for picture in maps:
        weights = np.array(picture.weights, dtype=np.float32)
        seen = np.isfinite(weights)
        miniatures.append(
            Miniature(picture.title, picture.word, np.where(seen, weights, 0), None if seen.all() else seen)
        )
    return Miniatures(
        miniatures, _MAP_LINES, "attention", len(miniatures), "the first", "a wider terminal shows more", grow=True
    )


def _figures(figures: LiveTable, rows: int, role: str) -> Iterator[Block]:
    count = len(figures.rows)
    rows = min(rows, count)
    if figures.keep == "spread":
        indices = spread(count, rows)
    else:
        indices = list(range(count - rows, count) if figures.keep == "last" else range(rows))
    shown_rows = [figures.rows[index] for index in indices]
    columns = []
    for index, title in enumerate(figures.titles):
        cells = [row[index] for row in shown_rows]
        if figures.share == index:
            shares = [float(cell) for cell in cells]
            shown = [number(share, "%.4f" if share >= 1e-4 or not share else "%.1e") for share in shares]
            width = max(map(len, shown))
            meters = [Meter(share, text.rjust(width), role) for share, text in zip(shares, shown, strict=True)]
            columns.append(Column(title, meters, narrow=shown))
        else:
            texts = all(isinstance(cell, str) for cell in cells)
            columns.append(Column(title, _cells(cells), "left" if texts else "right", shrink=8 if texts else 0))
    yield Table(columns, header=any(figures.titles))
    if len(shown_rows) < len(figures.rows):
        yield Line(Span(f"  {len(figures.rows) - len(shown_rows)} of {len(figures.rows)} rows are omitted", "dim"))


def _cells(values: Sequence[str | int | float]) -> list[Cell]:
    """The cells of a column; its numbers have the same digits unless their sizes differ widely."""
    floats = [value for value in values if isinstance(value, float)]
    sizes = [abs(value) for value in floats if value]
    even = sizes and max(sizes) < 30 * min(sizes)
    form = number_format(np.array(floats, dtype=np.float32)) if even else ""
    return [
        value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else Figure(value, form)
        for value in values
    ]


@draws(Course)
def course(report: Course, terminal: Terminal, display: Display) -> Iterator[Block]:
    """The model and text, then each lesson."""
    yield from banner(report.live.model, report.live.encoding)
    for lesson in report.lessons:
        yield from LessonView(report.live, lesson).blocks(terminal)
