"""The first screen of a trace: the answer first, one screen at any depth and length, and what to type next works."""

import json
import math
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import config_of, encoding_of, lively
from driving import SENTENCE, Ran, Tinytf
from rich.cells import cell_len

from tinytf.checkpoints.run import save_run
from tinytf.config import ModelConfig
from tinytf.loading import Model, load
from tinytf.look.flow import flow
from tinytf.look.trace import Traced
from tinytf.text.tokenizer import Tokenizer
from tinytf.trace.record import record
from tinytf_cli.paint.painter import paint
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Beside, Heading, Line, Miniature, Miniatures
from tinytf_cli.views.flow import Drawing
from tinytf_cli.views.trace import TraceDisplay
from tinytf_cli.views.trace import trace as draw

LONG = " ".join(["the cat sat on the mat and"] * 30)
PAPER = Terminal(100)
SCREEN = Terminal(100, "truecolor", cuts=True)


@pytest.fixture(scope="module")
def deep(bpe: Tokenizer) -> Model:
    """30 layers and 256 tokens of context."""
    sizes = {"vocab_size": bpe.vocab_size, "d_model": 24, "n_layers": 30, "n_heads": 4, "d_ff": 24, "context": 256}
    llama = {"norm": "rmsnorm", "positions": "rotary", "activation": "silu", "gated": True}
    return Model("deep", lively(ModelConfig.of(**sizes, **llama)), bpe, "random weights")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def deep_traces(deep: Model) -> dict[str, Traced]:
    """A short text and one of 210 tokens."""
    return {text: deep.traced(text) for text in (SENTENCE, LONG)}


def screen(model: Model, found: Traced, terminal: Terminal, rows: int | None = None) -> list[str]:
    return list(paint(draw(found, terminal, TraceDisplay(rows=rows)), terminal))


def section(lines: list[str], title: str) -> list[str]:
    """The lines of a section, without its title."""
    start = next(i for i, line in enumerate(lines) if line.startswith(title))
    stop = next((i for i, line in enumerate(lines[start:], start) if not line), len(lines))
    return lines[start + 1 : stop]


# One screen.


NARROW = Terminal(80)
COLOURED = Terminal(80, "truecolor", cuts=True)
WIDE = Terminal(160)


@pytest.mark.parametrize(
    ("model", "text"),
    [("tiny", "The cat sat"), ("tiny", LONG[:100]), ("tiny-encoder", "A [MASK] sat on the [MASK]."), ("tiny", "a")],
)
def test_it_is_one_screen(model: str, text: str) -> None:
    opened = load(model)
    found = opened.traced(text)
    for terminal in (NARROW, COLOURED, WIDE, Terminal(80, ascii=True)):
        assert len(screen(opened, found, terminal)) <= 45


@pytest.mark.parametrize("text", [SENTENCE, LONG], ids=["short", "long"])
def test_thirty_layers_are_one_screen(deep: Model, deep_traces: dict[str, Traced], text: str) -> None:
    assert len(deep_traces[LONG].trace.tokens) >= 200
    for terminal in (COLOURED, WIDE):
        assert len(screen(deep, deep_traces[text], terminal)) <= 45


def test_every_step_of_gemma_is_one_screen(bpe: Tokenizer) -> None:
    config = config_of("gemma 2, norms around each part and windows by layer", vocab_size=bpe.vocab_size)
    model = Model("gemma", lively(config), bpe, "random weights")
    found = model.traced("The cat sat")
    for width in (80, 100):
        assert len(screen(model, found, Terminal(width, ascii=True))) <= 45


def test_the_answer_is_in_the_first_ten_lines(tinytf: Tinytf) -> None:
    lines = tinytf("trace", "The cat sat").lines[:10]
    best = json.loads(tinytf("trace", "The cat sat", "--json").out)["predictions"][0]["top"]
    shown = [(token, float(share)) for line in lines for token, share in re.findall(r"(\S+) +(0\.[0-9]{4})", line)]
    assert shown == [(one["token"], pytest.approx(one["probability"], abs=5e-5)) for one in best[: len(shown)]]
    total = np.cumsum([one["probability"] for one in best])
    assert len(shown) == 1 + int(np.searchsorted(total[:4], 0.999))
    seven = tinytf("trace", "The cat sat", "--top", "7", "--width", "200").lines
    assert seven.index("") == 1 + 3 + 7  # the sentence, the model and the text, the answer


