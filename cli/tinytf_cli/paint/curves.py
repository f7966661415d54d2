"""Curves in one chart: braille dots where colour tells the curves apart, otherwise one character per curve."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.segment import Segment

from tinytf_cli.paint.colour import role_style
from tinytf_cli.paint.text import PaintedLine, cut, line_width, shown
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Curve, Curves

MARKS = "*o+x#@%&"
_BRAILLE = 0x2800
_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
"""What each of the 4 × 2 dots in a braille cell adds to its code point."""
_POINT = "•"
_LEAST, _WIDEST = 4, 160
_TICK_ROWS = 3
_NAMES = 0.3
"""The largest share of the width for the names beside the curves."""
_TICK_COLUMNS = 4


@dataclass(frozen=True)
class Axis:
    """From ``low`` to ``high``, with numbers at ``ticks``; of a ``power`` axis these are exponents of 10."""

    low: float
    high: float
    ticks: NDArray[np.float64]
    form: str
    log: bool = False
    power: bool = False

    def label(self, value: float) -> str:
        return format(10**value if self.power else value + 0.0, self.form)

    def share(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """0 at ``low``, 1 at ``high``."""
        if self.log:
            low, high = math.log1p(self.low), math.log1p(self.high)
            return np.asarray((np.log1p(values) - low) / (high - low))
        return (values - self.low) / (self.high - self.low)


def finite_points(curve: Curve) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """The points of a curve with a finite value."""
    finite = np.isfinite(curve.y)
    return curve.x[finite], curve.y[finite]


def _round_step(span: float, ticks: int) -> float:
    """The smallest of 1, 2, 5, 10 … (times a power of ten) that divides ``span`` into at most ``ticks`` parts."""
    least = span / max(1, ticks)
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least * (1 - 1e-9))


def value_axis(low: float, high: float, rows: int) -> Axis:
    """An axis from low to high, with as many round numbers as fit."""
    if not high > low:
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    for parts in range(max(2, (rows - 1) // _TICK_ROWS), 100):
        step = _round_step(high - low, parts)
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last > first:
            break
    digits = max(0, -math.floor(math.log10(step)))
    form = f",.{digits}f" if max(abs(low), abs(high)) < 1e6 and digits < 6 else ".1e"
    return Axis(low, high, (np.arange(first, last + 1) * step).astype(np.float64), form)


def step_axis(low: float, high: float, width: int) -> Axis:
    """An axis of whole numbers from low to high, with as many round ones as fit."""
    high = max(high, low + 1)
    label = len(f"{high:,.0f}") + 3
    step = max(1.0, _round_step(high - low, max(1, width // label)))
    first, last = math.ceil(low / step), math.floor(high / step)
    ticks = (np.arange(first, last + 1) * step).astype(np.float64)
    return Axis(low, high, ticks if ticks.any() else np.array([high]), ",.0f")


def log_axis(low: float, high: float) -> Axis:
    """An axis of whole numbers from 0, logarithmic in 1 + value."""
    high = max(high, low + 1)
    ticks = [0.0, *(float(digit * 10**power) for power in range(19) for digit in (1, 2, 5))]
    return Axis(low, high, np.array([tick for tick in ticks if low <= tick <= high] or [high]), ",.0f", log=True)


def power_axis(low: float, high: float, rows: int) -> Axis:
    """An axis of values given by their logarithm to base 10, with as many round numbers as fit."""
    if not high > low:
        low, high = low - 0.5, high + 0.5
    for digits in ((1,), (1, 3), (1, 2, 5), range(1, 10)):
        values = [digit * 10.0**power for power in range(math.floor(low), math.ceil(high)) for digit in digits]
        ticks = np.log10([*values, 10.0 ** math.ceil(high)])
        ticks = ticks[(ticks >= low) & (ticks <= high)]
        if len(ticks) > 1:
            return Axis(low, high, ticks[:: -(-len(ticks) // max(2, rows // 2))], ",.4g", power=True)
    return replace(value_axis(low, high, rows), form=",.3g", power=True)


def _cells(share: NDArray[np.float64], cells: int, finest: int, dots_per_cell: int) -> NDArray[np.int64]:
    """The dot of each share along ``cells`` cells; a point is in the same cell at every resolution."""
    index = np.rint(share * (cells * finest - 1)).astype(np.int64).clip(0, cells * finest - 1)
    return index // (finest // dots_per_cell)


def dots(curve: Curve, across: Axis, up: Axis, width: int, height: int, fine: bool = False) -> NDArray[np.bool_]:
    """The cells that a curve fills (height, width), top row first; ``fine`` gives 4 × 2 dots per cell."""
    down, along = (4, 2) if fine else (1, 1)
    rows, columns = height * down, width * along
    lit = np.zeros((rows, columns), dtype=bool)
    x, y = finite_points(curve)
    if not x.size:
        return lit
    column = _cells(across.share(x.astype(np.float64)), width, 2, along)
    count = np.bincount(column, minlength=columns)
    taken = np.flatnonzero(count)
    if curve.band:
        point_row = _cells(1 - up.share(y), height, 4, down)
        top, bottom = np.full(columns, rows), np.full(columns, -1)
        np.minimum.at(top, column, point_row)
        np.maximum.at(bottom, column, point_row)
        every = np.arange(rows)[:, None]
        return np.asarray((every >= top) & (every <= bottom))
    mean = np.bincount(column, y, columns)[taken] / count[taken]
    if curve.points:
        lit[_cells(1 - up.share(mean), height, 4, down), taken] = True
        return lit
    # A column without a point lies on the straight line between the nearest columns with one.
    drawn = np.arange(taken[0], taken[-1] + 1)
    row = _cells(1 - up.share(np.interp(drawn, taken, mean)), height, 4, down)
    previous = np.concatenate([row[:1], row[:-1]])
    for index, current, earlier in zip(drawn.tolist(), row.tolist(), previous.tolist(), strict=True):
        # Dots between two rows go to the later column, except the one the earlier column already has.
        start, end = (min(earlier + 1, current), current) if earlier < current else (current, max(earlier - 1, current))
        lit[start : end + 1, index] = True
    return lit


def _tick_rows(up: Axis, height: int) -> dict[int, str]:
    rows = _cells(1 - up.share(up.ticks), height, 4, 1)
    return {int(row): up.label(float(tick)) for row, tick in zip(rows, up.ticks, strict=True)}


def _tick_line(across: Axis, width: int) -> tuple[set[int], str]:
    """The columns of the ticks, and the line of their numbers; a number that does not fit is omitted with its tick."""
    tick_columns, text = set(), " " * width
    free = 0
    columns = _cells(across.share(across.ticks), width, 2, 1)
    for tick, column in zip(across.ticks.tolist(), columns.tolist(), strict=True):
        label = across.label(tick)
        start = min(max(0, column - len(label) // 2), width - len(label))
        if start >= free:
            text = text[:start] + label + text[start + len(label) :]
            tick_columns.add(column)
            free = start + len(label) + 2
    return tick_columns, text[:width]


def _ends(block: Curves, up: Axis) -> dict[int, int]:
    """The row of each curve's name, by index: where the curve ends, or the nearest free row if that is taken."""
    end_rows = {}
    for index, curve in enumerate(block.curves):
        _, y = finite_points(curve)
        if y.size:
            end_rows[index] = int(_cells(1 - up.share(y[-1:]), block.height, 4, 1)[0])
    assigned: dict[int, int] = {}
    for index, row in sorted(end_rows.items(), key=lambda item: item[1]):
        free = (candidate for candidate in range(block.height) if candidate not in assigned.values())
        assigned[index] = min(free, key=lambda candidate: abs(candidate - row))
    return assigned


