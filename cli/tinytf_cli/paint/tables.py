"""Tables, value tables, bars and rows of tokens."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment

from tinytf.sentences import NOT_FINITE
from tinytf_cli.numbers import SHARE, number, number_format, numbers
from tinytf_cli.paint.colour import LEVELS, cell_style, level, role_style
from tinytf_cli.paint.heat import names_width, pool, scale_bar, signed_shades
from tinytf_cli.paint.text import PaintedLine, cut, figure_text, fit, line_width, pad_text, segments, shown, wrap
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import (
    ABOVE,
    BELOW,
    Array,
    Bar,
    Bars,
    Cell,
    Column,
    Figure,
    Histogram,
    Meter,
    Pieces,
    RowBars,
    Signed,
    Table,
    Values,
)

_BARS = " ▁▂▃▄▅▆▇█"
_ASCII_BARS = " .:-=+*#%"
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_CUT, _ROUNDING = "◀▶", 1e-6
"""The end marks of a cut bar (left, right), and how far above 1 rounding may put a share without a cut."""
_METER = 8
_SHORTEST_BAR = 8
"""The cells that bars keep beside labels that have to be shortened."""
_STRIP = 64
"""The widest strip, in cells."""


def histogram(counts: Sequence[int], terminal: Terminal, full: int = 0) -> str:
    """Counts as bars in eighths of ``full``, or of the largest; a count above 0 is always visible."""
    signs, most = (_ASCII_BARS if terminal.ascii else _BARS), full or max(counts, default=0)
    return "".join(signs[0] if not c else signs[max(1, round(c / most * (len(signs) - 1)))] for c in counts)


def bar(share: float, width: int, terminal: Terminal) -> str:
    """A horizontal bar: ``share`` of ``width`` cells, in eighths of a cell; anything above 0 is visible.

    A bar of more than 1 is cut and ends in an arrow.
    """
    if share > 1 + _ROUNDING:
        return shown("█" * (width - 1) + _CUT[1], terminal)
    share = min(1.0, max(0.0, share if share == share else 0.0))
    if terminal.ascii:
        return "#" * (max(1, round(share * width)) if share > 0 else 0)
    eighths = max(1, round(share * width * 8)) if share > 0 else 0
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def signed_bar(share: float, half: int, terminal: Terminal, both: bool = True) -> PaintedLine:
    """A bar of ``share`` (−1…1) of ``half`` cells on one side of a zero axis, in half cells, padded.

    Anything but 0 is visible. Without ``both``, the left side is omitted.
    """
    cut, share = abs(share) > 1 + _ROUNDING, max(-1.0, min(1.0, share)) if share == share else 0.0
    style = role_style(ABOVE if share > 0 else BELOW, terminal)
    whole, rest = divmod(round(abs(share) * half * 2), 2)
    block, above, below, least = ("#", "", "", "#") if terminal.ascii else ("█", "▌", "▐", "▏" if share > 0 else "▕")
    drawn = block * whole + (above if share > 0 else "") * rest
    if share < 0:
        drawn = below * rest + block * whole
    drawn = drawn or (least if share else "")
    if cut:
        drawn = shown(drawn[1:] + _CUT[1] if share > 0 else _CUT[0] + drawn[1:], terminal)
    left, right = (drawn, "") if share < 0 else ("", drawn)
    axis = Segment(shown("│", terminal), role_style("dim", terminal))
    left_side = [Segment(left.rjust(half), style)] if both else []
    return [*left_side, axis, Segment(right.ljust(half), style)]


def bar_text(bar: Bar, terminal: Terminal) -> str:
    """The text beside a bar: its own text, or its value as a share of 1."""
    return figure_text(bar.shown, terminal) or number(bar.value, terminal.form(SHARE))


def beside_bar(cell: Cell, terminal: Terminal) -> str:
    """The number beside the bar of a cell; empty for a cell without a bar."""
    if isinstance(cell, Signed):
        return number(cell.value, terminal.form(cell.form)) if math.isfinite(cell.value) else NOT_FINITE
    if not isinstance(cell, Meter):
        return ""
    is_finite = isinstance(cell.shown, str) or math.isfinite(cell.shown.value)
    return figure_text(cell.shown, terminal) if is_finite else NOT_FINITE


def _cells(cells: Sequence[Cell], terminal: Terminal, bars: bool = True) -> list[PaintedLine]:
    """The cells of a column; numbers beside bars are aligned, and signed bars have one zero axis."""
    texts = [beside_bar(cell, terminal) for cell in cells]
    if any(texts):  # numbers without a bar end where the others do
        texts = [
            figure_text(cell, terminal) if isinstance(cell, Figure) else text
            for cell, text in zip(cells, texts, strict=True)
        ]
    width = max(map(cell_len, texts), default=0)
    if not bars and width:
        cells = [text.rjust(width) if text else cell for cell, text in zip(cells, texts, strict=True)]
    both = any(isinstance(cell, Signed) and cell.value < 0 for cell in cells)
    return [_cell(cell, text.rjust(width), both, terminal) for cell, text in zip(cells, texts, strict=True)]


def _cell(cell: Cell, text: str, both: bool, terminal: Terminal) -> PaintedLine:
    if isinstance(cell, Histogram):
        return [Segment(histogram(cell.counts, terminal, cell.full), role_style(cell.role, terminal))]
    if isinstance(cell, Figure):
        return [Segment(text or figure_text(cell, terminal), role_style(cell.role, terminal))]
    if isinstance(cell, Meter):
        drawn = bar(cell.share, _METER, terminal)
        return [Segment(text + " "), Segment(drawn.ljust(_METER), role_style(cell.role, terminal))]
    if isinstance(cell, Signed):
        return [Segment(text + " "), *signed_bar(cell.value / cell.full, _METER, terminal, both)]
    return segments(cell, terminal)


def _title(title: str, cells: Sequence[Cell], terminal: Terminal) -> str:
    """The title of a column; if its bars are signed, with the value of a whole bar."""
    full = next((cell.full for cell in cells if isinstance(cell, Signed)), None)
    if full is not None:
        both = any(isinstance(cell, Signed) and cell.value < 0 for cell in cells)
        title = f"{title} {'±' if both else '0 … '}{number(full, '%.3g')}".strip()
    return shown(title, terminal)


class _Fitted:
    """A column as it is drawn: its title, its cells with or without ``bars``, and its width."""

    def __init__(self, column: Column, header: bool, terminal: Terminal, bars: bool = True) -> None:
        self.column = column
        cells = column.cells if bars or column.narrow is None else column.narrow
        self.has_bars = any(isinstance(cell, Meter | Histogram | Signed) for cell in cells)
        self.cells = _cells(cells, terminal, bars)
        self.title = _title(column.title, cells, terminal) if bars else shown(column.title, terminal)
        self.width = max([cell_len(self.title) if header else 0, column.least, *map(line_width, self.cells)])


class _Layout:
    """The columns of a table while they are fitted to a width, and the gap between them."""

    def __init__(self, table: Table, terminal: Terminal) -> None:
        self.table, self.terminal, self.gap = table, terminal, 2
        self.columns = [_Fitted(column, table.header, terminal) for column in table.columns]

    @property
    def total(self) -> int:
        return 2 + sum(fitted.width for fitted in self.columns) + self.gap * (len(self.columns) - 1)

    @property
    def least(self) -> int:
        """The width of the table with every shrinkable column at its narrowest."""
        spare = (max(0, f.width - f.column.shrink) for f in self.columns if f.column.shrink)
        return self.total - sum(spare)

    def fit(self) -> None:
        """If the table is too wide, use narrow cells, no bars, a smaller gap and fewer columns; then shrink columns."""
        room = self.terminal.width
        if self.total > room:
            self.columns = [_Fitted(f.column, self.table.header, self.terminal, bars=False) for f in self.columns]
        if not self.terminal.cuts:
            return
        if self.least > room:
            self.gap = 1
        every = self.columns
        for drop in sorted({f.column.drop for f in self.columns if f.column.drop}, reverse=True):
            if self.least > room:
                self.columns = [f for f in self.columns if f.column.drop != drop]
        self._restore(every)
        for index, f in enumerate(self.columns):  # whole words again where there is room for them
            whole = _Fitted(f.column, self.table.header, self.terminal)
            if f.column.narrow is not None and not whole.has_bars and self.total - f.width + whole.width <= room:
                self.columns[index] = whole
        for f in self.columns:
            if f.column.shrink and self.total > room:
                f.width = max(f.column.shrink, f.width - (self.total - room))

    def _restore(self, every: "Sequence[_Fitted]") -> None:
        """Put back columns that fit after wider ones went, those first that would go last; then the usual gap."""
        for drop in sorted({f.column.drop for f in every if f not in self.columns}):
            fewer = self.columns
            self.columns = [f for f in every if f in fewer or f.column.drop == drop]
            self.columns = self.columns if self.least <= self.terminal.width else fewer
        self.gap = 2
        self.gap = 2 if self.least <= self.terminal.width else 1

    def line(self, cells: Sequence[PaintedLine]) -> PaintedLine:
        line = [Segment("  ")]
        for index, (cell, fitted) in enumerate(zip(cells, self.columns, strict=True)):
            line += [Segment(" " * self.gap)] if index else []
            last = index == len(cells) - 1 and fitted.column.align == "left" and line_width(cell) <= fitted.width
            line += cell if last else fit(cell, fitted.width, self.terminal, fitted.column.align)  # no … for padding
        return cut(line, self.terminal.width, self.terminal) if self.terminal.cuts else line


def paint_table(block: Table, terminal: Terminal) -> list[PaintedLine]:
    """Aligned columns, fitted to a screen; elsewhere nothing is cut or dropped."""
    layout = _Layout(block, terminal)
    layout.fit()
    lines: list[PaintedLine] = []
    if block.header:
        dim = role_style("dim", terminal)
        lines.append(layout.line([[Segment(fitted.title, dim)] for fitted in layout.columns]))
    for row in range(len(block.columns[0].cells)):
        lines.append(layout.line([fitted.cells[row] for fitted in layout.columns]))
        if row in block.rule_after:
            lines.append([])
    return lines


def paint_values(block: Values, terminal: Terminal) -> list[PaintedLine]:
    """The first numbers of each row, wrapped under their labels; of a cut row also the largest, and all as a strip."""
    labels = [shown(label, terminal) for label in block.labels]
    label_width = names_width(labels, terminal)
    groups = [block.values[r : r + 1] for r in range(len(labels))] if block.several else [block.values]
    cut_short = block.first < block.values.shape[1]
    columns = _number_columns(block, groups, terminal)
    columns += [_largest_column(block, terminal)] if cut_short and columns else []
    lines: list[PaintedLine] = []
    noted = False
    for strip in _strips(columns, terminal.width - label_width - 3) if columns else ((),):
        width = sum(column.width for column in strip)
        room_left = terminal.width - label_width - 5 - width
        with_strip = cut_short and not lines and room_left >= 8
        strip_head = _strip_head(block, room_left - 1, terminal) if with_strip else []
        noted = noted or (bool(strip_head) and line_width(strip_head) <= room_left)
        head = "".join(pad_text(column.title, column.width, terminal, "right") for column in strip)
        title = Segment(" " * (2 + label_width) + head, role_style("dim", terminal))
        lines.append([title, *([Segment("   "), *strip_head] if noted and with_strip else [])])
        for r, label in enumerate(labels):
            line = [Segment("  " + pad_text(label, label_width, terminal))]
            line.append(Segment("".join(column.texts[r].rjust(column.width) for column in strip)))
            if with_strip:
                line.append(Segment("   "))
                line += _strip(block.values[r], _largest(groups[r if block.several else 0]), room_left - 1, terminal)
            lines.append(line)
        if with_strip and not noted:
            lines += wrap(
                [Segment("  " + " " * label_width + " strip: "), *strip_head], terminal.width, label_width + 3
            )
    return lines + (_cut_note(block, terminal) if cut_short and columns else [])


@dataclass(frozen=True)
class _NumberColumn:
    """A column of a value table: its title and the text of each row, ``width`` with the space before it."""

    title: str
    texts: Sequence[str]
    width: int


def _number_columns(block: Values, groups: Sequence[Array], terminal: Terminal) -> list[_NumberColumn]:
    """The first numbers of each row; a column is as wide as the widest number, or as its title."""
    shown_parts = [part[:, : block.first] for part in groups]
    texts = [row for part in shown_parts for row in numbers(part, terminal.form(number_format(part)))]
    titles = [shown(title, terminal) for title in block.columns[: block.first]]
    width = max((len(text) for row in texts for text in row), default=0)
    by_column = zip(titles, zip(*texts, strict=True), strict=True)
    return [_NumberColumn(title, cells, 1 + max(width, cell_len(title))) for title, cells in by_column]


def _largest_column(block: Values, terminal: Terminal) -> _NumberColumn:
    """The number of largest magnitude in each row, behind its label."""
    texts = []
    for row in block.values:
        at = int(np.argmax(np.abs(np.nan_to_num(row, nan=np.inf))))
        texts.append(f"{shown(block.columns[at], terminal)} {number(float(row[at]), terminal.form(''))}")
    return _NumberColumn("largest", texts, 2 + max(map(cell_len, ("largest", *texts))))


def _strips(columns: Sequence[_NumberColumn], room: int) -> Iterator[Sequence[_NumberColumn]]:
    """The columns in strips that fit ``room``, at least one in each."""
    strip, used = list[_NumberColumn](), 0
    for column in columns:
        if strip and used + column.width > room:
            yield strip
            strip, used = [], 0
        strip.append(column)
        used += column.width
    if strip:
        yield strip


def _cut_note(block: Values, terminal: Terminal) -> list[PaintedLine]:
    """A line that says how many numbers of a row are shown."""
    note = f"the first {block.first:,} of {block.values.shape[1]:,} numbers and the largest" + (
        f"; {block.remedy}" if block.remedy and terminal.advises else ""
    )
    return wrap([Segment("  " + shown(note, terminal), role_style("dim", terminal))], terminal.width, 2)


def _largest(values: Array) -> float:
    """The largest finite magnitude, which is where the scale ends."""
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


def _strip_head(block: Values, room: int, terminal: Terminal) -> PaintedLine:
    """The title of a strip: how many values it shows, how many share a cell, and its scale."""
    dims, factor = block.values.shape[1], _pooled_by(block.values.shape[1], room)
    note = f"all {dims}" + (f", the largest of every {factor}" if factor > 1 else "")
    limit = number(_largest(block.values), terminal.form("%.3g"))
    note += ", each row on its own scale" if block.several else f" ±{limit}"
    return [Segment(shown(f"{note} ", terminal), role_style("dim", terminal)), *scale_bar("signed", 5, terminal, "▀")]


def _pooled_by(dims: int, room: int) -> int:
    """How many values one cell of a strip shows, with room for ``room`` cells."""
    return -(-dims // min(room, _STRIP))


def _strip(values: Array, limit: float, room: int, terminal: Terminal) -> PaintedLine:
    """All values of a row as coloured cells, or as characters that rise from −limit to limit."""
    factor = _pooled_by(len(values), room)
    strongest, _ = pool(np.nan_to_num(values)[None], None, 1, factor)
    levels = level(strongest[0], "signed", limit or 1.0)
    if terminal.coloured:
        return [Segment(" ", cell_style("signed", int(i), terminal)) for i in levels]
    signs = signed_shades(terminal)
    return [Segment("".join(signs[int(i) * len(signs) // LEVELS] for i in levels))]


def paint_bars(block: Bars, terminal: Terminal) -> list[PaintedLine]:
    """One labelled bar per line; signed bars on their side of zero, below their scale."""
    labels = [shown(b.label, terminal) for b in block.bars]
    label_width = max((cell_len(label) for label in labels), default=0)
    texts = [bar_text(b, terminal) for b in block.bars]
    value_width = max(map(len, texts), default=0)
    if terminal.cuts:
        label_width = min(label_width, max(10, terminal.width - value_width - 6 - _SHORTEST_BAR))
    room = max(4, min(40, terminal.width - label_width - value_width - 6))
    starts = [
        Segment("  " + pad_text(label, label_width, terminal) + "  " + text.rjust(value_width) + "  ")
        for label, text in zip(labels, texts, strict=True)
    ]
    shares = [b.value / block.full if block.full else 0.0 for b in block.bars]
    dim = role_style("dim", terminal)
    if block.signed:
        both = any(b.value < 0 for b in block.bars)
        half = (room - 1) // 2 if both else room - 1
        high = number(block.full, terminal.form(""))
        low = f"-{high}" if both else ""
        ends = f"{low.ljust(half * both)}0{high.rjust(half)}"
        if len(ends) > room:  # no room for both ends
            ends = f"{'±' if both else '0 … '}{number(block.full, '%.3g')}".center(room)
        scale = [Segment(shown(" " * (label_width + value_width + 6) + ends, terminal), dim)]
        rows = zip(starts, shares, strict=True)
        return [scale, *([start, *signed_bar(share, half, terminal, both)] for start, share in rows)]
    lines: list[PaintedLine] = []
    for start, share, b in zip(starts, shares, block.bars, strict=True):
        drawn = bar(share, room, terminal)
        lines.append([start, Segment(drawn, role_style(b.role, terminal))])
        if block.track:
            lines[-1].append(Segment(shown("─", terminal) * (room - cell_len(drawn)), dim))
    return lines


def paint_row_bars(block: RowBars, terminal: Terminal) -> list[PaintedLine]:
    """``·cat looks at ·cat 68 % ████  The 32 % ██``, and how many entries a line has no room for, or all in lines."""
    labels = [shown(label, terminal) for label, _ in block.rows]
    label_width = names_width(labels, terminal)
    widest = names_width([shown(name, terminal) for _, row in block.rows for name, _ in row], terminal)
    entry, start = widest + 6 + 13, label_width + len(block.verb) + 6
    room, every = max(1, (terminal.width - start) // entry), block.every or terminal.whole
    lines: list[PaintedLine] = []
    dim = role_style("dim", terminal)
    for label, (_, row) in zip(labels, block.rows, strict=True):
        line = [Segment("  " + pad_text(label, label_width, terminal)), Segment(f"  {block.verb}  ", dim)]
        for place, (name, share) in enumerate(row if every else row[:room]):
            if place and place % room == 0:
                lines.append(line)
                line = [Segment(" " * start)]
            drawn = bar(share, 10, terminal)
            line += [Segment(pad_text(shown(name, terminal), widest, terminal) + f"{share * 100:4.0f} % ")]
            line += [Segment(drawn, role_style("attention", terminal)), Segment(" " * (13 - cell_len(drawn) - 1))]
        lines.append(line)
    if not every and any(len(row) > room for _, row in block.rows):
        lines.append([Segment(f"  the largest{f' {room}' if room > 1 else ''} of each row", dim)])
    return lines


def paint_pieces(block: Pieces, terminal: Terminal) -> Iterator[PaintedLine]:
    """Tokens in the colours of their roles, wrapped; │ separates tokens of one colour."""
    line: PaintedLine = [Segment("  ")]
    used = 2
    for index, (piece, role) in enumerate(zip(block.pieces, block.roles, strict=True)):
        text = shown(piece, terminal)
        is_distinct = index == 0 or (terminal.coloured and role != block.roles[index - 1])
        gap = "" if is_distinct else shown("│", terminal)
        if used + cell_len(gap + text) > terminal.width - 1 and used > 2:
            yield line
            line, used = [Segment("  ")], 2
        line += [Segment(gap, role_style("dim", terminal)), Segment(text, role_style(role, terminal))]
        used += cell_len(gap + text)
    yield line