@pytest.mark.parametrize("width", [100, 200])
def test_what_an_arrow_in_a_caption_means_is_said_however_many_heads_are_shown(tinytf: Tinytf, width: int) -> None:
    ran = tinytf("trace", "The cat sat", "--width", width)
    (said,) = (line for line in ran.lines if line.startswith("heads "))
    assert ("all 16" in said) == (width == 200)
    assert "→ what each sees most at ·sat" in said


def test_the_block_is_that_of_the_head_that_speaks_most_for_the_answer(tinytf: Tinytf) -> None:
    text = "The cat lost the red ball. The cat lost the red"
    parts = json.loads(tinytf("attribute", text, "--json").out)["parts"]
    best = max((part for part in parts if part["kind"] == "head"), key=lambda part: part["value"])
    lines = tinytf("trace", text).lines
    assert f"block L{best['layer']}   of 4, with the head that adds most to the logit of ·ball" in "\n".join(lines)
    assert any(f"L{best['layer']}H{best['head']} → ·ball {best['value']:+.2f}" in line for line in lines)


def test_a_long_text_and_a_long_stack_say_how_much_is_folded(deep: Model, deep_traces: dict[str, Traced]) -> None:
    lines = screen(deep, deep_traces[LONG], PAPER)
    text = next(line for line in lines if " more … " in line)
    folded = re.search(r"… ([0-9]+) more …", text)
    assert folded is not None
    assert int(folded[1]) + text.count("│·") + 1 == len(deep_traces[LONG].trace.tokens)
    layers = section(lines, "layers")
    assert layers[5].strip() == "folded: 26 of 30 layers; --all shows them"
    assert len(section(screen(deep, deep_traces[SENTENCE], PAPER, rows=0), "layers")) == 31


def test_a_deep_stack_is_folded_to_the_layers_in_which_the_prediction_turns(deep_traces: dict[str, Traced]) -> None:
    seen = deep_traces[LONG].overview
    read = [layer.read.id for layer in seen.layers if layer.read is not None]
    settled = max((n for n in range(1, 30) if read[n] != read[n - 1]), default=29)
    shown = seen.telling(4)
    assert shown == sorted(set(shown))
    assert len(shown) == 4
    assert {seen.ranked[0][0], 29} <= set(shown)  # the layer that is drawn, and the last
    assert {settled, settled - 1} <= set(shown)  # the last turn, and the layer before it
    assert seen.telling(30) == list(range(30))


def test_more_masks_than_the_screen_has_room_for_are_shown_by_all(tinytf: Tinytf) -> None:
    text = " ".join(["the [MASK]"] * 7)
    few, every = (tinytf("trace", text, "-m", "tiny-encoder", *more).out for more in ((), ("--all",)))
    assert few.count("  [MASK] at") == 5
    assert "and 2 more [MASK]; --all shows them" in few
    assert "at each [MASK]; the lens at 2" in few
    assert [f"[MASK] at {place}" in every for place in range(2, 16, 2)] == [True] * 7
    assert "more [MASK]" not in every


@pytest.mark.slow
def test_all_shows_every_token_of_the_text(tinytf: Tinytf) -> None:
    assert " more … " in tinytf("trace", LONG, "--width", "80").out
    text = tinytf("trace", LONG, "--width", "80", "--all").out.partition("  next ")[0]
    assert " more … " not in text
    assert text.count("·mat") == 30


def test_a_text_of_wide_characters_is_folded_to_one_line(tinytf: Tinytf, characters: Path) -> None:
    lines = tinytf("trace", "猫が座った" * 10, "-m", characters, "--width", "80").lines
    (text,) = (line for line in lines if " more … " in line)
    assert cell_len(text) <= 80
    assert lines[lines.index(text) + 1].startswith("  next")


# The drawing.


