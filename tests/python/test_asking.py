"""A trace as a mapping of addresses to tensors, of a text or of ids; what is no address or text is told so."""

import numpy as np
import pytest
import torch

import tinytf
from tinytf.errors import TokenizerError, UsageError

SENTENCE = "The cat sat"


@pytest.fixture(scope="module")
def model() -> tinytf.Model:
    return tinytf.load("tiny")


@pytest.fixture(scope="module")
def trace(model: tinytf.Model) -> tinytf.Trace:
    return model.trace(SENTENCE)


def test_a_trace_is_a_mapping_of_addresses(trace: tinytf.Trace) -> None:
    names = trace.keys()
    assert list(trace) == names
    assert len(trace) == len(names) == len(set(names))
    assert names[0] == "ids"
    assert names.index("L0.scores") < names.index("L0.weights") < names.index("L1.in") < names.index("logits")
    every = dict(trace.items())
    assert list(every) == names
    assert all(torch.equal(every[name], trace[name]) for name in names)
    assert set(dict(trace)) == set(names)
    assert [name for name in names if name not in trace] == []


@pytest.mark.parametrize("address", ["L0H1.q", "L0-2H*.weights", "L0.weights[sat,cat]", "L0.W_Q", "hook_embed", "ids"])
def test_what_has_a_tensor_is_in_a_trace(trace: tinytf.Trace, address: str) -> None:
    assert address in trace
    assert trace[address] is not None


@pytest.mark.parametrize(
    "address", ["L9.q", "nothing", "L0.weights[dog,cat]", "L0", "tokens", "next", 0, None, ("L0.q",)]
)
def test_what_has_none_is_not(trace: tinytf.Trace, address: object) -> None:
    assert address not in trace


def test_layers_that_were_not_recorded_are_not_in_a_trace(model: tinytf.Model) -> None:
    trace = model.trace(SENTENCE, layers={1})
    assert "L1.weights" in trace
    assert "L0.weights" not in trace
    assert {name[:2] for name in trace if name.startswith("L")} == {"L1"}


@pytest.mark.parametrize("address", [0, ["L0.q", "L0.k"], ("L0.q", 1), None, 1.5, slice(0, 2)])
def test_what_is_no_address_is_told_so(trace: tinytf.Trace, address: object) -> None:
    with pytest.raises(UsageError, match="an address is a text") as found:
        trace[address]  # type: ignore[index]
    assert "L0H3.weights" in found.value.hint


@pytest.mark.parametrize("text", [0, ["The cat", "The dog"], b"The cat", 1.5])
def test_what_is_no_text_is_told_so(model: tinytf.Model, text: object) -> None:
    for ask in (model.trace, model.lens, model.generate):
        with pytest.raises(UsageError, match="a text must be a string"):
            ask(text)


@pytest.mark.parametrize("make", [list, tuple, np.array, torch.tensor, lambda ids: torch.tensor([ids])])
def test_a_trace_of_ids_is_that_of_their_text(model: tinytf.Model, trace: tinytf.Trace, make: type) -> None:
    again = model.trace(ids=make(trace.encoding.ids))
    assert again.encoding.text == SENTENCE
    assert [(token.start, token.end) for token in again.tokens] == [(0, 3), (3, 7), (7, 11)]
    assert torch.equal(again["logits"], trace["logits"])
    assert again.predictions[0].top[0].shown == trace.predictions[0].top[0].shown


def test_ids_that_no_text_has_are_a_trace_too(model: tinytf.Model) -> None:
    word = model.encode("The").ids
    split = [model.find_token(letter) for letter in ("#52", "#72", "#69")]  # T h e, which the tokenizer would join
    trace = model.trace(ids=split)
    assert trace.encoding.ids == split != word
    assert torch.equal(trace["ids"], torch.tensor(split))
    expected = model.transformer(torch.tensor([split]))[0]
    torch.testing.assert_close(trace["logits"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ids", [3, "3 4", [-1], [1.5], [[1, 2], [3, 4]], None.__class__])
def test_what_is_no_list_of_ids_is_refused(model: tinytf.Model, ids: object) -> None:
    with pytest.raises(UsageError, match="not a list of token ids"):
        model.trace(ids=ids)


def test_ids_beyond_the_vocabulary_and_two_things_at_once_are_refused(model: tinytf.Model) -> None:
    with pytest.raises(TokenizerError, match="has 2048 tokens"):
        model.trace(ids=[5000])
    with pytest.raises(UsageError, match="either a text or ids"):
        model.trace()
    with pytest.raises(UsageError, match="either a text or ids"):
        model.trace(SENTENCE, ids=[1])


def test_the_predictions_of_a_trace_are_those_of_its_logits(trace: tinytf.Trace) -> None:
    shares = trace["logits"][-1].double().softmax(-1).numpy()
    best = trace.predictions[0].top
    assert [one.id for one in best] == np.argsort(-shares)[: len(best)].tolist()
    np.testing.assert_allclose([one.probability for one in best], np.sort(shares)[::-1][: len(best)], atol=1e-6)


def test_a_trace_that_no_model_recorded_has_no_names(model: tinytf.Model) -> None:
    bare = tinytf.record(model.transformer, model.encode(SENTENCE))
    assert SENTENCE in repr(bare)
    with pytest.raises(UsageError, match="no tokenizer to name tokens with"):
        bare.predictions  # noqa: B018


@pytest.mark.parametrize("answer", [["cat", "mat"], 3.5, {"cat": 1}])
def test_what_is_no_single_answer_is_refused_in_words(model: tinytf.Model, answer: object) -> None:
    with pytest.raises(UsageError, match=r"answer .* is not one word or number"):
        model.find_outcome(answer, "answer")  # type: ignore[arg-type]
