"""Neighbours of words and of a residual stream, against cosines that numpy computes one by one."""

import numpy as np
import pytest
from architectures import config_of, lively

from tinytf import load
from tinytf.errors import AddressError, UsageError
from tinytf.loading import Model

SENTENCE = "The cat sat"


@pytest.fixture(scope="module")
def tied() -> Model:
    return load("tiny")


@pytest.fixture(scope="module")
def untied(tied: Model) -> Model:
    """A head with a matrix of its own, and random weights."""
    config = config_of("llama, grouped", vocab_size=tied.tokenizer.vocab_size)
    return Model("untied", lively(config), tied.tokenizer, "random weights")


def cosines(table: np.ndarray, vector: np.ndarray) -> np.ndarray:
    table, vector = table.astype(np.float64), vector.astype(np.float64)
    return np.array([row @ vector / np.linalg.norm(row) / np.linalg.norm(vector) for row in table])


def matrices(model: Model) -> dict[str, np.ndarray]:
    named = {name: one.detach().numpy() for name, one in model.transformer.named_parameters()}
    found = {"E": named["embed.tokens.weight"]}
    return found | ({"W_U": named["head.decoder.weight"]} if "head.decoder.weight" in named else {})


@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_the_neighbours_of_a_word_are_the_rows_of_largest_cosine(kind: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(kind)
    found = model.neighbours(["cat", "dog"], top=5)
    ids = [model.find_token(word) for word in ("cat", "dog")]
    assert found.tokens == tuple(ids)
    assert [space.table for space in found.spaces] == list(matrices(model))
    for space in found.spaces:
        table = matrices(model)[space.table]
        for place, own in enumerate(ids):
            expected = cosines(table, table[own])
            order = [i for i in np.argsort(-expected) if i != own][:5]
            assert space.ids[place].tolist() == order
            assert np.allclose(space.cosines[place], expected[order], atol=1e-12)
        assert np.allclose(space.similarity, [cosines(table[ids], table[i]) for i in ids], atol=1e-12)


@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_the_neighbours_of_a_stream_are_those_of_the_vector_that_the_trace_has(
    kind: str, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(kind)
    vector = model.trace(SENTENCE)["L1.out[sat]"].numpy()
    found = model.neighbours(text=SENTENCE, at="L1.out[sat]", top=3)
    assert (found.names, found.tokens, found.at) == (("L1.out[2] ·sat",), (None,), "L1.out[sat]")
    for space in found.spaces:
        expected = cosines(matrices(model)[space.table], vector)
        assert space.ids[0].tolist() == np.argsort(-expected)[:3].tolist()
        assert np.allclose(space.cosines[0], np.sort(expected)[::-1][:3], atol=1e-12)


def test_a_set_of_addresses_has_a_vector_a_layer_and_token(tied: Model) -> None:
    found = tied.neighbours(text=SENTENCE, at="L1-2.out", top=1)
    trace = tied.trace(SENTENCE)
    assert [name.split()[0] for name in found.names] == [f"L{i}.out[{t}]" for i in (1, 2) for t in (0, 1, 2)]
    flat = np.concatenate([trace[f"L{i}.out"].numpy() for i in (1, 2)])
    assert np.array_equal(found.spaces[0].vectors.numpy(), flat)
    assert np.allclose(found.spaces[0].similarity, [cosines(flat, one) for one in flat], atol=1e-12)


def test_random_directions_are_as_similar_as_chance_says(untied: Model) -> None:
    found = untied.neighbours(["cat"], top=2047)
    assert found.chance == 24**-0.5
    assert found.spaces[0].cosines.std() == pytest.approx(found.chance, rel=0.1)


def test_a_tied_head_and_no_head_say_so(tied: Model) -> None:
    assert "W_U = Eᵀ" in tied.neighbours(["cat"]).notes[0]
    headless = Model("bert", lively(config_of("bert with a pooler", vocab_size=2048)), tied.tokenizer, "random weights")
    found = headless.neighbours(["#514"])
    assert "no head" in found.notes[0]
    assert [space.table for space in found.spaces] == ["E"]


def test_a_word_of_several_tokens_is_refused_with_its_pieces(tied: Model) -> None:
    with pytest.raises(UsageError, match=r"word 'pooch' is \d tokens: ·p.* │ ") as caught:
        tied.neighbours(["pooch"])
    assert "'#" in caught.value.hint


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, "neighbours are of words, or of an address"),
        ({"words": ["cat"], "text": SENTENCE, "at": "L0.out[0]"}, "neighbours are of words, or of an address"),
        ({"at": "L0.out[0]"}, "neighbours are of words, or of an address"),
        ({"words": ["cat", "cat"]}, "the word ·cat comes twice"),
        ({"words": ["cat"], "top": 0}, "top 0 is below 1"),
    ],
)
def test_what_cannot_be_asked_is_refused(tied: Model, asked: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        tied.neighbours(**asked)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize("at", ["L0.ffn.hidden[0]", "L0H0.weights", "L0", "L0.out[0,3]", "ids"])
def test_a_step_that_is_not_as_wide_as_an_embedding_is_refused(tied: Model, at: str) -> None:
    with pytest.raises(AddressError, match="not a vector as wide as an embedding"):
        tied.neighbours(text=SENTENCE, at=at)


def test_the_plane_holds_the_two_directions_of_largest_variance(tied: Model) -> None:
    (space,) = tied.neighbours(["dog", "cat", "cow", "car"]).spaces
    vectors = space.vectors.double().numpy()
    sizes, directions = np.linalg.eigh(np.cov(vectors.T))  # the smallest first
    points, shares = space.plane
    assert np.allclose(shares, (sizes / sizes.sum())[[-1, -2]])
    projected = (vectors - vectors.mean(0)) @ directions[:, [-1, -2]]
    assert np.allclose(np.abs(points.numpy()), np.abs(projected), atol=1e-6)


def test_a_vector_of_a_text_is_compared_with_the_words_that_it_is_nudged_toward(tied: Model) -> None:
    found = tied.neighbours(text=SENTENCE, at="L*.in[sat]", toward=["cat", "sat"])
    table, trace = matrices(tied)["E"], tied.trace(SENTENCE)
    for name, word in (("·cat", "cat"), ("·sat", "sat")):
        row = table[tied.find_token(word)][None]
        expected = [cosines(row, trace[f"L{layer}.in[sat]"].numpy())[0] for layer in range(4)]
        assert np.allclose(found.toward[name], expected, atol=1e-9)
    assert found.toward["·sat"][0] == pytest.approx(1)  # before the first block it is its embedding


def test_untrained_embeddings_are_random_and_so_are_their_cosines(tied: Model) -> None:
    words = ["dog", "cat", "cow", "goat", "pony", "car", "bus", "train"]
    trained, random = tied.neighbours(words, untrained=True).spaces
    assert random.title == "untrained embeddings"
    pairs = [space.similarity.numpy()[np.triu_indices(8, 1)] for space in (trained, random)]
    assert abs(pairs[1].mean()) < 3 * 128**-0.5 / 28**0.5 < pairs[0].mean()
    assert pairs[1].std() == pytest.approx(128**-0.5, rel=0.5)


def test_a_nudge_needs_an_address_and_random_numbers_words(tied: Model) -> None:
    with pytest.raises(UsageError, match="--toward is for vectors"):
        tied.neighbours(["cat"], toward=["dog"])
    with pytest.raises(UsageError, match="--untrained for words"):
        tied.neighbours(text=SENTENCE, at="L0.in[sat]", untrained=True)