def drawn(kind: str, terminal: Terminal = PAPER) -> list[str]:
    trace = record(lively(config_of(kind)), encoding_of([3, 14, 15]))
    drawing = Drawing(flow(trace, 0), rails=True, ascii=terminal.ascii)
    lines = [line.rstrip() for line in paint(drawing.blocks(cut=False), terminal)]
    assert len(lines) == drawing.lines
    assert max(map(len, lines)) <= (drawing.width if drawing.width <= terminal.width else drawing.narrow)
    return lines


def test_a_block_is_drawn_with_the_shapes_of_its_weights() -> None:
    assert drawn("gpt2") == [
        "  ├─╮  n = LayerNorm(x), gain and bias (24)       (3, 24)",
        "  │ │  n (3, 24) · W_Q (24, 24) + b = q           (4, 3, 6)",
        "  │ │  n (3, 24) · W_K (24, 24) + b = k           (4, 3, 6)",
        "  │ │  n (3, 24) · W_V (24, 24) + b = v           (4, 3, 6)",
        "  │ │  q·kᵀ = scores → scaled → masked → weights  (4, 3, 3)",
        "  │ │  weights·v = head_out (4, 3, 6) → concat    (3, 24)",
        "  │ │  concat (3, 24) · W_O (24, 24) + b = attn   (3, 24)",
        "  ⊕─╯  x + attn = mid                             (3, 24)",
        "  ├─╮  n = LayerNorm(mid), gain and bias (24)     (3, 24)",
        "  │ │  n (3, 24) · W₁ (24, 40) + b₁ = ffn.hidden  (3, 40)",
        "  │ │  GELU(tanh)(hidden) = ffn.act               (3, 40)",
        "  │ │  act (3, 40) · W₂ (40, 24) + b₂ = ffn       (3, 24)",
        "  ⊕─╯  mid + ffn = out                            (3, 24)",
    ]


def test_keys_of_waves_are_a_matrix_without_another_factor() -> None:
    lines = drawn("xlnet, waves of distances and segments")
    assert "  │ │  [sin | cos](query − key) · W_KD (24, 24) = pos_k" in {line.split("    ")[0] for line in lines}


def test_a_narrow_drawing_keeps_the_shapes_of_the_weights() -> None:
    for terminal in (Terminal(53), Terminal(53, ascii=True)):
        lines = drawn("gemma 2, norms around each part and windows by layer", terminal)
        whole = drawn("gemma 2, norms around each part and windows by layer", replace(terminal, width=100))
        matrices = [re.findall(r"W_\w+ (\(\d+, \d+\))", line) for line in lines]
        assert sum(map(len, matrices)) == 7
        assert matrices == [re.findall(r"W_\w+ (\(\d+, \d+\))", line) for line in whole]
        assert [line.split("  ")[-1].strip() for line in lines] == [line.split("  ")[-1].strip() for line in whole]


def test_parallel_branches_are_drawn_side_by_side() -> None:
    rails = [line[2:8].rstrip() for line in drawn("pythia, side by side and turned in part")]
    assert rails == ["├─╮", *["│ │"] * 6, "├─┼─╮", *["│ │ │"] * 3, "⊕─┴─╯"]


def test_norms_after_the_sum_are_drawn_on_the_stream() -> None:
    lines = drawn("the paper's encoder")
    assert [line[2:5] for line in lines] == ["├─╮", *["│ │"] * 5, "⊕─╯", "│  ", "├─╮", *["│ │"] * 2, "⊕─╯", "│  "]
    assert "n = LayerNorm(mid)" in lines[7]
    assert lines[-1].split("  ")[-2].strip().endswith("= norm2")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("qwen3, normed queries and wide heads", "= q → q_norm → q_rot"),
        ("llama, grouped", "W_K (24, 12) = k → k_rot"),
        ("gemma 2, norms around each part and windows by layer", "scores → scaled → capped → masked → weights"),
        ("norms of what is added", "W_O (24, 24) + b = attn → attn_norm"),
    ],
)
def test_what_a_family_has_of_its_own_is_drawn(kind: str, said: str) -> None:
    assert any(said in line for line in drawn(kind))


