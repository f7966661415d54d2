"""tinytf diff: its three cases, what it draws, its data, its status, and what it refuses."""

import json
import re
from pathlib import Path

import pytest
from driving import SENTENCE, Ran, Tinytf, digits, is_a_clean_error, without_colour
from rich.cells import cell_len

from tinytf.checkpoints.run import save_run
from tinytf.loading import Model, load

OTHER = "The dog sat on the mat"


@pytest.fixture
def moved(tmp_path: Path, opened: Model) -> Path:
    """The decoder once more, with all of one parameter twice as large."""
    model = load(opened.source, device="cpu").transformer
    model.blocks[1].ffn.down.weight.data *= 2
    save_run(tmp_path / "moved", model, opened.tokenizer)
    return tmp_path / "moved"


def test_two_texts_on_one_model(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("diff", SENTENCE, OTHER, "-m", decoder)
    assert ran.status == 0, ran.err
    assert "first difference at embed.tokens, beyond 1e-04 of a token's largest number: ·cat / ·dog" in ran.out
    assert any(line.startswith("KL(A‖B) ") for line in ran.lines[:12])


def rows_of_steps(ran: Ran) -> list[list[str]]:
    """The words of each row of the table of steps."""
    start = next(i for i, line in enumerate(ran.lines) if line.startswith("steps "))
    end = next(i for i, line in enumerate(ran.lines) if line.startswith("positions "))
    rows = [line.split() for line in ran.lines[start + 2 : end]]
    return [row for row in rows if row and row[0] != "the" and row[0] != "folded:"]


def test_of_each_layer_the_step_that_differs_most_is_shown_and_with_full_all(
    tinytf: Tinytf, decoder: Path, opened: Model
) -> None:
    steps = opened.diff(SENTENCE, OTHER).steps
    short = tinytf("diff", SENTENCE, OTHER, "-m", decoder)
    shown = [row[0] for row in rows_of_steps(short)]
    for layer in range(opened.config.n_layers):
        inside = [one for one in steps if one.layer == layer]
        assert [name for name in shown if name.startswith(f"L{layer}.")] == [max(inside, key=lambda s: s.relative).name]
    assert {"embed.tokens", "final.norm", "logits", "probs"} <= set(shown)
    assert f"--full shows {len(steps) - len(shown)} more" in short.out
    full = tinytf("diff", SENTENCE, OTHER, "-m", decoder, "--full")
    assert [row[0] for row in rows_of_steps(full)] == [one.name for one in steps]
    assert len(json.loads(tinytf("diff", SENTENCE, OTHER, "-m", decoder, "--json").out)["steps"]) == len(steps)


def test_the_map_has_the_numbers_of_the_steps(tinytf: Tinytf, decoder: Path, opened: Model) -> None:
    ran = tinytf("diff", SENTENCE, OTHER, "-m", decoder, "--all")
    start = next(i for i, line in enumerate(ran.lines) if line.startswith("relative difference"))
    steps = opened.diff(SENTENCE, OTHER).steps
    names = list(dict.fromkeys(one.step.name for one in steps if one.layer is not None))
    for line, name in zip(ran.lines[start + 2 :], names, strict=False):
        assert line.split()[0] == name
        expected = [one.relative for one in steps if one.layer is not None and one.step.name == name]
        shown = [float(word) for word in re.findall(r"\d\.\d+", line)]
        assert shown == pytest.approx(expected, abs=0.006)


def test_two_ways_of_sampling_and_what_either_draws(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("diff", "--sampling", "temperature=0,repetition_penalty=2", "--temp 0", SENTENCE, "-m", decoder)
    assert (ran.status, ran.err) == (0, "")
    assert "repetition_penalty  2" in ran.out
    assert "most probable token: at new token " in ran.out
    assert "tokens that are drawn" not in ran.out
    alone = tinytf("diff", "--sampling", "vllm:temperature=0.7", "vllm")
    assert alone.lines[0] == "One setting differs: temperature (A: 0.7; B: 1 by default)."
    data = json.loads(tinytf("diff", "--sampling", "vllm", "llama.cpp", SENTENCE, "-m", decoder, "--json").out)
    assert [one["name"] for one in data["settings"]][:3] == ["temperature", "top_k", "top_p"]
    assert len(data["steps"]) >= data["partings"][0]["number"]


@pytest.mark.parametrize("words", [
    ("vllm", "nothing"), ("vllm", "none.json"), ("vllm", "top_k=-x"), ("vllm:a=1", "vllm"), ("vllm",),
    ("vllm", "vllm", SENTENCE, "--floor", "bf16"),
])  # fmt: skip
def test_settings_that_cannot_be_read_are_refused(tinytf: Tinytf, words: tuple[str, ...]) -> None:
    assert is_a_clean_error(tinytf("diff", "--sampling", *words))


def test_the_same_text_twice_differs_in_nothing(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("diff", SENTENCE, SENTENCE, "-m", decoder, "--fail-over", "0")
    assert ran.status == 0
    assert "nothing differs: all " in ran.out
    assert json.loads(tinytf("diff", SENTENCE, SENTENCE, "-m", decoder, "--json").out)["equal"] is True


def test_two_models_on_one_text_say_which_weights_moved(tinytf: Tinytf, decoder: Path, moved: Path) -> None:
    ran = tinytf("diff", "-m", decoder, "--versus", moved, SENTENCE)
    assert ran.status == 0, ran.err
    assert "first difference at L1.ffn," in ran.out
    assert "the 1 of 1 changed parameters that moved most for their size" in ran.out
    row = next(line for line in ran.lines if line.startswith("  blocks.1.ffn.down.weight"))
    assert row.split()[-2] == "1.00"
    assert any(line.startswith("loss of the text ") for line in ran.lines[:16])  # the folders have long names


def test_two_checkpoints_of_a_run_show_what_was_learnt(
    tinytf: Tinytf, recipe: Path, corpus: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert tinytf("train", corpus, "--recipe", recipe, "--out", run, "--save-every", "1").status == 0
    steps = sorted((run / "checkpoints").iterdir())
    ran = tinytf("diff", "-m", steps[0], "--versus", run, "The cat", "--json")
    assert ran.status == 0, ran.err
    data = json.loads(ran.out)
    assert data["weights"][0]["ratio"] > 0
    assert len(data["losses"]) == 2
    assert data["first_difference"] == "embed.tokens"


def test_two_dtypes_of_one_model(tinytf: Tinytf, decoder: Path) -> None:
    data = json.loads(tinytf("diff", "-m", decoder, "--versus-dtype", "bfloat16", SENTENCE, "--json").out)
    assert [data[which]["model"]["dtype"] for which in ("first", "second")] == ["float32", "bfloat16"]
    assert data["tolerance"] == 1e-1
    assert data["equal"] is False


@pytest.mark.parametrize(("limit", "status"), [("0.001", 1), ("100", 0)])
def test_a_limit_decides_the_status(tinytf: Tinytf, decoder: Path, limit: str, status: int) -> None:
    ran = tinytf("diff", SENTENCE, OTHER, "-m", decoder, "--fail-over", limit)
    assert ran.status == status
    assert ran.lines[-1].startswith("check failed" if status else "checked")
    data = json.loads(tinytf("diff", SENTENCE, OTHER, "-m", decoder, "--fail-over", limit, "--json").out)
    assert data["check"] == {"fail_over": float(limit), "holds": not status}


def test_the_data_are_those_of_the_library(tinytf: Tinytf, decoder: Path, opened: Model) -> None:
    data = json.loads(tinytf("diff", SENTENCE, OTHER, "-m", decoder, "--head", "L0H1", "--json").out)
    found = opened.diff(SENTENCE, OTHER, head="L0H1")
    assert data["kind"] == "diff"
    assert data["steps"] == digits(json.loads(json.dumps([one.to_dict() for one in found.steps])))
    assert (data["attention"]["layer"], data["attention"]["head"]) == (0, 1)
    assert data["attention"]["first"][0][1] is None
    assert data["aligned"] == {"positions": 6, "changed": [1], "note": ""}


def test_events_are_the_same_data(tinytf: Tinytf, decoder: Path) -> None:
    arguments = ("diff", SENTENCE, OTHER, "-m", decoder)
    data = json.loads(tinytf(*arguments, "--json").out)
    events = [json.loads(line) for line in tinytf(*arguments, "--format", "ndjson").lines]
    assert [events[0]["type"], events[-1]["type"]] == ["diff", "check"]
    for kind, key in (("step", "steps"), ("position", "positions"), ("prediction", "predictions")):
        assert [{"type": kind, **one} for one in data[key]] == [event for event in events if event["type"] == kind]


def test_a_text_may_come_from_a_pipe(tinytf: Tinytf, decoder: Path) -> None:
    whole = tinytf("diff", SENTENCE, OTHER, "-m", decoder).out
    assert tinytf("diff", SENTENCE, "-", "-m", decoder, stdin=OTHER.encode()).out == whole
    assert tinytf("diff", "-m", decoder, "--versus-dtype", "float32", stdin=SENTENCE.encode()).status == 0


def test_every_file_is_written(tinytf: Tinytf, decoder: Path, tmp_path: Path) -> None:
    for extension in ("txt", "json", "ndjson", "html", "svg", "safetensors"):
        path = tmp_path / f"diff.{extension}"
        assert tinytf("diff", SENTENCE, OTHER, "-m", decoder, "-o", path).status == 0
        assert path.stat().st_size


def test_in_sentences_nothing_is_drawn_and_ascii_is_7_bits(tinytf: Tinytf, decoder: Path) -> None:
    arguments = ("diff", SENTENCE, OTHER, "-m", decoder)
    assert not re.search("[░▒▓█▁▂▃▏▎▍▌]", tinytf(*arguments, "--plain").out)
    assert tinytf(*arguments, "--ascii").out.isascii()


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_screen(
    tinytf: Tinytf, decoder: Path, moved: Path, encoder: Path, width: int
) -> None:
    for arguments in (
        ("diff", SENTENCE, OTHER, "-m", decoder),
        ("diff", SENTENCE, "-m", decoder, "--versus", moved),
        ("diff", SENTENCE, OTHER, "-m", encoder),
        ("diff", SENTENCE, "-m", decoder, "--versus-dtype", "bfloat16"),
    ):
        ran = tinytf(*arguments, "--width", str(width), screen=True)
        assert ran.status == 0, ran.err
        assert max(map(cell_len, without_colour(ran.out).splitlines())) <= width


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((SENTENCE,), "there is nothing to compare with"),
        ((), "there is nothing to compare with"),
        (("The", "cat", "sat"), "these are 3 texts"),
        ((SENTENCE, OTHER, "--versus", "tiny"), "two comparisons at once"),
        ((SENTENCE, OTHER, "--versus-dtype", "bfloat16"), "two comparisons at once"),
        ((SENTENCE, "--versus", "nothing"), "there is no model 'nothing'"),
        ((SENTENCE, OTHER, "--head", "L9H9"), "there is no layer 9"),
        ((SENTENCE, OTHER, "--head", "L0"), "is not one head"),
        ((SENTENCE, OTHER, "--head", "sat"), "there is no step 'sat'"),
        ((SENTENCE, OTHER, "--tolerance", "nan"), "nan is not 0 or more"),
        ((SENTENCE, OTHER, "--fail-over", "-1"), "--fail-over"),
        ((SENTENCE, ""), "the text is empty"),
        (("-", "-"), "a pipe holds one text"),
        ((SENTENCE, "cat " * 99), "takes at most 64"),
    ],
)
def test_bad_input_is_one_line_and_a_hint(tinytf: Tinytf, decoder: Path, arguments: tuple[str, ...], said: str) -> None:
    ran = tinytf("diff", *arguments, "-m", decoder)
    assert is_a_clean_error(ran)
    assert said in ran.err


def test_an_encoder_with_texts_of_different_lengths_is_refused(tinytf: Tinytf, encoder: Path) -> None:
    ran = tinytf("diff", SENTENCE, "The dog", "-m", encoder)
    assert is_a_clean_error(ran)
    assert "looks both ways" in ran.err


def test_hostile_texts_do_not_act_on_the_terminal(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("diff", "a\x1b[31mb [red]c", "🐈 \u202e[/red] x", "-m", decoder)
    assert ran.status == 0, ran.err
    assert "\x1b" not in ran.out
    assert "\u202e" not in ran.out


def test_a_number_that_is_set_is_compared_with_the_model_as_it_is(tinytf: Tinytf) -> None:
    numbers = ("--set", "L1H2.weights[sat,cat]=0.5", "--set", "√d = 2")
    told = json.loads(tinytf("diff", "The cat sat", *numbers, "--json").out)
    model = load("tiny")
    expected = model.diff("The cat sat", model.with_numbers({"L1H2.weights[2,1]": 0.5, "√d": 2}))
    assert told["first_difference"] == "L0.scaled"
    assert told["predictions"][0]["kl"] == pytest.approx(expected.predictions[0].kl)
    assert "note: with L1H2.weights[2,1] = 0.5, √d = 2" in tinytf("diff", "The cat sat", *numbers).out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--set", "√d"), "'√d' gives no number"),
        (("--set", "√d=one"), "'one' is not a number"),
        (("--set", "√d=1", "--versus", "tiny"), "--set compares a model without and with it"),
        (("--set", "L1H2.weights[dog,0]=1"), "no token is 'dog'"),
    ],
)
def test_a_number_that_cannot_be_set_says_why(tinytf: Tinytf, words: tuple[str, ...], message: str) -> None:
    ran = tinytf("diff", "The cat sat", *words)
    assert ran.status == 2
    assert message in ran.err
    assert ran.err.count("\n") == 2
