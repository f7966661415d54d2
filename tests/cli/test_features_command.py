"""tinytf features and train-sae: what they draw, their data, and what they refuse."""

import json
import re
import shlex
from pathlib import Path

import pytest
from driving import Tinytf, digits, is_a_clean_error, without_colour
from rich.cells import cell_len
from safetensors.torch import load_file

from tinytf.loading import Model, load

ROOT = Path(__file__).parents[2]
SAE, CORPUS = ROOT / "samples" / "sae", ROOT / "tinytf" / "assets" / "tiny" / "held_out.txt"
TEXT = "The cat sat on the mat. The dog"
ASKED = ("features", TEXT, "--sae", SAE)


@pytest.fixture(scope="module")
def model() -> Model:
    return load("tiny")


def test_the_data_are_those_of_the_library(tinytf: Tinytf, model: Model) -> None:
    data, report = json.loads(tinytf(*ASKED, "--json").out), model.features(TEXT, SAE)
    assert (data["kind"], data["sentence"], data["at"]) == ("features", report.sentence, "L2.out")
    for row, token in zip(data["active"], report.tokens, strict=True):
        assert [(one["feature"], one["activation"], one["contribution"]) for one in row["features"]] == [
            digits((one.feature, one.activation, one.contribution)) for one in token.features
        ]
    assert data["fidelity"]["loss_recovered"] == pytest.approx(report.fidelity.loss_recovered)
    events = [json.loads(line) for line in tinytf(*ASKED, "--format", "ndjson").lines]
    assert [one for one in events if one["type"] == "direction"] == [
        {"type": "direction", **one} for one in data["directions"]
    ]


def test_the_answer_comes_first_and_fits_a_screen(tinytf: Tinytf) -> None:
    for more in ((), ("--feature", "3"), ("--ablate", "3", "--add", "5*9")):
        for width in (80, 100, 200):
            ran = tinytf(*ASKED, *more, "--width", str(width), screen=True)
            assert ran.status == 0, ran.err
            lines = without_colour(ran.out).splitlines()
            assert len(lines) <= 45
            assert all(cell_len(line) <= width for line in lines)
            sentence = json.loads(tinytf(*ASKED, *more, "--json").out)["sentence"]
            assert " ".join(lines[:3]).startswith(sentence)


def test_one_feature_is_followed_through_text_and_corpus(tinytf: Tinytf, model: Model) -> None:
    strongest = model.features(TEXT, SAE).tokens[1].features[0].feature
    ran = tinytf(*ASKED, "--feature", str(strongest), "--top-examples", CORPUS, "--examples", "2")
    assert ran.status == 0, ran.err
    assert f"feature {strongest}   its activation along the text" in ran.out
    assert len(re.findall(r"^  \+[\d.]+ .*<<.+>>", ran.out, re.MULTILINE)) == 2


def test_tensors_are_written_under_names_with_axes(tinytf: Tinytf, model: Model, tmp_path: Path) -> None:
    path = tmp_path / "features.safetensors"
    assert tinytf(*ASKED, "--feature", "3", "--feature", "9", "-o", path).status == 0
    tensors, report = load_file(path), model.features(TEXT, SAE, chosen=[3, 9])
    assert tensors["features"].tolist() == [3, 9]
    assert tensors["activations"].equal(report.coder.encode(model.trace(TEXT)["L2.out"])[:, [3, 9]])
    assert tensors["directions"].equal(report.coder.decoder[[3, 9]])


def test_an_autoencoder_is_trained_and_opens(tinytf: Tinytf, tmp_path: Path) -> None:
    folder, sizes = tmp_path / "sae", ("--features", "32", "--k", "4", "--tokens", "2000", "--batch", "100")
    ran = tinytf("train-sae", CORPUS, "--at", "L1.attn", *sizes, "--out", folder)
    assert ran.status == 0, ran.err
    assert ran.out.startswith("4 active features a token keep")
    data = json.loads(tinytf("features", TEXT, "--sae", folder, "--json").out)
    assert (data["at"], data["fidelity"]["l0"], data["sae"]["trained_on"]) == ("L1.attn", 4.0, "tiny")
    again = tinytf("train-sae", CORPUS, "--at", "L1.attn", *sizes, "--out", folder)
    assert is_a_clean_error(again)
    assert "is not empty" in again.err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--sae", "nowhere"), "there is no nowhere"),
        (("--sae", ROOT / "samples" / "port.npz"), "missing"),
        (("--sae", SAE, "--at", "L2.q"), "not one vector a token"),
        (("--sae", SAE, "--add", "5"), "not a feature and an activation"),
        (("--sae", SAE, "--add", "5*inf"), "inf is no activation"),
        (("--sae", SAE, "--add", "5*1", "--add", "5*2"), "names a feature twice"),
        (("--sae", SAE, "-m", "tiny-encoder", "--ablate", "3"), "no [MASK] to fill"),
        (("--sae", SAE, "-m", "preset:gpt2"), "reads vectors of 128 numbers, and L2.out of this model has 768"),
    ],
)
def test_what_cannot_be_asked_is_one_clean_line(tinytf: Tinytf, more: tuple[str | Path, ...], words: str) -> None:
    ran = tinytf("features", TEXT, *more)
    assert is_a_clean_error(ran, status=1 if words in ("there is no nowhere", "missing") else 2)
    assert words in ran.err
    assert "hint:" in ran.err


def test_a_crosscoder_is_opened_by_the_line_that_its_training_says(tinytf: Tinytf, tmp_path: Path) -> None:
    file = tmp_path / "cross.safetensors"
    sizes = ("--at", "L2.out", "--features", 32, "--tokens", 1024, "--batch", 128, "--versus", "tiny")
    ran = tinytf("train-sae", CORPUS, *sizes, "-o", file)
    assert ran.status == 0
    (line,) = re.findall(r"to open it: tinytf (.*)", ran.err)
    command = [TEXT if word == "TEXT" else word for word in shlex.split(line)]
    opened = json.loads(tinytf(*command, "--json").out)
    assert (opened["kind"], opened["at"], opened["sae"]["layout"]) == ("features", "L2.out", "tinytf crosscoder")
    assert opened["active"][-1]["features"]
    for wrong, said, status in (
        (("features", TEXT, "--sae", file), "is a crosscoder of two models", 1),
        (("circuit", TEXT, "--features", file), "is a crosscoder of two models", 1),
        ((*ASKED, "--versus", "tiny"), "is no crosscoder", 1),
        ((*command, "--top-examples", CORPUS), "a crosscoder is of two", 2),
        ((*command, "--into", "L2.ffn"), "writes the step that it reads", 2),
    ):
        refused = tinytf(*wrong)
        assert is_a_clean_error(refused, status)
        assert said in refused.err
    assert "is not kept" in tinytf("train-sae", CORPUS, *sizes).err
