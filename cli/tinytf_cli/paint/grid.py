"""Grids of words in coloured cells. To fit, drop the numbers, then shorten words, then drop columns."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment

from tinytf_cli.numbers import number
from tinytf_cli.paint.colour import cell_style, level, role_style
from tinytf_cli.paint.heat import legend, names_width
from tinytf_cli.paint.text import PaintedLine, figure_text, pad_text, shown, wrap
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Grid

_LONGEST = (14, 10, 7)
"""Widest words on a screen; the first that fits is taken."""
_RANKED = 3
"""This many columns of a ranking with numbers are better than all columns without."""
_SHARE = "%.2f"


@dataclass(frozen=True)
class _Layout:
    """The columns to draw, the width of the words in each, and whether shares are written."""

    columns: range
    widths: tuple[int, ...]
    number: int  # the width of a share with the space before it; 0 where none is written

    def cells(self, column: int) -> int:
        return self.widths[column] + self.number + 1


def paint_grid(block: Grid, terminal: Terminal) -> list[PaintedLine]:
    """As many columns as fit, and a note on what is omitted; off a screen, all columns asked for, in strips."""
    label_width = names_width([shown(label, terminal) for label in block.row_labels], terminal)
    written = [(title, [figure_text(cell, terminal) for cell in cells]) for title, cells in block.beside]
    beside = [(title, cells, max(len(text) for text in (title, *cells))) for title, cells in written]
    room = max(1, terminal.width - label_width - 3 - sum(width + 1 for _, _, width in beside) - bool(beside))
    lines: list[PaintedLine] = []
    for layout in _layouts(block, room, terminal):
        lines += [[]] if lines else []
        heads = [*([block.above] if block.above else []), block.column_labels]
        for index, names in enumerate(heads):
            titles = "".join(
                (shown(title, terminal) if index == len(heads) - 1 else "").rjust(width) + " "
                for title, _, width in beside
            )
            head = "".join(
                pad_text(shown(names[c], terminal), layout.cells(c) - 1, terminal) + " " for c in layout.columns
            )
            gap = " " if beside else ""
            lines.append([Segment(" " * (label_width + 3) + titles + gap + head, role_style("dim", terminal))])
        for row, label in enumerate(block.row_labels):
            line = [Segment("  " + pad_text(shown(label, terminal), label_width, terminal) + " ")]
            line += [Segment(cells[row].rjust(width) + " ") for _, cells, width in beside]
            line += [Segment(" ")] if beside else []
            line += [segment for c in layout.columns for segment in _cell(block, row, c, layout, terminal)]
            lines.append(line)
        lines += _omitted_note(block, layout, terminal)
    if terminal.coloured:
        lines.append(legend("unit", 1.0, terminal))
    return lines


def _layouts(block: Grid, room: int, terminal: Terminal) -> Iterator[_Layout]:
    """One layout that fits a screen, or as many strips as all columns need."""
    widths = tuple(
        max(cell_len(shown(text, terminal)) for text in (name, *(row[c] for row in block.words)))
        for c, name in enumerate(block.column_labels)
    )
    if block.above:
        widths = tuple(max(w, len(text)) for w, text in zip(widths, block.above, strict=True))
    all_columns = range(len(widths))
    number_width = 1 + len(number(1.0, terminal.form(_SHARE)))
    if terminal.whole or (block.asked and not terminal.cuts):
        start = 0
        while start < len(widths):
            layout = _Layout(all_columns, widths, number_width)
            count = _fitting_count(layout, all_columns[start:], room)
            yield _Layout(all_columns[start : start + count], widths, number_width)
            start += count
        return
    attempts = [(word_width, number_width) for word_width in _LONGEST[:1]] if terminal.coloured else []
    attempts += [(word_width, 0 if terminal.coloured else number_width) for word_width in _LONGEST]
    for word_width, share_width in attempts:
        layout = _Layout(all_columns, tuple(min(width, word_width) for width in widths), share_width)
        count = _fitting_count(layout, all_columns, room)
        if count == len(widths) or (share_width and not block.keep_last and count >= _RANKED):
            layout = _Layout(all_columns[:count], layout.widths, share_width)
            break
    else:
        order = all_columns[::-1] if block.keep_last else all_columns
        count = _fitting_count(layout, order, room)
        visible = all_columns[len(widths) - count :] if block.keep_last else all_columns[:count]
        layout = _Layout(visible, layout.widths, layout.number)
    yield layout


def _fitting_count(layout: _Layout, order: range, room: int) -> int:
    """How many columns fit, taken in this order; at least one."""
    total = np.cumsum([layout.cells(c) for c in order])
    return max(1, int((total <= room).sum()))


def _cell(block: Grid, row: int, column: int, layout: _Layout, terminal: Terminal) -> Iterator[Segment]:
    share = float(block.shares[row, column])
    text = pad_text(shown(block.words[row][column], terminal), layout.widths[column], terminal)
    if layout.number:
        text += number(share, terminal.form(_SHARE)).rjust(layout.number)
    if not terminal.coloured:
        yield Segment(text + " ")
        return
    index = int(level(np.array([share], dtype=np.float32), "unit", 1.0)[0])
    yield Segment(text + " ", cell_style("unit", index, terminal))


def _omitted_note(block: Grid, layout: _Layout, terminal: Terminal) -> list[PaintedLine]:
    """Say which columns a screen has no room for."""
    count = len(block.column_labels)
    missing = [c for c in range(count) if c not in layout.columns]
    if not missing or terminal.whole or (block.asked and not terminal.cuts):
        return []
    names = block.above or block.column_labels
    ends = " to ".join(names[c].rstrip(".") for c in dict.fromkeys((missing[0], missing[-1])))
    note = f"omitted: {len(missing)} of {count} {block.many} ({ends})" + f"; {block.remedy}" * terminal.advises
    return wrap([Segment("  " + shown(note, terminal), role_style("dim", terminal))], terminal.width, 2)
