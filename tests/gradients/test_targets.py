"""What is to be predicted, read from words."""

from pathlib import Path

import pytest

from tinytf.errors import UsageError
from tinytf.gradients.loss import Targets
from tinytf.loading import Model, load


@pytest.fixture(scope="module")
def tiny() -> Model:
    return load("tiny")


@pytest.fixture(scope="module")
def encoder() -> Model:
    return load("tiny-encoder")


TEXT = "The cat sat on the mat"


def ids_of(model: Model, text: str) -> list[int]:
    return model.encode(text).ids


def test_a_decoder_predicts_the_texts_own_next_tokens(tiny: Model) -> None:
    ids = ids_of(tiny, TEXT)
    assert tiny.grad(TEXT).targets == Targets(tuple(range(len(ids) - 1)), tuple(ids[1:]))
    assert tiny.grad(TEXT, positions="0-1,3").targets == Targets((0, 1, 3), (ids[1], ids[2], ids[4]))
    assert tiny.grad(TEXT, positions="3,0,3").targets.positions == (3, 0)


def test_a_target_is_the_word_that_would_go_on(tiny: Model) -> None:
    last = len(ids_of(tiny, TEXT)) - 1
    (dog,) = tiny.tokenizer.encode(" dog").ids
    assert tiny.grad(TEXT, target="dog").targets == Targets((last,), (dog,))
    assert tiny.grad(TEXT, target=" dog").targets.ids == (dog,)
    assert tiny.grad(TEXT, target=f"#{dog}").targets.ids == (dog,)
    assert tiny.grad(TEXT, target="dog", positions="1,2").targets == Targets((1, 2), (dog, dog))


def test_the_loss_of_a_target_is_what_score_says(tiny: Model) -> None:
    score = tiny.score(TEXT)
    trace = tiny.grad(TEXT)
    assert trace.losses == pytest.approx([-one.log_probability for one in score.tokens], abs=1e-5)
    assert trace.loss == pytest.approx(score.loss, abs=1e-5)


def test_an_encoder_predicts_what_is_masked(encoder: Model) -> None:
    ids = ids_of(encoder, TEXT)
    trace = encoder.grad(TEXT, positions="3")
    assert trace.targets == Targets((3,), (ids[3],))
    assert [token.id == encoder.tokenizer.mask_id for token in trace.tokens].index(True) == 3
    again = encoder.grad("The cat [MASK] on the mat", target="sat")
    assert (again.targets, again.losses) == (trace.targets, trace.losses)
    assert encoder.grad(TEXT, target="dog", positions="2").targets.ids == tuple(
        encoder.tokenizer.encode("dog", special=False).ids
    )


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("The", {}, "the text is one token, with none after it to predict"),
        (TEXT, {"positions": "5"}, "position 5 is the last one, with no token after it to predict"),
        (TEXT, {"positions": "6"}, "there is no position 6: the text has 6 tokens, 0 to 5"),
        (TEXT, {"positions": "3-1"}, "positions 3-1 run backwards"),
        (TEXT, {"positions": "-1"}, "position 5 is the last one"),
        (TEXT, {"positions": "1,,2"}, "is not a list of positions"),
        (TEXT, {"positions": "٣"}, "no token is"),
        (TEXT, {"target": "catastrophe"}, "is 5 tokens: ·cat │ ast │ r │ op │ he"),
        (TEXT, {"target": "#2048"}, "there is no token 2,048: the vocabulary has 2,048, 0 to 2,047"),
        (TEXT, {"target": ""}, "--target is empty"),
    ],
)
def test_what_a_decoder_cannot_predict_is_said(tiny: Model, text: str, words: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as error:
        tiny.grad(text, **words)
    assert said in error.value.message


def test_the_hint_names_each_token_of_a_long_target_once(tiny: Model) -> None:
    with pytest.raises(UsageError) as error:
        tiny.grad(TEXT, target="cat cat cat")
    cat = tiny.encode(" cat").ids[0]
    assert "is 3 tokens: ·cat │ ·cat │ ·cat" in error.value.message
    assert error.value.hint is not None
    assert error.value.hint.endswith(f": '#{cat}'")


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        (TEXT, {}, "an encoder predicts masked tokens, and none is chosen"),
        (TEXT, {"target": "sat"}, "the text has no [MASK] for the target"),
        ("The [MASK] sat", {"positions": "2"}, "token 2 is already [MASK] in the text"),
        ("The [MASK] sat", {"target": "猫"}, "is not in the vocabulary: it would be [UNK]"),
    ],
)
def test_what_an_encoder_cannot_predict_is_said(encoder: Model, text: str, words: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as error:
        encoder.grad(text, **words)
    assert said in error.value.message


def test_a_model_without_a_head_has_no_loss() -> None:
    with pytest.raises(UsageError, match="no language-model head"):
        load("preset:paper").grad("The cat sat", positions="1", target="cat")


def test_a_special_token_is_a_target_by_its_name(encoder: Model, tmp_path: Path) -> None:
    assert encoder.grad("The [MASK] sat", target="[SEP]").targets.ids == (encoder.tokenizer.special_id("[SEP]"),)
