"""tinytf neurons: what it draws, its data, its examples, and what it refuses."""

import json
import re
from pathlib import Path

import pytest
import torch
from driving import SENTENCE, Tinytf, digits, is_a_clean_error, without_colour
from rich.cells import cell_len
from safetensors.torch import load_file

from tinytf.checkpoints.run import save_run
from tinytf.config import ModelConfig
from tinytf.loading import Model
from tinytf.model.transformer import Transformer


@pytest.fixture
def headless(tmp_path: Path, opened: Model) -> Path:
    config = ModelConfig.from_dict({**opened.config.to_dict(), "head": "none"})
    save_run(tmp_path / "headless", Transformer.initialised(config, 0), opened.tokenizer)
    return tmp_path / "headless"


def test_every_token_has_its_units_and_what_they_promote(tinytf: Tinytf, decoder: Path, opened: Model) -> None:
    ran = tinytf("neurons", SENTENCE, "-m", decoder, "--top", "2")
    assert ran.status == 0, ran.err
    found = opened.neurons(SENTENCE, top=2)
    units = re.findall(r" (L\d\.\d+) ", ran.out.partition("\nunits ")[2])
    assert units == [str(active.unit) for token in found.tokens for active in token.units]
    assert "through the unembedding" in ran.out


def test_a_negative_activation_turns_a_direction_around(tinytf: Tinytf, decoder: Path, opened: Model) -> None:
    found = opened.neurons(SENTENCE, top=30)
    active = next(a for token in found.tokens for a in token.units if a.activation < 0)
    direction = next(one for one in found.directions if one.unit == active.unit)
    ran = tinytf("neurons", SENTENCE, "-m", decoder, "--top", "30", "--width", "300", "--rows", "0")
    row = next(line for line in ran.lines if f" {active.unit} " in line and " -" in line)
    suppressed = opened.tokenizer.shown(direction.suppressed[0][0])
    promoted = opened.tokenizer.shown(direction.promoted[0][0])
    assert row.rindex(f" {suppressed} ") < row.rindex(f" {promoted}")


def test_the_data_are_those_of_the_library(tinytf: Tinytf, decoder: Path, opened: Model) -> None:
    data = json.loads(tinytf("neurons", SENTENCE, "-m", decoder, "--json").out)
    found = opened.neurons(SENTENCE)
    assert data["kind"] == "neurons"
    for one, token in zip(data["active"], found.tokens, strict=True):
        assert one["predicted"]["id"] == token.predicted
        assert [(u["unit"], u["activation"], u["contribution"]) for u in one["units"]] == [
            digits((str(a.unit), a.activation, a.contribution)) for a in token.units
        ]
    assert [one["unit"] for one in data["directions"]] == [str(unit) for unit in found.units]
    assert data["examples"] is None


def test_events_are_the_same_data(tinytf: Tinytf, decoder: Path, corpus: Path) -> None:
    arguments = ("neurons", SENTENCE, "-m", decoder, "--top", "1", "--top-examples", corpus)
    data = json.loads(tinytf(*arguments, "--json").out)
    events = [json.loads(line) for line in tinytf(*arguments, "--format", "ndjson").lines]
    assert events[0]["type"] == "neurons"
    for kind, rows in (("active", data["active"]), ("direction", data["directions"]),
                       ("examples", data["examples"]["units"])):  # fmt: skip
        assert [{"type": kind, **one} for one in rows] == [event for event in events if event["type"] == kind]


def test_one_unit_is_followed_and_its_examples_are_marked(tinytf: Tinytf, decoder: Path, corpus: Path) -> None:
    arguments = ("neurons", SENTENCE, "-m", decoder, "--unit", "L1.7", "--top-examples", corpus, "--examples", "4")
    ran = tinytf(*arguments, "--window", "16")
    assert ran.status == 0, ran.err
    assert "L1.7 in the vocabulary" in ran.out
    marked = [line for line in ran.lines[ran.lines.index(next(x for x in ran.lines if "elsewhere" in x)) + 1 :] if line]
    assert len(marked) == 4
    assert all(re.search(r"<<[^<>]+>>", line) for line in marked)
    data = json.loads(tinytf(*arguments, "--json").out)
    (unit,) = data["examples"]["units"]
    sizes = [abs(one["activation"]) for one in unit["examples"]]
    assert sizes == sorted(sizes, reverse=True)
    assert all(one["tokens"][one["at"]] for one in unit["examples"])


def test_an_encoder_has_units_without_contributions(tinytf: Tinytf, encoder: Path) -> None:
    ran = tinytf("neurons", SENTENCE, "-m", encoder)
    assert ran.status == 0, ran.err
    assert "so it has no direct part of them" in ran.out
    assert "promotes" in ran.out
    refused = tinytf("neurons", SENTENCE, "-m", encoder, "--by", "contribution")
    assert is_a_clean_error(refused)


