"""One place decides the colours; where there are none, no escape code appears at all."""

import io
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from driving import SENTENCE, Stream, Tinytf
from rich.color import Color
from rich.style import Style

from tinytf_cli.paint.colour import BACKGROUNDS, FOREGROUNDS, LEVELS, accents, ramp, role_style
from tinytf_cli.paint.painter import paint
from tinytf_cli.terminal import COLORMAPS, Terminal, colour_depth, detect
from tinytf_cli.views.blocks import Block, Grid, Heat, Thumbnails, Values
from tinytf_cli.views.parts import numbered

XTERM = {"TERM": "xterm-256color"}
FULL = {**XTERM, "COLORTERM": "truecolor"}

# (--color, environment, is a terminal, depth)
DECISIONS: list[tuple[str, Mapping[str, str], bool, str]] = [
    # Nothing said: a terminal gets what it can show, a pipe nothing.
    ("auto", XTERM, True, "256"),
    ("auto", XTERM, False, "none"),
    ("auto", FULL, True, "truecolor"),
    ("auto", {"TERM": "xterm", "COLORTERM": "24bit"}, True, "truecolor"),
    ("auto", {"TERM": "xterm"}, True, "16"),
    ("auto", {"TERM": "xterm-direct"}, True, "truecolor"),
    ("auto", {"TERM": "xterm-kitty"}, True, "truecolor"),
    ("auto", {"TERM": "linux"}, True, "16"),
    # TERM=dumb is over isatty.
    ("auto", {"TERM": "dumb"}, True, "none"),
    ("auto", {"TERM": "dumb"}, False, "none"),
    # FORCE_COLOR is over TERM=dumb and isatty; 0 is off, 1 to 3 are the depths.
    ("auto", {**XTERM, "FORCE_COLOR": "1"}, False, "16"),
    ("auto", {**XTERM, "FORCE_COLOR": "2"}, False, "256"),
    ("auto", {**XTERM, "FORCE_COLOR": "3"}, False, "truecolor"),
    ("auto", {"TERM": "dumb", "FORCE_COLOR": "2"}, False, "256"),
    ("auto", {**FULL, "FORCE_COLOR": "1"}, True, "16"),
    ("auto", {**FULL, "FORCE_COLOR": "0"}, True, "none"),
    ("auto", {**XTERM, "FORCE_COLOR": "true"}, False, "256"),
    ("auto", {**XTERM, "FORCE_COLOR": "false"}, True, "none"),
    # NO_COLOR is over FORCE_COLOR; an empty one says nothing (no-color.org).
    ("auto", {**FULL, "NO_COLOR": "1"}, True, "none"),
    ("auto", {**FULL, "NO_COLOR": "1", "FORCE_COLOR": "3"}, True, "none"),
    ("auto", {**XTERM, "NO_COLOR": ""}, True, "256"),
    ("auto", {**XTERM, "NO_COLOR": "", "FORCE_COLOR": "3"}, False, "truecolor"),
    # An empty FORCE_COLOR says nothing either (force-color.org).
    ("auto", {**XTERM, "FORCE_COLOR": ""}, True, "256"),
    ("auto", {**XTERM, "FORCE_COLOR": ""}, False, "none"),
    # --color is over everything.
    ("never", {**FULL, "FORCE_COLOR": "3"}, True, "none"),
    ("always", {**XTERM, "NO_COLOR": "1"}, False, "256"),
    ("always", {**XTERM, "FORCE_COLOR": "0"}, False, "256"),
    ("always", FULL, False, "truecolor"),
    ("always", {"TERM": "xterm"}, False, "16"),
]


@pytest.mark.parametrize(("choice", "environ", "is_terminal", "depth"), DECISIONS)
def test_the_option_is_over_no_color_over_force_color_over_dumb_over_isatty(
    choice: str, environ: Mapping[str, str], is_terminal: bool, depth: str
) -> None:
    assert colour_depth(choice, environ, is_terminal) == depth


