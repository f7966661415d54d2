"""The built-in models are worth looking at: they predict sensibly and hold a previous-token head."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinytf
from tinytf.files import read_json
from tinytf.loading import Model
from tinytf.look.heads.census import census
from tinytf.look.heads.measures import measure_heads
from tinytf.presets import BUILT_IN
from tinytf.sources import ASSETS
from tinytf.trace.check import check
from tinytf.trace.trace import Trace
from tinytf.training.data.translation import Pairs, pair_ids
from tinytf.training.tuning.losses import exact_share

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "samples" / "stories"))

from lexicon import VERBS

DETERMINERS = {"the", "a", "an", "his", "her", "its", "their", "this", "that", "these", "those", "every", "some"}


@pytest.fixture(scope="module")
def tiny() -> Model:
    return tinytf.load("tiny")


@pytest.fixture(scope="module")
def encoder() -> Model:
    return tinytf.load("tiny-encoder")


@pytest.fixture(scope="module")
def translator() -> Model:
    return tinytf.load("tiny-translator")


def held_out_pairs() -> list[list[str]]:
    """Pairs of dates that the translator was not trained on, which come with it."""
    lines = (ASSETS / "tiny-translator" / "held_out.tsv").read_text("utf-8").splitlines()
    assert lines[0] == "source\ttarget"
    return [line.split("\t") for line in lines[1:]]


def test_the_translator_writes_at_least_95_percent_of_held_out_dates_exactly(translator: Model) -> None:
    pairs = held_out_pairs()[:20]
    written = [translator.reading(words).generate("", max_tokens=12) for words, _ in pairs]
    assert sum(text == iso for text, (_, iso) in zip(written, pairs, strict=True)) >= 0.95 * len(pairs)


def test_the_card_of_the_translator_says_how_many_held_out_dates_are_exact(translator: Model) -> None:
    card, pairs = read_json(ASSETS / "tiny-translator" / "card.json"), held_out_pairs()[:100]
    assert card["held_out_exact"] >= 0.95
    corpus = [pair_ids(translator.tokenizer, json.dumps(pair)) for pair in pairs]
    batch = Pairs(np.concatenate(corpus), translator.config.start_id).batch(range(len(pairs)))
    share = exact_share(translator.transformer, [batch])
    assert share == pytest.approx(card["held_out_exact"], abs=3 / len(pairs))


@pytest.mark.parametrize(
    ("words", "iso", "read"),
    [
        ("the third of May 1994", "1994-05-03", {"year": "1994", "month": "May", "day": "third"}),
        ("May 3rd, 1994", "1994-05-03", {"year": "1994", "month": "May", "day": "3rd"}),
        ("3 May 94", "1994-05-03", {"year": "94", "month": "May", "day": "3"}),
    ],
)
def test_the_heads_on_the_card_look_at_the_year_the_month_and_the_day(
    translator: Model, words: str, iso: str, read: dict[str, str]
) -> None:
    model = translator.reading(words)
    assert model.generate("", max_tokens=12) == iso
    trace, card = model.trace(iso), read_json(ASSETS / "tiny-translator" / "card.json")["looks_at"]
    rows = {"year": (0, 1, 2, 3) if len(read["year"]) == 4 else (2, 3), "month": (5, 6), "day": (8, 9)}
    for part, text in read.items():
        start = words.index(text)
        columns = [n for n, t in enumerate(trace.source.tokens) if t.start < start + len(text) and t.end > start]
        weights = trace[f"{card[part]['head']}.cross.weights"][list(rows[part])][:, columns]
        assert float(weights.sum(-1).mean()) > 0.5, part


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
    model, text = tinytf.load(name), "This is an example input. The bank of the river was green."
    if model.config.encoder is not None:
        model, text = model.reading(text), "1994-05-03"
        assert check(model.transformer.reads.trace).holds
    assert check(model.trace(text)).holds


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_card_names_data_recipe_seed_losses_and_limits(name: str) -> None:
    card: dict[str, Any] = read_json(ASSETS / name / "card.json")
    for part in ("data", "recipe", "seed", "held_out_loss", "limits"):
        assert card[part] not in (None, ""), part
    assert any(key.startswith("held_out_perplexity") for key in card)


def test_tiny_is_at_least_as_good_as_a_five_gram_model_on_held_out_text() -> None:
    card = read_json(ASSETS / "tiny" / "card.json")
    assert card["held_out_perplexity_per_word"] <= card["five_gram_perplexity_per_word"]


def test_the_models_take_at_most_eight_megabytes_and_the_translator_four() -> None:
    sizes = {name: sum(path.stat().st_size for path in (ASSETS / name).glob("*.safetensors")) for name in BUILT_IN}
    translator = sizes.pop("tiny-translator")
    assert translator <= 4_000_000
    assert sum(sizes.values()) <= 8_000_000
