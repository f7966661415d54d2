"""Many small maps at once: one string per line, built with array look-ups."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from tinytf_cli.paint.colour import LEVELS, SAME, colour_codes, level, ramp, role_style
from tinytf_cli.paint.heat import legend, pool, pooled_words, pooling_note, shades, with_hidden
from tinytf_cli.paint.text import PaintedLine, fit, line_width, segments, shown, wrap
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Array, Fan, Miniature, Miniatures, Span, Thumbnails, Visible, Words

_LARGEST = 32
_BETWEEN = LEVELS + 1
"""The level between maps, where there is no cell; LEVELS is a masked cell."""
_LOW, _HIGH = 2, 5  # lines of a miniature
_AROUND = 16  # lines of a screen above and below the thumbnails
_MOST_TIMES = 4  # as often a number is drawn in each direction, at most
_SIGNS = np.array([b" ", "▀".encode(), "▄".encode()])


def thumbnail_size(length: int, n_heads: int, width: int, whole: bool = False) -> tuple[int, int]:
    """(cells per side, heads per row) that fit ``width``: all heads in one row if each gets at least 3 cells.

    With ``whole`` every number has its cell.
    """
    label = 5
    if whole:
        return length, min(n_heads, max(1, (width - label) // (length + 1)))
    side = min(length, _LARGEST, (width - label) // n_heads - 1)
    if side >= min(3, length):
        return side, n_heads
    side = min(length, 8)
    return side, max(1, (width - label) // (side + 1))


def half_blocks(levels: NDArray[np.int64], terminal: Terminal) -> list[str]:
    """Two matrix rows per line, in colour: levels (2n, m) of 0…255, LEVELS for an empty cell.

    A cell is ``▀`` in the upper colour on the lower one; ``▄`` on the default background if the upper half is empty;
    a space if both are. A colour code is written only where the colour changes.
    """
    upper, lower = levels[0::2], levels[1::2]
    upper_empty = upper == LEVELS
    sign = np.where(upper_empty, np.where(lower == LEVELS, 0, 2), 1)
    front, back = np.where(upper_empty, lower, upper), np.where(upper_empty, LEVELS, lower)
    unchanged = (front[:, 1:] == front[:, :-1]) & (back[:, 1:] == back[:, :-1])
    front[:, 1:][unchanged] = back[:, 1:][unchanged] = SAME
    fore, rear = colour_codes("unit", terminal)
    cells = np.empty(upper.shape, dtype=[("front", fore.dtype), ("back", rear.dtype), ("sign", _SIGNS.dtype)])
    cells["front"], cells["back"], cells["sign"] = fore[front], rear[back], _SIGNS[sign]
    # numpy pads shorter entries with NUL, which is removed; token text never gets here.
    return [row.tobytes().translate(None, b"\0").decode("utf-8") + "\x1b[0m" for row in cells]


def _picture(maps: Array, visible: Visible, factor: int, times: int) -> NDArray[np.int64]:
    """Levels of one row of maps (heads, T, T), pooled to s × s, with an empty column between them: (s, heads·(s+1)-1).

    Each number is drawn ``times`` times in both directions. The number of rows is even, as in ``_levels``.
    """
    levels = np.stack([_levels(weights, visible, factor, factor, times) for weights in maps])  # (heads, s, s)
    spaced = np.pad(levels, ((0, 0), (0, 0), (0, 1)), constant_values=_BETWEEN).transpose(1, 0, 2)
    return spaced.reshape(len(spaced), -1)[:, :-1]


def _shaded(levels: NDArray[np.int64], terminal: Terminal) -> list[str]:
    """Rows of shades: near 0 is blank and a masked cell is a point, as in a larger map."""
    signs = shades(terminal)
    share = np.where(levels >= LEVELS, 0, levels) / (LEVELS - 1)
    index = np.where(share > 0.02, 1 + (share * (len(signs) - 1)).astype(int), 0).clip(0, len(signs) - 1)
    index[levels == LEVELS] = len(signs)
    characters = signs + shown("·", terminal)
    return ["".join(characters[i] for i in line) for line in index]


def _halves(terminal: Terminal) -> bool:
    return terminal.coloured and not terminal.ascii


def _lines(levels: NDArray[np.int64], rows: int, terminal: Terminal) -> list[str]:
    """The first ``rows`` rows of a picture, as text."""
    return half_blocks(np.minimum(levels, LEVELS), terminal) if _halves(terminal) else _shaded(levels[:rows], terminal)


def _half_cells(upper: NDArray[np.int64], lower: NDArray[np.int64], terminal: Terminal) -> PaintedLine:
    """Two matrix rows of a small map in one line that can be measured; LEVELS for an empty cell."""
    colours = [*ramp("unit", terminal), None]
    line: PaintedLine = []
    for above, below in zip(upper.tolist(), lower.tolist(), strict=True):
        front, back = (colours[below], None) if above == LEVELS else (colours[above], colours[below])
        sign = " " if front is None else "▄" if above == LEVELS else "▀"
        line.append(Segment(sign, Style(color=front, bgcolor=back)))
    return line


def paint_miniatures(block: Miniatures, terminal: Terminal) -> list[PaintedLine]:
    """Rows of maps in cells of one width."""
    dim, length = role_style("dim", terminal), len(block.maps[0].weights)
    names = max(
        cell_len(shown(text, terminal)) for miniature in block.maps for text in (miniature.title, miniature.word)
    )
    size = _Size(length, terminal, block.lines - 2)
    for large in _larger(length, terminal) if block.grow else ():
        per_row = max(1, terminal.width // (2 + max(names, large.wide)))
        if large.wide + 2 <= terminal.width and -(-len(block.maps) // per_row) * (2 + large.lines) <= block.lines:
            size = large
            break
    width = 2 + max(names, size.wide)
    per_row = max(1, terminal.width // width)
    maps = block.maps[: per_row * max(1, block.lines // (2 + size.lines))]
    more = heads_shown(block, len(maps), terminal) + (f"; {size.pooled}" if size.pooled else "")
    title = [Segment(block.title, role_style("strong", terminal)), Segment(shown(f"   {more}", terminal), dim)]
    lines: list[PaintedLine] = [[], *wrap(title, terminal.width, 2)]
    for first in range(0, len(maps), per_row):
        row_maps = maps[first : first + per_row]
        titles = (
            [[Segment(miniature.title)] for miniature in row_maps],
            [[Segment(shown(miniature.word, terminal), dim)] for miniature in row_maps],
        )
        drawn = zip(*(size.draw(miniature, terminal) for miniature in row_maps), strict=True)
        lines += [_row([Segment("  ")], row, width, terminal) for row in (*titles, *drawn)]
    return lines


def _larger(length: int, terminal: Terminal) -> Iterator["_Size"]:
    """Sizes above the usual, the largest first: every number several times, then as many numbers as lines allow."""
    for times in range(_MOST_TIMES, 1, -1):
        yield _Size(length, terminal, length, length, times)
    for most in range(length, _HIGH, -1):
        yield _Size(length, terminal, most, most)


class _Size:
    """The size of a small map of ``length`` tokens: half blocks in colour, otherwise shades, twice as high as wide.

    A cell is the strongest of ``down`` × ``across``; a map has ``lines`` lines (``most`` at most) of ``wide`` cells,
    or so many ``times`` both if each number is drawn so often.
    """

    def __init__(self, length: int, terminal: Terminal, most: int = _HIGH, high: int = _HIGH, times: int = 1) -> None:
        halves, most = _halves(terminal), max(_LOW, min(high, most))
        self.across = -(-length // (2 * most))
        self.down = self.across if halves else -(-length // most)
        self.times, self.wide, self.high = times, times * -(-length // self.across), times * -(-length // self.down)
        self.lines = -(-self.high // 2) if halves else self.high
        self.pooled = pooled_words(self.down, self.across) if self.down > 1 else ""

    def draw(self, miniature: Miniature, terminal: Terminal) -> list[PaintedLine]:
        levels = _levels(miniature.weights, miniature.visible, self.down, self.across, self.times)
        if _halves(terminal):
            return [_half_cells(*pair, terminal) for pair in zip(levels[0::2], levels[1::2], strict=True)]
        return [[Segment(text)] for text in _shaded(levels[: self.high], terminal)]


def _row(start: PaintedLine, cells: Sequence[PaintedLine], width: int, terminal: Terminal) -> PaintedLine:
    """A line of cells of one width; the last cell is not padded."""
    return [*start, *(segment for cell in cells[:-1] for segment in fit(cell, width, terminal)), *cells[-1]]


def paint_fan(block: Fan, terminal: Terminal) -> list[PaintedLine]:
    """The rail and its branches, the lines and maps under them, and the rail that joins them again."""
    dim, rail = role_style("dim", terminal), role_style("residual", terminal)
    size, below = _Size(len(block.maps[0].weights), terminal), block.below
    above: list[tuple[str, Sequence[Words]]] = [
        ("", [Span(miniature.title, "attention") for miniature in block.maps]),
        ("", [Span(miniature.word, "dim") for miniature in block.maps]),
        *block.above,
    ]

    def cells_of(cells: Sequence[Words]) -> list[PaintedLine]:
        return [segments(cell, terminal) for cell in cells]

    texts = [line for _, cells in (*above, *below) for line in cells_of(cells)]
    width = 2 + max(size.wide, *map(line_width, texts))
    titles = max(cell_len(shown(title, terminal)) for title in (block.title, *(title for title, _ in (*above, *below))))
    count = min(len(block.maps), max(1, (terminal.width - len(block.before) - titles - 4) // width))

    def branching(sign: str, end: str) -> PaintedLine:
        ends = "─" * (titles + 3) + "".join(sign + "─" * (width - 1) for _ in range(count - 1)) + end
        return [Segment(shown(f"  {block.before}├{ends}", terminal), rail)]

    def titled(title: str, cells: Sequence[PaintedLine]) -> PaintedLine:
        text = Segment(shown(title, terminal).ljust(titles + 2), dim)
        return _row([Segment(shown(f"  {block.before}│ ", terminal), rail), text], cells[:count], width, terminal)

    maps = zip(*(size.draw(miniature, terminal) for miniature in block.maps[:count]), strict=True)
    lines = [branching("┬", "╮"), *(titled(title, cells_of(cells)) for title, cells in above)]
    lines += [titled(block.title if index == 0 else "", cells) for index, cells in enumerate(maps)]
    lines += [titled(title, cells_of(cells)) for title, cells in below]
    remedy = f"; {block.remedy}" if terminal.advises else ""
    more = f"{count} of {len(block.maps)}, {block.left_out}{remedy}" if count < len(block.maps) else ""
    for note in filter(None, (more, size.pooled)):
        lines.append([Segment(shown(f"  {block.before}│ ", terminal), rail), Segment(shown(note, terminal), dim)])
    return [*lines, branching("┴", "╯")]


def heads_shown(block: Miniatures, count: int, terminal: Terminal) -> str:
    """How many maps are shown and which, and how to see the others."""
    is_cut = count < block.of
    parts = [f"{count} of {block.of}, {block.which}" if is_cut else f"all {block.of}", block.marks]
    return ", ".join(filter(None, parts)) + (f"; {block.remedy}" if is_cut and terminal.advises else "")


def _levels(weights: Array, visible: Visible, down: int, across: int, times: int) -> NDArray[np.int64]:
    """The levels of a pooled map, each repeated ``times`` times both ways, padded to an even number of rows."""
    pooled, seen = pool(weights, visible, down, across)
    levels = level(pooled, "unit", 1.0)
    levels = levels if seen is None else np.where(seen, levels, LEVELS)
    return _even(levels.repeat(times, 0).repeat(times, 1))


def _even(levels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The levels with an even number of rows: half blocks take two."""
    return np.pad(levels, ((0, len(levels) % 2), (0, 0)), constant_values=LEVELS)


