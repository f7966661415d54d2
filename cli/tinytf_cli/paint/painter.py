"""From blocks to lines of text, for one terminal."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rich.segment import Segment

from tinytf_cli.paint.colour import role_style
from tinytf_cli.paint.curves import paint_curves
from tinytf_cli.paint.grid import paint_grid
from tinytf_cli.paint.heat import paint_heat
from tinytf_cli.paint.plain import sentences
from tinytf_cli.paint.tables import paint_bars, paint_pieces, paint_row_bars, paint_table, paint_values
from tinytf_cli.paint.text import PaintedLine, cut, render, segments, shown, wrap
from tinytf_cli.paint.thumbnails import paint_thumbnails
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import (
    Bars,
    Block,
    Curves,
    Grid,
    Heading,
    Heat,
    Line,
    Pieces,
    RowBars,
    Span,
    Table,
    Thumbnails,
    Values,
)


def _paint_line(block: Line, terminal: Terminal) -> list[PaintedLine]:
    indent = [Segment(" " * block.indent)] if block.indent else []
    line = indent + segments(block.words, terminal)
    return [line] if block.single else wrap(line, terminal.width, block.indent + block.hanging)


def _paint_heading(block: Heading, terminal: Terminal) -> list[PaintedLine]:
    line = [Segment(shown(block.title, terminal), role_style(block.role))]
    if block.note:
        line.append(Segment("   " + shown(block.note, terminal), role_style("dim")))
    return [[], cut(line, terminal.width, terminal) if terminal.cuts else line]


_PAINTERS: dict[type[Any], Callable[[Any, Terminal], list[PaintedLine]]] = {
    Line: _paint_line,
    Heading: _paint_heading,
    Table: paint_table,
    Values: paint_values,
    Heat: paint_heat,
    Grid: paint_grid,
    Bars: paint_bars,
    RowBars: paint_row_bars,
    Thumbnails: paint_thumbnails,
    Curves: paint_curves,
    Pieces: paint_pieces,
}


def paint_running(parts: Iterable[Block | Span], terminal: Terminal) -> Iterator[str]:
    """Blocks as lines with their ends, and spans of running text, whose blanks and line ends are their own."""
    for part in parts:
        if isinstance(part, Span):
            text = shown(part.text, terminal)
            core = text.rstrip() if part.role and terminal.depth != "none" else ""
            style = role_style(part.role)
            lines = [line and render([Segment(line, style)], terminal.depth) for line in core.split("\n")]
            yield "\n".join(lines) + text[len(core) :]
        else:
            yield from (line + "\n" for line in paint([part], terminal))


def paint(blocks: Iterable[Block], terminal: Terminal) -> Iterator[str]:
    """Lines of characters, with the escape codes that the terminal takes, without line ends."""
    for block in blocks:
        if terminal.plain:
            yield from sentences(block, terminal)
        else:
            for line in _PAINTERS[type(block)](block, terminal):
                # Thumbnails fit by construction, and their pre-built codes must not be measured.
                fits = not terminal.cuts or isinstance(block, Thumbnails)
                yield render(line if fits else cut(line, terminal.width, terminal), terminal.depth)
