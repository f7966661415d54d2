"""tinytf lens and tinytf attribute: what they draw, their data, and what they refuse."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from driving import SENTENCE, WIDE, Tinytf, is_a_clean_error, without_colour
from rich.cells import cell_len
from safetensors.torch import load_file

from tinytf.checkpoints.run import save_run
from tinytf.config import ModelConfig
from tinytf.loading import Model, load
from tinytf.model.transformer import Transformer
from tinytf.text.tokenizer import Tokenizer
from tinytf.trace import record as recording
from tinytf_cli.paint.painter import paint
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Grid

MASKED = "The [MASK] sat on the [MASK]"
LONG = " ".join([SENTENCE] * 5)


@pytest.fixture(scope="module")
def headless(tmp_path_factory: pytest.TempPathFactory, bpe: Tokenizer) -> Path:
    """The folder of a model that predicts nothing."""
    config = ModelConfig.of(
        vocab_size=bpe.vocab_size, d_model=8, n_layers=1, n_heads=1, d_ff=8, context=16, causal=False, head="none"
    )
    folder = tmp_path_factory.mktemp("models") / "headless"
    save_run(folder, Transformer.initialised(config, 0), bpe)
    return folder


# lens


def test_the_grid_has_every_layer_and_its_last_row_is_what_the_model_predicts(
    tinytf: Tinytf, decoder: Path, opened: Model
) -> None:
    ran = tinytf("lens", SENTENCE, "-m", decoder, "--width", "200")
    assert ran.status == 0, ran.err
    start = next(i for i, line in enumerate(ran.lines) if line.startswith("logit lens"))
    grid = ran.lines[start + 4 : start + 7]
    assert [line.split()[0] for line in grid] == ["embed.out", "L0.out", "L1.out"]
    trace = opened.trace(SENTENCE)
    with torch.no_grad():
        logits = opened.transformer(torch.tensor([trace.encoding.ids]))[0]
    predicted = [opened.tokenizer.shown(int(i)) for i in logits.argmax(-1)]
    shares = [f"{float(p):.2f}" for p in logits.softmax(-1).amax(-1)]
    assert grid[-1].split()[1:] == [word for pair in zip(predicted, shares, strict=True) for word in pair]
    assert ran.lines[-1] == "checked: the last row is the model's own output, to the last bit"


def test_the_data_of_the_lens_are_those_of_the_library(tinytf: Tinytf, decoder: Path, opened: Model) -> None:
    arguments = ("lens", SENTENCE, "-m", decoder, "--track", "cat", "--sublayers", "--top", "3")
    data = json.loads(tinytf(*arguments, "--json").out)
    found = opened.lens(SENTENCE, track=["cat"], sublayers=True, top=3)
    assert data["kind"] == "lens"
    assert data["check"] == {"holds": True, "largest_difference": 0.0}
    assert [stage["stage"] for stage in data["stages"]] == ["embed.out", "L0.mid", "L0.out", "L1.mid", "L1.out"]
    for one, stage in zip(data["stages"], found.stages, strict=True):
        assert [at["entropy"] for at in one["at"]] == stage.entropy.tolist()
        assert [at["divergence"] for at in one["at"]] == stage.divergence.tolist()
        assert [[t["id"] for t in at["top"]] for at in one["at"]] == stage.top_ids.tolist()
        assert [at["tracked"][0]["rank"] for at in one["at"]] == stage.ranks[:, 0].tolist()
    events = [json.loads(line) for line in tinytf(*arguments, "--format", "ndjson").lines]
    assert [event["type"] for event in events] == ["lens", *["token"] * len(data["tokens"]), *["stage"] * 5, "check"]
    assert [{"type": "stage", **stage} for stage in data["stages"]] == [e for e in events if e["type"] == "stage"]


def test_a_tracked_token_has_its_rank_and_probability_in_every_row(
    tinytf: Tinytf, decoder: Path, opened: Model
) -> None:
    out = tinytf("lens", SENTENCE, "-m", decoder, "--track", "·cat", "--position", "2").out
    found = opened.lens(SENTENCE, position="2", track=["cat"])
    table = out[out.index("the tracked tokens") :]
    for stage in found.stages:
        rank, share = int(stage.ranks[0, 0]), float(stage.probabilities[0, 0])
        row = re.search(rf"^  {stage.name} +(\S+) +(\S+)", table, re.MULTILINE)
        assert row is not None
        assert (row[1], float(row[2])) == (f"{rank:,}", pytest.approx(share, rel=0.6, abs=6e-5))


def test_an_encoder_shows_its_masks_and_says_how_it_is_read(tinytf: Tinytf, encoder: Path) -> None:
    ran = tinytf("lens", MASKED, "-m", encoder, "--sublayers")
    assert "there is no final norm: each block" in ran.out
    assert re.findall(r"^position (\d+)", ran.out, re.MULTILINE) == ["2", "6"]
    assert re.search(r"^  L1\.norm2 ", ran.out, re.MULTILINE)
    assert "no [MASK], so every position" in tinytf("lens", SENTENCE, "-m", encoder).out
    assert "no [MASK], so" not in tinytf("lens", SENTENCE, "-m", encoder, "--position", "1,2").out


def test_what_a_screen_has_no_room_for_is_said_and_off_a_screen_nothing_is_left_out(
    tinytf: Tinytf, decoder: Path, opened: Model
) -> None:
    count = len(opened.encode(LONG).tokens)
    screen = tinytf("lens", LONG, "-m", decoder, "--width", "80", screen=True).out
    said = re.search(r"omitted: (\d+) of (\d+) positions \(0 to (\d+)\)", screen)
    assert said is not None
    assert (int(said[2]), int(said[3])) == (count, int(said[1]) - 1)
    pipe = tinytf("lens", LONG, "-m", decoder, "--width", "80", "--all")
    assert "left out" not in pipe.out
    assert "…" not in pipe.out
    grid = pipe.out[: pipe.out.index("entropy here")]
    assert sum(len(re.findall(r" [01]\.\d\d", row)) for row in re.findall(r"^  L1.out.*", grid, re.MULTILINE)) == count


@pytest.mark.share(4)
@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
@pytest.mark.parametrize("options", [[], ["--color", "never"], ["--ascii"]], ids=["colour", "none", "ascii"])
def test_no_line_is_wider_than_the_screen(
    tinytf: Tinytf, decoder: Path, encoder: Path, characters: Path, width: int, options: list[str]
) -> None:
    for arguments in (
        ["lens", LONG, "-m", decoder, "--track", "cat", "--track", "the", "--track", "dog"],
        ["lens", MASKED, "-m", encoder],
        ["lens", WIDE["CJK"], "-m", characters],
        ["attribute", SENTENCE, "-m", decoder],
        ["attribute", MASKED, "-m", encoder, "--position", "2"],
    ):
        ran = tinytf(*arguments, "--width", str(width), *options, screen=True)
        assert ran.status == 0, ran.err
        assert max(map(cell_len, without_colour(ran.out).splitlines())) <= width


def _grid(**more: object) -> Grid:
    shares = np.array([[0.9, 0.2], [0.5, 0.0]], dtype=np.float32)
    return Grid([["one", "two"], ["three", "four"]], shares, ["a", "b"], ["x", "y"], **more)  # type: ignore[arg-type]


def test_a_grid_writes_its_shares_without_colour_and_paints_them_with_it() -> None:
    plain = list(paint([_grid()], Terminal(80)))
    assert plain == ["    x          y", "  a one   0.90 two  0.20", "  b three 0.50 four 0.00"]
    coloured = list(paint([_grid()], Terminal(80, "truecolor", cuts=True)))
    assert [without_colour(line).rstrip() for line in coloured[:3]] == plain
    bright, dark = (re.search(r"38;2;(\d+);\d+;\d+;48;2;(\d+)", line) for line in (coloured[1], coloured[2]))
    assert bright is not None
    assert dark is not None
    assert (bright[1], dark[1]) == ("0", "0")  # black on light green and on teal
    assert "38;2;255;255;255;48;2;68;1;84" in coloured[2]  # white on the darkest


def test_a_narrow_coloured_grid_drops_the_numbers_first_then_columns() -> None:
    def bare(width: int) -> list[str]:
        lines = paint([_grid(keep_last=True)], Terminal(width, "truecolor", cuts=True))
        return [without_colour(line).rstrip() for line in lines]

    assert bare(16)[1] == "  a one   two"
    assert bare(11)[1] == "  a two"
    assert " ".join(line.strip() for line in bare(11)[3:]).startswith("omitted: 1 of 2 columns (x);")


# attribute


def test_the_printed_parts_add_up_to_the_printed_logit(tinytf: Tinytf, decoder: Path, opened: Model) -> None:
    ran = tinytf("attribute", SENTENCE, "-m", decoder, "--top", "6")
    assert ran.status == 0, ran.err
    part = ran.out[ran.out.index("parts ") : ran.out.index("heads   ")]
    printed = [float(number) for number in re.findall(r"([+-]\d+\.\d{4})", part)]
    assert len(printed) == 8  # six, the rest, the sum
    logits = opened.trace(SENTENCE).recorded_logits[0]
    assert sum(printed[:-1]) == pytest.approx(printed[-1], abs=1e-3)
    assert printed[-1] == pytest.approx(float(logits.max()), abs=1e-4)
    said = re.fullmatch(
        r"checked: (\d+) parts sum to (\S+), the logit is (\S+), off by (\S+) \(allowed 1e-04\)", ran.lines[-1]
    )
    assert said is not None
    assert abs(float(said[2]) - float(said[3])) <= 1e-4
    assert float(said[4]) <= 1e-4


def test_the_data_of_an_attribution_are_those_of_the_library(tinytf: Tinytf, decoder: Path, opened: Model) -> None:
    arguments = ("attribute", SENTENCE, "-m", decoder, "--token", "cat", "--versus", "dog", "--position", "sat")
    data = json.loads(tinytf(*arguments, "--json").out)
    found = opened.attribute(SENTENCE, token="cat", versus="dog", position="sat")
    assert data["kind"] == "attribute"
    assert (data["position"], data["target"]["id"], data["versus"]["id"]) == (2, found.token, found.versus)
    assert [(part["part"], part["value"]) for part in data["parts"]] == [(p.name, p.value) for p in found.parts]
    assert data["heads"] == found.heads().tolist()
    assert data["check"]["sum"] == pytest.approx(data["logit"], abs=1e-4)
    events = [json.loads(line) for line in tinytf(*arguments, "--format", "ndjson").lines]
    assert [{"type": "part", **part} for part in data["parts"]] == [e for e in events if e["type"] == "part"]
    assert events[-1] == {"type": "check", **data["check"]}


def test_the_parts_are_sorted_by_size_and_the_map_has_every_head(tinytf: Tinytf, encoder: Path) -> None:
    ran = tinytf("attribute", "The [MASK] sat", "-m", encoder, "--top", "99")
    assert ran.status == 0, ran.err
    part = ran.out[ran.out.index("parts ") : ran.out.index("heads   ")]
    sizes = [abs(float(number)) for number in re.findall(r"([+-]\d+\.\d{4})", part)][:-1]
    assert sizes == sorted(sizes, reverse=True)
    heads = ran.out[ran.out.index("heads   what each adds") :].splitlines()
    assert [len(re.findall(r"-?\d\.\d+", line)) for line in heads[2:4]] == [2, 2]
    assert "the scale of every norm and the gate of the head's activation" in ran.out


def test_parts_that_do_not_add_up_are_status_1(tinytf: Tinytf, decoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = recording.Trace

    def broken(model, encoding, recorded, *source):  # type: ignore[no-untyped-def]
        recorded.tensors["L0.head_out"][1, -1, 3] += 0.5
        return right(model, encoding, recorded, *source)

    monkeypatch.setattr(recording, "Trace", broken)
    ran = tinytf("attribute", SENTENCE, "-m", decoder)
    assert ran.status == 1
    assert re.match(r"check failed: .* off by \S+ \(allowed 1e-04\)", ran.lines[-1])


def test_a_last_row_that_is_not_the_models_is_status_1(
    tinytf: Tinytf, decoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = recording.Trace

    def broken(model, encoding, recorded, *source):  # type: ignore[no-untyped-def]
        recorded.tensors["L1.out"][-1, 3] += 1e-3
        return right(model, encoding, recorded, *source)

    monkeypatch.setattr(recording, "Trace", broken)
    ran = tinytf("lens", SENTENCE, "-m", decoder)
    assert ran.status == 1
    assert ran.lines[-1].startswith("check failed: the last row and the model's own output differ by")


# both


@pytest.mark.parametrize("name", ["lens", "attribute"])
def test_files_hold_what_a_stream_would(tinytf: Tinytf, decoder: Path, tmp_path: Path, name: str) -> None:
    for extension, options in (("txt", []), ("json", ["--json"]), ("ndjson", ["--format", "ndjson"])):
        path = tmp_path / f"out.{extension}"
        assert tinytf(name, SENTENCE, "-m", decoder, "-o", path).status == 0
        assert path.read_bytes() == tinytf(name, SENTENCE, "-m", decoder, *options).data
    for extension in ("svg", "html", "safetensors"):
        assert tinytf(name, SENTENCE, "-m", decoder, "-o", tmp_path / f"out.{extension}").status == 0
    tensors = load_file(tmp_path / "out.safetensors")
    assert tensors["top_ids" if name == "lens" else "heads"].shape[0] == (3 if name == "lens" else 2)


@pytest.mark.parametrize("name", ["lens", "attribute"])
def test_in_sentences_nothing_is_drawn_and_every_line_is_a_text_of_its_own(
    tinytf: Tinytf, decoder: Path, name: str
) -> None:
    ran = tinytf(name, "The cat\nThe dog ran\n", "-m", decoder, "--lines", "--plain")
    assert ran.status == 0, ran.err
    assert not re.search("[░▒▓█▁▂▃▏▎▍▌]", ran.out)
    assert ran.out.count("checked: ") == 2
    data = json.loads(tinytf(name, "The cat\nThe dog ran\n", "-m", decoder, "--lines", "--json").out)
    assert [one["text"] for one in data["lenses" if name == "lens" else "attributions"]] == ["The cat", "The dog ran"]


@pytest.mark.parametrize("name", ["lens", "attribute"])
@pytest.mark.parametrize("text", [*WIDE.values(), "\x1b[31mred\x1b[0m \u202e\u200b [bold]x[/bold]"])
def test_no_character_of_a_text_acts_on_the_terminal(tinytf: Tinytf, decoder: Path, name: str, text: str) -> None:
    for options in ([], ["--color", "always"], ["--plain"], ["--ascii"]):
        ran = tinytf(name, text, "-m", decoder, *options, screen=True)
        assert ran.status == 0, ran.err
        assert all(char.isprintable() or char == "\n" for char in without_colour(ran.out)), ascii(ran.out)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("lens", SENTENCE, "--position", "99"), "there is no position 99"),
        (("lens", SENTENCE, "--position", "3-1"), "run backwards"),
        (("lens", SENTENCE, "--position", "zebra"), "no token is 'zebra'"),
        (("lens", SENTENCE, "--track", "catastrophically"), "--track 'catastrophically' is"),
        (("lens", SENTENCE, "--track", "#99999"), "there is no token 99,999"),
        (("lens", SENTENCE, "--track", ""), "--track is empty"),
        (("lens", SENTENCE, "--top", "0"), "--top"),
        (("lens", ""), "the text is empty"),
        (("attribute", SENTENCE, "--token", "catastrophically"), "--token 'catastrophically' is"),
        (("attribute", SENTENCE, "--token", "cat", "--versus", "cat"), "compared with itself"),
        (("attribute", SENTENCE, "--position", "0-1"), "is 2 positions"),
        (("attribute", SENTENCE, "--position", "-99"), "there is no position -99"),
        (("attribute", ""), "the text is empty"),
    ],
)
def test_bad_input_is_one_line_and_a_hint(tinytf: Tinytf, decoder: Path, arguments: tuple[str, ...], said: str) -> None:
    ran = tinytf(*arguments, "-m", decoder)
    assert is_a_clean_error(ran)
    assert said in ran.err


@pytest.mark.parametrize("name", ["lens", "attribute"])
def test_a_model_without_a_head_is_refused(tinytf: Tinytf, headless: Path, name: str) -> None:
    ran = tinytf(name, SENTENCE, "-m", headless)
    assert is_a_clean_error(ran)
    assert "no language-model head" in ran.err


def test_an_encoders_masks_have_to_be_told_apart(tinytf: Tinytf, encoder: Path) -> None:
    ran = tinytf("attribute", MASKED, "-m", encoder)
    assert is_a_clean_error(ran)
    assert "2 [MASK], at 2, 6" in ran.err
    assert load(str(encoder)).attribute(MASKED, position="6").holds