def _times(block: Thumbnails, cells: int, per_row: int, terminal: Terminal) -> int:
    """How often each number is drawn in both directions: more than once on a screen that still holds all maps."""
    rows = len(block.maps) * -(-block.maps[0].shape[0] // per_row)
    for times in range(_MOST_TIMES * (terminal.cuts and not terminal.picture), 1, -1):
        high = -(-cells * times // 2) if _halves(terminal) else cells * times
        if per_row * (cells * times + 1) + 5 <= terminal.width and rows * (high + 1) <= terminal.height - _AROUND:
            return times
    return 1


def paint_thumbnails(block: Thumbnails, terminal: Terminal) -> list[PaintedLine]:
    """A grid with one row of maps per layer: half blocks in colour, shades without."""
    n_heads, length = block.maps[0].shape[0], block.maps[0].shape[-1]
    side, per_row = thumbnail_size(length, n_heads, terminal.width, terminal.whole)
    factor = -(-length // side)
    times = _times(block, -(-length // factor), per_row, terminal)
    cells, rows = times * -(-length // factor), times * -(-block.maps[0].shape[-2] // factor)
    lines, layers = list[PaintedLine](), block.layers or range(len(block.maps))
    for layer, maps, visible in zip(layers, block.maps, block.visible, strict=True):
        for first in range(0, n_heads, per_row):
            part = maps[first : first + per_row]
            if layer == layers[0] or per_row < n_heads:
                heads = "".join(f"H{first + i}"[: cells + 1].ljust(cells + 1) for i in range(len(part)))
                lines.append([Segment("     " + heads, role_style("dim", terminal))])
            for index, text in enumerate(_lines(_picture(part, visible, factor, times), rows, terminal)):
                label = f"L{layer}" if index == 0 else ""
                lines.append([Segment(f"{label:<5}", role_style("dim", terminal)), Segment(text)])
    if factor > 1:
        lines += pooling_note(factor, factor, 5, terminal)
    line = legend("unit", 1.0, terminal, indent=5)
    masked = any(mask is not None for mask in block.visible) and not _halves(terminal)
    return [*lines, *(with_hidden(line, terminal) if masked else [line])]
