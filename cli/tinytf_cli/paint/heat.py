"""Heat maps: numbers in coloured cells, with shades instead of colour, and small cells if there is no room."""

import math

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from tinytf_cli.numbers import SHARE, number, number_format, numbers, widest
from tinytf_cli.paint.colour import LEVELS, cell_style, level, role_style
from tinytf_cli.paint.text import PaintedLine, line_width, pad_text, shown, wrap
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Array, Heat

SHADES = " ░▒▓█"
ASCII_SHADES = " :-=+*#%@"  # a point is a hidden cell
SMALL = 2
"""The columns of a cell without a number."""
_LABEL_LIMIT = 14
_RANGE = 7  # columns of a range of tokens, such as 120–127
_NARROW = 50  # columns below which a legend is short


def shades(terminal: Terminal) -> str:
    return ASCII_SHADES if terminal.ascii else SHADES


def signed_shades(terminal: Terminal) -> str:
    """The characters for a signed scale without colour, from lowest to highest: down below 0, up above it."""
    return "=- +#" if terminal.ascii else "▼▾ ▴▲"


def shade(share: float, terminal: Terminal) -> str:
    """The shade of a share of 1; anything above 0 is visible."""
    signs = shades(terminal)
    if not share > 0:
        return signs[0]
    return signs[min(len(signs) - 1, 1 + int(min(share, 1.0) * (len(signs) - 1)))]


