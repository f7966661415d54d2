"""Heads that follow grammar: the weights of the marked words, summed by hand, and what counts as following."""

import itertools

import pytest
import torch

from tinytf import load
from tinytf.loading import Model
from tinytf.look import grammar
from tinytf.look.grammar import Grammar


@pytest.fixture(scope="module")
def tiny() -> Model:
    return load("tiny")


def test_the_weights_are_those_between_the_marked_words_and_elsewhere_at_that_distance(
    tiny: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar, "PAIRS", {"a": ["The boy saw [the] red (cat) and sat.", "[The] (dog) sat."]})
    found = tiny.grammar()
    first, second = tiny.trace("The boy saw the red cat and sat."), tiny.trace("The dog sat.")
    assert [token.shown for token in first.tokens][3:6] == ["·the", "·red", "·cat"]
    for layer, head in itertools.product(range(4), range(4)):
        far, near = (trace[f"L{layer}H{head}.weights"].double() for trace in (first, second))
        elsewhere = [float(far[q, q - 2]) for q in range(2, len(far)) if q != 5]
        adjacent = [float(near[q, q - 1]) for q in range(2, len(near))]
        control = (sum(elsewhere) / len(elsewhere) + sum(adjacent) / len(adjacent)) / 2
        assert float(found.weight["a"][layer, head]) == pytest.approx((float(far[5, 3]) + float(near[1, 0])) / 2)
        assert float(found.elsewhere["a"][layer, head]) == pytest.approx(control)
        more = [float(far[5, 3]) > sum(elsewhere) / len(elsewhere), float(near[1, 0]) > sum(adjacent) / len(adjacent)]
        assert float(found.often["a"][layer, head]) == sum(more) / 2


def made(weight: float, elsewhere: float, often: float = 1) -> Grammar:
    numbers = [{"r": torch.tensor([[0.1, number]]).double()} for number in (weight, elsewhere, often)]
    return Grammar(*numbers)


def test_a_head_follows_only_with_enough_weight_more_than_elsewhere_and_in_most_pairs() -> None:
    assert made(0.5, 0.1).follows("r").tolist() == [[False, True]]
    assert not made(0.9, 0.8).follows("r").any()  # such as a head that looks at the token before
    assert not made(0.25, 0.0).follows("r").any()
    assert not made(0.5, 0.1, often=0.8).follows("r").any()  # such as a head that rests on the first token
    assert made(0.5, 0.1).in_a_sentence() == "1 head follows r, L0H1 (50 %) most."
    assert made(0.25, 0.0).in_a_sentence() == "No head follows r, L0H1 (25 %) comes nearest."


def test_heads_of_random_weights_follow_nothing() -> None:
    found = load("preset:paper").grammar()
    assert not any(found.follows(relation).any() for relation in found.weight)


def test_in_the_shipped_model_the_previous_token_heads_do_not_follow_articles_and_others_do(tiny: Model) -> None:
    found = tiny.grammar()
    follows = found.follows("article-noun")
    assert follows.any()
    assert not follows[0, :2].any()  # L0H0 and L0H1 look at the token before
    assert follows[found.best("article-noun")]
