"""The command for neighbours: what it shows, its other forms, and what it refuses."""

import json
from pathlib import Path

import pytest
from driving import SENTENCE, Tinytf
from safetensors.torch import load_file

from tinytf.loading import Model


@pytest.mark.parametrize("width", [80, 200])
def test_one_word_has_bars_and_its_nearest_token_comes_first(tinytf: Tinytf, width: int) -> None:
    shown = tinytf("neighbours", "cat", "--top", "3", "--width", str(width)).lines
    place = next(i for i, line in enumerate(shown) if line.startswith("·cat   the nearest embeddings"))
    assert [line.split()[0] for line in shown[place + 1 : place + 4]] == ["·cats", "·badger", "·cow"]
    assert place < 5


def test_several_words_have_the_similarity_of_each_pair(tinytf: Tinytf) -> None:
    shown = tinytf("neighbours", "mat", "chair", "dog").out
    data = json.loads(tinytf("neighbours", "mat", "chair", "dog", "--json").out)
    pairs = data["similarity"]["E"]
    assert pairs[0][1] == pytest.approx(pairs[1][0])
    assert pairs[0][1] > 0.5 > pairs[0][2]
    for row in pairs:
        assert all(f"{value:.2f}" in shown for value in row)


def test_neighbours_of_a_stream_are_of_its_text(tinytf: Tinytf, decoder: Path, opened: Model) -> None:
    data = json.loads(tinytf("neighbours", SENTENCE, "--at", "L1.out[cat]", "-m", decoder, "--json").out)
    assert (data["text"], data["at"], data["vectors"][0]["id"]) == (SENTENCE, "L1.out[cat]", None)
    found = opened.neighbours(text=SENTENCE, at="L1.out[cat]")
    assert [one["id"] for one in data["nearest"][0]["neighbours"]] == found.spaces[0].ids[0].tolist()
    assert tinytf("neighbours", "--at", "L1.out[cat]", "-m", decoder, stdin=SENTENCE.encode()).status == 0


def test_rows_limit_the_vectors_on_a_screen_and_say_so(tinytf: Tinytf, decoder: Path, opened: Model) -> None:
    arguments = ("neighbours", SENTENCE, "--at", "L*.out", "-m", decoder)
    shown = tinytf(*arguments, "--rows", "4", "--width", "80", screen=True).out
    names = opened.neighbours(text=SENTENCE, at="L*.out").names
    said = f"folded: {len(names) - 4} of {len(names)} vectors, {names[2]} to {names[-3]}; --rows 0 shows them"
    assert said in " ".join(shown.split())
    assert "folded:" not in tinytf(*arguments).out


def test_sentences_and_seven_bits_say_the_same(tinytf: Tinytf) -> None:
    assert "·cats: 0.436." in tinytf("neighbours", "cat", "--plain").out
    assert "Row ·cat: 1. is ·cats 0.44" in tinytf("neighbours", "cat", "dog", "--plain").out
    assert tinytf("neighbours", "cat", "dog", "--ascii").out.isascii()


def test_the_tensors_are_written_by_the_name_of_their_table(tinytf: Tinytf, tmp_path: Path) -> None:
    path = tmp_path / "near.safetensors"
    assert tinytf("neighbours", "cat", "dog", "-o", path).status == 0
    found = load_file(path)
    assert set(found) == {"E.vectors", "E.similarity", "E.ids", "E.cosines"}
    assert found["E.vectors"].shape == (2, 128)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "there is no word"),
        (("pooch",), "word 'pooch' is 3 tokens: ·p │ oo │ ch"),
        (("cat", "cat"), "the word ·cat comes twice"),
        (("The cat", "--at", "L9.out"), "there is no layer 9"),
        (("The cat", "--at", "L0.weights"), "L0.weights is not a vector as wide as an embedding"),
    ],
)
def test_what_cannot_be_asked_is_one_line_and_a_hint(tinytf: Tinytf, words: tuple[str, ...], message: str) -> None:
    ran = tinytf("neighbours", *words)
    assert ran.status == 2
    assert ran.err.startswith(f"tinytf: error: {message}")
    assert "\nhint: " in ran.err
