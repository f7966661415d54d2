"""Greedy text is that of transformers; it ends where it should, in whole characters; with and without the cache."""

import dataclasses
import inspect
import itertools
import math

import pytest
import torch
from architectures import KINDS, config_of, lively
from reference import FAMILIES, is_encoder
from streaming import decoder, exact

from tinytf.config import ModelConfig
from tinytf.errors import GenerationError, UsageError
from tinytf.generate.beam import BeamOptions, search
from tinytf.generate.loop import StreamOptions, stream
from tinytf.generate.pieces import PieceDecoder
from tinytf.generate.samplers import Sampling
from tinytf.generate.score import Score, score_ids
from tinytf.loading import Model
from tinytf.model.transformer import Transformer
from tinytf.text.train import train_bpe

DECODERS = [kind for kind, fields in KINDS.items() if fields.get("causal", True)]
DECODER_FAMILIES = [name for name in FAMILIES if not is_encoder(name)]
PROMPT = [3, 17, 5, 9]


@pytest.fixture(scope="module")
def model() -> Model:
    tokenizer = train_bpe(["The cat sat on the mat, and the dog saw 猫 and 🐈 there. " * 8], 300)
    config = ModelConfig.of(vocab_size=tokenizer.vocab_size, d_model=16, n_layers=2, n_heads=2, d_ff=32, context=64)
    return Model("small", lively(config), tokenizer, "random weights")


def tokens_of(transformer: Transformer, **settings: object) -> list[int]:
    return [step.id for step in stream(transformer, PROMPT, **settings)]


GENERATING = (
    "t5",
    "bart",
    "gpt2",
    "pythia",
    "bloom",
    "gemma 3",
    "phi 3, long texts turned by other factors",
    "mixtral",
    "gpt-oss",
)
"""Families whose decoding differs most; tests/parity compares the greedy text of all with their argmax."""


@pytest.mark.parametrize("family", GENERATING)
def test_greedy_tokens_are_those_of_transformers_generate(family: str) -> None:
    models = decoder(family)
    with torch.no_grad():
        expected = models.theirs.generate(
            torch.tensor([PROMPT]), max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0
        )[0, len(PROMPT) :].tolist()
    assert tokens_of(models.ours, max_tokens=20) == expected
    assert tokens_of(models.ours, max_tokens=20, use_cache=False) == expected


@pytest.mark.parametrize("kind", DECODERS)
def test_cached_and_uncached_text_is_the_same_in_every_kind(kind: str) -> None:
    transformer = exact(lively(config_of(kind)))
    for sampling in (Sampling(), Sampling(temperature=1.2, top_p=0.95)):
        cached = list(stream(transformer, PROMPT, max_tokens=25, sampling=sampling, seed=4))
        plain = list(stream(transformer, PROMPT, max_tokens=25, sampling=sampling, seed=4, use_cache=False))
        assert [step.id for step in cached] == [step.id for step in plain]
        for ours, theirs in zip(cached, plain, strict=True):
            assert ours.log_probability == pytest.approx(theirs.log_probability, abs=2e-5)
            # an entropy weights every log-probability by its share, and by its own size
            assert ours.entropy == pytest.approx(theirs.entropy, abs=2e-5 * (1 + theirs.entropy))


@torch.no_grad()
def test_the_figures_of_a_step_are_those_of_the_whole_text() -> None:
    transformer = lively(config_of("llama, grouped"))
    steps = list(stream(transformer, PROMPT, max_tokens=10, sampling=Sampling(temperature=2.0, top_k=9), seed=1, top=3))
    ids = PROMPT + [step.id for step in steps]
    every = transformer(torch.tensor([ids]))[0].double().log_softmax(-1)
    for place, step in enumerate(steps, len(PROMPT)):
        before = every[place - 1]
        assert step.log_probability == pytest.approx(float(before[step.id]), abs=1e-5)
        assert step.surprise == pytest.approx(-step.log_probability / math.log(2))
        assert step.rank == before.argsort(descending=True).tolist().index(step.id) + 1
        assert step.entropy == pytest.approx(float(-(before.exp() * before).sum()) / math.log(2), abs=1e-5)
        assert [c.id for c in step.candidates[:3]] == before.topk(3).indices.tolist()
        assert step.id in [c.id for c in step.candidates]
        assert step.candidates[0].probability == pytest.approx(float(before.max().exp()), abs=1e-5)
        nine = (before / 2).topk(9).values.softmax(-1)
        assert step.candidates[0].drawn == pytest.approx(float(nine[0]), abs=1e-5)
    found = score_ids(transformer, ids)[len(PROMPT) - 1 :]
    assert [(s.id, s.rank) for s in found] == [(s.id, s.rank) for s in steps]


