"""A graph as an SVG picture: nodes in rows, edges weighted by width and colour, in the theme of the terminal."""

from collections.abc import Iterator
from html import escape

import numpy as np
from rich.style import Style

from tinytf.text.printable import printable
from tinytf_cli.numbers import number
from tinytf_cli.paint.colour import BACKGROUNDS, FOREGROUNDS, accents, cell_style, level
from tinytf_cli.picture import FONTS
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import ABOVE, BELOW, Drawing

_WIDE, _HIGH, _GAP, _ROW = 74, 34, 18, 92
"""Pixels: width and height of a node, the gap beside it, and from a row to the next."""
_LEFT, _TOP, _LEAST = 74, 104, 860
_THICK, _THIN = 7.0, 0.7
_PORTS = {"q": -0.3, "k": 0.0, "v": 0.3}
"""Where below a head the edges to its queries, keys and values arrive, in widths of a node."""
_NAMED = 0.05
"""The share of the largest value from which on an edge's port is named."""


def graph_svg(drawing: Drawing, terminal: Terminal, about: str = "") -> str:
    """The drawing as a document; rows go up, and the edges with the largest values are on top.

    ``about`` is its title and alternative text, as ``described`` makes them.
    """
    rows = max(node.row for node in drawing.nodes) + 1
    counts = [sum(node.row == row for node in drawing.nodes) for row in range(rows)]
    width = max(_LEAST, _LEFT + max(counts) * (_WIDE + _GAP) + _GAP)
    height = _TOP + rows * _ROW
    ground, text = BACKGROUNDS[terminal.theme], FOREGROUNDS[terminal.theme]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'font-family=\'{FONTS}\' font-size="13" fill="{text}">\n{about}'
    )
    back = f'<rect width="100%" height="100%" rx="8" fill="{ground}"/>'
    shapes = _shapes(drawing, terminal, width, rows, counts)
    return "\n".join((head, back, *_words(drawing, terminal, width), *shapes, "</svg>\n"))


def _words(drawing: Drawing, terminal: Terminal, width: int) -> Iterator[str]:
    """The title over the picture, cut into lines, and the key below it."""
    most, lines = (width - 40) // 8, [""]
    for word in printable(drawing.title, spaces=False).split():
        if lines[-1] and len(lines[-1]) + len(word) >= most:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    for number_of_line, line in enumerate(lines[:2]):
        yield f'<text x="20" y="{28 + 19 * number_of_line}" font-weight="bold">{escape(line)}</text>'
    colours = accents(terminal.theme)
    yield f'<text x="20" y="72" font-size="12" fill="{colours["dim"]}">{escape(drawing.key)}</text>'


def _shapes(drawing: Drawing, terminal: Terminal, width: int, rows: int, counts: list[int]) -> Iterator[str]:
    colours = accents(terminal.theme)
    at: dict[str, tuple[float, float]] = {}
    for row, (label, count) in enumerate(zip(drawing.rows, counts, strict=True)):
        y = _TOP + (rows - 1 - row) * _ROW + _HIGH / 2
        first = _LEFT + (width - _LEFT - count * (_WIDE + _GAP)) / 2 + (_WIDE + _GAP) / 2
        yield f'<text x="20" y="{y + 4:.0f}" fill="{colours["dim"]}">{escape(label)}</text>'
        for place, node in enumerate(node for node in drawing.nodes if node.row == row):
            at[node.name] = first + place * (_WIDE + _GAP), y
    full = max((abs(edge.value) for edge in drawing.edges), default=0.0) or 1.0
    for edge in sorted(drawing.edges, key=lambda edge: abs(edge.value)):
        (x1, y1), (x2, y2) = at[edge.source], at[edge.target]
        (start, end), share = (y1 - _HIGH / 2, y2 + _HIGH / 2), abs(edge.value) / full
        bend, x2 = max(_ROW / 3, (start - end) / 2), x2 + _PORTS.get(edge.port, 0.0) * _WIDE
        # within a row an edge arrives from above: a feed-forward reads the heads of its own layer
        path = (
            f"M{x1:.1f} {start:.1f} C{x1:.1f} {start - bend:.1f} {x2:.1f} {end + bend:.1f} {x2:.1f} {end:.1f}"
            if y1 != y2
            else f"M{x1:.1f} {start:.1f} C{x1:.1f} {start - bend:.1f} {x2:.1f} {start - bend:.1f} {x2:.1f} {start:.1f}"
        )
        colour = colours[BELOW if edge.value < 0 else ABOVE]
        about = f"{edge.source} to {edge.target} {edge.port}".rstrip() + f": {number(edge.value, '%+.3f')}"
        yield (
            f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{_THIN + (_THICK - _THIN) * share:.2f}" '
            f'stroke-opacity="{0.25 + 0.7 * share:.2f}"><title>{escape(about)}</title></path>'
        )
    named = {(edge.target, edge.port) for edge in drawing.edges if edge.port and abs(edge.value) >= _NAMED * full}
    for target, port in sorted(named):
        x, y = at[target][0] + _PORTS[port] * _WIDE, at[target][1] + _HIGH / 2 + 12
        yield f'<text x="{x + 4:.1f}" y="{y:.1f}" font-size="10" fill="{colours[port]}">{port}</text>'
    limit = max((abs(node.value) for node in drawing.nodes if node.value is not None), default=0.0) or 1.0
    for node in drawing.nodes:
        x, y = at[node.name]
        value = 0.0 if node.value is None else node.value
        style = cell_style("signed", int(level(np.array([value], dtype=np.float32), "signed", limit)[0]), terminal)
        back, fore = _hex(style)
        yield (
            f'<g><title>{escape(node.name)}</title><rect x="{x - _WIDE / 2:.1f}" y="{y - _HIGH / 2:.1f}" '
            f'width="{_WIDE}" height="{_HIGH}" rx="6" fill="{back}" stroke="{colours["dim"]}" stroke-width="0.8"/>'
        )
        shown = "" if node.value is None else number(value, "%+.2f")
        for words, size, offset in ((node.name, 12, -2 if shown else 4), (shown, 11, 12)):
            yield (
                f'<text x="{x:.1f}" y="{y + offset:.1f}" text-anchor="middle" font-size="{size}" '
                f'fill="{fore}">{escape(words)}</text>'
            )
        yield "</g>"


def _hex(style: Style) -> tuple[str, str]:
    assert style.bgcolor is not None
    assert style.color is not None
    return style.bgcolor.get_truecolor().hex, style.color.get_truecolor().hex
