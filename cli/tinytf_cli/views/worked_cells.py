"""The cells of one step of a worked example: claimed, true, and how far apart."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len

from tinytf.text.printable import printable
from tinytf.verify import CheckedStep
from tinytf_cli.numbers import number
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Cell, Column, Line, Span, Table
from tinytf_cli.views.parts import BLANK, BY_HAND

_GAP = 2
MARKS = ("✓", "→", "✗")
"""A cell that holds, one that is carried, one that is wrong."""
_SPOKEN = (" right", " carried", " wrong")
_MOVED = ("•", " moved")
"""A cell that an edit moves, drawn and spoken."""
_ROLES = ("good", "k", "bad")

Cells = list[list[list[Span]]]
Part = tuple[str, Cells, Sequence[str]]
"""A title, the cells of a matrix, and the names of its columns."""


def safe(text: str) -> str:
    return printable(text, spaces=False)


def claimed_cells(checked: CheckedStep, terminal: Terminal) -> Iterator[Block]:
    """The cells of a step; with more than two axes, matrix by matrix."""
    claim, true = checked.step.claim, checked.true
    assert true is not None
    if not true.size:
        yield Line(Span("no numbers", "dim"), indent=2)
        return
    shape = claim.shape if claim is not None and len(claim.shape) != true.ndim else true.shape
    for index in np.ndindex(shape[:-2]):
        if index:
            yield Line(Span(f"[{', '.join(map(str, index))}]", "dim"), indent=2)
        yield from _matrix(checked, index, terminal)


def faulty_cells(checked: CheckedStep, terminal: Terminal) -> list[list[Span]]:
    """Each cell that does not hold: its index, the claim, and the truth."""
    claim, true, states = checked.step.claim, checked.true, _states(checked)
    if claim is None or true is None:
        return []
    form, marks = _form(checked), _marks(terminal)
    cells = []
    for index in map(tuple, np.argwhere(states)):
        state = int(states[index])
        truth = f" (true {_true(true[index], form)})" if true.ndim == len(index) else ""
        where = f"[{','.join(_names(checked, index))}] " if index else ""
        claimed = Span(f"{safe(str(claim.shown[index]))}{marks[state]}", _ROLES[state])
        cells.append([Span(where, "dim"), claimed, Span(truth)])
    return cells


def answer_cells(checked: CheckedStep, blank: bool, terminal: Terminal) -> Iterator[Block]:
    """The true cells of a step, or a ``blank`` for each, as matrices with the labels of the step."""
    assert checked.true is not None
    form = _form(checked)

    def shown(value: Any) -> str:
        return BLANK if blank else _true(value, form)

    yield from _labelled("", checked.true, shown, checked.step.rows, checked.step.columns, terminal)


def given_cells(name: str, value: Any, terminal: Terminal) -> Iterator[Block]:
    """A starting value by its name: a text or a number in a line, a tensor as matrices."""
    cells = np.asarray(value)

    def shown(cell: Any) -> str:
        return safe(cell) if isinstance(cell, str) else str(cell) if isinstance(cell, bool) else f"{cell:.10g}"

    if cells.ndim and cells.size:
        yield from _labelled(name, cells, shown, (), (), terminal)
    else:
        scalar = isinstance(value, str | int | float)
        yield Line([Span(safe(name), "strong"), f" = {shown(value) if scalar else value}"], indent=2)


def _labelled(
    name: str,
    cells: NDArray[Any],
    shown: Callable[[Any], str],
    rows: Sequence[str],
    columns: Sequence[str],
    terminal: Terminal,
) -> Iterator[Block]:
    """Matrices of texts below their name and index, in strips of as many columns as fit; large ones by their size."""
    if any(size > BY_HAND for size in cells.shape):
        size = " × ".join(map(str, cells.shape))
        yield Line([safe(name), " " * bool(name), Span(f"{size} numbers, too many by hand", "dim")], indent=2)
        return
    for index in np.ndindex(cells.shape[:-2]):
        if title := safe(name) + (f"[{', '.join(map(str, index))}]" if index else ""):
            yield Line(Span(title, "strong"), indent=2)
        texts = [[shown(cell) for cell in row] for row in _two_axes(cells, index)]
        labels: list[Cell] = [safe(rows[row]) if row < len(rows) else "" for row in range(len(texts))]
        names = [safe(columns[c]) if c < len(columns) else "" for c in range(len(texts[0]))]
        widths = [
            max(cell_len(text) for text in (*column, title)) for *column, title in zip(*texts, names, strict=True)
        ]
        side = max((cell_len(str(label)) for label in labels), default=0) + 2 * _GAP
        for first, last in _strips(widths, terminal.width - side):
            strip = [Column(names[c], [row[c] for row in texts], "right") for c in range(first, last)]
            yield Table([Column("", labels, said="row"), *strip], header=any(names[first:last]), matrix=True)


@dataclass(frozen=True)
class MovedCell:
    """The cell of a step that an edit moves most, in words; ``claimed`` is empty where nothing is claimed."""

    place: str
    claimed: list[Span]
    true: str
    after: str


def most_moved(checked: CheckedStep, terminal: Terminal) -> MovedCell:
    """The cell that an edit moves most."""
    claim, true, after, form = checked.step.claim, checked.true, checked.after, _form(checked)
    assert true is not None
    assert after is not None
    with np.errstate(invalid="ignore"):
        sizes = checked.moved.astype(float) if true.dtype.kind in "US" else np.nan_to_num(abs(after - true))
    index = tuple(int(i) for i in np.unravel_index((sizes * checked.moved).argmax(), true.shape))
    claimed: list[Span] = []
    if claim is not None and len(index) == len(claim.shape) and all(np.array(index) < claim.shape):
        state = int(_states(checked)[index])
        claimed = [Span(f"{safe(str(claim.shown[index]))}{_marks(terminal)[state]}", _ROLES[state])]
    place = f"[{','.join(_names(checked, index))}]" if index else ""
    return MovedCell(place, claimed, _true(true[index], form), _true(after[index], form))


def _names(checked: CheckedStep, index: tuple[int, ...]) -> Iterator[str]:
    """The label of a cell along each axis: the name of its row or column, or a number."""
    step = checked.step
    named = [*[()] * (len(index) - 2), *([step.rows] if len(index) > 1 else []), step.columns]
    return (safe(names[i]) if i < len(names) else str(i) for names, i in zip(named, index, strict=True))


def _marks(terminal: Terminal) -> tuple[str, ...]:
    return _SPOKEN if terminal.plain else MARKS


def _states(checked: CheckedStep) -> NDArray[np.int_]:
    """0 for each claimed cell that holds, 1 for a carried one, 2 for a wrong one."""
    if checked.holds is None or checked.carried is None:
        return np.zeros(0, dtype=int)
    return np.where(checked.holds, 0, np.where(checked.carried, 1, 2))


def _matrix(checked: CheckedStep, index: tuple[int, ...], terminal: Terminal) -> Iterator[Block]:
    """Claimed, true and difference side by side, or below each other if the width is too small."""
    step = checked.step
    names = [safe(name) for name in step.columns]
    cells_of = _parts(checked, index, terminal)
    parts: list[Part] = [(title, cells, names) for title, cells in cells_of if cells]
    rows = max(len(cells) for _, cells, _ in parts)
    labels = [safe(label) for label in step.rows[:rows]] or [""] * (rows == 1)
    labels += [str(row) for row in range(len(labels), rows)]
    side = max(cell_len(label) for label in labels) + _GAP
    widths = [_widths(cells, names) for _, cells, _ in parts]
    beside = sum(
        sum(part_widths) - part_widths[0] + max(part_widths[0], cell_len(title)) + _GAP * len(part_widths)
        for (title, *_), part_widths in zip(parts, widths, strict=True)
    )
    if terminal.plain or side + beside + (1 + _GAP) * (len(parts) - 1) <= terminal.width:
        yield _table(labels, parts, rule=not terminal.plain)
        return
    for (title, cells, _), part_widths in zip(parts, widths, strict=True):
        for first, last in _strips(part_widths, terminal.width - side):
            columns = f", {first} to {last - 1}" if last - first < len(part_widths) else ""
            yield Line(Span(f"{title or 'cells'}{columns}", "dim"), indent=2)
            yield _table(labels[: len(cells)], [("", [row[first:last] for row in cells], names[first:last])])


def _widths(cells: Cells, names: Sequence[str]) -> list[int]:
    widest = [max(sum(cell_len(span.text) for span in cell) for cell in column) for column in zip(*cells, strict=True)]
    return [max(width, cell_len(names[c]) if c < len(names) else 0) for c, width in enumerate(widest)]


def _strips(widths: Sequence[int], room: int) -> Iterator[tuple[int, int]]:
    """Runs of columns (first, end) that fit, with at least one column each."""
    first, used = 0, 0
    for c, width in enumerate(widths):
        if c > first and used + width + _GAP > room:
            yield first, c
            first, used = c, 0
        used += width + _GAP
    yield first, len(widths)


def _table(labels: Sequence[str], parts: Sequence[Part], *, rule: bool = True) -> Table:
    """Groups of columns with a rule between them; the names of columns are the first row."""
    named = rule and any(names for *_, names in parts)
    first: list[Cell] = [""] if named else []
    columns = [Column("", first + [Span(label, "dim") for label in labels], said="row")]
    for index, (title, cells, names) in enumerate(parts):
        if index and rule:
            columns.append(Column("", [Span("│", "dim")] * (len(labels) + named), said=""))
        for c in range(len(cells[0])):
            name = names[c] if c < len(names) else ""
            column: list[Cell] = [Span(name, "dim")] if named else []
            column += [row[c] for row in cells] + [""] * (len(labels) - len(cells))
            columns.append(Column(title if not c else "", column, "right", said=f"{title} {name or c}".strip()))
    return Table(columns, header=any(column.title for column in columns))


def _parts(checked: CheckedStep, index: tuple[int, ...], terminal: Terminal) -> Iterator[tuple[str, Cells]]:
    """The matrices of the claims, of the truth, after an edit, and of the differences that matter."""
    claim, form = checked.step.claim, _form(checked)
    true = _two_axes(checked.true, index)

    def shown(value: Any) -> list[Span]:
        return [Span(_true(value, form))]

    def after(value: Any, moved: bool) -> list[Span]:
        return [Span(_true(value, form), "strong"), Span(_MOVED[terminal.plain], "strong")] if moved else shown(value)

    edited = (
        [] if checked.after is None else _cells(after, _two_axes(checked.after, index), _two_axes(checked.moved, index))
    )
    if claim is None:
        yield "true" if edited else "", _cells(shown, true)
        yield "after", edited
        return
    states, marks = _two_axes(_states(checked), index), _marks(terminal)

    def marked(text: Any, state: int) -> list[Span]:
        return [Span(safe(str(text)), _ROLES[state]), Span(marks[state], _ROLES[state])]

    def difference(value: Any, state: int) -> list[Span]:
        return [Span(_off(float(value), not state, form), _ROLES[state] if state else "dim")]

    yield "claimed", _cells(marked, _two_axes(claim.shown, index), states)
    yield "true", _cells(shown, true)
    yield "after", edited
    if not (claim.words or true.dtype.kind in "US" or claim.truths or checked.off is None):
        yield "off by", _cells(difference, _two_axes(checked.off, index), states)


def _cells(make: Callable[..., list[Span]], *matrices: NDArray[Any]) -> Cells:
    """A cell for each index of matrices of one shape."""
    return [[make(*values) for values in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)]


def _two_axes(array: NDArray[Any] | None, index: tuple[int, ...]) -> NDArray[Any]:
    assert array is not None
    part = np.atleast_2d(array[index] if len(index) <= max(0, array.ndim - 2) else array)
    return part.reshape(-1, part.shape[-1])


def _form(checked: CheckedStep) -> str:
    """A format with two digits more than the claim, enough to see how far it is off."""
    true, claim = checked.true, checked.step.claim
    assert true is not None
    if true.dtype.kind in "US":
        return ""
    if claim is not None and claim.truths:
        return "yes or no"
    values = true if checked.after is None else np.stack([true, checked.after])
    finite = values[np.isfinite(values)]
    if finite.size and (finite == np.rint(finite)).all() and np.abs(finite).max() < 1e15:
        return "whole"
    if claim is None or claim.words:
        return "%.6g"  # enough to show that a weight has moved by a thousandth
    digits = max((len(text.partition(".")[2]) for text in claim.shown.flat if "e" not in text.lower()), default=2)
    largest = float(np.abs(finite).max(initial=0.0))
    return f"%.{digits + 2}f" if not largest or 10.0 ** -(digits + 1) <= largest < 1e6 else "%.4g"


def _true(value: Any, form: str) -> str:
    if isinstance(value, str):
        return safe(value)
    if form == "yes or no":
        return "yes" if value else "no"
    if form == "whole" and math.isfinite(value):
        return f"{int(value):,}" if abs(value) >= 10_000 else str(int(value))
    return number(float(value), "" if form == "whole" else form)


def _off(value: float, holds: bool, form: str) -> str:
    """Claimed − true, with its sign; empty if there is no difference to compute."""
    if math.isnan(value):
        return ""
    text = _true(value, form if form != "whole" or value.is_integer() else "%.3g")
    if holds and not text.strip("-0."):
        return "0"
    return text if text.startswith("-") else f"+{text}"