def test_always_is_some_colour_whatever_the_terminal_says_of_itself() -> None:
    for term in ("dumb", "", "unknown"):
        assert colour_depth("always", {"TERM": term}, False) != "none"


def test_plain_has_no_colour_even_when_colour_is_asked_for() -> None:
    assert detect(Stream(screen=True), color="always", plain=True).depth == "none"


def test_the_width_is_the_option_then_columns_then_100(monkeypatch: pytest.MonkeyPatch) -> None:
    assert detect(Stream()).width == 100
    monkeypatch.setenv("COLUMNS", "72")
    assert detect(Stream()).width == 72
    assert detect(Stream(screen=True)).width == 72
    assert detect(Stream(), width=60).width == 60


def test_only_a_screen_cuts() -> None:
    assert detect(Stream(screen=True)).cuts
    assert not detect(Stream()).cuts


@pytest.mark.parametrize(("encoding", "seven_bits"), [("utf-8", False), ("ascii", True), ("latin-1", True)])
def test_a_stream_that_cannot_take_the_signs_gets_7_bits(encoding: str, seven_bits: bool) -> None:
    assert detect(Stream(encoding=encoding)).ascii is seven_bits


_SGR = re.compile(r"\x1b\[([0-9;]*)m")
_ESCAPE = re.compile(r"\x1b(?!\[[0-9;]*m)")
_STYLES = {"0", "1", "2", "3", "4", "39", "49", "22", "23", "24"}


def codes_of(text: str) -> set[tuple[str, ...]]:
    """The colours in some text as tuples of SGR parameters, without leading zeros; styles and defaults left out."""
    found: set[tuple[str, ...]] = set()
    for match in _SGR.finditer(text):
        words = [word.lstrip("0") or "0" for word in match[1].split(";")]
        while words:
            size = {"2": 5, "5": 3}[words[1]] if words[0] in ("38", "48") else 1
            code, words = tuple(words[:size]), words[size:]
            if code[0] not in _STYLES:
                found.add(code)
    return found


VIEWS = {
    "trace": ["trace", SENTENCE],
    "attention": ["attention", SENTENCE],
    "head": ["attention", SENTENCE, "--head", "L0H0"],
    "tokens": ["tokens", SENTENCE],
    "info": ["info"],
}


def _arguments(view: str, decoder: Path) -> list[str | Path]:
    return [*VIEWS[view], decoder] if view == "info" else [*VIEWS[view], "-m", decoder]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("screen", [True, False])
def test_without_colour_there_is_no_escape_code(tinytf: Tinytf, decoder: Path, view: str, screen: bool) -> None:
    assert "\x1b" not in tinytf(*_arguments(view, decoder), "--color", "never", screen=screen).out
    assert "\x1b" not in tinytf(*_arguments(view, decoder), "--plain", "--color", "always", screen=screen).out


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("depth", ["1", "2", "3"])
def test_each_depth_has_only_its_own_codes(
    tinytf: Tinytf, decoder: Path, monkeypatch: pytest.MonkeyPatch, view: str, depth: str
) -> None:
    monkeypatch.setenv("FORCE_COLOR", depth)
    out = tinytf(*_arguments(view, decoder)).out
    assert _ESCAPE.search(out) is None
    codes = codes_of(out)
    sizes = {len(code) for code in codes}
    basic = {code for code in codes if len(code) == 1}
    assert all(30 <= int(code) <= 37 or 40 <= int(code) <= 47 or 90 <= int(code) <= 107 for (code,) in basic)
    if depth == "1":
        assert sizes <= {1}
    if depth == "2":
        assert sizes <= {1, 3}
    if depth == "3":
        assert sizes <= {1, 5}
    if view != "info":
        assert max(sizes) == {"1": 1, "2": 3, "3": 5}[depth]


@pytest.mark.parametrize("view", VIEWS)
def test_every_line_ends_without_a_colour(tinytf: Tinytf, decoder: Path, view: str) -> None:
    for line in tinytf(*_arguments(view, decoder), "--color", "always").lines:
        codes = [match[1] for match in _SGR.finditer(line)]
        assert not codes or codes[-1] == "0", repr(line)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("options", [[], ["--plain"], ["--color", "always"]], ids=["text", "plain", "colour"])
