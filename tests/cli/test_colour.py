"""One place decides the colours; where there are none, no escape code appears at all."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from driving import SENTENCE, Stream, Tinytf

from tinytf_cli.terminal import colour_depth, detect

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
        assert row.count("masked") == weights.count(None)
        assert re.findall(r"\d\.\d{3}", row) == [f"{w:.3f}" for w in weights if w is not None]
