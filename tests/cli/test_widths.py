"""On a screen no line is wider than the screen; anywhere else nothing is cut."""

import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
from driving import SENTENCE, WIDE, Tinytf
from rich.cells import cell_len

from tinytf.loading import Model
from tinytf.look.tokens import Tokenized
from tinytf.report import Report
from tinytf.trace.trace import Trace
from tinytf_cli.paint.painter import paint
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.attention import AttentionDisplay
from tinytf_cli.views.blocks import Block, Heading, Line
from tinytf_cli.views.draw import blocks_of

WIDTHS = (40, 80, 100, 120, 200)
LONG = " ".join(["cat", "dog", "the", "mat", "ran"] * 40)

_SGR = re.compile(r"\x1b\[[0-9;]*m")


def too_wide(lines: Iterable[str], width: int) -> list[str]:
    bare = (_SGR.sub("", line) for line in lines)
    return [line for line in bare if cell_len(line) > width]


def screens(width: int) -> list[Terminal]:
    """A screen of this width with everything, and one with next to nothing."""
    return [
        Terminal(width, "truecolor", cuts=True),
        Terminal(width, "none", ascii=True, cuts=True),
    ]


SHORT_COMMANDS: dict[str, list[str]] = {
    "trace": ["trace", SENTENCE],
    "trace in full": ["trace", SENTENCE, "--full", "--dims", "16"],
    "trace of one token": ["trace", "a"],
    "attention": ["attention", SENTENCE],
    "attention of one token": ["attention", "a"],
    "heads": ["attention", SENTENCE, "--head", "L*H*"],
    "row": ["attention", SENTENCE, "--head", "L1H1", "--row", "3"],
    "top": ["attention", SENTENCE, "--head", "L1H1", "--top", "9"],
    "tokens": ["tokens", SENTENCE],
    "wide tokens": ["tokens", " ".join(WIDE.values())],
    "info": ["info"],
}


@pytest.mark.share(4)
@pytest.mark.parametrize("name", SHORT_COMMANDS)
@pytest.mark.parametrize(
    ("options", "width"),
    [
        *(([], width) for width in WIDTHS),
        *((["--color", "never"], w) for w in (40, 120)),
        *((["--ascii"], w) for w in (40, 80)),
    ],
    ids=str,
)
def test_no_line_is_wider_than_the_screen(
    tinytf: Tinytf, decoder: Path, name: str, options: list[str], width: int
) -> None:
    arguments: list[str | Path] = [*SHORT_COMMANDS[name]]
    arguments += [decoder] if name == "info" else ["-m", decoder]
    ran = tinytf(*arguments, "--width", str(width), *options, screen=True)
    assert (ran.status, ran.err) == (0, "")
    assert too_wide(ran.lines, width) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_presets_fit_the_screen(tinytf: Tinytf, width: int) -> None:
    for name in ("paper", "gpt2", "bert-base", "llama-tiny"):
        ran = tinytf("info", f"preset:{name}", "--width", str(width), screen=True)
        assert too_wide(ran.lines, width) == []


@pytest.fixture(scope="module")
def traces(twelve_by_twelve: Model) -> dict[str, Trace]:
    """A short and a long text through a model of 12 layers × 12 heads."""
    return {text: twelve_by_twelve.trace(text, truncate=True) for text in (SENTENCE, LONG)}


def _reports(model: Model, trace: Trace) -> dict[str, Report]:
    def attention(heads: tuple[tuple[int, int], ...] = (), **more: object) -> Report:
        return model.attention(trace, heads=heads, **more)  # type: ignore[arg-type]

    return {
        "trace": model.traced(trace, layers=(11,), head=11),
        "addresses": model.traced(trace, at=("L0H0.masked", "L11H11.weights", "L3.q", "logits")),
        "overview": attention(),
        "head": attention(((11, 11),)),
        "window": attention(((11, 11),), window=(1, 5, 0, 6)),
        "row": attention(((11, 11),), row="4"),
        "top": attention(((11, 11),), top=20),
        "tokens": Tokenized("twelve", model.tokenizer, "", trace.encoding),
    }  # fmt: skip


@pytest.fixture(scope="module")
def reports(twelve_by_twelve: Model, traces: dict[str, Trace]) -> dict[str, dict[str, Report]]:
    """Every report of each text: asked once, drawn in every width."""
    return {text: _reports(twelve_by_twelve, trace) for text, trace in traces.items()}


@pytest.mark.share(8)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("text", [SENTENCE, LONG], ids=["short", "long"])
@pytest.mark.slow
def test_twelve_by_twelve_heads_fit_the_screen(reports: dict[str, dict[str, Report]], text: str, width: int) -> None:
    bad: dict[str, list[str]] = {}
    for name, report in reports[text].items():
        for screen in screens(width):
            blocks: list[Block] = list(blocks_of(report, screen))
            if found := too_wide(paint(blocks, screen), width):
                bad[name] = found[:2]
    assert bad == {}


def test_the_overview_of_144_heads_has_them_all_in_80_columns(reports: dict[str, dict[str, Report]]) -> None:
    screen = Terminal(80, "none", cuts=True)
    report = reports[LONG]["overview"]
    lines = list(paint(blocks_of(report, screen, AttentionDisplay(all=True)), screen))
    numbers = [line for line in lines if re.fullmatch(r"  L\d+ .*(\d\.\d\d.*){12}", line)]
    assert len(numbers) == 12
    start = next(i for i, line in enumerate(lines) if line.startswith("weights of every head"))
    assert all(f"H{head}" in lines[start + 1].split() for head in range(12))
    assert [line.split()[0] for line in lines[start:] if re.match(r"L\d", line)] == [f"L{i}" for i in range(12)]