def pool(
    values: Array, visible: NDArray[np.bool_] | None, factor: int, across: int = 0
) -> tuple[Array, NDArray[np.bool_] | None]:
    """The value of largest magnitude in each ``factor`` rows and ``across`` columns; 0 ``across`` means ``factor``.

    Masked cells do not count.
    """
    across = across or factor
    if factor == across == 1:
        return values, visible
    rows, columns = -(-values.shape[0] // factor), -(-values.shape[1] // across)
    shown_cells = np.ones(values.shape, dtype=bool) if visible is None else visible
    padded = np.zeros((rows * factor, columns * across), dtype=values.dtype)
    seen = np.zeros(padded.shape, dtype=bool)
    padded[: values.shape[0], : values.shape[1]] = np.where(shown_cells, values, 0)
    seen[: values.shape[0], : values.shape[1]] = shown_cells
    squares = padded.reshape(rows, factor, columns, across).transpose(0, 2, 1, 3).reshape(rows, columns, -1)
    strongest = np.take_along_axis(squares, np.abs(squares).argmax(-1)[..., None], -1)[..., 0]
    any_seen: NDArray[np.bool_] = np.asarray(seen.reshape(rows, factor, columns, across).any(axis=(1, 3)))
    return strongest, None if visible is None else any_seen


def names_width(labels: list[str], terminal: Terminal) -> int:
    """The width of the row labels in columns; on a screen, long labels are cut."""
    longest = max((cell_len(label) for label in labels), default=0)
    return min(longest, _LABEL_LIMIT) if terminal.cuts else longest


def paint_heat(block: Heat, terminal: Terminal) -> list[PaintedLine]:
    """Numbers where they fit or, off a screen, where they are asked for (in strips); otherwise small cells."""
    rows = [shown(label, terminal) for label in block.row_labels]
    columns = [shown(label, terminal) for label in block.column_labels]
    label_width, width = cell_widths(block, terminal)
    room = max(1, (terminal.width - label_width - 3) // width)
    if width == SMALL:
        return [*_small_cells(block, rows, label_width, terminal), *_heat_legend(block, terminal)]
    form = number_form(block, terminal)
    texts = numbers(block.values, form)
    lines: list[PaintedLine] = []
    for first in range(0, len(columns), room):
        if first:
            lines.append([])
        part = range(first, min(len(columns), first + room))
        head = " " * label_width + " " + "".join(pad_text(columns[c], width - 1, terminal, "right") + " " for c in part)
        lines.append([Segment("  " + head, role_style("dim", terminal))])
        for r, label in enumerate(rows):
            line = [Segment("  " + pad_text(label, label_width, terminal) + " ")]
            line += [_cell(block, r, c, texts[r][c], width, terminal) for c in part]
            lines.append(line)
    return [*lines, *_heat_legend(block, terminal)]


def cell_widths(block: Heat, terminal: Terminal) -> tuple[int, int]:
    """The widths of the row labels (without the spaces around them) and of a cell, in columns."""
    columns = [shown(label, terminal) for label in block.column_labels]
    label_width = names_width([shown(label, terminal) for label in block.row_labels], terminal)
    widest_number = widest(block.values, number_form(block, terminal))
    widest_label = max((cell_len(c) for c in columns), default=1)
    if terminal.cuts:
        widest_label = min(widest_label, max(widest_number, 8))
    width = max(widest_number, widest_label) + 1
    room = terminal.width - label_width - 3
    if terminal.coloured and len(columns) * (width + 1) <= room:
        width += 1  # a space on either side of a number
    if block.every or terminal.whole:
        return label_width, width
    tall = block.most and len(block.row_labels) > block.most
    wide = len(columns) > max(1, room // width) and not (block.asked and not terminal.cuts)
    return (max(label_width, _RANGE), SMALL) if block.small or tall or wide else (label_width, width)


def number_form(block: Heat, terminal: Terminal) -> str:
    """The printf format of the numbers of a map."""
    if block.digits is not None:
        return terminal.form(f"%.{block.digits}f")
    return terminal.form(SHARE if block.scale == "unit" else number_format(block.values))


def _cell(block: Heat, row: int, column: int, text: str, width: int, terminal: Terminal) -> Segment:
    """One cell, ``width`` columns wide; a small cell is two wide and has no text."""
    drawn = _plain_cell(block, row, column, text, width, terminal)
    if block.chosen != (row, column):
        return drawn
    inner = drawn.text.strip()[: width - 2]
    return Segment(f"[{inner}]".rjust(width), drawn.style)


def _plain_cell(block: Heat, row: int, column: int, text: str, width: int, terminal: Terminal) -> Segment:
    if block.visible is not None and not block.visible[row, column]:
        return Segment(shown("·", terminal).rjust(width - 1) + " ", role_style("dim", terminal))
    value = float(block.values[row, column])
    if terminal.coloured:
        return Segment(text.rjust(width - 1) + " ", cell_style(block.scale, _level(value, block), terminal))
    sign = _sign(value, block, terminal)
    return Segment(text.rjust(width - 1) + sign if text else sign * 2)


def _sign(value: float, block: Heat, terminal: Terminal) -> str:
    """The character for a value without colour."""
    if block.scale == "unit":
        return shade(value / (block.limit or 1.0), terminal)
    signs = signed_shades(terminal)
    if not math.isfinite(value):
        return signs[len(signs) // 2 if math.isnan(value) else -(value > 0)]
    return signs[_level(value, block) * len(signs) // LEVELS]


def _level(value: float, block: Heat) -> int:
    return int(level(np.array([value], dtype=np.float32), block.scale, block.limit or 1.0)[0])


def _small_cells(block: Heat, rows: list[str], label_width: int, terminal: Terminal) -> list[PaintedLine]:
    """Two columns per value, or per max-pooled rectangle where that is still too wide or too tall."""
    room = max(1, (terminal.width - label_width - 4) // 2)
    factor = -(-len(block.row_labels) // min(room, block.most or room))
    across = -(-len(block.column_labels) // room)
    values, visible = pool(block.values, block.visible, factor, across)
    chosen = None if block.chosen is None else (block.chosen[0] // factor, block.chosen[1] // across)
    small = Heat(values, (), (), block.scale, visible, block.limit, chosen=chosen)
    lines: list[PaintedLine] = []
    names = rows
    if factor > 1:
        ends = [(r * factor, min(len(rows), (r + 1) * factor) - 1) for r in range(len(values))]
        names = [shown(f"{first}–{last}" if last > first else f"{first}", terminal) for first, last in ends]
    for r in range(values.shape[0]):
        line = [Segment("  " + pad_text(names[r], label_width, terminal) + " ")]
        line += [_cell(small, r, c, "", 2, terminal) for c in range(values.shape[1])]
        lines.append(line)
    if max(factor, across) > 1:
        lines += pooling_note(factor, across, 2, terminal)
    return lines


def pooled_words(down: int, across: int) -> str:
    """What a cell shows that stands for several numbers."""
    count = max(down, across) if min(down, across) == 1 else f"{down} × {across}"
    return f"each cell shows the largest of {count} numbers"


def pooling_note(factor: int, across: int, indent: int, terminal: Terminal) -> list[PaintedLine]:
    """A note that says what a pooled cell shows."""
    note = pooled_words(factor, across)
    return wrap([Segment(" " * indent + shown(note, terminal), role_style("dim", terminal))], terminal.width, indent)


def _heat_legend(block: Heat, terminal: Terminal) -> list[PaintedLine]:
    line = legend(block.scale, block.limit, terminal, cells=16 if terminal.width >= _NARROW else 6)
    hidden = "" if block.visible is None else f"   · {block.hidden}"
    return _with_words(line, hidden + (f"   {block.axes}" if block.axes else ""), terminal)


def with_hidden(line: PaintedLine, terminal: Terminal, meaning: str = "masked") -> list[PaintedLine]:
    """A legend with the mark of a hidden cell; on two lines if one is too narrow."""
    return _with_words(line, f"   · {meaning}", terminal)


def _with_words(line: PaintedLine, words: str, terminal: Terminal) -> list[PaintedLine]:
    if not words:
        return [line]
    after = Segment(shown(words, terminal), role_style("dim", terminal))
    return [[*line, after]] if line_width([*line, after]) <= terminal.width else [line, [after]]


def legend(scale: str, limit: float, terminal: Terminal, indent: int = 2, cells: int = 16) -> PaintedLine:
    """The scale of a map, drawn below it: its two end values, with its colours or shades between."""
    high = "1" if limit == 1.0 and scale == "unit" else number(limit, terminal.form(""))
    low, dim = "0" if scale == "unit" else f"-{high}", role_style("dim", terminal)
    bar = scale_bar(scale, cells, terminal, "▄")
    return [Segment(" " * indent), Segment(f"{low} ", dim), *bar, Segment(f" {high}", dim)]


def scale_bar(scale: str, cells: int, terminal: Terminal, half: str) -> PaintedLine:
    """The colours of a scale, half a line high so that it does not touch the map; without colour, its shades."""
    if not terminal.coloured:
        return [Segment(shades(terminal) if scale == "unit" else signed_shades(terminal))]
    styles = [cell_style(scale, int(i), terminal) for i in np.linspace(0, LEVELS - 1, cells)]
    if terminal.ascii:
        return [Segment(" ", style) for style in styles]
    return [Segment(half, Style(color=style.bgcolor)) for style in styles]