def test_the_screen_is_that_of_a_report(tinytf: Tinytf) -> None:
    data = json.loads(tinytf("trace", "The cat sat", "--json").out)
    lines = tinytf("trace", "The cat sat").lines
    (layer,) = {int(found[1]) for line in lines if (found := re.match(r"block L([0-9]+) ", line))}
    assert data["flow"]["layer"] == layer
    strongest = [max(range(4), key=one["heads"].__getitem__) for one in data["layers"]]
    for row, one, head in zip(section(lines, "layers")[1:], data["layers"], strongest, strict=True):
        attention, feed_forward = (added["share"] for added in one["added"])
        assert row.split()[:2] == [f"L{one['layer']}", f"{attention:.2f}"]
        assert f" {feed_forward:.2f} " in row
        assert f"H{head} {one['heads'][head]:.2f}" in row
        assert f"{one['read']['token']} " in row
        assert f" {one['read']['probability']:.3f}" in row
    assert "flow" not in json.loads(tinytf("trace", "The cat sat", "--at", "L0.q", "--json").out)


def test_the_last_layer_reads_what_the_model_predicts(tinytf: Tinytf) -> None:
    for model, text in (("tiny", "The cat sat"), ("tiny-encoder", "The [MASK] sat")):
        data = json.loads(tinytf("trace", text, "-m", model, "--json").out)
        best, read = data["predictions"][0]["top"][0], data["layers"][-1]["read"]
        assert read["id"] == best["id"]
        assert read["probability"] == pytest.approx(best["probability"], rel=1e-5)


# What to type next.


@pytest.mark.parametrize("text", ['it\'s "$HOME" [x]', "The [MASK] sat"])
def test_what_to_type_next_runs(tinytf: Tinytf, decoder: Path, encoder: Path, text: str) -> None:
    model = encoder if "[MASK]" in text else decoder
    lines = tinytf("trace", text, "-m", model).lines[-3:]
    for line in lines:
        command, *words = shlex.split(re.split(r" {3,}", line.strip())[0])
        assert command == "tinytf"
        assert text in words
        assert tinytf(*words).status == 0, line


def test_a_text_that_no_line_holds_is_called_text(tinytf: Tinytf) -> None:
    for text in ("two\nlines and one that is too long for a line of a screen", "-x"):
        ran = tinytf("trace", "--", text)
        assert all(" TEXT" in line for line in ran.lines[-3:])
        assert all(" -m " not in line for line in ran.lines[-3:])


# All, pipeline, block.


def headings(ran: Ran) -> list[str]:
    return [line.split("   ")[0] for line in ran.lines if re.match(r"(block|pipeline|layers|heads|weights of)\b", line)]


def test_each_option_shows_its_part_after_the_answer(tinytf: Tinytf, decoder: Path) -> None:
    def shown(*options: str) -> list[str]:
        ran = tinytf("trace", SENTENCE, "-m", decoder, *options)
        assert ran.status == 0, ran.err
        assert any(line.startswith("  next ") for line in ran.lines[:7])
        assert ran.lines[-1].startswith("checked: ")
        return headings(ran)

    assert shown("--pipeline") == ["pipeline"]
    assert shown("--block", "L1H0") == shown("--layer", "1") == ["block L1, head 0"]
    assert shown("--block", "L0-1H1") == ["block L0, head 1", "block L1, head 1"]
    assert shown("--full") == shown("--block", "L0", "--block", "L1H0") == ["block L0, head 0", "block L1, head 0"]
    assert shown("--all") == ["layers", "pipeline", "block L0, head 0", "weights of every head"]
    assert shown("--pipeline", "--block", "L1H1") == ["pipeline", "block L1, head 1"]


def test_a_block_is_given_as_data_too(tinytf: Tinytf, decoder: Path) -> None:
    one, other = (
        json.loads(tinytf("trace", SENTENCE, "-m", decoder, *options, "--json").out)["values"]
        for options in (("--block", "L1H1"), ("--layer", "1", "--head", "1"))
    )
    assert one == other
    assert "L1H1.weights" in one
    assert json.loads(tinytf("trace", SENTENCE, "-m", decoder, "--pipeline", "--json").out)["values"] == {}


