"""The same blocks as sentences, for screen readers: no boxes, no blocks, no columns."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from tinytf_cli.numbers import number, number_format, share_format
from tinytf_cli.paint.curves import finite_points
from tinytf_cli.paint.text import shown, spans
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import (
    Bars,
    Block,
    Cell,
    Curves,
    Grid,
    Heading,
    Heat,
    Histogram,
    Line,
    Meter,
    Pieces,
    RowBars,
    Table,
    Thumbnails,
    Values,
)

_SPOKEN = {"×": "by", "→": "to", "⊙": "times", "+": "plus", "/": "over"}


def _said(cell: Cell) -> str:
    if isinstance(cell, Histogram):
        return ""
    if isinstance(cell, Meter):
        return cell.shown.strip()
    return "".join(span.text for span in spans(cell)).strip()


def _line(block: Line) -> list[str]:
    text = block.said or "".join(span.text for span in spans(block.words)).strip()
    return [text] if text else []


def _heading(block: Heading) -> list[str]:
    return ["", block.title + (f", {block.note}" if block.note else "") + "."]


def _table(block: Table) -> list[str]:
    lines = []
    for row in range(len(block.columns[0].cells)):
        parts = []
        for column in block.columns:
            text = _said(column.cells[row])
            if text:
                title = column.title if column.said is None else column.said
                parts.append(f"{title} {text}".strip())
        lines.append(", ".join(parts) + ".")
    return lines


def _values(block: Values) -> list[str]:
    first = min(block.first, block.values.shape[1])
    return [
        f"{label}: {', '.join(number(float(v), number_format(like)) for v in row[:first])}"
        + (f", and {len(row) - first} more dimensions." if len(row) > first else ".")
        for label, row in zip(block.labels, block.values, strict=True)
        for like in (row if block.several else block.values,)
    ]


def _heat(block: Heat) -> list[str]:
    form = share_format() if block.scale == "unit" else number_format(block.values)
    lines = []
    for r, label in enumerate(block.row_labels):
        parts = []
        for c, name in enumerate(block.column_labels):
            visible = block.visible is None or bool(block.visible[r, c])
            parts.append(f"{name} {number(float(block.values[r, c]), form)}" if visible else f"{name} masked")
        lines.append(f"Row {label}: {', '.join(parts)}.")
    return lines


def _grid(block: Grid) -> list[str]:
    lines = []
    for row, label in enumerate(block.row_labels):
        parts = [f"{title} {cells[row]}" for title, cells in block.beside]
        for column, name in enumerate(block.column_labels):
            before = f"{block.above[column]} " if block.above else ""
            share = number(float(block.shares[row, column]), "%.2f")
            parts.append(f"{before}{name} {block.verb} {block.words[row][column]} {share}".replace("  ", " "))
        lines.append(f"Row {label}: {', '.join(parts)}.")
    return lines


def _bars(block: Bars) -> list[str]:
    return [f"{b.label}: {b.shown}." for b in block.bars]


def _row_bars(block: RowBars) -> list[str]:
    return [
        f"{label} {block.verb} {', '.join(f'{name} {share * 100:.0f} percent' for name, share in row)}."
        for label, row in block.rows
    ]


def _thumbnails(block: Thumbnails) -> list[str]:
    lines = []
    for layer, maps in enumerate(block.maps):
        for head, weights in enumerate(maps):
            query, key = np.unravel_index(int(np.argmax(weights)), weights.shape)
            lines.append(
                f"Layer {layer} head {head}: largest weight {float(weights[query, key]):.2f}, "
                f"from token {query} to token {key}."
            )
    return lines


def _curves(block: Curves) -> list[str]:
    lines = []
    for curve in block.curves:
        x, y = finite_points(curve)
        if x.size:
            low = int(y.argmin())
            lines.append(
                f"{curve.label}: {block.y_title} {number(float(y[0]), '%.4g')} at {block.x_title} {x[0]:,}, "
                f"{number(float(y[-1]), '%.4g')} at {block.x_title} {x[-1]:,}, "
                f"lowest {number(float(y[low]), '%.4g')} at {block.x_title} {x[low]:,}."
            )
    return lines


def _pieces(block: Pieces) -> list[str]:
    return [f"{len(block.pieces)} tokens: {', '.join(block.pieces)}."]


_SENTENCES: dict[type[Any], Callable[[Any], list[str]]] = {
    Line: _line,
    Heading: _heading,
    Table: _table,
    Values: _values,
    Heat: _heat,
    Grid: _grid,
    Bars: _bars,
    RowBars: _row_bars,
    Thumbnails: _thumbnails,
    Curves: _curves,
    Pieces: _pieces,
}


def sentences(block: Block, terminal: Terminal) -> list[str]:
    """One block as lines of plain text."""
    return [shown(_spoken(line), terminal) for line in _SENTENCES[type(block)](block)]


_PRODUCT = re.compile(r"(?<=[\])\u0302]) · (?=\d|gain)")
"""The sign of a product in a formula, such as E[ids] · 11.3 and x̂ · gain; elsewhere it stands between two things."""


def _spoken(line: str) -> str:
    line = _PRODUCT.sub(" times ", line).replace(" · ", ", ").replace("│", ", ")
    for sign, word in _SPOKEN.items():
        line = line.replace(f" {sign} ", f" {word} ")
    return line
