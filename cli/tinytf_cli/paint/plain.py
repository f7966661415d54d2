"""Blocks as sentences for screen readers: no boxes, bars or columns."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from tinytf_cli.numbers import number, number_format, plural
from tinytf_cli.paint.curves import finite_points
from tinytf_cli.paint.heat import number_form
from tinytf_cli.paint.tables import bar_text, beside_bar
from tinytf_cli.paint.text import figure_text, shown, spans
from tinytf_cli.paint.thumbnails import heads_shown
from tinytf_cli.terminal import Terminal
from tinytf_cli.views import blocks
from tinytf_cli.views.blocks import Block

_SPOKEN = {"×": "by", "→": "to", "⊙": "times", "+": "plus", "/": "over"}
_LOOKS, _SEEN = 3, 0.005
"""How many keys are named of a small map, and the least share of them."""
_MARKS = (":", ",", ";", ".")
_PRIVATE = {sign: chr(0xE000 + index) for index, sign in enumerate((*_SPOKEN, "·", "│"))}
"""Private-use characters that protect signs which are tokens while the other signs become words."""


def _verbatim(text: str) -> str:
    """Protect every sign of a text, so that none becomes a word."""
    return text.translate({ord(sign): private for sign, private in _PRIVATE.items()})


def _token(label: str) -> str:
    """A label that may be a token: a single sign is protected, and one that ends or divides sentences is quoted."""
    if label.strip() in _MARKS:
        return f'"{label.strip()}"'
    return _verbatim(label) if label.strip() in _PRIVATE else label


def _called(label: str) -> str:
    """The label of a row; the only row of a heading may have none."""
    return _token(" ".join(label.split())) or "values"


def cell_text(cell: blocks.Cell, terminal: Terminal) -> str:
    if isinstance(cell, blocks.Histogram):
        return ""
    if isinstance(cell, blocks.Figure):
        return figure_text(cell, terminal)
    if isinstance(cell, (blocks.Meter, blocks.Signed)):
        return beside_bar(cell, terminal).strip()
    return _token("".join(span.text for span in spans(cell, terminal)).strip())


def _line(block: blocks.Line, terminal: Terminal) -> list[str]:
    text = block.said or "".join(span.text for span in spans(block.words, terminal)).strip()
    is_sentence = block.verbatim or block.first  # its signs are tokens
    return [_verbatim(text) if is_sentence and not block.said else text] if text else []


def _heading(block: blocks.Heading, terminal: Terminal) -> list[str]:
    words = "; ".join(filter(None, (block.note, block.advice)))
    return ["", block.title + (f", {words}" if words else "") + "."]


def _table(block: blocks.Table, terminal: Terminal) -> list[str]:
    lines = []
    for row in range(len(block.columns[0].cells)):
        parts = []
        for column in block.columns:
            text = cell_text(column.cells[row], terminal)
            if text:
                title = column.title if column.said is None else column.said
                parts.append(f"{title} {text}".strip())
        lines.append(", ".join(parts).removesuffix(".") + ".")
    return lines


def _values(block: blocks.Values, terminal: Terminal) -> list[str]:
    first = min(block.first, block.values.shape[1])
    lines = []
    for label, row in zip(block.labels, block.values, strict=True):
        form = terminal.form(number_format(row if block.several else block.values))
        texts = [f"{_token(block.columns[at])} {number(float(row[at]), form)}" for at in range(first)]
        if len(row) > first:
            low, high = (
                f"{number(float(row[at]), form)} at {_token(block.columns[at])}"
                for at in (int(row.argmin()), int(row.argmax()))
            )
            texts.append(f"and {len(row) - first} more, all from {low} to {high}")
        lines.append(f"{_called(label)}: {', '.join(texts)}.")
    return lines


def _heat(block: blocks.Heat, terminal: Terminal) -> list[str]:
    form = number_form(block, terminal)
    lines = []
    for r, label in enumerate(block.row_labels):
        parts = []
        for c, name in enumerate(block.column_labels):
            if block.visible is None or block.visible[r, c]:
                parts.append(f"{_token(name)} {number(float(block.values[r, c]), form)}")
        hidden = len(block.column_labels) - len(parts)
        parts += [f"{hidden} {block.hidden}"] if hidden else []
        row = f"Row {_token(label)}" if label else _called(label)
        lines.append(f"{row}: {', '.join(parts)}.")
    return lines


def _grid(block: blocks.Grid, terminal: Terminal) -> list[str]:
    lines = []
    for row, label in enumerate(block.row_labels):
        parts = [f"{title} {figure_text(cells[row], terminal)}" for title, cells in block.beside]
        for column, name in enumerate(block.column_labels):
            before = f"{block.above[column]} " if block.above else ""
            share = number(float(block.shares[row, column]), terminal.form("%.2f"))
            word = _token(block.words[row][column])
            parts.append(f"{_token(before)}{_token(name)} {block.verb} {word} {share}".replace("  ", " "))
        lines.append(f"Row {_token(label)}: {', '.join(parts)}.")
    return lines


def _bars(block: blocks.Bars, terminal: Terminal) -> list[str]:
    return [f"{_called(bar.label)}: {bar_text(bar, terminal)}." for bar in block.bars]


def _row_bars(block: blocks.RowBars, terminal: Terminal) -> list[str]:
    return [
        f"{_token(label)} {block.verb} {', '.join(f'{_token(name)} {share * 100:.0f} percent' for name, share in row)}."
        for label, row in block.rows
    ]


def _links(block: blocks.Links, terminal: Terminal) -> list[str]:
    """A sentence for each token on the left, in its order."""
    lines = []
    for index, left in enumerate(block.left):
        seen = [
            f"{_token(block.right[key])} {share * 100:.0f} percent" for at, key, share in block.links if at == index
        ]
        lines += [f"{_token(left)} looks at {', '.join(seen)}."] if seen else []
    return lines


def _thumbnails(block: blocks.Thumbnails, terminal: Terminal) -> list[str]:
    lines = []
    for index, maps in enumerate(block.maps):
        layer = block.layers[index] if block.layers else index
        for head, weights in enumerate(maps):
            lines.append(f"Layer {layer} head {head}: {_looks(weights, block)}")
    return lines


def _miniatures(block: blocks.Miniatures, terminal: Terminal) -> list[str]:
    return [
        "",
        f"{block.title}, {heads_shown(block, len(block.maps), terminal)}.",
        *(f"{miniature.title}, {miniature.word}: {_looks(miniature.weights, miniature)}" for miniature in block.maps),
    ]


def _fan(block: blocks.Fan, terminal: Terminal) -> list[str]:
    lines = []
    for index, miniature in enumerate(block.maps):
        details = [f"{title} {cell_text(cells[index], terminal)}" for title, cells in (*block.above, *block.below)]
        lines.append(
            f"{miniature.title}, {miniature.word}, {', '.join(details)}: {_looks(miniature.weights, miniature)}"
        )
    return lines


def _looks(weights: blocks.Array, block: blocks.Thumbnails | blocks.Miniature) -> str:
    """Where the tokens that are read look most: a few keys, the strongest first."""
    readers = list(block.readers) or [len(weights) - 1]
    shares = weights[readers].mean(axis=0)
    best = np.argsort(-np.abs(shares), kind="stable")[:_LOOKS]
    keys = [f"{_key(block, int(key))} {shares[key]:.2f}" for key in best if abs(shares[key]) >= _SEEN or key == best[0]]
    reader = f"{_key(block, readers[0])} looks" if len(readers) == 1 else f"{len(readers)} tokens on average look"
    return f"{reader} at {', '.join(keys)}."


def _key(block: blocks.Thumbnails | blocks.Miniature, position: int) -> str:
    """A token by its name, and by its position where others have the same name."""
    if not block.names:
        return f"token {position}"
    name = block.names[position]
    return _token(name) + f" at {position}" * (list(block.names).count(name) > 1)


def _beside(block: blocks.Beside, terminal: Terminal) -> list[str]:
    return [line for part in block.parts for child in part for line in _SENTENCES[type(child)](child, terminal)]


def _curves(block: blocks.Curves, terminal: Terminal) -> list[str]:
    lines = []
    for curve in block.curves:
        x, y = finite_points(curve)
        if x.size:
            form = ",d" if np.issubdtype(x.dtype, np.integer) else ",.4g"
            readings = [
                f"{number(float(y[index]), '%.4g')} at {block.x_title} {x[index]:{form}}"
                for index in (0, -1, int(y.argmin()))
            ]
            more = f", {readings[1]}, lowest {readings[2]}" if x.size > 1 else ""
            lines.append(f"{_called(curve.label)}: {block.y_title} {readings[0]}{more}.")
    return lines


def _pieces(block: blocks.Pieces, terminal: Terminal) -> list[str]:
    return [f"{plural(len(block.pieces), 'token')}: {', '.join(map(_token, block.pieces))}."]


_SENTENCES: dict[type[Any], Callable[[Any, Terminal], list[str]]] = {
    blocks.Line: _line,
    blocks.Heading: _heading,
    blocks.Table: _table,
    blocks.Values: _values,
    blocks.Heat: _heat,
    blocks.Grid: _grid,
    blocks.Bars: _bars,
    blocks.RowBars: _row_bars,
    blocks.Links: _links,
    blocks.Thumbnails: _thumbnails,
    blocks.Miniatures: _miniatures,
    blocks.Fan: _fan,
    blocks.Beside: _beside,
    blocks.Scale: lambda block, terminal: [],
    blocks.Curves: _curves,
    blocks.Pieces: _pieces,
}


def sentences(block: Block, terminal: Terminal) -> list[str]:
    """One block as lines of plain text."""
    return [shown(_spoken(line), terminal) for line in _SENTENCES[type(block)](block, terminal)]


_PRODUCT = re.compile(r"(?<=[\])\u0302]) · (?=\d|gain|W[_₁₂])")
"""The dot of a product, as in E[ids] · 11.3, x̂ · gain and n (3, 128) · W_Q; any other dot separates two items."""

_DOT = re.compile(r"(?<= (?:of|at|is) )·(?= )")
"""A token that is a dot, as in the logit of ·, rather than a dot between two items."""


def _spoken(line: str) -> str:
    line = _DOT.sub(_PRIVATE["·"], line.replace("← →", "arrow keys"))
    line = _PRODUCT.sub(" times ", line).replace(" · ", ", ").replace("│", ", ")
    for sign, word in _SPOKEN.items():
        line = line.replace(f" {sign} ", f" {word} ")
    return line.translate({ord(private): sign for sign, private in _PRIVATE.items()})
