"""Several texts at once give what each gives alone, in every kind of model."""

import pytest
import torch
from architectures import HEADS_OF_CLASSES, KINDS, asked, config_of, lively, some_ids

import tinytf
from tinytf.errors import UsageError
from tinytf.model.batches import batches
from tinytf.trace.check import check

LENGTHS = (7, 2, 9, 7, 1, 5)


def texts_of(config: tinytf.ModelConfig) -> list[str]:
    rows = some_ids(config, len(LENGTHS), max(LENGTHS), 2).tolist()
    return [" ".join(map(str, row[:length])) for row, length in zip(rows, LENGTHS, strict=True)]


@pytest.mark.parametrize("kind", [*KINDS, *HEADS_OF_CLASSES])
def test_traces_of_a_batch_are_those_of_each_text(kind: str) -> None:
    model = asked(lively(config_of(kind)).double(), mask_id=3)
    texts = texts_of(model.config)
    for text, together in zip(texts, model.traces(texts), strict=True):
        alone = model.trace(text)
        assert together.encoding == alone.encoding
        assert together.recording.logit_rows == alone.recording.logit_rows
        assert together.recording.tensors.keys() == alone.recording.tensors.keys()
        for name in alone:
            torch.testing.assert_close(together[name], alone[name], rtol=1e-9, atol=1e-9, msg=name)
        assert check(together).holds


@pytest.mark.parametrize("kind", [name for name in KINDS if (one := config_of(name)).head.kind == "lm" and one.causal])
def test_scores_of_a_batch_are_those_of_each_text(kind: str) -> None:
    model = asked(lively(config_of(kind)).double())
    texts = [text for text in texts_of(model.config) if " " in text]
    for text, together in zip(texts, model.score(texts), strict=True):
        start = [model.config.start_id] if model.config.encoder else []  # its first token is predicted too
        ids = torch.tensor([[*start, *map(int, text.split())]])
        expected = model.transformer(ids)[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        found = torch.tensor([token.log_probability for token in together.tokens]).double()
        torch.testing.assert_close(found, expected.detach(), rtol=1e-6, atol=1e-6)
        assert together.loss == pytest.approx(model.score(text).loss, abs=1e-6)
        assert [token.rank for token in together.tokens] == [token.rank for token in model.score(text).tokens]


def test_texts_longer_than_the_context_are_scored_in_their_windows() -> None:
    model = tinytf.load("tiny")
    long, short = "The cat sat on the mat. " * 60, "The dog ran."
    together = model.score([long, short, long])
    assert together[0].windows > 1
    for text, one in zip((long, short, long), together, strict=True):
        alone = model.score(text)
        assert [token.position for token in one.tokens] == list(range(1, len(one.encoding.ids)))
        assert (one.windows, one.before) == (alone.windows, alone.before)
        assert one.loss == pytest.approx(alone.loss, rel=1e-6)


@pytest.mark.parametrize("name", ["tiny", "tiny-encoder"])
def test_in_float32_too(name: str) -> None:
    model = tinytf.load(name)
    texts = ["The cat sat on the mat.", "The dog", "A bird sings."]
    for text, together in zip(texts, model.traces(texts), strict=True):
        alone = model.trace(text)
        for step in alone:
            scale = max(1.0, float(alone[step].nan_to_num(neginf=0).abs().max()))
            torch.testing.assert_close(together[step] / scale, alone[step] / scale, rtol=0, atol=3e-6, msg=step)
        assert [one.top[0].shown for one in together.predictions] == [one.top[0].shown for one in alone.predictions]


def test_edits_and_ablations_see_each_text_by_itself() -> None:
    model = tinytf.load("tiny")
    texts = ["The cat sat on the mat.", "The dog"]
    seen: list[tuple[int, ...]] = []
    with model.edited({"L1H2.weights": lambda w: seen.append(tuple(w.shape))}):
        found = model.traces(texts)
        model.score(texts)
    assert sorted(seen) == [(1, 1), (2, 2), (6, 6), (7, 7)]
    assert [one.recording.edited for one in found] == [("L1.weights",)] * 2


def test_a_long_text_that_longrope_turns_otherwise_has_a_batch_of_its_own() -> None:
    turning = next(config_of(kind) for kind in KINDS if config_of(kind).rope_scaling == "longrope")
    switch = turning.rope_switch
    lengths = [switch + 1, 2, switch, switch + 2, 1]
    found = list(batches(lengths, lively(turning)))
    assert sorted(number for batch in found for number in batch) == list(range(5))
    assert [{lengths[number] > switch for number in batch} for batch in found] == [{False}, {True}]


def test_texts_beyond_the_context_of_training_go_only_with_their_like_where_a_base_grows() -> None:
    turning = next(config_of(kind) for kind in KINDS if config_of(kind).rope_scaling == "dynamic")
    switch = turning.rope_switch
    lengths = [switch + 1, 2, switch, switch + 2, 1, switch + 1]
    assert list(batches(lengths, lively(turning))) == [[4, 1, 2], [0, 5], [3]]


def test_a_batch_holds_no_more_tokens_than_one_should() -> None:
    found = list(batches([500, 3, 400, 600, 2000], lively(config_of("gpt2"))))
    assert found == [[1, 2], [0], [3], [4]]


def test_what_is_no_list_of_texts_is_refused_and_no_texts_are_no_traces() -> None:
    model = tinytf.load("tiny")
    for texts in ("The cat", 3, None):
        with pytest.raises(UsageError, match="several texts must be a list of strings"):
            model.traces(texts)  # type: ignore[arg-type]
    assert model.traces([]) == model.score([]) == []
    with pytest.raises(UsageError, match="the text is empty"):
        model.traces(["The cat", ""])
    with pytest.raises(UsageError, match="1 token is too few"):
        model.score(["The cat", "The"])