def test_ascii_is_7_bits(tinytf: Tinytf, decoder: Path, view: str, options: list[str]) -> None:
    for screen in (True, False):
        ran = tinytf(*_arguments(view, decoder), "--ascii", *options, screen=screen)
        assert (ran.status, ran.err) == (0, "")
        assert ran.data.isascii()


_DRAWN = re.compile("[\u2190-\u21ff\u2500-\u25ff\u2800-\u28ff]")


@pytest.mark.parametrize("view", VIEWS)
def test_plain_has_nothing_drawn(tinytf: Tinytf, decoder: Path, view: str) -> None:
    """No box, block, shade, bar or arrow that a screen reader would stumble over."""
    out = tinytf(*_arguments(view, decoder), "--plain").out
    assert _DRAWN.findall(out) == []


def test_plain_tells_every_weight_that_the_map_shows(tinytf: Tinytf, decoder: Path) -> None:
    import json

    (head,) = json.loads(tinytf("attention", SENTENCE, "-m", decoder, "--head", "L0H1", "--json").out)["heads"]
    said = tinytf("attention", SENTENCE, "-m", decoder, "--head", "L0H1", "--plain").out
    rows = [line for line in said.splitlines() if line.startswith("Row ")]
    for weights, row in zip(head["weights"], rows, strict=True):
        hidden = re.search(r"(\d+) masked", row)
        assert (int(hidden[1]) if hidden else 0) == weights.count(None)
        assert re.findall(r"\d\.\d{3}", row) == [f"{w:.3f}" for w in weights if w is not None]


@pytest.mark.parametrize("command", [("tokens",), ("attention", "--head", "L0H1"), ("score",)])
def test_plain_leaves_tokens_that_are_signs_as_they_are(tinytf: Tinytf, decoder: Path, command: tuple[str, ...]):
    name, *more = command
    said = tinytf(name, "a + b / c", *more, "-m", decoder, "--plain").out
    assert re.search(r"(^|[ ,·])\+( |[.,]|$)", said, re.MULTILINE)
    assert not re.search(r"(^|, |Row |: )(plus|over)\b", said)


# Contrast and order, computed from the numbers of the colours (WCAG 2.2).

_XTERM = (
    "000000 cd0000 00cd00 cdcd00 0000ee cd00cd 00cdcd e5e5e5 7f7f7f ff0000 00ff00 ffff00 5c5cff ff00ff 00ffff ffffff"
)
_VGA = "000000 aa0000 00aa00 aa5500 0000aa aa00aa 00aaaa aaaaaa 555555 ff5555 55ff55 ffff55 5555ff ff55ff 55ffff ffffff"
PALETTES = [[tuple(bytes.fromhex(word)) for word in palette.split()] for palette in (_XTERM, _VGA)]
STEPS = (0, 95, 135, 175, 215, 255)

THEMES = ("dark", "light")
SCALES = [("signed", "viridis"), *(("unit", name) for name in COLORMAPS)]
SCREENS = [
    Terminal(depth=depth, theme=theme, palette=palette)
    for depth in ("truecolor", "256", "16")
    for theme in THEMES
    for palette in COLORMAPS
]


