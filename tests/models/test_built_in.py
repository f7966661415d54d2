"""The built-in models are worth looking at: they predict sensibly and hold a previous-token head."""

import sys
from pathlib import Path
from typing import Any

import pytest

import tinytf
from tinytf.files import read_json
from tinytf.loading import Model
from tinytf.look.heads.census import census
from tinytf.look.heads.measures import measure_heads
from tinytf.sources import ASSETS, BUILT_IN
from tinytf.trace.check import check
from tinytf.trace.trace import Trace

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "samples" / "stories"))

from lexicon import VERBS

DETERMINERS = {"the", "a", "an", "his", "her", "its", "their", "this", "that", "these", "those", "every", "some"}


@pytest.fixture(scope="module")
def tiny() -> Model:
    return tinytf.load("tiny")


@pytest.fixture(scope="module")
def encoder() -> Model:
    return tinytf.load("tiny-encoder")


def first_prediction(model: Model, trace: Trace, position: int) -> str:
    return model.tokenizer.decode([int(trace.logits_at(position).argmax())]).strip()


def test_on_comes_first_after_the_cat_sat(tiny: Model) -> None:
    assert first_prediction(tiny, tiny.trace("The cat sat"), 2) == "on"


def test_a_determiner_comes_first_after_the_cat_sat_on(tiny: Model) -> None:
    trace = tiny.trace("The cat sat on")
    assert first_prediction(tiny, trace, len(trace.tokens) - 1) in DETERMINERS


def test_the_encoder_fills_the_verb_of_the_cat_on_the_mat_with_a_verb(encoder: Model) -> None:
    trace = encoder.trace("The cat [MASK] on the mat.")
    (row,) = trace.recording.logit_rows
    assert encoder.tokenizer.mask_id == trace.tokens[row].id
    forms = {form for verb in VERBS.values() for form in vars(verb).values()}
    assert first_prediction(encoder, trace, row) in forms


@pytest.mark.parametrize("length", [20, 50, 100])
def test_random_repeats_are_copied_by_a_previous_token_head_and_an_induction_head(tiny: Model, length: int) -> None:
    scores = census(tiny.transformer, length=length, count=16, seed=7)
    assert scores.first_loss is not None
    assert scores.second_loss is not None
    assert scores.second_loss < scores.first_loss - 5
    assert float(scores.score("previous").max()) > 0.5
    assert float(scores.score("induction").max()) > 0.5


def test_the_previous_token_head_of_the_card_looks_back_on_ordinary_text_too(tiny: Model) -> None:
    name = read_json(ASSETS / "tiny" / "card.json")["random_repeats"]["previous_token"]["head"]
    layer, head = (int(n) for n in name.removeprefix("L").split("H"))
    scores = measure_heads(tiny.trace("The cat sat on the mat. The dog was glad, and the cat was happy."), "previous")
    assert float(scores[layer, head]) > 0.5


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_built_in_model_adds_up(name: str) -> None:
    outcome = check(tinytf.load(name).trace("This is an example input. The bank of the river was green."))
    assert outcome.holds


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_card_names_data_recipe_seed_losses_and_limits(name: str) -> None:
    card: dict[str, Any] = read_json(ASSETS / name / "card.json")
    for part in ("data", "recipe", "seed", "held_out_loss", "limits"):
        assert card[part] not in (None, ""), part
    assert any(key.startswith("held_out_perplexity") for key in card)


def test_tiny_is_at_least_as_good_as_a_five_gram_model_on_held_out_text() -> None:
    card = read_json(ASSETS / "tiny" / "card.json")
    assert card["held_out_perplexity_per_word"] <= card["five_gram_perplexity_per_word"]


def test_both_models_take_at_most_eight_megabytes() -> None:
    assert sum(path.stat().st_size for name in BUILT_IN for path in (ASSETS / name).glob("*.safetensors")) <= 8_000_000
