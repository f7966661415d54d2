"""The cells of one step of a worked example: claimed, true, and how far apart."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len

from tinytf.text.printable import printable
from tinytf.worked import CheckedStep
from tinytf_cli.numbers import number, number_format
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Cell, Column, Line, Span, Table

_GAP = 2
_SIGNS, _SPOKEN = ("✓", "✗"), (" right", " wrong")
_RIGHT, _WRONG = Span("✓", "good"), Span("✗", "bad")


def safe(text: str) -> str:
    return printable(text, spaces=False)


def claimed_cells(checked: CheckedStep, terminal: Terminal) -> Iterator[Block]:
    """The cells, matrix by matrix where there are more than two axes."""
    claim, true = checked.step.claim, checked.true
    assert true is not None
    shape = claim.shape if claim is not None and len(claim.shape) != true.ndim else true.shape
    for place in np.ndindex(shape[:-2]):
        if place:
            yield Line(Span(f"[{', '.join(map(str, place))}]", "dim"), indent=2)
        yield from _matrix(checked, place, terminal)


def _matrix(checked: CheckedStep, place: tuple[int, ...], terminal: Terminal) -> Iterator[Block]:
    """Claimed, true and difference side by side, or below each other where the width is short."""
    step = checked.step
    parts = [part for part in _parts(checked, place, _SPOKEN if terminal.plain else _SIGNS) if part[1]]
    rows = max(len(part[1]) for part in parts)
    labels = [safe(label) for label in step.rows[:rows]] or ["" if rows == 1 else str(row) for row in range(rows)]
    labels += [str(row) for row in range(len(labels), rows)]
    names = [safe(name) for name in step.columns]
    if terminal.plain:
        yield _table(labels, [(title, cells, names) for title, cells in parts], rule=False)
        return
    side = max(cell_len(label) for label in labels) + _GAP
    columns = [_widths(cells, names) for _, cells in parts]
    beside = sum(
        sum(c) - c[0] + max(c[0], cell_len(title)) + _GAP * len(c) for (title, _), c in zip(parts, columns, strict=True)
    )
    if side + beside + (1 + _GAP) * (len(parts) - 1) <= terminal.width:
        yield _table(labels, [(title, cells, names) for title, cells in parts])
        return
    for title, cells in parts:
        for first, last in _strips(_widths(cells, names), terminal.width - side):
            strip = [row[first:last] for row in cells]
            yield Line(
                Span(f"{title}{f', {first} to {last - 1}' if last - first < len(cells[0]) else ''}", "dim"), indent=2
            )
            yield _table(labels[: len(cells)], [("", strip, names[first:last])])


def _widths(cells: Sequence[Sequence[Sequence[Span]]], names: Sequence[str]) -> list[int]:
    columns = len(cells[0])
    widest = [max(sum(cell_len(span.text) for span in row[c]) for row in cells) for c in range(columns)]
    return [max(w, cell_len(names[c]) if c < len(names) else 0) for c, w in enumerate(widest)]


def _strips(widths: Sequence[int], room: int) -> Iterator[tuple[int, int]]:
    """Runs of columns that fit, at least one in each."""
    first, used = 0, 0
    for c, width in enumerate(widths):
        if c > first and used + width + _GAP > room:
            yield first, c
            first, used = c, 0
        used += width + _GAP
    yield first, len(widths)


Cells = list[list[list[Span]]]


def _table(labels: Sequence[str], parts: Sequence[tuple[str, Cells, Sequence[str]]], *, rule: bool = True) -> Table:
    """Groups of columns with a rule between them; names of columns are a first row."""
    named = rule and any(names for _, _, names in parts)
    first: list[Cell] = [""] if named else []
    columns = [Column("", first + [Span(label, "dim") for label in labels], said="row")]
    for place, (title, cells, names) in enumerate(parts):
        if place and rule:
            columns.append(Column("", [Span("│", "dim")] * (len(labels) + named), said=""))
        for c in range(len(cells[0])):
            name = names[c] if c < len(names) else ""
            column: list[Cell] = [Span(name, "dim")] if named else []
            column += [row[c] for row in cells] + [""] * (len(labels) - len(cells))
            columns.append(Column(title if not c else "", column, "right", said=f"{title} {name or c}".strip()))
    return Table(columns, header=any(column.title for column in columns))


def _parts(checked: CheckedStep, place: tuple[int, ...], signs: tuple[str, str]) -> Iterator[tuple[str, Cells]]:
    """The matrices of what is claimed, of what is true, and of the differences that matter."""
    claim = checked.step.claim
    true = _two_axes(checked.true, place)
    form = _form(checked)
    words = (claim is not None and claim.words) or true.dtype.kind in "US"
    if claim is not None:
        assert checked.holds is not None
        said, holds = _two_axes(claim.shown, place), _two_axes(checked.holds, place)
        yield (
            "claimed",
            [
                [
                    [
                        Span(safe(str(text)), "good" if ok else "bad"),
                        Span(signs[0] if ok else signs[1], "good" if ok else "bad"),
                    ]
                    for text, ok in zip(texts, oks, strict=True)
                ]
                for texts, oks in zip(said, holds, strict=True)
            ],
        )
    yield "true", [[[Span(_true(value, form))] for value in row] for row in true]
    if claim is not None and not words and not claim.truths and checked.off is not None:
        off = _two_axes(checked.off, place)
        holds = _two_axes(checked.holds, place)
        yield (
            "off by",
            [
                [
                    [Span(_off(float(value), bool(ok), form), "dim" if ok else "bad")]
                    for value, ok in zip(values, oks, strict=True)
                ]
                for values, oks in zip(off, holds, strict=True)
            ],
        )


def _two_axes(array: NDArray[Any] | None, place: tuple[int, ...]) -> NDArray[Any]:
    assert array is not None
    part = array[place] if len(place) <= max(0, array.ndim - 2) else array
    return np.atleast_2d(part).reshape(-1, np.atleast_2d(part).shape[-1])


def _form(checked: CheckedStep) -> str:
    """Digits enough to see how far a claim is off: two more than it prints."""
    true = checked.true
    assert true is not None
    if true.dtype.kind in "US":
        return ""
    claim = checked.step.claim
    if claim is not None and claim.truths:
        return "yes or no"
    finite = true[np.isfinite(true)]
    if finite.size and (finite == np.rint(finite)).all() and np.abs(finite).max() < 1e15:
        return "whole"
    if claim is None or claim.words:
        alike = true.ndim != 1 or not checked.step.columns  # a row of named quantities has digits of each its own
        return number_format(true.astype(np.float32)) if alike else ""
    digits = max(
        (len(text.partition(".")[2]) for text in claim.shown.ravel().tolist() if "e" not in text.lower()), default=2
    )
    largest = float(np.abs(finite).max(initial=0.0))
    return f"%.{digits + 2}f" if not largest or 10.0 ** -(digits + 1) <= largest < 1e6 else "%.4g"


def _true(value: Any, form: str) -> str:
    if isinstance(value, str):
        return safe(value)
    if form == "yes or no":
        return "yes" if value else "no"
    if not math.isfinite(value):
        return number(float(value))
    if form == "whole":
        return f"{int(value):,}" if abs(value) >= 10_000 else str(int(value))
    return number(float(value), form)


def _off(value: float, holds: bool, form: str) -> str:
    if math.isnan(value):
        return ""
    text = _true(value, form if form != "whole" or value.is_integer() else "%.3g")
    if holds and not text.strip("-0."):
        return "0"
    return text if text.startswith("-") else f"+{text}"
