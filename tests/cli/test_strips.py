"""Strips: all values of a row in a few cells, which say how they pool and keep the sign in every mode."""

import numpy as np
import pytest
from driving import without_colour
from rich.console import Console
from rich.text import Text

from tinytf_cli.paint.colour import LEVELS, ramp
from tinytf_cli.paint.painter import paint
from tinytf_cli.terminal import DEPTHS, Terminal
from tinytf_cli.views.blocks import Array, Values
from tinytf_cli.views.parts import numbered

START = 6
"""The column of a strip after a label of one letter and no numbers."""
SIGNS = {"▼": -1, "▾": -1, " ": 0, "▴": 1, "▲": 1, "=": -1, "-": -1, "+": 1, "#": 1}


def pooled(values: Array, room: int) -> tuple[Array, int]:
    """The value furthest from 0 in each of at most ``room`` groups, and the size of a group."""
    size = next(size for size in range(1, 1000) if len(values) <= size * room)
    groups = [values[start : start + size] for start in range(0, len(values), size)]
    return np.array([max(group, key=abs) for group in groups]), size


def made(dims: int) -> Array:
    """Two rows, of which the second is larger."""
    return np.random.default_rng(dims).standard_normal((2, dims)).astype(np.float32) * np.array([[1], [3]], np.float32)


def signs_of(line: str, count: int, terminal: Terminal) -> list[int]:
    """The signs of the cells of a strip: by character, or by the half of the scale that the colour is in."""
    if not terminal.coloured:
        return [SIGNS[cell] for cell in line[START:].ljust(count)]
    painted, colours = Text.from_ansi(line), ramp("signed", terminal)
    signs = []
    for place in range(count):
        colour = painted.get_style_at_offset(Console(), START + place).bgcolor
        levels = [level for level in range(LEVELS) if colours[level].get_ansi_codes() == colour.get_ansi_codes()]
        signs.append(-1 if levels[-1] < LEVELS // 2 else 1 if levels[0] > LEVELS // 2 else 0)
    return signs


@pytest.mark.parametrize("depth", [*DEPTHS, "ascii"])
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(("width", "dims"), [(20, 128), (40, 5), (40, 100), (80, 64), (100, 511), (200, 128)])
def test_a_cell_has_the_sign_of_the_value_furthest_from_0(width: int, dims: int, several: bool, depth: str) -> None:
    values = made(dims)
    terminal = Terminal(width, "none" if depth == "ascii" else depth, ascii=depth == "ascii", cuts=True)
    title, *lines = paint([Values(["a", "b"], values, 0, "", numbered("d", dims), several)], terminal)
    for row, line in zip(values, lines, strict=False):
        expected, size = pooled(row, min(64, width - START - 1))
        limit = abs(row if several else values).max()
        found = signs_of(line, len(expected), terminal)
        assert all(sign == np.sign(value) or sign == 0 for sign, value in zip(found, expected, strict=True))
        assert all(found[place] for place in np.flatnonzero(abs(expected) > 0.25 * limit))
    said = " ".join(without_colour(line).strip() for line in (title, *lines[2:]))
    assert f"all {dims}" in said
    assert (f"the largest of every {size}" in said) == (size > 1)
    assert "each row on its own scale" in said if several else f"{abs(values).max():.3g}" in said


@pytest.mark.parametrize("ascii", [False, True])
def test_without_colour_a_pipe_shows_the_sign_and_no_solid_block(ascii: bool) -> None:
    values = np.array([[-2.0, -1.0, 0.0, 1.0, 2.0] * 2], dtype=np.float32)
    title, line, _ = paint([Values("a", values, 2, "", numbered("d", 10))], Terminal(60, ascii=ascii))
    signs = "=- +#" if ascii else "▼▾ ▴▲"
    assert line.endswith(signs * 2)
    assert title.endswith(signs)


def test_a_screen_reader_hears_the_ends_of_what_is_left_out() -> None:
    values = np.array([[0.5, -2.0, 1.0, 3.25]], dtype=np.float32)
    assert list(paint([Values(["a"], values, 1, "", numbered("d", 4))], Terminal(plain=True))) == [
        "a: d0 0.500, and 3 more, all from -2.000 at d1 to 3.250 at d3."
    ]
