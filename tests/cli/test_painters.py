"""What is painted is what the numbers say: colours, shades, bars, pooled maps, digits."""

import itertools
import math
import re

import numpy as np
import pytest
from driving import without_colour
from rich.cells import cell_len
from rich.color import Color
from rich.text import Text

from tinytf_cli.numbers import number, number_format
from tinytf_cli.paint.heat import pool
from tinytf_cli.paint.painter import paint
from tinytf_cli.paint.tables import bar, histogram
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import (
    Bar,
    Bars,
    Block,
    Column,
    Curve,
    Curves,
    Fan,
    Figure,
    Grid,
    Heat,
    Histogram,
    Line,
    Links,
    Meter,
    Miniature,
    Miniatures,
    Pieces,
    RowBars,
    Signed,
    Span,
    Table,
    Thumbnails,
    Values,
)
from tinytf_cli.views.parts import numbered

TRUE = Terminal(100, "truecolor")
BARE = Terminal(100)
ASCII = Terminal(100, ascii=True)

# Viridis at 0, 1/8 … 1, as matplotlib has it, and the scale of signed values, written down here once more.
VIRIDIS = ["440154", "472d7b", "3b528b", "2c728e", "21918c", "28ae80", "5ec962", "addc30", "fde725"]


def drawn(block: Block, terminal: Terminal) -> list[str]:
    return list(paint([block], terminal))


def cells(line: str) -> list[tuple[str, Color | None, Color | None]]:
    """Every character of a line with the colours in front and behind it, as a terminal would show them."""
    text = Text.from_ansi(line)
    found = []
    for place, char in enumerate(text.plain):
        front = back = None
        for span in text.spans:
            if span.start <= place < span.end and not isinstance(span.style, str):
                front = span.style.color or front
                back = span.style.bgcolor or back
        found.append((char, front, back))
    return found


def rgb(colour: Color | None) -> tuple[int, int, int] | None:
    if colour is None or colour.is_default:
        return None
    assert colour.triplet is not None
    return tuple(colour.triplet)


def near(colour: tuple[int, int, int] | None, wanted: str) -> bool:
    """Within half a level of the 256 on the way from one anchor to the next."""
    assert colour is not None
    return max(abs(c - int(wanted[i : i + 2], 16)) for c, i in zip(colour, (0, 2, 4), strict=True)) <= 3


def test_a_heat_cell_has_the_colour_of_its_value_in_viridis() -> None:
    values = np.linspace(0, 1, 9, dtype=np.float32)[None]
    line = drawn(Heat(values, ["q"], [str(i) for i in range(9)], "unit"), TRUE)[1]
    backs = [back for char, _, back in cells(line) if char == "."]
    assert len(backs) == 9
    for back, wanted in zip(backs, VIRIDIS, strict=True):
        assert near(rgb(back), wanted), wanted


def test_a_signed_cell_is_dark_at_zero_and_blue_below_and_orange_above() -> None:
    values = np.array([[-2, -0.01, 0, 0.01, 2]], dtype=np.float32)
    line = drawn(Heat(values, ["q"], list("abcde"), "signed", None, 2.0), TRUE)[1]
    low, almost, zero, _, high = (rgb(back) or (0, 0, 0) for char, _, back in cells(line) if char == ".")
    assert max(zero) < 64
    assert max(almost) < 64
    assert low[2] > low[0] + 50
    assert high[0] > high[2] + 50


