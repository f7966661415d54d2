"""Turn blocks into lines of text for one terminal."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from rich.segment import Segment

from tinytf_cli.paint.colour import role_style
from tinytf_cli.paint.curves import paint_curves
from tinytf_cli.paint.grid import paint_grid
from tinytf_cli.paint.heat import legend, paint_heat
from tinytf_cli.paint.links import paint_links
from tinytf_cli.paint.plain import sentences
from tinytf_cli.paint.tables import paint_bars, paint_pieces, paint_row_bars, paint_table, paint_values
from tinytf_cli.paint.text import PaintedLine, cut, fit, line_width, render, segments, shown, wrap
from tinytf_cli.paint.thumbnails import paint_fan, paint_miniatures, paint_thumbnails
from tinytf_cli.terminal import Terminal
from tinytf_cli.views import blocks
from tinytf_cli.views.blocks import Block


def _paint_line(block: blocks.Line, terminal: Terminal) -> list[PaintedLine]:
    indent = [Segment(" " * block.indent)] if block.indent else []
    line = indent + segments(block.words, terminal)
    if block.single:
        return [cut(line, terminal.width, terminal) if terminal.cuts else line]
    return [line] if block.whole else wrap(line, terminal.width, block.indent + block.hanging)


def _paint_heading(block: blocks.Heading, terminal: Terminal) -> list[PaintedLine]:
    title = [Segment(shown(block.title, terminal), role_style(block.role, terminal))]
    advice = block.advice if terminal.advises else ""
    words = "; ".join(filter(None, (block.note, advice)))
    if not words:
        return [[], title]
    note = Segment(shown(words, terminal), role_style("dim", terminal))
    line = [*title, Segment("   "), note]
    if not (terminal.cuts or terminal.whole) or line_width(line) <= terminal.width:
        return [[], line]
    return [[], title, *wrap([Segment("  "), note], terminal.width, 4)]


def _paint_scale(block: blocks.Scale, terminal: Terminal) -> list[PaintedLine]:
    """The scale, or nothing on a terminal without colour."""
    unit = Segment(f" {block.unit}" if block.unit else "", role_style("dim", terminal))
    return [[*legend(block.scale, block.limit, terminal), unit]] if terminal.coloured else []


_GUTTER = 2
"""Columns between parts side by side."""


def _paint_beside(block: blocks.Beside, terminal: Terminal) -> list[PaintedLine]:
    """The parts in as few rows as fit; each part is as high as the highest in its row."""
    for n_rows in range(1, len(block.parts)):
        per_row = -(-len(block.parts) // n_rows)
        chunks = [block.parts[first : first + per_row] for first in range(0, len(block.parts), per_row)]
        rows = [_paint_row(chunk, block, terminal) for chunk in chunks]
        if all(rows):
            return [line for row in rows for line in _side_by_side(row, terminal)]
    return [line for part in block.parts for line in _paint_part(part, terminal)]


def _paint_row(parts: Sequence[Sequence[Block]], block: blocks.Beside, terminal: Terminal) -> list[list[PaintedLine]]:
    """The painted parts of one row; empty if they do not fit."""
    painted: list[list[PaintedLine]] = []
    room = terminal.width
    for index, part in enumerate(parts):
        remaining = len(parts) - index - 1
        share = (
            (room + _GUTTER) // (remaining + 1) - _GUTTER if block.even else room - remaining * (block.least + _GUTTER)
        )
        lines = _paint_part(part, replace(terminal, width=share)) if share >= block.least else []
        if not lines or _widest(lines) > share:
            return []
        painted.append(lines)
        room -= _widest(lines) + _GUTTER
    return painted


def _paint_part(part: Iterable[Block], terminal: Terminal) -> list[PaintedLine]:
    return [line for block in part for line in _PAINTERS[type(block)](block, terminal)]


def _widest(lines: list[PaintedLine]) -> int:
    return max(map(line_width, lines), default=0)


def _side_by_side(parts: list[list[PaintedLine]], terminal: Terminal) -> Iterator[PaintedLine]:
    widths = [_widest(part) + _GUTTER for part in parts[:-1]]
    for index in range(max(map(len, parts))):
        *cells, last = (part[index] if index < len(part) else [] for part in parts)
        yield [
            segment for line, width in zip(cells, widths, strict=True) for segment in fit(line, width, terminal)
        ] + last


_PAINTERS: dict[type[Any], Callable[[Any, Terminal], Iterable[PaintedLine]]] = {
    blocks.Line: _paint_line,
    blocks.Running: lambda block, terminal: [[Segment(line)] for line in block.text.splitlines()],
    blocks.Heading: _paint_heading,
    blocks.Table: paint_table,
    blocks.Values: paint_values,
    blocks.Heat: paint_heat,
    blocks.Grid: paint_grid,
    blocks.Bars: paint_bars,
    blocks.RowBars: paint_row_bars,
    blocks.Links: paint_links,
    blocks.Thumbnails: paint_thumbnails,
    blocks.Miniatures: paint_miniatures,
    blocks.Fan: paint_fan,
    blocks.Beside: _paint_beside,
    blocks.Scale: _paint_scale,
    blocks.Curves: paint_curves,
    blocks.Pieces: paint_pieces,
}


def paint_stream(parts: Iterable[Block], terminal: Terminal) -> Iterator[str]:
    """Yield what a stream gets: blocks as whole lines, running text as it is, piece by piece."""
    for part in parts:
        if isinstance(part, blocks.Running):
            yield _running(part, terminal)
        else:
            yield from (line + "\n" for line in paint([part], terminal))


def _running(part: blocks.Running, terminal: Terminal) -> str:
    text = shown(part.text, terminal)
    core = text.rstrip() if part.role and terminal.coloured else ""
    style = role_style(part.role, terminal)
    lines = [line and render([Segment(line, style)], terminal.depth) for line in core.split("\n")]
    return "\n".join(lines) + text[len(core) :]


def paint(parts: Iterable[Block], terminal: Terminal) -> Iterator[str]:
    """Yield lines with the escape codes the terminal understands, without line ends."""
    for block in parts:
        if terminal.plain:
            yield from sentences(block, terminal)
        else:
            for line in paint_segments([block], terminal):
                yield render(line, terminal.depth)


def paint_segments(parts: Iterable[Block], terminal: Terminal) -> Iterator[PaintedLine]:
    """Yield lines of styled segments, before they become escape codes."""
    for block in parts:
        # Thumbnails always fit, and their ready-made escape codes cannot be measured.
        fits = not terminal.cuts or isinstance(block, blocks.Thumbnails)
        for line in _PAINTERS[type(block)](block, terminal):
            yield line if fits else cut(line, terminal.width, terminal)