def test_the_same_seed_gives_the_same_text_and_another_one_another() -> None:
    transformer, warm = lively(config_of("gpt2")), Sampling(temperature=1.5)
    assert tokens_of(transformer, sampling=warm, seed=1) == tokens_of(transformer, sampling=warm, seed=1)
    assert tokens_of(transformer, sampling=warm, seed=1) != tokens_of(transformer, sampling=warm, seed=2)


def test_it_ends_at_an_end_token_at_the_most_tokens_and_where_the_context_is_full() -> None:
    transformer = lively(config_of("gpt2"))
    all_steps = list(stream(transformer, PROMPT, max_tokens=100))
    assert all_steps[-1].ended == "context full"
    assert len(PROMPT) + len(all_steps) == transformer.config.context + 1  # the last one is never fed
    assert [step.ended for step in all_steps[:-1]] == [""] * (len(all_steps) - 1)
    few = list(stream(transformer, PROMPT, max_tokens=3))
    assert (len(few), few[-1].ended) == (3, "max tokens")
    ids = [step.id for step in all_steps]
    end = ids[5]
    ended = list(stream(transformer, PROMPT, max_tokens=100, ends={end}))
    assert (len(ended), ended[-1].ended) == (ids.index(end) + 1, "end token")


def test_a_full_context_can_be_an_error_with_the_numbers() -> None:
    transformer = lively(config_of("gpt2"))
    steps = stream(transformer, PROMPT, max_tokens=100, on_overflow="error")
    assert len(list(itertools.islice(steps, 29))) == 29
    with pytest.raises(GenerationError, match="context of 32 tokens is full after 29 new ones, but 100 were asked"):
        next(steps)
    assert len(list(stream(transformer, PROMPT, max_tokens=29, on_overflow="error"))) == 29


@torch.no_grad()
def test_logits_that_are_nan_are_one_error_that_says_at_which_token() -> None:
    transformer = lively(config_of("gpt2"))
    transformer.embed.positions.weight[6] = math.nan  # reached when the third new token is to be made
    steps = stream(transformer, PROMPT)
    assert next(steps).number == 1
    assert next(steps).number == 2
    assert next(steps).number == 3
    with pytest.raises(GenerationError, match="logits of new token 4 are not finite"):
        next(steps)


def test_what_cannot_work_is_said_before_the_first_token() -> None:
    transformer = lively(config_of("gpt2"))
    for wrong, said in [
        ({"max_tokens": 0}, "0 new tokens"),
        ({"on_overflow": "roll"}, "'roll' is not one of stop, slide, error"),
        ({"stops": [""]}, "a stop string is empty"),
        ({"stops": ["."]}, "need a tokenizer"),
    ]:
        with pytest.raises(UsageError, match=said):
            stream(transformer, PROMPT, **wrong)
    with pytest.raises(UsageError, match="40 tokens are more than the model's context of 32"):
        stream(transformer, PROMPT * 10)
    with pytest.raises(UsageError, match="no token to continue"):
        stream(transformer, [])
    for kind, said in (("bert with a masked head", "masked tokens"), ("bert with a pooler", "encoder without a head")):
        with pytest.raises(UsageError, match=said):
            stream(lively(config_of(kind)), PROMPT)


def test_a_cache_of_the_callers_goes_on_from_what_it_holds() -> None:
    transformer = lively(config_of("mistral, a window and stretched waves"))
    cache = transformer.cache()
    first = [step.id for step in stream(transformer, PROMPT, max_tokens=5, cache=cache)]
    assert cache.position == len(PROMPT) + 4
    more = [step.id for step in stream(transformer, PROMPT + first, max_tokens=5, cache=cache)]
    assert first + more == tokens_of(transformer, max_tokens=10)
    with pytest.raises(UsageError, match="the cache holds 13 tokens, but the text has only 4"):
        stream(transformer, PROMPT, cache=cache)


def test_streamed_pieces_are_whole_characters_and_make_the_decoded_text(model: Model) -> None:
    for seed in range(8):
        steps = list(model.stream("The 猫", sampling=Sampling(temperature=1.5), seed=seed, max_tokens=40))
        prompt = model.encode("The 猫").ids
        whole = model.tokenizer.decode(prompt + [step.id for step in steps])
        assert "The 猫" + "".join(step.text for step in steps) == whole


def test_a_character_of_several_tokens_comes_when_it_is_whole(model: Model) -> None:
    text = "a🦄 b é 𝄞!"
    ids = model.encode(text).ids
    pieces = PieceDecoder(model.tokenizer.decode, model.encode("The").ids, ())
    found = [pieces.add(token_id) for token_id in ids]
    assert "".join(found) == text
    assert "\ufffd" not in "".join(found)
    assert found.count("") >= 3
    cut = PieceDecoder(model.tokenizer.decode, [], ())
    assert "".join(cut.add(token_id) for token_id in model.encode("🦄").ids[:2]) == ""
    assert "\ufffd" in cut.rest()


