"""Curves, meters and bars: what is drawn is what they were given."""

import itertools
import re

import numpy as np
import pytest
from driving import without_colour
from rich.cells import cell_len

from tinytf_cli.paint.painter import paint
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Column, Curve, Curves, Histogram, Meter, Table


def straight(label: str = "up", points: bool = False) -> Curve:
    x = np.arange(1, 101)
    return Curve(label, x, x / 100.0, "q", points)


def plot(block: Curves, terminal: Terminal) -> list[str]:
    """What is within the axes."""
    lines = [without_colour(text) for text in paint([block], terminal)]
    return [re.split("[│┤|+]", text, maxsplit=1)[1] for text in lines[1 : 1 + block.height]]


def braille_dots(rows: list[str]) -> list[tuple[int, int]]:
    """(column, row from the bottom) of every dot, decoded by the Unicode chart rather than by the painter."""
    places = {0: (0, 0), 1: (0, 1), 2: (0, 2), 3: (1, 0), 4: (1, 1), 5: (1, 2), 6: (0, 3), 7: (1, 3)}
    found = []
    for r, row in enumerate(rows):
        for c, sign in enumerate(row):
            if "⠀" <= sign <= "⣿":
                bits = ord(sign) - 0x2800
                found += [(2 * c + x, 4 * (len(rows) - r) - 1 - y) for b, (x, y) in places.items() if bits >> b & 1]
    return sorted(found)


def test_a_straight_line_rises_through_the_dots() -> None:
    dots = braille_dots(plot(Curves([straight()], "step", "loss", 10), Terminal(60)))
    columns, rows = zip(*dots, strict=True)
    assert (rows[0], rows[-1]) == (0, 39)
    assert list(rows) == sorted(rows)
    assert set(columns) == set(range(max(columns) + 1))
    ideal = np.array(columns) / max(columns) * 39
    assert np.abs(np.array(rows) - ideal).max() <= 1.5


def test_a_straight_line_rises_through_the_cells_of_7_bits() -> None:
    rows = plot(Curves([straight()], "step", "loss", 10), Terminal(60, ascii=True))
    places = [(row.index("*"), row.rindex("*")) for row in rows[::-1]]
    assert places == sorted(places)
    assert places[0][0] == 0
    assert all(after[0] - before[1] <= 1 for before, after in itertools.pairwise(places))


def test_few_points_are_joined_and_points_are_not() -> None:
    ends = Curve("ends", np.array([0, 100]), np.array([0.0, 1.0]), "q")
    joined = "".join(plot(Curves([ends], "step", "loss", 8), Terminal(50, ascii=True)))
    assert joined.count("*") >= 35
    alone = "".join(plot(Curves([Curve("ends", ends.x, ends.y, "q", points=True)], "step", "loss", 8), Terminal(50)))
    assert alone.count("•") == 2 + 1  # and one beside its name


def test_a_steep_fall_leaves_no_hole() -> None:
    fall = Curve("fall", np.arange(100), np.where(np.arange(100) < 50, 1.0, 0.0), "q")
    rows = plot(Curves([fall], "step", "loss", 12), Terminal(60, ascii=True))
    assert all("*" in row for row in rows)


def test_numbers_of_the_axes_are_where_their_values_are() -> None:
    lines = list(paint([Curves([straight()], "step", "loss", 16)], Terminal(70, ascii=True)))
    for text in lines[1:17]:
        label, _, cells = text.partition("+")
        if label.strip() and "*" in cells:
            along = (cells.index("*") + cells.rindex("*")) / 2 / (len(lines[17].split("+", 1)[1]) - 1)
            assert along == pytest.approx(float(label), abs=0.06)
    foot, beneath = lines[17], lines[18]
    for match in re.finditer(r"[\d,]+", beneath):
        tick = (match.start() + match.end() - 1) / 2
        start = foot.index("+") + 1
        assert (tick - start) / (len(foot) - 1 - start) == pytest.approx((int(match[0]) - 1) / 99, abs=0.05)


@pytest.mark.parametrize(
    "y",
    [[], [np.nan] * 3, [1.0], [2.0, 2.0], [np.inf, 1.0, -np.inf], [0.0, 0.0], [1e-9, 2e-9], [-1e12, 1e12], [5, 1e300]],
)
@pytest.mark.parametrize("width", [20, 80])
def test_any_numbers_can_be_drawn(y: list[float], width: int) -> None:
    curve = Curve("odd", np.arange(len(y)), np.array(y, dtype=np.float64), "q")
    for terminal in (Terminal(width, cuts=True), Terminal(width, "truecolor", cuts=True), Terminal(width, ascii=True)):
        lines = [without_colour(text) for text in paint([Curves([curve], "step", "loss")], terminal)]
        assert lines
        assert all(cell_len(text) <= width for text in lines)
    assert all("nan" not in text for text in paint([Curves([curve], "step", "loss")], Terminal(plain=True)))


def test_two_curves_are_told_apart_with_colour_and_without() -> None:
    down = Curve("down", np.arange(1, 101), 1 - np.arange(1, 101) / 100, "k")
    block = Curves([straight(), down], "step", "loss", 10)
    for terminal in (Terminal(60), Terminal(60, ascii=True)):
        drawn = "\n".join(plot(block, terminal))
        assert min(drawn.count("*"), drawn.count("o")) > 20
    coloured = list(paint([block], Terminal(60, "truecolor")))
    assert all(any(colour in text for text in coloured) for colour in ("38;2;90;162;255", "38;2;240;144;60"))
    assert list(paint([block], Terminal(plain=True))) == [
        "up: loss 0.01 at step 1, 1 at step 100, lowest 0.01 at step 1.",
        "down: loss 0.99 at step 1, 0 at step 100, lowest 0 at step 100.",
    ]


@pytest.mark.parametrize("terminal", [Terminal(60), Terminal(60, ascii=True), Terminal(60, "truecolor")])
def test_each_curve_has_its_name_at_its_right_end(terminal: Terminal) -> None:
    down = Curve("down", np.arange(1, 101), 1 - np.arange(1, 101) / 100, "k")
    rows = plot(Curves([straight(), down], "step", "loss", 10), terminal)
    assert rows[0].endswith(" up")
    assert rows[-1].endswith(" down")
    if not terminal.coloured:
        assert rows[0].endswith("* up")
        assert rows[-1].endswith("o down")


def test_curves_that_end_in_one_place_have_their_names_under_each_other() -> None:
    rows = plot(Curves([straight("one"), straight("two"), straight("three")], "step", "loss", 8), Terminal(60))
    assert [row.split()[-1] for row in rows[:3]] == ["one", "two", "three"]


def test_names_that_have_no_room_are_in_a_legend() -> None:
    name = "a name as long as the chart is wide"
    lines = list(paint([Curves([straight(name), straight("up")], "step", "loss", 8)], Terminal(60)))
    assert lines[-1].strip() == f"* {name}   o up"


def test_meters_and_bars_have_a_fixed_scale() -> None:
    table = Table(
        [Column("a", [Meter(0.5, "0.50"), Meter(1.0, "1.00")]), Column("b", [Histogram((0, 50, 100), 200)] * 2)]
    )
    assert [text.split() for text in paint([table], Terminal(60))][1:] == [
        ["0.50", "████", "▂▄"], ["1.00", "████████", "▂▄"],
    ]  # fmt: skip
    assert list(paint([table], Terminal(60, plain=True))) == ["a 0.50.", "a 1.00."]
