"""A vocabulary that was asked for is filled to the last token or refused; one that was not is as large as it can be."""

import re
from pathlib import Path

import pytest

from tinytf.errors import UsageError
from tinytf.text.corpus import find_files
from tinytf.text.tokenizer import Tokenizer
from tinytf.text.train import TRAINERS
from tinytf.training.data.setup import prepare
from tinytf.training.recipe import USUAL_VOCABULARY, Recipe
from tinytf.training.train import train

MODEL = {"d_model": 8, "n_layers": 1, "n_heads": 1, "d_ff": 8, "context": 16}
TEXT = "\n\n".join(f"The {a}{b} {c}{b} sat, {d}{a}! {d}{c}{b}?" for a in ("cat", "hedgehog", "umbrella", "quick")
                   for b in ("ish", "ness") for c in ("jug", "violin") for d in ("zero", "pike"))  # fmt: skip


def recipe(tokenizer: str, size: int = 0) -> Recipe:
    objective = "masked" if tokenizer == "wordpiece" else "causal"
    return Recipe(
        model=MODEL, tokenizer=tokenizer, vocab_size=size, objective=objective, block=8, batch=2, steps=1, warmup=0,
        held_out=0.0,
    )  # fmt: skip


def made(tokenizer: str, size: int, folder: Path) -> Tokenizer:
    return prepare(find_files(TEXT), recipe(tokenizer, size), folder).tokenizer


@pytest.mark.parametrize("tokenizer", ["bpe", "wordpiece"])
def test_the_size_that_is_named_is_the_largest_that_the_text_fills(tokenizer: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        made(tokenizer, 2000, tmp_path)
    said = re.fullmatch(
        r"a vocabulary of 2,000 tokens is too large for this text, which yields (\d+) at most", caught.value.message
    )
    assert said
    assert caught.value.hint == "leave the size out, or give more text"
    most = int(said[1])
    assert made(tokenizer, most, tmp_path).vocab_size == most
    with pytest.raises(UsageError, match=f"yields {most} at most"):
        made(tokenizer, most + 1, tmp_path)
    assert made(tokenizer, 0, tmp_path).vocab_size == most


@pytest.mark.parametrize("tokenizer", ["bpe", "wordpiece"])
def test_without_a_size_it_is_the_usual_one_where_the_text_has_so_many(tokenizer: str, tmp_path: Path) -> None:
    words = " ".join(
        f"{a}{b}{c}{d}"
        for a in "bcdfghklmn"
        for b in "aeiou"
        for c in "prstvwxz"
        for d in ("ab", "ec", "id", "of", "ug", "yk")
    )
    found = prepare(find_files(words), recipe(tokenizer), tmp_path)
    assert found.tokenizer.vocab_size == USUAL_VOCABULARY
    assert found.tokenizer.to_json() == TRAINERS[tokenizer]([words], USUAL_VOCABULARY).to_json()


def test_characters_are_as_many_as_they_are(tmp_path: Path) -> None:
    assert made("char", 2000, tmp_path).vocab_size == len(set(TEXT))


def test_a_run_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="too large for this text"):
        train(TEXT, recipe("bpe", 5000), tmp_path / "run")
    assert not (tmp_path / "run").exists()
