"""The cosine of two texts and its pairs, against sums worked out by hand from the hidden states."""

from dataclasses import replace

import pytest
import torch
from architectures import asked, config_of, lively

from tinytf.api import Model
from tinytf.errors import UsageError
from tinytf.loading import load
from tinytf.look.similar import _words

FIRST, SECOND = "3 14 15 9 2", "6 5 3 14 1 8 7"
DOG, PUPPY = "The dog lost the red ball.", "A puppy ran."
LAST = "e5, the last token of a decoder"
SPLIT = (
    "minilm, the mean of the tokens at length 1",
    "the sum over the root of the length",
    LAST,
    "sgpt, later tokens weighted more",
)


@pytest.fixture(scope="module")
def encoder() -> Model:
    return load("tiny-encoder", device="cpu")


def cosine_of(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(sum(a * b) / (sum(a * a) * sum(b * b)) ** 0.5)


@pytest.mark.parametrize("kind", SPLIT)
def test_all_pairs_sum_to_the_cosine_of_the_vectors(kind: str) -> None:
    model = asked(lively(config_of(kind)))
    found = model.similar(FIRST, SECOND)
    name = "embedding" if model.config.unit_embedding else "pooled.dense2" if model.config.pooled_dense else "pooled"
    vectors = [model.trace(text)[name].double() for text in (FIRST, SECOND)]
    assert found.cosine == pytest.approx(cosine_of(*vectors), abs=1e-12)
    assert found.pairs is not None
    assert found.pairs.shape == (5, 7)
    assert float(found.pairs.sum()) == pytest.approx(found.cosine, abs=1e-6)
    assert found.holds


def test_a_pair_is_the_product_of_its_tokens_shares_of_the_means() -> None:
    model = asked(lively(config_of(SPLIT[0])))
    x, y = (model.trace(text).last_hidden.double() for text in (FIRST, SECOND))
    lengths = float(x.mean(0).norm() * y.mean(0).norm())
    expected = torch.tensor([[float(a @ b) / (5 * 7 * lengths) for b in y] for a in x])
    assert (model.similar(FIRST, SECOND).pairs - expected).abs().max() < 1e-9


def test_a_dense_layer_maps_each_share_and_its_bias_stands_alone() -> None:
    config = config_of("the maximum, through two dense layers", pooled_activation="none")
    model = asked(lively(config))
    found = model.similar(FIRST, SECOND)
    weights = dict(model.transformer.double().named_parameters())
    vectors = []
    for text in (FIRST, SECOND):
        x = model.trace(text).last_hidden
        parts = torch.stack([torch.where(x.argmax(0) == token, x[token], 0.0) for token in range(len(x))])
        assert torch.equal(parts.sum(0), x.amax(0))
        mapped = parts @ weights["pooling.dense.weight"].T @ weights["pooling.dense2.weight"].T
        bias = weights["pooling.dense2.weight"] @ weights["pooling.dense.bias"] + weights["pooling.dense2.bias"]
        vectors.append(torch.cat([mapped, bias[None]]))
    expected = vectors[0] @ vectors[1].T / (vectors[0].sum(0).norm() * vectors[1].sum(0).norm())
    assert found.pairs is not None
    assert (found.pairs - expected).abs().max() < 1e-5
    assert [words[-1].shown for words in found.words] == ["bias", "bias"]


def test_pooling_that_takes_one_token_has_one_pair() -> None:
    found = asked(lively(config_of(LAST))).similar(FIRST, SECOND)
    assert found.pairs is not None
    assert found.pairs.count_nonzero() == 1
    assert found.pairs[-1, -1] == pytest.approx(found.cosine, abs=1e-6)


def test_after_an_activation_nothing_is_split_and_it_is_said_why() -> None:
    found = asked(lively(config_of("labse, the first token through a dense layer"))).similar(FIRST, SECOND)
    assert (found.pairs, found.check, found.word_pairs) == (None, None, ())
    assert found.unsplit == "pooled.act is not linear, so the vector is no sum over the tokens"


def test_the_layers_are_cosines_of_what_the_model_would_give_there(encoder: Model) -> None:
    found = encoder.similar(DOG, PUPPY, pooling="mean")
    first, second = (encoder.trace(text) for text in (DOG, PUPPY))
    final = encoder.transformer.final_norm
    for layer in range(encoder.config.n_layers):
        out = [final(trace[f"L{layer}.{trace.steps.output}"]).double().mean(0) for trace in (first, second)]
        assert found.layers[layer + 1] == pytest.approx(cosine_of(*out), abs=1e-6)
    assert found.layers[-1] == pytest.approx(found.cosine, abs=1e-6)


def test_pieces_are_grouped_by_word(encoder: Model) -> None:
    encoding = encoder.encode("Unbelievably, a dog-cart!")
    words = _words(encoding)
    assert [word.shown for word in words if word.spoken] == ["Unbelievably", "a", "dog", "cart"]
    assert [number for word in words for number in word.tokens] == list(range(len(encoding.tokens)))


@pytest.mark.parametrize(("first", "second"), [(DOG, PUPPY), ("The cat sat.", "The dog sat."), ("dog", "cat")])
def test_the_sentence_names_the_words_that_add_most(encoder: Model, first: str, second: str) -> None:
    found = encoder.similar(first, second, pooling="mean")
    traces = [encoder.trace(text) for text in (first, second)]
    shares = [trace.last_hidden.double() / len(trace.tokens) for trace in traces]
    lengths = float(shares[0].sum(0).norm() * shares[1].sum(0).norm())
    words = [[word for word in _words(trace.encoding) if word.spoken] for trace in traces]
    added = {
        (a.shown, b.shown): float(shares[0][list(a.tokens)].sum(0) @ shares[1][list(b.tokens)].sum(0)) / lengths
        for a in words[0] for b in words[1]
    }  # fmt: skip
    best = max(added, key=lambda pair: added[pair])
    assert f"cosine of {found.cosine:.2f}, of at most 1" in found.sentence
    assert f"; {best[0]} with {best[1]} ({added[best]:.3f})" in found.sentence
    outside = found.cosine - sum(added.values())
    assert found.outside_words == pytest.approx(outside, abs=1e-6)
    assert ("more than half of it" in found.sentence) == (outside > found.cosine / 2)


def test_vectors_as_far_apart_as_random_ones_are_called_so(encoder: Model) -> None:
    found = encoder.similar(DOG, PUPPY, pooling="mean")
    chance = encoder.config.d_model**-0.5
    assert found.chance == chance
    for cosine, said in ((1.9 * chance, True), (-1.9 * chance, True), (2.1 * chance, False)):
        assert ("no more alike than two random vectors" in replace(found, cosine=cosine).sentence) == said


def test_texts_are_ranked_by_the_cosine_of_each_alone(encoder: Model) -> None:
    texts = ["The cat sat.", PUPPY, "Where is it?", "The dog lost the blue ball, and then it sat."]
    found = encoder.most_similar(DOG, texts, pooling="mean")
    expected = {text: encoder.similar(DOG, text, pooling="mean").cosine for text in texts}
    assert [near.text for near in found.nearest] == sorted(texts, key=lambda text: -expected[text])
    assert all(near.cosine == pytest.approx(expected[near.text], abs=1e-6) for near in found.nearest)
    assert found.nearest[0].text == texts[found.nearest[0].number - 1]
    assert found.sentence.startswith(f"Nearest of 4 texts is “{found.nearest[0].text}”, with a cosine of ")


def test_a_model_without_pooling_is_not_given_one_unasked(encoder: Model) -> None:
    with pytest.raises(UsageError, match="does not say how the tokens of a text become one vector"):
        encoder.similar(DOG, PUPPY)
    assert "your choice" in encoder.similar(DOG, PUPPY, pooling="first").note
