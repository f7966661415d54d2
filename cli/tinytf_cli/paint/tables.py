"""Tables, value tables, bars and rows of tokens."""

from collections.abc import Sequence

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment

from tinytf_cli.numbers import SHARE, number, number_format, numbers
from tinytf_cli.paint.colour import LEVELS, cell_style, level, role_style
from tinytf_cli.paint.heat import scale_bar, signed_shades
from tinytf_cli.paint.text import PaintedLine, cut, fit, line_width, pad_text, segments, shown
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Array, Bar, Bars, Cell, Figure, Histogram, Meter, Pieces, RowBars, Table, Values

_BARS = " ▁▂▃▄▅▆▇█"
_ASCII_BARS = " .:-=+*#%"
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_METER = 8
_STRIP = 64
"""The widest strip, in cells."""
_NAME = 8  # widest column title of a named dimension whose numbers are narrower


def histogram(counts: Sequence[int], terminal: Terminal, full: int = 0) -> str:
    """Counts as bars in eighths of ``full``, or of the largest; a count above 0 is always visible."""
    signs, most = (_ASCII_BARS if terminal.ascii else _BARS), full or max(counts, default=0)
    return "".join(signs[0] if not c else signs[max(1, round(c / most * (len(signs) - 1)))] for c in counts)


def bar(share: float, width: int, terminal: Terminal) -> str:
    """A horizontal bar: ``share`` of ``width`` cells, in eighths of a cell; anything above 0 is visible."""
    share = min(1.0, max(0.0, share if share == share else 0.0))
    if terminal.ascii:
        return "#" * (max(1, round(share * width)) if share > 0 else 0)
    eighths = max(1, round(share * width * 8)) if share > 0 else 0
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def figure_text(figure: Figure, terminal: Terminal) -> str:
    """The number as this terminal shows it."""
    return number(figure.value, terminal.form(figure.form))


def bar_text(bar: Bar, terminal: Terminal) -> str:
    """The text beside a bar: its own, or its value as a share of 1."""
    return bar.shown or number(bar.value, terminal.form(SHARE))


def _cell(cell: Cell, terminal: Terminal) -> PaintedLine:
    if isinstance(cell, Histogram):
        return [Segment(histogram(cell.counts, terminal, cell.full), role_style(cell.role, terminal))]
    if isinstance(cell, Figure):
        return [Segment(figure_text(cell, terminal), role_style(cell.role, terminal))]
    if isinstance(cell, Meter):
        drawn = bar(cell.share, _METER, terminal)
        return [Segment(cell.shown + " "), Segment(drawn.ljust(_METER), role_style(cell.role, terminal))]
    return segments(cell, terminal)


class _Layout:
    """The columns of a table while it is fitted to a width: cells, widths and the gap between them."""

    def __init__(self, table: Table, terminal: Terminal) -> None:
        self.table, self.terminal, self.gap = table, terminal, 2
        self.columns = list(table.columns)
        self.cells = [[_cell(cell, terminal) for cell in column.cells] for column in self.columns]
        self.widths = [self._width(i) for i in range(len(self.columns))]

    def _width(self, i: int) -> int:
        title = cell_len(shown(self.columns[i].title, self.terminal)) if self.table.header else 0
        return max([title, *(line_width(cell) for cell in self.cells[i])])

    @property
    def total(self) -> int:
        return 2 + sum(self.widths) + self.gap * (len(self.widths) - 1)

    @property
    def least(self) -> int:
        """The width with every shrinkable column as narrow as allowed."""
        return self.total - sum(
            max(0, w - c.shrink) for w, c in zip(self.widths, self.columns, strict=True) if c.shrink
        )

    def fit(self) -> None:
        """If the table is too wide, use narrow cells, a smaller gap and fewer columns; then shrink columns."""
        room = self.terminal.width
        if self.total > room:
            for i, column in enumerate(self.columns):
                if column.narrow is not None:
                    self.cells[i] = [_cell(cell, self.terminal) for cell in column.narrow]
                    self.widths[i] = self._width(i)
        if not self.terminal.cuts:
            return
        if self.least > room:
            self.gap = 1
        for drop in sorted({c.drop for c in self.columns if c.drop}, reverse=True):
            if self.least > room:
                keep = [i for i, column in enumerate(self.columns) if column.drop != drop]
                self.columns = [self.columns[i] for i in keep]
                self.cells = [self.cells[i] for i in keep]
                self.widths = [self.widths[i] for i in keep]
        for i, column in enumerate(self.columns):
            if column.shrink and self.total > room:
                self.widths[i] = max(column.shrink, self.widths[i] - (self.total - room))

    def line(self, cells: Sequence[PaintedLine]) -> PaintedLine:
        line = [Segment("  ")]
        for place, (cell, width, column) in enumerate(zip(cells, self.widths, self.columns, strict=True)):
            line += [Segment(" " * self.gap)] if place else []
            line += fit(cell, width, self.terminal, column.align)
        return cut(line, self.terminal.width, self.terminal) if self.terminal.cuts else line