def test_a_model_without_a_head_has_units_without_directions(tinytf: Tinytf, headless: Path) -> None:
    ran = tinytf("neurons", SENTENCE, "-m", headless)
    assert ran.status == 0, ran.err
    assert "this model has no language-model head, so the units' directions are not read" in ran.out
    assert "promotes" not in ran.out
    one = tinytf("neurons", SENTENCE, "-m", headless, "--unit", "L0.3")
    assert one.status == 0
    assert "in the vocabulary" not in one.out


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_screen(
    tinytf: Tinytf, decoder: Path, encoder: Path, corpus: Path, width: int
) -> None:
    for model in (decoder, encoder):
        for more in ((), ("--unit", "L1.7", "--top-examples", corpus)):
            ran = tinytf("neurons", SENTENCE, "-m", model, *more, "--width", str(width), screen=True)
            assert ran.status == 0, ran.err
            assert max(map(cell_len, without_colour(ran.out).splitlines())) <= width


def test_in_sentences_nothing_is_drawn_and_files_are_written(tinytf: Tinytf, decoder: Path, tmp_path: Path) -> None:
    assert not re.search("[░▒▓█▁▂▃▏▎▍▌]", tinytf("neurons", SENTENCE, "-m", decoder, "--plain").out)
    assert tinytf("neurons", SENTENCE, "-m", decoder, "--ascii").out.isascii()
    for extension in ("txt", "json", "ndjson", "html", "svg"):
        path = tmp_path / f"neurons.{extension}"
        assert tinytf("neurons", SENTENCE, "-m", decoder, "-o", path).status == 0
        assert path.stat().st_size


def test_several_texts_come_one_a_line(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("neurons", "--lines", "-m", decoder, "--json", stdin=b"The cat\nThe dog\n")
    data = json.loads(ran.out)
    assert data["kind"] == "neurons"
    assert [one["text"] for one in data["neurons"]] == ["The cat", "The dog"]


def test_tensors_are_the_units_of_the_trace(tinytf: Tinytf, decoder: Path, opened: Model, tmp_path: Path) -> None:
    path = tmp_path / "units.safetensors"
    assert tinytf("neurons", SENTENCE, "-m", decoder, "--unit", "L1.7", "--unit", "L0.3", "-o", path).status == 0
    stored = load_file(path)
    trace = opened.trace(SENTENCE)
    assert stored["units"].tolist() == [[1, 7], [0, 3]]
    for column, (layer, index) in enumerate(stored["units"].tolist()):
        assert torch.equal(stored["activations"][:, column], trace.step("ffn.act", layer)[:, index])
        weight = dict(opened.transformer.named_parameters())[f"blocks.{layer}.ffn.down.weight"]
        assert torch.equal(stored["directions"][column], weight[:, index])


def test_the_corpus_may_come_from_a_pipe(tinytf: Tinytf, decoder: Path, corpus: Path) -> None:
    arguments = ("neurons", SENTENCE, "-m", decoder, "--unit", "L1.7", "--json", "--top-examples")
    of_file = json.loads(tinytf(*arguments, corpus).out)
    of_pipe = json.loads(tinytf(*arguments, "-", stdin=corpus.read_bytes()).out)
    assert of_pipe["examples"]["units"] == of_file["examples"]["units"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((SENTENCE, "--layer", "9"), "there is no layer 9"),
        ((SENTENCE, "--layer", "-3"), "there is no layer -3"),
        ((SENTENCE, "--unit", "L1"), "is not a unit"),
        ((SENTENCE, "--unit", "L1.99"), "there is no unit 99"),
        ((SENTENCE, "--unit", "L1.3", "--layer", "0"), "--unit already names its layer"),
        ((SENTENCE, "--top-examples", "nowhere.txt"), "cannot read nowhere.txt"),
        ((SENTENCE, "--top-examples", "-"), "the corpus has no word in it"),
        (("--top-examples", "-"), "a pipe holds one text"),
        (("-", "--top-examples", "-"), "a pipe holds one text"),
        ((SENTENCE, "--top-examples", "-", "--top-examples", "a.txt"), "- is a whole corpus"),
        ((SENTENCE, "--top", "0"), "--top"),
        (("",), "the text is empty"),
    ],
)
def test_bad_input_is_one_line_and_a_hint(tinytf: Tinytf, decoder: Path, arguments: tuple[str, ...], said: str) -> None:
    ran = tinytf("neurons", *arguments, "-m", decoder)
    assert is_a_clean_error(ran)
    assert said in ran.err


def test_hostile_texts_and_corpora_do_not_act_on_the_terminal(tinytf: Tinytf, decoder: Path, tmp_path: Path) -> None:
    path = tmp_path / "hostile\x1b[2J.txt"
    path.write_text("a\x1b[31mb [red]c 🐈 \u202e[/red] x" * 3, "utf-8")
    ran = tinytf("neurons", "a\x1b[31mb [bold]c 🐈", "-m", decoder, "--top-examples", path)
    assert ran.status == 0, ran.err
    assert "\x1b" not in ran.out
    assert "\u202e" not in ran.out
