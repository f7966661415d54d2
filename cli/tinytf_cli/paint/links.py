"""Lines between two columns of tokens: braille dots, or in 7 bits characters, of one kind for each class of weight."""

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from tinytf.look.links import CLASSES, class_of
from tinytf_cli.paint.colour import level, ramp, role_style
from tinytf_cli.paint.curves import Axis, braille, dots
from tinytf_cli.paint.text import PaintedLine, pad_text, shown, wrap
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Curve, Links

_WIDEST, _LEAST = 40, 16
"""Columns of a line, at most and at least; between, three a row, so that neighbours' lines differ in slope."""
_TALL = 24
"""Rows up to which a token takes two."""
_LABEL = 16
"""Columns of the longest token that is not cut on a screen."""
_UNIT = Axis(0.0, 1.0, np.zeros(0), "")
_ASCII_SIGNS = "#+."
"""A sign for each class of weight, the strongest first."""
_FAINTEST = 0.3
"""The level of the weakest line on the colour map: nearer 0 it would look like the background."""


def paint_links(block: Links, terminal: Terminal) -> list[PaintedLine]:
    """The left tokens, lines to the right ones, and what each kind of line means; strong lines are drawn over weak."""
    count = max(len(block.left), len(block.right))
    height = 2 * count - 1 if 2 * count <= _TALL else count
    left, right = (_in_rows([shown(name, terminal) for name in names], height) for names in (block.left, block.right))
    longest = max(map(cell_len, (*left.values(), *right.values())))
    most = min(_LABEL, (terminal.width - _LEAST) // 2 - 2) if terminal.cuts else longest
    widths = [min(most, max(map(cell_len, names.values()))) for names in (left, right)]
    gap = min(max(_LEAST, min(_WIDEST, 3 * height)), max(_LEAST, terminal.width - sum(widths) - 4))
    cells = _drawn(block, [list(left), list(right)], gap, height, terminal)
    dim, lines = role_style("dim", terminal), list[PaintedLine]()
    sides = list(zip((left, right), widths, strict=True))
    lines.append([Segment("  " + pad_text("token", widths[0] + 1 + gap, terminal) + " looks at", dim)])
    for row in range(height):
        start, end = (pad_text(names.get(row, ""), width, terminal) for names, width in sides)
        lines.append([Segment(f"  {start} "), *cells[row], Segment(f" {end}")])
    return [*lines, *_legend(block, terminal)]


def _in_rows(names: list[str], height: int) -> dict[int, str]:
    """The row of each name: the shorter column is spread over the height of the other."""
    last = max(1, len(names) - 1)
    return {round(index * (height - 1) / last): name for index, name in enumerate(names)}


def _drawn(block: Links, rows: list[list[int]], gap: int, height: int, terminal: Terminal) -> list[PaintedLine]:
    fine = not terminal.ascii
    signs = np.full((height, gap), " ")
    shares = np.zeros((height, gap))
    for source, target, weight in sorted(block.links, key=lambda link: link[2]):
        ends = rows[0][source], rows[1][target]
        top, bottom = min(ends), max(ends)
        part = slice(top, bottom + 1)
        down = [1 - (4 * (end - top) + 1) / (4 * (bottom - top) + 3) for end in ends]  # the second of a row's four dots
        curve = Curve("", np.array([0.0, 1.0]), np.array(down), "")
        lit, kind = dots(curve, _UNIT, _UNIT, gap, bottom - top + 1, fine), class_of(weight)
        if fine and kind == 0:
            lit[1:] |= lit[:-1].copy()
        elif fine and kind == len(CLASSES) - 1:
            lit[:, np.arange(2 * gap) % 3 > 0] = False
        drawn = braille(lit) if fine else np.where(lit, _ASCII_SIGNS[kind], " ")
        signs[part] = np.where(drawn != " ", drawn, signs[part])
        shares[part] = np.where(drawn != " ", weight, shares[part])
    return [
        [Segment(sign, _style(share, terminal)) for sign, share in zip(*row, strict=True)]
        for row in zip(signs.tolist(), shares.tolist(), strict=True)
    ]


def _style(share: float, terminal: Terminal) -> Style | None:
    """The colour of a weight on the map of shares; never as dark as the background."""
    if not terminal.coloured or not share:
        return None
    (at,) = level(np.array([_FAINTEST + (1 - _FAINTEST) * share], dtype=np.float32), "unit", 1.0)
    return Style(color=ramp("unit", terminal)[at])


def _legend(block: Links, terminal: Terminal) -> list[PaintedLine]:
    dim, line = role_style("dim", terminal), list[Segment]()
    samples = [sign * 3 for sign in _ASCII_SIGNS] if terminal.ascii else ["⠶⠶⠶", "⠒⠒⠒", "⠂⠐ "]
    weakest = "less, a token's most" if block.strong else "5 % or more, or a token's most"
    words = ("half or more", "a fifth or more", weakest)
    for sample, least, meaning in zip(samples, CLASSES, words, strict=True):
        line += [Segment(f"  {sample} ", _style(least, terminal)), Segment(meaning, dim)]
    return wrap(line, terminal.width, 2)