def test_the_numbers_of_a_heat_map_can_be_read_on_their_colour() -> None:
    values = np.linspace(0, 1, 30, dtype=np.float32)[None]
    block = Heat(values, ["q"], [str(i) for i in range(30)], "unit", asked=True)
    for char, front, back in cells(drawn(block, Terminal(1000, "truecolor"))[1]):
        if char == ".":
            light, dark = sorted((_luminance(rgb(front)), _luminance(rgb(back))), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5


def _luminance(colour: tuple[int, int, int] | None) -> float:
    """Relative luminance (WCAG 2)."""
    assert colour is not None
    parts = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def test_values_beyond_a_scale_take_its_ends_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    values = np.array([[np.inf, -np.inf, np.nan, 7, -7, 70000]], dtype=np.float32)
    for terminal in (TRUE, BARE, ASCII):
        for scale in ("unit", "signed"):
            lines = drawn(Heat(values, ["q"], list("abcdef"), scale, None, 0.5), terminal)
            assert "inf" in lines[1]
            assert "nan" in lines[1]
            drawn(Values(["q"], values, 3, "q", list("abcdef")), terminal)
            drawn(Bars([Bar("a", float(v), "x") for v in values[0]]), terminal)
    assert [str(warning.message) for warning in recwarn] == []


def test_a_masked_cell_is_a_dot_without_colour() -> None:
    values = np.array([[0.7, 0.0], [0.4, 0.6]], dtype=np.float32)
    seen = np.array([[True, False], [True, True]])
    lines = drawn(Heat(values, ["a", "b"], ["a", "b"], "unit", seen), TRUE)
    assert "0.000" not in without_colour(lines[1])
    (dot,) = [back for char, _, back in cells(lines[1]) if char == "·"]
    assert rgb(dot) is None
    assert "· masked" in without_colour(lines[-1])


@pytest.mark.parametrize("terminal", [BARE, ASCII])
def test_shades_grow_with_the_value(terminal: Terminal) -> None:
    signs = " :-=+*#%@" if terminal.ascii else " ░▒▓█"
    values = np.linspace(0, 1, 21, dtype=np.float32)
    places = []
    for value in values:
        line = drawn(Heat(np.array([[value]], dtype=np.float32), ["q"], ["k"], "unit"), terminal)[1]
        after = line.split(f"{value:.3f}")[1]
        places.append(signs.index(after[0] if after else " "))
    assert places == sorted(places)
    assert (places[0], places[-1]) == (0, len(signs) - 1)
    assert set(places) == set(range(len(signs)))


# Thumbnails.


def _maps(size: int, heads: int = 2, layers: int = 2) -> tuple[list[np.ndarray], np.ndarray]:
    random = np.random.default_rng(0)
    seen = np.tril(np.ones((size, size), dtype=bool))
    raw = [np.where(seen, random.random((heads, size, size)), 0).astype(np.float32) for _ in range(layers)]
    return raw, seen


def _decoded(lines: list[str], heads: int, side: int) -> list[list[list[list[tuple[int, int, int] | None]]]]:
    """[layer][head][row][column] of what half blocks show."""
    layers: list[list[list[list[tuple[int, int, int] | None]]]] = []
    for line in lines:
        found = cells(line)
        label = "".join(char for char, _, _ in found[:5]).strip()
        if label.startswith("L"):
            layers.append([[] for _ in range(heads)])
        found = found[5:] + [(" ", None, None)] * (heads * (side + 1))
        for head in range(heads):
            upper: list[tuple[int, int, int] | None] = []
            lower: list[tuple[int, int, int] | None] = []
            for char, front, back in found[head * (side + 1) : head * (side + 1) + side]:
                assert char in "▀▄ "
                if char == "▀":
                    upper.append(rgb(front))
                    lower.append(rgb(back))
                else:
                    upper.append(None)
                    lower.append(rgb(front) if char == "▄" else None)
            layers[-1][head] += [upper, lower]
    return layers


@pytest.mark.parametrize("size", [1, 2, 3, 6, 7])
@pytest.mark.parametrize("masked", [True, False])
def test_a_thumbnail_has_the_right_colour_in_every_cell_and_nothing_where_it_is_masked(size: int, masked: bool) -> None:
    maps, seen = _maps(size)
    lines = drawn(Thumbnails(maps, [seen if masked else None] * len(maps)), TRUE)
    pictures = _decoded(lines[1:-1], 2, size)
    assert len(pictures) == 2
    for layer, head in itertools.product(range(2), range(2)):
        picture = pictures[layer][head]
        for row, column in itertools.product(range(size), range(size)):
            colour = picture[row][column]
            if masked and not seen[row, column]:
                assert colour is None
            else:
                assert colour is not None
                level = int(maps[layer][head, row, column] * 255 + 0.5)
                assert colour == _viridis(level)
        assert all(colour is None for row in picture[size:] for colour in row)


def _viridis(level: int) -> tuple[int, int, int]:
    place = level / 255 * (len(VIRIDIS) - 1)
    low = min(int(place), len(VIRIDIS) - 2)
    share = place - low
    first, second = ([int(VIRIDIS[low + d][i : i + 2], 16) for i in (0, 2, 4)] for d in (0, 1))
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(first, second, strict=True))
    return red, green, blue


