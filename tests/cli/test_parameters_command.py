"""Parameters on the command line: every way to show one, its other forms, and no text needed."""

import json
from pathlib import Path

import pytest
import torch
from driving import SENTENCE, Tinytf, is_a_clean_error
from safetensors.torch import load_file

from tinytf.loading import Model
from tinytf.look.parameters import WAYS
from tinytf_cli.encodings import to_json


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("width", [80, 200])
def test_every_way_fits_the_screen_and_says_what_it_is_and_makes(tinytf: Tinytf, way: str, width: int) -> None:
    ran = tinytf("trace", "--at", "L0H1.W_Q", "--as", way, "--width", str(width), "--color", "never", screen=True)
    assert (ran.status, ran.err) == (0, "")
    assert max(map(len, ran.out.splitlines())) <= width
    assert "d_model 128 × d_head 32 of blocks.0.attention.q.weight" in ran.out
    assert "makes L0H1.q" in " ".join(ran.out.split())


@pytest.mark.parametrize("way", WAYS)
def test_every_way_is_said_in_sentences_and_in_seven_bits(tinytf: Tinytf, way: str) -> None:
    arguments = ("trace", "--at", "L0H1.W_Q", "--as", way)
    assert tinytf(*arguments, "--ascii").out.isascii()
    said = tinytf(*arguments, "--plain").out
    assert not any(sign in said for sign in "░▒▓█▁▂▃⠒")


@pytest.mark.parametrize("way", WAYS)
def test_the_json_is_the_report(tinytf: Tinytf, decoder: Path, opened: Model, way: str) -> None:
    ran = tinytf("trace", "--at", "L1.W_O", "--as", way, "-m", decoder, "--json")
    assert json.loads(ran.out) == json.loads(to_json(opened.parameters("L1.W_O", way=way).to_dict()))


def test_the_tensors_are_written_by_their_addresses(
    tinytf: Tinytf, decoder: Path, opened: Model, tmp_path: Path
) -> None:
    path = tmp_path / "weights.safetensors"
    assert tinytf("trace", "--at", "L*H1.W_Q", "--at", "E", "-m", decoder, "-o", path).status == 0
    found, named = load_file(path), dict(opened.transformer.named_parameters())
    assert set(found) == {"L0H1.W_Q", "L1H1.W_Q", "E"}
    assert torch.equal(found["L1H1.W_Q"], named["blocks.1.attention.q.weight"][8:].T)
    with_steps = tmp_path / "both.safetensors"
    assert tinytf("trace", SENTENCE, "--at", "L0.in", "--at", "E", "-m", decoder, "-o", with_steps).status == 0
    assert {"E", "L0.in"} < set(load_file(with_steps))


def test_a_matrix_in_a_pipe_has_every_row(tinytf: Tinytf) -> None:
    shown = tinytf("trace", "--at", "L0.W_Q", "--as", "table").out
    assert all(f"\n  d{row} " in shown for row in range(128))
    assert "folded" not in shown
    cut = tinytf("trace", "--at", "L0.W_Q", "--as", "table", "--color", "never", screen=True).out
    assert "folded: 112 of 128 rows, d8 to d119; --rows 0 shows them" in cut


def test_a_steps_address_beside_a_parameters_needs_a_text(tinytf: Tinytf) -> None:
    shown = tinytf("trace", SENTENCE, "--at", "L0H1.weights", "--at", "E[cat]").out
    assert shown.index("L0H1.weights") < shown.index("E[cat]") < shown.index("checked:")
    ran = tinytf("trace", "--at", "L0H1.weights", "--at", "E[cat]", screen=True)
    assert (ran.status, ran.err.splitlines()[0]) == (2, "tinytf: error: the text is empty")


@pytest.mark.parametrize(
    "words",
    [
        ("ablate", "--at", "L0.W_Q", "--without", "mask"),
        ("trace", "--code", "--at", "L0.W_Q", "--at", "L0.q", SENTENCE),
    ],
    ids=" ".join,
)
def test_what_a_parameter_has_no_use_for_is_refused(tinytf: Tinytf, words: tuple[str, ...]) -> None:
    assert is_a_clean_error(tinytf(*words))


def test_a_weight_is_explained_as_what_it_is(tinytf: Tinytf) -> None:
    shown = " ".join(tinytf("explain", "L0H1.W_Q[3,7]").out.split())
    assert "learned, so nothing computes it; the norm of its row is 0.384" in shown
    assert "it makes L0H1.q: queries = n·W_Q + b" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("trace", "--at", "b_U"), "this model has no b_U: logits is computed without a bias"),
        (("trace", "--at", "L0.W_QQ"), "there is no step 'W_QQ'"),
        (("trace", "--at", "E[pooch]"), "token 'pooch' is 3 tokens"),
        (("trace", "--at", "E[2048]"), "vocab 2048 is out of range"),
        (("trace", "--at", "L0.b_Q", "--as", "spectrum"), "no spectrum of L0.b_Q, which is a vector"),
        (("trace", SENTENCE, "--as", "map"), "--as is for parameters, and no address names one"),
        (("explain", "L0.b_O[3]"), "this model has no b_O: attn is computed without a bias"),
        (("grad", SENTENCE, "--at", "L0.W_Q"), "W_Q is a parameter, not a step"),
        (("ablate", SENTENCE, "--at", "L0.W_Q"), "W_Q is a parameter, not a step"),
    ],
)
def test_what_cannot_be_asked_is_one_line(tinytf: Tinytf, words: tuple[str, ...], message: str) -> None:
    ran = tinytf(*words)
    assert ran.status == 2
    assert ran.err.startswith(f"tinytf: error: {message}")


def test_a_cut_of_a_matrix_has_the_names_of_its_own_rows_and_columns(
    tinytf: Tinytf, decoder: Path, opened: Model
) -> None:
    cut = ("trace", "--at", "L0.W_Q[1:4:2,-2:]", "-m", decoder)
    whole = opened.transformer.get_parameter("blocks.0.attention.q.weight").detach().T
    (found,) = json.loads(tinytf(*cut, "--as", "table", "--json").out)["parameters"]
    assert (found["shape"], found["axes"]) == ([2, 2], ["d_model", "n_heads·d_head"])
    lines = tinytf(*cut, "--as", "map", "--width", "80").lines
    assert "head 1 d6 head 1 d7" in " ".join(" ".join(lines).split())
    assert [line.split()[0] for line in lines if line.strip().startswith(("d1 ", "d3 "))] == ["d1", "d3"]
    rows = [line.split(",") for line in tinytf(*cut, "--format", "csv").lines]
    assert rows[0] == ["d_model/n_heads·d_head", "14", "15"]
    values = torch.tensor([[float(number) for number in row[1:]] for row in rows[1:]])
    assert torch.equal(values, whole[1:4:2, -2:])


@pytest.mark.parametrize("command", [("trace", SENTENCE, "--at", "L0H0.W_Q"), ("explain", "L0H1.W_Q[3,7]", SENTENCE)])
def test_a_text_beside_a_parameter_is_not_read_and_a_note_says_so(tinytf: Tinytf, command: tuple[str, ...]) -> None:
    ran, alone = tinytf(*command), tinytf(*(word for word in command if word != SENTENCE))
    assert ran.status == alone.status == 0
    assert ran.out == alone.out
    assert ran.err == "tinytf: a parameter is the same for every text, so TEXT is not read\n"
    assert alone.err == ""
