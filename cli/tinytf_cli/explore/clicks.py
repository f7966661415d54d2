"""What a click chooses: the cursor at a line and column of a drawn pane; None where there is nothing to choose."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from tinytf_cli.explore.cursor import Cursor
from tinytf_cli.explore.lists import token_spans
from tinytf_cli.explore.maps import Map
from tinytf_cli.explore.scene import Look
from tinytf_cli.paint.heat import SMALL, cell_widths
from tinytf_cli.terminal import Terminal

Click: TypeAlias = Callable[[int, int], Cursor | None]
"""The cursor at a line and column of a pane."""


def on_text(look: Look, width: int) -> Click:
    """A token, drawn in ``width`` columns."""

    def cursor_at(_: int, column: int) -> Cursor | None:
        positions, ends = token_spans(look, width)
        position = next((position for position, end in zip(positions, ends, strict=True) if column < end), None)
        return None if position is None else replace(look.cursor, cell=(position, look.cursor.cell[1]))

    return cursor_at


def on_steps(look: Look, rows: Sequence[int]) -> Click:
    """A step; ``rows`` are those of the lines."""
    return lambda line, _: replace(look.cursor, row=rows[line]) if line < len(rows) else None


def on_heads(cursors: Sequence[Cursor | None]) -> Click:
    """A head; ``cursors`` are those of the lines."""
    return lambda line, _: cursors[line] if line < len(cursors) else None


def on_cells(look: Look, drawn: Map, terminal: Terminal) -> Click:
    """A cell of a map."""
    label_width, cell_width = cell_widths(drawn.heat, terminal)
    header_lines = 1 if cell_width == SMALL else 2
    height, width = drawn.heat.values.shape

    def cursor_at(line: int, column: int) -> Cursor | None:
        row, cell_column = line - header_lines, (column - label_width - 3) // cell_width
        if not (0 <= row < height and 0 <= cell_column < width):
            return None
        return replace(look.cursor, cell=(drawn.rows.start + row, drawn.columns.start + cell_column))

    return cursor_at