def test_a_thumbnail_that_is_too_large_is_pooled_and_says_by_how_much() -> None:
    size = 100
    quiet = np.zeros((1, size, size), dtype=np.float32)
    quiet[0, 57, 13] = 1.0  # one strong weight among nothing must not drown
    lines = drawn(Thumbnails([quiet], [None]), Terminal(80, "truecolor"))
    said = without_colour(lines[-2])  # the last line is the scale
    factor = int(said.split("the largest of ")[1].split()[0])
    side = -(-size // factor)
    picture = _decoded(lines[1:-2], 1, side)[0][0]
    bright = [(r, c) for r, row in enumerate(picture) for c, colour in enumerate(row) if colour == _viridis(255)]
    assert bright == [(57 // factor, 13 // factor)]


def test_without_colour_a_thumbnail_is_dark_where_a_weight_is_large_blank_at_0_and_a_point_where_masked() -> None:
    size = 4
    weights = np.eye(size, dtype=np.float32)[None]
    seen = np.tril(np.ones((size, size), dtype=bool))
    for terminal, full, masked in ((BARE, "█", "·"), (ASCII, "@", ".")):
        *lines, legend = drawn(Thumbnails([np.stack([weights[0]] * 2)], [seen]), terminal)[1:]
        rows = [" " * r + full + masked * (size - 1 - r) for r in range(size)]
        assert [line[5:] for line in lines] == [f"{row} {row}" for row in rows]
        assert f"{masked} masked" in legend


@pytest.mark.parametrize(("factor", "across"), [(1, 1), (2, 2), (3, 3), (5, 5), (8, 8), (1, 3), (4, 1), (3, 2)])
def test_pooling_keeps_the_strongest_value_with_its_sign(factor: int, across: int) -> None:
    random = np.random.default_rng(factor)
    values = random.normal(size=(7, 11)).astype(np.float32)
    seen = random.random((7, 11)) < 0.6
    small, visible = pool(values, seen, factor, across)
    assert visible is not None
    for r, c in itertools.product(range(small.shape[0]), range(small.shape[1])):
        square = np.s_[r * factor : (r + 1) * factor, c * across : (c + 1) * across]
        shown = values[square][seen[square]]
        assert visible[r, c] == bool(shown.size)
        if shown.size:
            assert small[r, c] == shown[np.abs(shown).argmax()]


def test_a_tall_map_is_pooled_down_to_what_a_screen_is_wide() -> None:
    lines = drawn(Heat(np.zeros((2000, 60), dtype=np.float32), ["a"] * 2000, ["a"] * 60, "signed"), BARE)
    assert len(lines) <= BARE.width // 2
    assert any("each cell shows the largest of" in line for line in lines)


def test_a_pooled_map_says_by_how_much_and_whose_rows() -> None:
    size = 200
    block = Heat(np.zeros((size, size), dtype=np.float32), ["a"] * size, ["a"] * size, "unit")
    lines = drawn(block, Terminal(80, "none", cuts=True))
    factor = int(next(line for line in lines if "largest of" in line).split("largest of ")[1].split()[0])
    labels = [line.split()[0] for line in lines if line.lstrip()[:1].isdigit() and "–" in line]
    assert labels[0] == f"0–{factor - 1}"
    assert labels[-1].endswith(f"–{size - 1}")
    assert len(labels) == -(-size // factor)


# Bars and digits.


def test_a_histogram_has_a_bar_for_each_count_and_none_for_nothing() -> None:
    assert histogram([0, 1, 2, 4, 8], BARE) == " ▁▂▄█"
    assert histogram([0, 1, 8], ASCII) == " .%"
    assert histogram([0, 0], BARE) == "  "
    assert histogram([1, 1_000_000], BARE) == "▁█"


@pytest.mark.parametrize(
    ("share", "wanted"),
    [(0, ""), (1, "████"), (0.5, "██"), (0.125, "▌"), (1 / 32, "▏"), (1e-9, "▏"), (-1, ""), (2, "███▶"),
     (float("nan"), ""), (float("inf"), "███▶"), (1 + 1e-9, "████")],
)  # fmt: skip
def test_a_bar_is_as_long_as_its_share_in_eighths(share: float, wanted: str) -> None:
    assert bar(share, 4, BARE) == wanted


def test_bars_stand_under_each_other_whatever_their_labels() -> None:
    bars = Bars([Bar("猫", 0.5, "0.500"), Bar("cat", 1.0, "1.000"), Bar("e\u0301", 0.25, "0.250")])
    ends = {cell_len(line[: line.index(".500") + 4 if ".500" in line else line.index("0 ") + 1])
            for line in drawn(bars, BARE)}  # fmt: skip
    assert len(ends) == 1


@pytest.mark.parametrize(
    ("value", "form", "wanted"),
    [
        (0.0, "%.3f", "0.000"),
        (-0.0, "%.3f", "0.000"),
        (-0.0004, "%.3f", "0.000"),
        (-0.0005001, "%.3f", "-0.001"),
        (-0.0, "%.2e", "0.00e+00"),
        (float("nan"), "%.3f", "nan"),
        (float("inf"), "%.3f", "inf"),
        (float("-inf"), "%.3f", "-inf"),
        (1.5, "", "1.500"),
        (12.25, "", "12.25"),
        (123.4, "", "123.4"),
        (1234.0, "", "1234"),
        (250000.0, "", "2.50e+05"),
        (0.0001, "", "1.00e-04"),
        (-0.5, "", "-0.500"),
    ],
)
def test_a_number_has_no_minus_zero_and_names_what_is_no_number(value: float, form: str, wanted: str) -> None:
    assert number(value, form) == wanted


def test_the_digits_follow_the_largest_finite_magnitude() -> None:
    def form(*values: float) -> str:
        return number_format(np.array(values, dtype=np.float32))

    assert form(0.1, -0.9) == "%.3f"
    assert form(0.1, -9.9) == "%.3f"
    assert form(0.1, -99) == "%.2f"
    assert form(0.1, 999) == "%.1f"
    assert form(0.1, 9999) == "%.0f"
    assert form(0.1, 1e6) == "%.2e"
    assert form(1e-5) == "%.2e"
    assert form(0.1, np.inf, np.nan) == "%.3f"
    assert form() == "%.3f"
    assert form(np.nan) == "%.3f"


# Bars on both sides of zero.


def sides(line: str, terminal: Terminal) -> tuple[int, int]:
    """How much is drawn left and right of the axis, in halves of a cell."""
    axis, full, half = ("|", "#", "") if terminal.ascii else ("│", "█", "▌▐")
    left, right = without_colour(line).split(axis)
    return tuple(2 * side.count(full) + sum(map(side.count, half)) for side in (left, right))  # type: ignore[return-value]


@pytest.mark.parametrize("terminal", [BARE, ASCII, TRUE], ids=["none", "ascii", "colour"])
def test_a_negative_bar_goes_left_of_the_axis_and_a_positive_one_right(terminal: Terminal) -> None:
    values = [-2.0, -1.0, 0.0, 0.5, 1.0, 2.0]
    lines = drawn(Table([Column("adds", [Signed(value, 2.0, "%+.1f") for value in values])]), terminal)
    assert "adds" in lines[0]
    assert ("±2" in lines[0]) or ("+-2" in lines[0])
    axes = {without_colour(line).index("|" if terminal.ascii else "│") for line in lines[1:]}
    assert len(axes) == 1
    wanted = [(16, 0), (8, 0), (0, 0), (0, 4), (0, 8), (0, 16)]  # a whole bar is eight cells
    assert [sides(line, terminal) for line in lines[1:]] == wanted


@pytest.mark.parametrize("terminal", [BARE, ASCII, TRUE], ids=["none", "ascii", "colour"])
def test_signed_bars_have_their_scale_above_them(terminal: Terminal) -> None:
    bars = Bars([Bar("a", -1.0, "-1"), Bar("b", 4.0, "+4")], 4.0, signed=True)
    scale, *lines = [without_colour(line) for line in drawn(bars, terminal)]
    assert scale.split() == ["-4.000", "0", "4.000"]
    axis = lines[0].index("|" if terminal.ascii else "│")
    assert scale.index(" 0 ") + 1 == axis
    (left, none), (nothing, right) = (sides(line.partition("  ")[2], terminal) for line in lines)
    assert (none, nothing) == (0, 0)
    assert right == 2 * (len(scale) - axis - 1)
    assert abs(left - right / 4) <= 0.5


def test_without_a_negative_number_the_whole_width_is_for_the_others() -> None:
    (line,) = drawn(Table([Column("", [Signed(1.0, 2.0, "%.1f")])], header=False), BARE)
    assert line.split() == ["1.0", "│████"]


def test_in_sentences_a_signed_bar_is_its_number() -> None:
    said = Terminal(100, plain=True)
    assert drawn(Table([Column("adds", [Signed(-1.5, 2.0, "%+.1f")])]), said) == ["adds -1.5."]
    assert drawn(Bars([Bar("a", -1.0, Figure(-1.0, "%+.2f"))], 4.0, signed=True), said) == ["a: -1.00."]


@pytest.mark.parametrize("readers", [(), (1,), (0, 1, 2, 3)])
def test_in_sentences_a_map_is_where_its_readers_look(readers: tuple[int, ...]) -> None:
    said, names, generator = Terminal(100, plain=True), ["a", "b", "c", "a"], np.random.default_rng(0)
    maps = np.tril(generator.random((6, 4, 4), dtype=np.float32))
    maps /= maps.sum(axis=2, keepdims=True)
    seen = np.tril(np.ones((4, 4), dtype=bool))
    small = [Miniature(f"H{head}", "", weights, seen, names, readers) for head, weights in enumerate(maps)]
    drawings: list[Block] = [
        Thumbnails([maps], [seen], names=names, readers=readers),
        Miniatures(small, 20, "heads", 6, "all", ""),
        Fan(small, "weights", (), (), "", "", ""),
    ]
    for drawing in drawings:
        lines = [line for line in drawn(drawing, said) if "look" in line]
        assert len({line.partition(": ")[2] for line in lines}) == len(lines) == 6  # nothing true of each causal map
        for line, weights in zip(lines, maps, strict=True):
            mean = weights[list(readers or (3,))].mean(axis=0)
            best = int(mean.argmax())
            label = f"{names[best]} at {best}" if names[best] == "a" else names[best]
            assert f" at {label} {mean[best]:.2f}" in line


def test_in_sentences_each_row_is_named_and_a_mark_is_told_from_its_sentence() -> None:
    said = Terminal(100, plain=True)
    assert drawn(Values([""], np.ones((1, 2)), 2, "q", ["d8", "d9"]), said) == ["values: d8 1.000, d9 1.000."]
    hidden = np.array([[True, False, False]])
    assert drawn(Heat(np.ones((1, 3)), [""], ["a", "b", "c"], "unit", hidden), said) == ["values: a 1.000, 2 masked."]
    assert drawn(Bars([Bar(":", 0.5, "0.5"), Bar("a     head", 0.5, "0.5")], 1.0), said) == [
        '":": 0.5.',
        "a head: 0.5.",
    ]
    assert drawn(Line("the logit of · at 2 · 3 tokens"), said) == ["the logit of · at 2, 3 tokens"]
    assert drawn(Line("The logit of · is 2 × 3.", first=True), said) == ["The logit of · is 2 × 3."]


def test_what_is_no_number_has_no_bar_or_a_whole_one() -> None:
    cells = [Signed(float(value), 1.0, "%.1f") for value in ("nan", "inf", "-inf")]
    lines = drawn(Table([Column("", cells)], header=False), BARE)
    assert (lines[1].split()[-1][-1], lines[2].split()[-1][0]) == ("▶", "◀")  # it goes on
    assert [sides(line, BARE) for line in lines] == [(0, 0), (0, 14), (14, 0)]


def test_numbers_in_sentences_and_grids_have_the_digits_asked_for() -> None:
    exact = Terminal(100, digits=5)
    assert drawn(Line(["p is ", Figure(0.25, "%.2f"), "."]), exact) == ["p is 0.25000."]
    assert drawn(Line(["p is ", Figure(0.25, "%.2f"), "."]), BARE) == ["p is 0.25."]
    grid = Grid([["cat"]], np.array([[0.25]]), ["L0"], ["1."], beside=[("KL", [Figure(1.5, "%.1f")])])
    assert drawn(grid, exact)[1].split() == ["L0", "1.50000", "cat", "0.25000"]


@pytest.mark.parametrize("keep", [[0, 3], [1], []])
def test_a_block_with_some_of_its_rows_has_the_cells_of_these_rows(keep: list[int]) -> None:
    table = Table([Column("a", list("wxyz"), narrow=list("WXYZ"))], rule_after=frozenset({3})).only(keep)
    assert list(table.columns[0].cells) == ["wxyz"[row] for row in keep]
    assert list(table.columns[0].narrow or []) == ["WXYZ"[row] for row in keep]
    assert table.rule_after == ({keep.index(3)} if 3 in keep else set())
    values = np.arange(8, dtype=np.float32).reshape(4, 2)
    heat = Heat(values, list("wxyz"), list("ab"), "unit", values > 3).only(keep)
    assert heat.values.tolist() == [values[row].tolist() for row in keep]
    assert heat.visible is not None
    assert heat.visible.tolist() == [[row > 1] * 2 for row in keep]
    words = [[name + "a", name + "b"] for name in "wxyz"]
    grid = Grid(words, values, list("wxyz"), list("ab"), beside=[("n", [Figure(row) for row in range(4)])]).only(keep)
    assert (grid.words, list(grid.row_labels)) == ([words[row] for row in keep], ["wxyz"[row] for row in keep])
    assert [figure.value for figure in grid.beside[0][1]] == keep


# Every block on a small screen, with the longest labels.

_TOKEN = "averylongtoken猫猫猫"
BLOCKS: dict[str, Block] = {
    "line": Line([Span("/a/very/long/path/without/any/space/" * 3), Span(" and words")]),
    "wide line": Line("猫 " * 60),
    "bars": Bars([Bar(f"{_TOKEN} → {_TOKEN}", 0.5, "0.500"), Bar("a", 1.0, "1.000")]),
    "row bars": RowBars([(_TOKEN, [(_TOKEN, 0.5), (_TOKEN, 0.25), ("a", 0.25)])] * 2),
    "links": Links([_TOKEN] * 30, [_TOKEN], [(index, 0, index / 29) for index in range(30)]),
    "values": Values([_TOKEN], np.linspace(-123456, 123456, 64, dtype=np.float32)[None], 8, "q", numbered("d", 64)),
    "heat": Heat(np.full((9, 9), -12345.678, dtype=np.float32), [_TOKEN] * 9, [_TOKEN] * 9, "signed",
                 np.tril(np.ones((9, 9), dtype=bool)), 12345.678),
    "pooled heat": Heat(np.zeros((200, 200), dtype=np.float32), [_TOKEN] * 200, [_TOKEN] * 200, "unit",
                        np.tril(np.ones((200, 200), dtype=bool))),
    "thumbnails": Thumbnails([np.zeros((40, 200, 200), dtype=np.float32)], [None]),
    "curves": Curves([Curve(_TOKEN * 9, np.arange(9), np.arange(9) * 1e5, "q")] * 9, _TOKEN, _TOKEN),
    "meters": Table([Column("title", [Meter(0.5, "0.50")] * 2)] * 2),
    "pieces": Pieces([_TOKEN, "a" * 300, "猫" * 100], ["even", "odd", "special"]),
    "table": Table([Column("title", [_TOKEN * 9]), Column("h", [Histogram((1, 2) * 40)])]),
}  # fmt: skip


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_every_block_fits_every_screen_with_the_longest_labels(name: str, width: int) -> None:
    for depth, seven_bits in itertools.product(("none", "truecolor"), (False, True)):
        screen = Terminal(width, depth, ascii=seven_bits, cuts=True)
        lines = [without_colour(line) for line in drawn(BLOCKS[name], screen)]
        assert [line for line in lines if cell_len(line) > width] == []


@pytest.mark.parametrize("scale", ["unit", "signed"])
@pytest.mark.parametrize("terminal", [BARE, ASCII, TRUE])
def test_what_is_no_number_is_drawn_in_a_map(scale: str, terminal: Terminal) -> None:
    values = np.array([[math.nan, math.inf, -math.inf, 1.0]], dtype=np.float32)
    said = without_colour(drawn(Heat(values, ["q"], list("abcd"), scale), terminal)[1])
    assert re.findall(r"nan|-?inf|1\.000", said) == ["nan", "inf", "-inf", "1.000"]


@pytest.mark.parametrize("terminal", [Terminal(80), Terminal(80, "truecolor", cuts=True), Terminal(30)])
def test_small_maps_from_one_text_to_another_have_a_line_for_each_query_and_no_more(terminal: Terminal) -> None:
    """Cross-attention has fewer or more queries than keys; in colour a line has two."""
    for queries, keys in itertools.product((1, 2, 5, 11), (1, 4, 14)):
        maps = np.full((2, queries, keys), 0.5, dtype=np.float32)
        lines = [without_colour(line) for line in paint([Thumbnails([maps], [None])], terminal)]
        drawn = [line for line in lines if line.strip() and "H0" not in line][:-1]  # without the legend
        assert not any("·" in line for line in drawn), (queries, keys)
        if not terminal.coloured:
            assert len([line for line in drawn if "▒" in line or "░" in line]) <= queries