def _legend(block: Curves, marks: list[str], indent: int, terminal: Terminal) -> list[PaintedLine]:
    """The names of the curves, as many per line as fit."""
    lines: list[PaintedLine] = []
    line: PaintedLine = []
    for curve, mark in zip(block.curves, marks, strict=True):
        style = role_style(curve.role, terminal)
        entry = [Segment(mark, style), Segment(" " + shown(curve.label, terminal))]
        if line and line_width(line) + 3 + line_width(entry) > terminal.width:
            lines.append(line)
            line = []
        line = [*line, Segment("   "), *entry] if line else [Segment(" " * indent), *entry]
        line = cut(line, terminal.width, terminal) if terminal.cuts else line
    return [*lines, line] if line else lines


def paint_curves(block: Curves, terminal: Terminal) -> list[PaintedLine]:
    """A chart as wide as the terminal: numbers, axes, and curves with their names at their right ends.

    If the names do not fit there, a legend lists them. Without any point there is one line of text.
    """
    if block.log_y:
        block = replace(block, curves=[_exponents(curve) for curve in block.curves])
    points = [finite_points(curve) for curve in block.curves]
    dim = role_style("dim", terminal)
    if not any(x.size for x, _ in points):
        return [cut([Segment(shown(f"  no {block.y_title} yet", terminal), dim)], terminal.width, terminal)]
    lows, highs = zip(*((y.min(), y.max()) for _, y in points if y.size), strict=True)
    up = (power_axis if block.log_y else value_axis)(float(min(lows)), float(max(highs)), block.height)
    labels = _tick_rows(up, block.height)
    label_width = max(map(len, labels.values()))
    side, tick, corner, flat, mark = "|++-+" if terminal.ascii else "│┤└─┬"
    braille = not terminal.ascii and (terminal.coloured or len(block.curves) == 1)
    marks = [MARKS[i % len(MARKS)] for i in range(len(block.curves))]
    if braille:
        marks = [_POINT if curve.points else "──" for curve in block.curves]
    names = [f"{sign} {shown(curve.label, terminal)}" for curve, sign in zip(block.curves, marks, strict=True)]
    beside = 2 + max(map(cell_len, names))
    if beside > _NAMES * terminal.width or len(names) > block.height:
        names, beside = [], 0
    width = max(_LEAST, min(_WIDEST, terminal.width - label_width - 4 - beside))
    first, last = (float(end(x[at] for x, _ in points if x.size)) for end, at in ((min, 0), (max, -1)))
    whole = all(np.issubdtype(x.dtype, np.integer) for x, _ in points)
    if block.log_x:
        across = log_axis(first, last)
    else:
        across = step_axis(first, last, width) if whole else value_axis(first, last, width // _TICK_COLUMNS)
    cells = (
        _braille_cells(block, across, up, width, terminal)
        if braille
        else _mark_cells(block, across, up, width, marks, terminal)
    )
    if block.cursor is not None:
        _mark_cursor(cells, across, block.cursor, width, terminal)
    tick_columns, beneath = _tick_line(across, width)
    lines: list[PaintedLine] = [[Segment(shown(f"  {block.y_title} by {block.x_title}", terminal), dim)]]
    ends = {row: index for index, row in _ends(block, up).items()} if names else {}
    for row, line in enumerate(cells):
        label = labels.get(row, "")
        name = []
        if row in ends:
            index = ends[row]
            name = [Segment("  "), Segment(names[index], role_style(block.curves[index].role, terminal))]
        lines.append([Segment(f"  {label:>{label_width}} {tick if label else side}", dim), *line, *name])
    foot = "".join(mark if index in tick_columns else flat for index in range(width))
    lines.append([Segment(" " * (label_width + 3) + corner + foot, dim)])
    lines.append([Segment(" " * (label_width + 4) + beneath, dim)])
    return lines if names else lines + _legend(block, marks, label_width + 4, terminal)


def _exponents(curve: Curve) -> Curve:
    """A curve of the logarithms of its positive values."""
    return replace(curve, y=np.log10(curve.y, out=np.full(curve.y.shape, np.nan), where=curve.y > 0))


def _mark_cursor(cells: list[PaintedLine], across: Axis, cursor: float, width: int, terminal: Terminal) -> None:
    """Draw the cursor as a line through every row, behind the curves."""
    column = int(_cells(across.share(np.array([cursor])), width, 2, 1)[0])
    for line in cells:
        if not line[column].text.strip():
            line[column] = Segment(shown("│", terminal), role_style("strong", terminal))


def _codes(lit: NDArray[np.bool_]) -> NDArray[np.int64]:
    """What the dots of each cell add to the code point of an empty one, (rows, columns); ``lit`` has 4 × 2 per cell."""
    rows, columns = lit.shape[0] // 4, lit.shape[1] // 2
    parts = lit.reshape(rows, 4, columns, 2).transpose(0, 2, 1, 3)  # (rows, columns, 4, 2)
    return np.asarray((parts * _BITS).sum(axis=(-2, -1)))


def braille(lit: NDArray[np.bool_]) -> NDArray[np.str_]:
    """The braille sign of each cell, a space where no dot is lit; ``lit`` has 4 × 2 dots per cell."""
    signs = [[chr(_BRAILLE + code) if code else " " for code in row] for row in _codes(lit).tolist()]
    return np.array(signs)


def _braille_cells(block: Curves, across: Axis, up: Axis, width: int, terminal: Terminal) -> list[PaintedLine]:
    """Eight dots per cell, or one point. If curves share a cell, the first curve is drawn."""
    codes = np.zeros((block.height, width), dtype=np.int64)
    owner = np.zeros(codes.shape, dtype=np.int64)
    for index, curve in reversed(list(enumerate(block.curves))):
        if curve.points:
            lit = dots(curve, across, up, width, block.height)
            codes, owner = np.where(lit, ord(_POINT), codes), np.where(lit, index, owner)
            continue
        lit = dots(curve, across, up, width, block.height, fine=True)
        code = _codes(lit)
        codes, owner = np.where(code, code + _BRAILLE, codes), np.where(code, index, owner)
    styles = [role_style(curve.role, terminal) for curve in block.curves]
    return [
        [
            Segment(chr(code), styles[curve_index]) if code else Segment(" ")
            for code, curve_index in zip(*row, strict=True)
        ]
        for row in zip(codes.tolist(), owner.tolist(), strict=True)
    ]  # fmt: skip


def _mark_cells(
    block: Curves, across: Axis, up: Axis, width: int, marks: list[str], terminal: Terminal
) -> list[PaintedLine]:
    """One character per cell. If curves share a cell, the first curve is drawn."""
    signs = np.full((block.height, width), " ")
    for curve, mark in reversed(list(zip(block.curves, marks, strict=True))):
        signs[dots(curve, across, up, width, block.height)] = mark
    styles = dict(zip(marks, (role_style(curve.role, terminal) for curve in block.curves), strict=True))
    return [[Segment(sign, styles.get(sign)) for sign in row] for row in signs.tolist()]