# Off a screen.


@pytest.mark.parametrize("width", [20, 40, 100])
def test_off_a_screen_no_token_and_no_number_is_cut(
    tinytf: Tinytf, characters: Path, decoder: Path, width: int
) -> None:
    long = " ".join(f"{word}{word}" for word in SENTENCE.split())
    for arguments in (
        ["trace", long, "--at", "L0H0.weights", "--at", "L0.in", "--dims", "16"],
        ["attention", long, "--head", "L0H0"],
        ["attention", long, "--head", "L0H0", "--top", "99"],
        ["tokens", long],
    ):
        ran = tinytf(*arguments, "-m", decoder, "--width", str(width))
        assert ran.status == 0
        cut = [line for line in ran.lines if re.search(r"\w…|…\w|\d…", line)]
        assert cut == []


def test_off_a_screen_a_map_that_was_asked_for_has_every_number(tinytf: Tinytf, decoder: Path, opened: Model) -> None:
    text = " ".join([SENTENCE] * 5)
    weights = opened.trace(text)["L0H0.weights"]
    for arguments in (["trace", text, "--at", "L0H0.weights"], ["attention", text, "--head", "L0H0", "--window", ":"]):
        out = tinytf(*arguments, "-m", decoder, "--width", "60").out
        rows = out[out.index("L0H0.weights") :].split(" looks at  ")[0]
        found = sorted(re.findall(r"\b[01]\.\d{3}\b", rows))
        seen = weights[weights.new_ones(weights.shape).tril().bool()]
        assert found == sorted(f"{float(w):.3f}" for w in seen)


def test_off_a_screen_every_token_is_in_the_table_of_values(tinytf: Tinytf, decoder: Path, opened: Model) -> None:
    text = " ".join([SENTENCE] * 6)
    out = tinytf("trace", text, "-m", decoder, "--at", "L0.in", "--dims", "4")
    rows = [line for line in out.lines if re.match(r"  \S+ +-?\d+\.\d+ ", line)]
    assert [row.split()[0] for row in rows] == [token.shown for token in opened.encode(text).tokens]


def test_on_a_screen_long_tables_leave_out_the_middle_and_say_so(tinytf: Tinytf, decoder: Path) -> None:
    text = " ".join([SENTENCE] * 5)
    out = tinytf("trace", text, "-m", decoder, "--at", "L0.in", "--dims", "4", "--color", "never", screen=True).out
    assert "folded:" in out
    assert "folded:" not in tinytf("trace", text, "-m", decoder, "--at", "L0.in", "--rows", "0", screen=True).out


@pytest.mark.parametrize(
    ("count", "limit"), [(1, 1), (2, 1), (2, 2), (3, 2), (3, 4), (5, 4), *((9, limit) for limit in (1, 2, 3, 4, 8, 9))]
)
def test_a_table_has_the_rows_that_were_asked_for_and_no_single_one_is_folded(
    tinytf: Tinytf, decoder: Path, opened: Model, count: int, limit: int
) -> None:
    text = " ".join(["cat"] * count)
    names = [token.shown for token in opened.encode(text).tokens]
    lines = tinytf("trace", text, "-m", decoder, "--at", "L0.in", "--dims", "4", "--rows", str(limit)).lines
    rows = [line.split()[0] for line in lines if re.match(r"  \S+ +-?\d+\.\d+ ", line)]
    whole = len(names) <= limit + 1
    assert len(rows) == (len(names) if whole else limit)
    said = [line for line in lines if "folded:" in line]
    assert bool(said) != whole
    if said:
        missing, every, first, last = map(int, re.findall(r"\d+", said[0])[:4])
        assert (missing, every) == (len(names) - limit, len(names))
        assert rows == names[:first] + names[last + 1 :]


def test_a_paragraph_that_fills_the_line_to_the_last_cell_is_not_cut() -> None:
    """Words end at the 20th cell, where the blank behind them has no room."""
    screen = Terminal(width=20, cuts=True)
    lines = list(paint([Line("four four four four. next words")], screen))
    assert lines == ["four four four four.", "  next words"]


def test_the_note_of_a_heading_that_does_not_fit_beside_it_is_whole_below_it() -> None:
    heading = Heading("heads by entropy", "0 is one key, ln T is all T alike")
    assert list(paint([heading], Terminal(60, "none", cuts=True)))[1:] == [f"{heading.title}   {heading.note}"]
    narrow = list(paint([heading], Terminal(20, "none", cuts=True)))
    assert narrow[1] == heading.title
    assert " ".join(line.strip() for line in narrow[2:]) == heading.note


@pytest.mark.parametrize("arguments", [["models"], ["verify"], ["learn", "heads"]], ids=str)
@pytest.mark.slow
def test_no_output_begins_with_an_empty_line_or_has_two_together(tinytf: Tinytf, arguments: list[str]) -> None:
    lines = tinytf(*arguments, "--width", "80").out.splitlines()
    assert lines[0]
    assert not any(not one and not other for one, other in pairwise(lines))