def paint_table(block: Table, terminal: Terminal) -> list[PaintedLine]:
    """Aligned columns, fitted to a screen; elsewhere nothing is cut or dropped."""
    layout = _Layout(block, terminal)
    layout.fit()
    lines: list[PaintedLine] = []
    if block.header:
        dim = role_style("dim", terminal)
        lines.append(layout.line([[Segment(shown(c.title, terminal), dim)] for c in layout.columns]))
    for row in range(len(block.columns[0].cells)):
        lines.append(layout.line([cells[row] for cells in layout.cells]))
        if row in block.notes:
            lines.append([Segment("  " + shown(block.notes[row], terminal), role_style("dim", terminal))])
        if row in block.rule_after:
            lines.append([])
    return lines


def paint_values(block: Values, terminal: Terminal) -> list[PaintedLine]:
    """The first dimensions as numbers; all of them as a strip, pooled to the width that is left."""
    labels = [shown(label, terminal) for label in block.labels]
    label_width = max((cell_len(label) for label in labels), default=0)
    label_width = min(label_width, 14) if terminal.cuts else label_width
    dims = block.values.shape[1]
    first = min(block.first, dims)
    alike = [block.values[r : r + 1] for r in range(len(labels))] if block.several else [block.values]
    texts = [row for part in alike for row in numbers(part[:, :first], terminal.form(number_format(part[:, :first])))]
    columns = [shown(name, terminal) for name in block.columns[:first]] or [f"d{d}" for d in range(first)]
    least = max((cell_len(name) for name in columns), default=0)
    width = max([len(t) for row in texts for t in row] + [min(least, _NAME)]) + 1
    room = max(1, (terminal.width - label_width - 3) // width)
    strips = [range(min(first, room))]
    if terminal.cuts:
        first = min(first, room)
    else:
        strips += [range(s, min(first, s + room)) for s in range(room, first, room)]
    lines: list[PaintedLine] = []
    for strip in strips:
        left = terminal.width - label_width - 3 - width * len(strip) - 2
        with_strip = strip.start == 0 and left >= 8 and dims > 1
        head = (
            "  " + " " * label_width + "".join(" " + pad_text(columns[d], width - 1, terminal, "right") for d in strip)
        )
        over = _strip_head(block, left - 1, terminal) if with_strip else []
        lines.append([Segment(head, role_style("dim", terminal)), *over])
        for r, label in enumerate(labels):
            line = [Segment("  " + pad_text(label, label_width, terminal))]
            line.append(Segment("".join(texts[r][d].rjust(width) for d in strip)))
            if with_strip:
                line.append(Segment("   "))
                line += _strip(block.values[r], _largest(alike[r if block.several else 0]), left - 1, terminal)
            lines.append(line)
    return lines


def _largest(values: Array) -> float:
    """The largest finite magnitude, which is where the scale ends."""
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


def _strip_head(block: Values, room: int, terminal: Terminal) -> PaintedLine:
    """How many values a strip shows, how they are pooled, and the ends of its scale, as far as there is room."""
    dims, factor, dim = block.values.shape[1], _pooled_by(block.values.shape[1], room), role_style("dim", terminal)
    if block.several:
        return cut([Segment(f"   all {dims}, each row on a scale of its own", dim)], room + 3, terminal)
    ends = shown(f"±{number(_largest(block.values), terminal.form(''))} ", terminal)
    pooled = shown(f", each cell the strongest of {factor}", terminal) if factor > 1 else ""
    for title in (f"all {dims}{pooled}   ", f"all {dims}  ", ""):
        for cells in (16, 8, 4):
            bar = scale_bar("signed", cells, terminal, "▀")
            if len(title + ends) + line_width(bar) <= room:
                return [Segment(f"   {title}{ends}", dim), *bar]
    return [Segment(f"   {ends}", dim)]


def _pooled_by(dims: int, room: int) -> int:
    """How many values one cell of a strip shows, with room for ``room`` cells."""
    return -(-dims // min(room, _STRIP))


def _strip(values: Array, limit: float, room: int, terminal: Terminal) -> PaintedLine:
    """All values of a row as coloured cells, or as characters that rise from −limit to limit."""
    factor = _pooled_by(len(values), room)
    padded = np.zeros(-(-len(values) // factor) * factor, dtype=np.float32)
    padded[: len(values)] = np.nan_to_num(values)
    groups = padded.reshape(-1, factor)
    strongest = np.take_along_axis(groups, np.abs(groups).argmax(-1)[:, None], -1)[:, 0]
    levels = level(strongest, "signed", limit or 1.0)
    if terminal.coloured:
        return [Segment(" ", cell_style("signed", int(i), terminal)) for i in levels]
    signs = signed_shades(terminal)
    return [Segment("".join(signs[int(i) * len(signs) // LEVELS] for i in levels))]


def paint_bars(block: Bars, terminal: Terminal) -> list[PaintedLine]:
    """One labelled bar per line."""
    labels = [shown(b.label, terminal) for b in block.bars]
    label_width = max((cell_len(label) for label in labels), default=0)
    if terminal.cuts:
        label_width = min(label_width, max(10, terminal.width // 3))
    texts = [bar_text(b, terminal) for b in block.bars]
    value_width = max(map(len, texts), default=0)
    room = max(4, min(40, terminal.width - label_width - value_width - 6))
    return [
        [
            Segment("  " + pad_text(label, label_width, terminal) + "  "),
            Segment(text.rjust(value_width) + "  "),
            Segment(bar(b.value / block.full if block.full else 0, room, terminal), role_style(b.role, terminal)),
        ]
        for label, text, b in zip(labels, texts, block.bars, strict=True)
    ]


def paint_row_bars(block: RowBars, terminal: Terminal) -> list[PaintedLine]:
    """``·cat looks at ·cat 68 % ████  The 32 % ██``: as many entries as fit."""
    labels = [shown(label, terminal) for label, _ in block.rows]
    label_width = max((cell_len(label) for label in labels), default=0)
    label_width = min(label_width, 14) if terminal.cuts else label_width
    widest = max((cell_len(shown(name, terminal)) for _, row in block.rows for name, _ in row), default=1)
    widest = min(widest, 14) if terminal.cuts else widest
    entry = widest + 6 + 13
    room = max(1, (terminal.width - label_width - len(block.verb) - 6) // entry)
    lines: list[PaintedLine] = []
    for label, (_, row) in zip(labels, block.rows, strict=True):
        line = [
            Segment("  " + pad_text(label, label_width, terminal)),
            Segment(f"  {block.verb}  ", role_style("dim", terminal)),
        ]
        for name, share in row[:room]:
            drawn = bar(share, 10, terminal)
            line += [Segment(pad_text(shown(name, terminal), widest, terminal) + f"{share * 100:4.0f} % ")]
            line += [Segment(drawn, role_style("attention", terminal)), Segment(" " * (13 - cell_len(drawn) - 1))]
        lines.append(line)
    return lines


def paint_pieces(block: Pieces, terminal: Terminal) -> list[PaintedLine]:
    """Tokens in alternating colours, or separated by │ without colour, wrapped to the width."""
    line: PaintedLine = [Segment("  ")]
    special = block.special or [False] * len(block.pieces)
    lines: list[PaintedLine] = []
    used = 2
    for place, (piece, is_special) in enumerate(zip(block.pieces, special, strict=True)):
        text = shown(piece, terminal)
        role = "special" if is_special else ("even" if place % 2 == 0 else "odd")
        gap = "" if terminal.coloured or place == 0 else shown("│", terminal)
        if used + cell_len(gap + text) > terminal.width - 1 and used > 2:
            lines.append(line)
            line, used = [Segment("  ")], 2
        line += [Segment(gap, role_style("dim", terminal)), Segment(text, role_style(role, terminal))]
        used += cell_len(gap + text)
    return [*lines, line]