def rgb(colour: Color, palette: list[tuple[int, ...]]) -> tuple[int, ...]:
    """What a terminal with this palette of 16 colours shows."""
    if colour.triplet is not None:
        return tuple(colour.triplet)
    assert colour.number is not None
    if colour.number < 16:
        return palette[colour.number]
    if colour.number >= 232:
        return (8 + 10 * (colour.number - 232),) * 3
    cube = colour.number - 16
    return STEPS[cube // 36], STEPS[cube // 6 % 6], STEPS[cube % 6]


def luminance(colour: tuple[int, ...]) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (part / 255 for part in colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    dark, bright = sorted((luminance(one), luminance(other)))
    return (bright + 0.05) / (dark + 0.05)


def grounds(theme: str) -> list[tuple[int, ...]]:
    """What text of a theme may stand on: the extreme, and the background of pictures."""
    return [(0, 0, 0) if theme == "dark" else (255, 255, 255), tuple(bytes.fromhex(BACKGROUNDS[theme][1:]))]


def colour_of(style: Style, *, ground: bool = False) -> Color:
    found = style.bgcolor if ground else style.color
    assert found is not None
    return found


@pytest.mark.parametrize("palette", PALETTES, ids=["xterm", "vga"])
@pytest.mark.parametrize("screen", SCREENS[::3], ids=lambda one: f"{one.depth}-{one.theme}")
def test_every_role_is_readable_on_its_background(screen: Terminal, palette: list[tuple[int, ...]]) -> None:
    for role in (*accents(screen.theme), "good", "bad", "even", "odd", "special"):
        style = role_style(role, screen)
        if (screen.depth, role) == ("16", "dim"):
            assert style.dim  # the terminal chooses
            continue
        for ground in grounds(screen.theme)[: 1 if screen.depth == "16" else 2]:  # pictures are in true colour
            assert contrast(rgb(colour_of(style), palette), ground) >= 4.5, role


@pytest.mark.parametrize("palette", PALETTES, ids=["xterm", "vga"])
@pytest.mark.parametrize("screen", SCREENS, ids=lambda one: f"{one.depth}-{one.theme}-{one.palette}")
def test_the_text_on_every_cell_is_readable(screen: Terminal, palette: list[tuple[int, ...]]) -> None:
    for scale in ("unit", "signed"):
        for index in range(LEVELS):
            style = role_style(f"{scale}:{index}", screen)
            assert contrast(rgb(colour_of(style), palette), rgb(colour_of(style, ground=True), palette)) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
def test_the_text_of_a_picture_is_readable(theme: str) -> None:
    assert contrast(tuple(bytes.fromhex(FOREGROUNDS[theme][1:])), grounds(theme)[1]) >= 7


@pytest.mark.parametrize("palette", PALETTES, ids=["xterm", "vga"])
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(("scale", "colormap"), SCALES)
@pytest.mark.parametrize("depth", ["truecolor", "256", "16"])
def test_a_scale_goes_away_from_the_background_step_by_step(
    depth: str, scale: str, colormap: str, theme: str, palette: list[tuple[int, ...]]
) -> None:
    """More is brighter on a dark background and darker on a light one; no two neighbours are the same colour."""
    colours = ramp(scale, Terminal(depth=depth, theme=theme, palette=colormap))
    assert len(colours) == LEVELS
    distinct = [colour for place, colour in enumerate(colours) if not place or colour != colours[place - 1]]
    assert len(set(distinct)) == len(distinct)
    assert len(distinct) >= {"truecolor": 200, "256": 7, "16": 3}[depth]
    zero = len(distinct) // 2 if scale == "signed" else 0
    up = 1 if theme == "dark" else -1
    for side in (distinct[zero:], distinct[zero::-1]) if zero else (distinct,):
        light = [luminance(rgb(colour, palette)) * up for colour in side]
        assert all(a < b + (2e-3 if depth == "truecolor" else 0) for a, b in pairwise(light))
    least = contrast(rgb(distinct[zero], palette), grounds(theme)[0])
    most = [
        contrast(rgb(end, palette), grounds(theme)[0])
        for end in ((distinct[0], distinct[-1]) if zero else distinct[-1:])
    ]
    assert all(end > 4 * least or end > 4.5 for end in most)
    if scale == "signed":
        assert least < 1.6


def test_the_weights_that_were_one_grey_in_256_colours_differ() -> None:
    colours = ramp("unit", Terminal(depth="256"))
    assert colours[round(0.161 * 255)] != colours[round(0.267 * 255)]


_MAPS = np.linspace(0, 1, 32, dtype=np.float32).reshape(2, 4, 4)
SCALED: dict[str, tuple[Block, str, tuple[str, ...]]] = {
    "unit map": (Heat(_MAPS[0], "abcd", "abcd", "unit"), "unit", ("0 ", " 1")),
    "signed map": (Heat(_MAPS[0], "abcd", "abcd", "signed", limit=2.5), "signed", ("-2.5", " 2.5")),
    "small cells": (Heat(np.ones((1, 60), dtype=np.float32), "a", ["b" * 8] * 60, "signed"), "signed", ("-1", " 1")),
    "words": (Grid([["a"] * 4] * 4, _MAPS[0], "abcd", "abcd"), "unit", ("0 ", " 1")),
    "thumbnails": (Thumbnails([_MAPS], [None]), "unit", ("0 ", " 1")),
    "strips": (
        Values("ab", np.array([[1, -3.5] * 20] * 2, dtype=np.float32), 4, "", numbered("d", 40)),
        "signed",
        ("±3.5",),
    ),
}


@pytest.mark.parametrize(
    ("name", "depth"),
    [
        (name, depth)
        for name in SCALED
        for depth in ("none", "truecolor", "256", "16")
        if (name, depth) != ("words", "none")  # without colour there is no scale: every share is written
    ],
)
@pytest.mark.parametrize("width", [60, 100])
def test_every_scale_says_its_ends(name: str, depth: str, width: int) -> None:
    block, scale, ends = SCALED[name]
    screen = Terminal(width, depth, cuts=True)
    colours = {"unit": " █", "signed": "▼▲"}[scale] if depth == "none" else [
        ";".join(ramp(scale, screen)[end].get_ansi_codes()) for end in (0, -1)
    ]  # fmt: skip
    assert any(all(word in line for word in (*ends, *colours)) for line in paint([block], screen))


@pytest.mark.parametrize("extension", ["svg", "html"])
def test_a_picture_has_the_background_and_the_colours_of_its_theme(
    tinytf: Tinytf, decoder: Path, tmp_path: Path, extension: str
) -> None:
    found = {}
    for theme in THEMES:
        path = tmp_path / f"{theme}.{extension}"
        assert tinytf("attention", SENTENCE, "-m", decoder, "--theme", theme, "-o", path).status == 0
        found[theme] = path.read_text("utf-8").lower()
        assert BACKGROUNDS[theme] in found[theme]
        assert FOREGROUNDS[theme] in found[theme]
        assert accents(theme)["attention"] in found[theme]
    assert accents("dark")["attention"] not in found["light"]


def test_precision_colours_and_theme_are_options_of_a_command(tinytf: Tinytf, decoder: Path) -> None:
    asked = ("attention", SENTENCE, "-m", decoder, "--head", "L0H0")
    usual = tinytf(*asked, "--color", "always").out
    assert "1.000" in usual
    precise = tinytf(*asked, "--color", "always", "--precision", "5").out
    assert "1.00000" in precise
    assert re.search(r"checked: .* largest difference \d\.\d{5}e", tinytf(*asked, "--precision", "5").out)
    assert len({usual, *(tinytf(*asked, "--color", "always", "--colormap", name).out for name in COLORMAPS)}) == 3
    assert tinytf(*asked, "--color", "always", "--theme", "light").out != usual
    assert tinytf(*asked).out == tinytf(*asked, "--theme", "light", "--colormap", "grey").out


@pytest.mark.parametrize(
    ("given", "is_seven_bits"),
    [
        ({"LC_ALL": "C"}, True),
        ({"LANG": "POSIX"}, True),
        ({"LC_ALL": "C", "LANG": "de_DE.UTF-8"}, True),
        ({"LC_ALL": "", "LANG": "C.UTF-8"}, False),
        ({"LC_CTYPE": "en_US.UTF-8", "LANG": "C"}, False),
        ({}, False),
    ],
)
def test_whoever_says_that_the_locale_is_c_gets_7_bits(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], is_seven_bits: bool
) -> None:
    """The first of the variables that is set counts; Python's own streams are UTF-8 in any case."""
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert detect(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")).ascii == is_seven_bits