def test_a_block_is_no_step(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("trace", SENTENCE, "-m", decoder, "--block", "L0H0.weights")
    assert ran.status == 2
    assert "--block takes a layer and head, such as L0H0" in ran.err
    assert "--at L0H0.weights shows it" in ran.err


@pytest.mark.parametrize(("width", "across", "colour"), [(80, 2, "always"), (120, 4, "never"), (200, 4, "always")])
def test_the_maps_of_a_block_stand_side_by_side(tinytf: Tinytf, width: int, across: int, colour: str) -> None:
    ran = tinytf("trace", "The cat sat", "--block", "L1H2", "--width", str(width), "--color", colour)
    bare = re.sub(r"\x1b\[[0-9;]*m", "", ran.out)
    rows = [re.findall(r"L1H2\.(scores|scaled|masked|weights)(?= |$)", line) for line in bare.splitlines()]
    assert next(row for row in rows if row) == ["scores", "scaled", "masked", "weights"][:across]


def test_side_by_side_nothing_is_lost() -> None:
    parts = [[Heading(f"part {n}"), Line(f"{n} " * 12)] for n in range(5)]
    for width in (30, 60, 100, 200):
        lines = list(paint([Beside(parts, least=20, even=True)], Terminal(width)))
        assert all(len(line) <= width for line in lines)
        assert sum(line.count("part") for line in lines) == 5
        assert sum(line.split().count("3") for line in lines) == 13
    assert len(list(paint([Beside(parts, least=20, even=True)], Terminal(200)))) == 3
    full = [[Line("a" * 20)], [Line("b" * 20)]]
    assert list(paint([Beside(full, least=20)], Terminal(42, cuts=True))) == ["a" * 20 + "  " + "b" * 20]


# Small maps.


def test_small_maps_say_how_many_there_are_and_how_they_are_pooled() -> None:
    maps = [Miniature(f"L{n}H0", "first", np.eye(20, dtype=np.float32)) for n in range(30)]
    for terminal, cells in ((PAPER, "4 × 2"), (SCREEN, "2 × 2")):
        title = list(paint([Miniatures(maps, 8, "heads", 270, "the first", "--all")], terminal))[1]
        shown = int(re.search(r"([0-9]+) of 270, the first; --all", title)[1])  # type: ignore[index]
        assert f"each cell shows the largest of {cells}" in title
        assert 5 <= shown < 30
    few = list(paint([Miniatures(maps[:3], 8, "heads", 3, "the first", "--all")], PAPER))
    assert few[1].startswith("heads   all 3; each cell")
    assert [line[2:12].rstrip() for line in few[4:]] == [
        "██",
        "  ██",
        "    ██",
        "      ██",
        "        ██",
    ]


# What is wrong is said first and last.


@pytest.fixture
def poisoned(tmp_path: Path, bpe: Tokenizer) -> Callable[[], Path]:
    def make() -> Path:
        config = ModelConfig.of(vocab_size=bpe.vocab_size, d_model=16, n_layers=2, n_heads=2, d_ff=32, context=64)
        model = lively(config)
        with torch.no_grad():
            model.blocks[1].ffn.down.weight[3, 5] = math.nan
        save_run(tmp_path / "poisoned", model, bpe)
        return tmp_path / "poisoned"

    return make


def test_a_failed_check_and_a_fault_are_at_the_top_and_at_the_bottom(
    tinytf: Tinytf, poisoned: Callable[[], Path]
) -> None:
    ran = tinytf("trace", SENTENCE, "-m", poisoned(), "--fail-on", "nan")
    assert ran.status == 1
    for part in (ran.lines[:6], ran.lines[-6:]):
        assert any(line.startswith("check failed: ") for line in part)
        assert any(line.startswith("nan: forward, first at L1.ffn: ") for line in part)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_maps_that_grow_draw_every_number_as_often_as_the_lines_allow(times: int) -> None:
    maps = [Miniature(f"H{head}", "first", np.eye(6)) for head in range(2)]
    lines = 2 + 6 * times
    drawn = list(paint([Miniatures(maps, lines, "heads", 2, "all", "", grow=True)], PAPER))[-6 * times :]
    expected = [" " * (row // times * times) + "█" * times for row in range(6 * times)]
    assert [line[2 : 2 + 6 * times].rstrip() for line in drawn] == expected