@pytest.mark.parametrize("stop", [" sat", "sat on", "t on the m", ".", "🐈"])
def test_a_stop_string_ends_the_text_before_it_however_the_tokens_fall(model: Model, stop: str) -> None:
    text = " cat sat on the mat 🐈."
    pieces = PieceDecoder(model.tokenizer.decode, model.encode("The").ids, (stop, "never"))
    found = ""
    for token_id in model.encode(text).ids:
        found += pieces.add(token_id)
        assert stop not in found
    assert pieces.stopped
    assert found + pieces.rest() == text[: text.index(stop)]


def test_what_only_began_like_a_stop_string_is_said_in_the_end(model: Model) -> None:
    text = " cat sat"
    pieces = PieceDecoder(model.tokenizer.decode, model.encode("The").ids, ("saturn",))
    assert "".join(pieces.add(token_id) for token_id in model.encode(text).ids) == " cat "
    assert pieces.rest() == "sat"


def test_generated_text_ends_before_the_stop_string_and_says_so(model: Model) -> None:
    whole = model.generate("The cat", max_tokens=30)
    stop = whole[10:13]
    steps = list(model.stream("The cat", max_tokens=30, stops=[stop]))
    assert "".join(step.text for step in steps) == whole[: whole.index(stop)]
    assert steps[-1].ended == "stop string"


@torch.no_grad()
@pytest.mark.parametrize("family", DECODER_FAMILIES)
def test_the_loss_of_a_text_is_that_of_transformers(family: str) -> None:
    models = decoder(family)
    ids = torch.randint(3, 41, (1, 29), generator=torch.Generator().manual_seed(2))
    expected = float(models.theirs(ids, labels=ids).loss)
    found = Score(score_ids(models.ours, ids[0].tolist()))
    assert found.loss == pytest.approx(expected, abs=1e-5)
    assert found.perplexity == pytest.approx(math.exp(expected), rel=1e-5)
    assert len(found.tokens) == 28


@torch.no_grad()
@pytest.mark.parametrize("lead", [0, 1], ids=["no start token", "a start token"])
def test_a_long_text_slides_and_each_token_sees_half_a_context_or_more(lead: int) -> None:
    transformer = lively(config_of("llama, grouped"))
    context = transformer.config.context
    half, length = -(-context // 2), 3 * context + 5
    ids = torch.randint(
        1, transformer.config.vocab_size, (length,), generator=torch.Generator().manual_seed(5)
    ).tolist()
    expected, begins = [], 0
    for place in range(1, length):
        if place - begins + (lead if begins else 0) > context:  # the window is full
            begins = place - half
        window = [*ids[: lead if begins else 0], *ids[begins:place]]
        assert len(window) == place or len(window) >= half
        expected.append(float(transformer(torch.tensor([window]))[0, -1].double().log_softmax(-1)[ids[place]]))
    found = score_ids(transformer, ids, lead)
    assert [one.position for one in found] == list(range(1, length))
    assert [one.log_probability for one in found] == pytest.approx(expected, abs=1e-5)


def test_one_token_alone_has_no_score() -> None:
    with pytest.raises(UsageError, match="1 token is too few"):
        score_ids(lively(config_of("gpt2")), [3])


def test_the_keywords_of_a_stream_are_the_fields_of_its_options() -> None:
    for function, options, more in (
        (stream, StreamOptions, []),
        (Model.stream, StreamOptions, ["truncate"]),
        (Model.generate, StreamOptions, ["truncate"]),
        (Model.samples, StreamOptions, ["truncate", "n"]),
        (search, BeamOptions, []),
        (Model.beams, BeamOptions, ["truncate"]),
    ):
        names = {field.name for field in dataclasses.fields(options)} | set(more)
        assert set(list(inspect.signature(function).parameters)[2:]) == names
    with pytest.raises(TypeError, match="'max_token'"):
        stream(lively(config_of("gpt2")), PROMPT, max_token=3)


def test_a_model_ends_where_it_is_told_to_and_else_at_its_tokenizers_end(model: Model) -> None:
    usual = list(model.stream("The cat", max_tokens=20))
    other = usual[4].id
    told = list(model.stream("The cat", max_tokens=20, ends={other}))
    first = [step.id for step in usual].index(other)
    assert [step.id for step in told] == [step.id for step in usual[: first + 1]]
    assert told[-1].ended == "end token"
    assert model.generate("The cat", max_tokens=20, samples=2) == "".join(step.text for step in usual)
    *_, last = model.beams("The cat", beams=1, max_tokens=20, ends={other})
    assert last.finished[0].ids[-1] == other
