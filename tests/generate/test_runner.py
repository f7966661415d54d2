"""Texts side by side, in chunks, beyond the context, looked at, or broken: as one text in one pass would be."""

import itertools
import math
import warnings
from collections.abc import Iterator, Sequence

import pytest
import torch
from architectures import KINDS, config_of, encoding_of, furthest, lively, some_ids
from covering import along
from streaming import PROMPT, WARM, assert_same, steps_of, untied
from torch import Tensor

from tinytf.errors import GenerationError, MemoryShortage, UsageError
from tinytf.generate.beam import beam_search
from tinytf.generate.decoder import Decoder
from tinytf.generate.loop import Looking, stream
from tinytf.generate.runner import Runner
from tinytf.generate.samplers import Sampling
from tinytf.model import cache as cache_module
from tinytf.model.cache import KVCache
from tinytf.model.transformer import Transformer
from tinytf.steps.table import table_of
from tinytf.trace.record import record

DECODERS = [kind for kind, fields in KINDS.items() if fields.get("causal", True)]
SOME = ["gpt2", "llama, grouped", "mistral, a window and stretched waves"]


@along({"kind": DECODERS, "sampling": [Sampling(), WARM], "use_cache": [True, False]})
def test_a_sample_of_several_is_what_its_own_seed_gives_alone(kind: str, sampling: Sampling, use_cache: bool) -> None:
    model = untied(kind)
    settings = {"sampling": sampling, "use_cache": use_cache}
    alone = [steps_of(model, seed=7 + i, sampling=sampling) for i in range(3)]
    ends = {alone[0][3].id, alone[2][6].id}  # some samples end early, others do not, or later
    for more in ({}, {"ends": ends}):
        expected = [steps_of(model, seed=7 + i, **settings, **more) for i in range(3)]
        together = steps_of(model, seed=7, samples=3, **settings, **more)
        for i in range(3):
            assert_same([step for step in together if step.sample == i + 1], expected[i])
        assert [(s.number, s.sample) for s in together] == sorted((s.number, s.sample) for s in together)
    lengths = [len(each) for each in expected]
    assert min(lengths) <= 4
    assert len(set(lengths)) > (0 if sampling.greedy else 1)
    assert len({tuple(step.id for step in each) for each in alone}) == (1 if sampling.greedy else 3)


def test_a_seed_beyond_the_largest_starts_from_the_first_again() -> None:
    model = untied("gpt2")
    together = steps_of(model, samples=2, seed=2**63 - 1, sampling=WARM)
    assert_same([step for step in together if step.sample == 2], steps_of(model, seed=0, sampling=WARM))


def test_a_sample_draws_from_a_generator_of_its_seed_and_nothing_else() -> None:
    model = untied("llama, grouped")
    for i, seed in enumerate((40, 41, 42)):
        text, generator = list(PROMPT), torch.Generator().manual_seed(seed)
        for _ in range(6):
            with torch.no_grad():
                probabilities = model(torch.tensor([text]))[0, -1].softmax(-1)
            text.append(int(torch.multinomial(probabilities, 1, generator=generator)))
        torch.manual_seed(i)  # the generator that all share is of no matter
        found = steps_of(model, samples=3, seed=40, sampling=Sampling(temperature=1.0), max_tokens=6)
        assert [step.id for step in found if step.sample == i + 1] == text[len(PROMPT) :]


def by_hand(model: Transformer, prompt: Sequence[int], new: int) -> Iterator[tuple[int, float, int]]:
    """(id, log-probability, dropped) of greedy tokens; the newer half is kept of a text that is longer than may be."""
    text, dropped, context = list(prompt), 0, model.config.context
    for _ in range(new):
        with torch.no_grad():
            log_probabilities = model(torch.tensor([text]))[0, -1].log_softmax(-1)
        chosen = int(log_probabilities.argmax())
        yield chosen, float(log_probabilities[chosen]), dropped
        text.append(chosen)
        if len(text) > context:
            kept = max(1, math.ceil(context / 2))
            dropped += len(text) - kept
            text = text[len(text) - kept :]


@along({"kind": DECODERS, "use_cache": [True, False]})
def test_a_text_that_slides_goes_on_from_the_newer_half_again_and_again(kind: str, use_cache: bool) -> None:
    model = untied(kind, context=9)
    found = steps_of(model, max_tokens=30, on_overflow="slide", use_cache=use_cache)
    expected = list(by_hand(model, PROMPT, 30))
    assert [step.id for step in found] == [chosen for chosen, _, _ in expected]
    assert [step.log_probability for step in found] == pytest.approx([own for _, own, _ in expected], abs=1e-4)
    # 4 and 5 tokens fill the context; the next one leaves 5 of 10, and so does every fifth after it.
    assert [step.dropped for step in found] == [0] * 6 + [5] * 5 + [10] * 5 + [15] * 5 + [20] * 5 + [25] * 4
    assert [step.ended for step in found] == [""] * 29 + ["max tokens"]


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("context", [1, 2, 3, 8])
def test_even_the_smallest_contexts_slide(context: int, use_cache: bool) -> None:
    for kind in ("gpt2", "llama, grouped"):
        model = untied(kind, context=context)
        prompt = PROMPT[:context]
        found = steps_of(model, prompt, max_tokens=12, on_overflow="slide", use_cache=use_cache)
        expected = list(by_hand(model, prompt, 12))
        assert [(step.id, step.dropped) for step in found] == [(chosen, dropped) for chosen, _, dropped in expected]
        assert [step.log_probability for step in found] == pytest.approx([own for _, own, _ in expected], abs=1e-5)
        assert found[-1].dropped > 0


@pytest.mark.parametrize("use_cache", [True, False])
def test_several_samples_slide_together(use_cache: bool) -> None:
    model = untied("llama, grouped", context=9)
    settings = {"max_tokens": 20, "on_overflow": "slide", "use_cache": use_cache, "sampling": WARM}
    alone = [steps_of(model, seed=3 + i, **settings) for i in range(3)]
    end = alone[1][12].id  # after the first slide
    together = steps_of(model, seed=3, samples=3, ends={end}, **settings)
    for i in range(3):
        expected = steps_of(model, seed=3 + i, ends={end}, **settings)
        assert_same([step for step in together if step.sample == i + 1], expected)


def test_a_cache_that_holds_the_beginning_slides_too() -> None:
    model = untied("gpt2", context=9)
    cache = model.cache()
    first = [step.id for step in steps_of(model, max_tokens=3, cache=cache)]
    assert cache.position == 6
    found = steps_of(model, PROMPT + first, max_tokens=15, cache=cache, on_overflow="slide")
    assert [step.id for step in found] == [chosen for chosen, _, _ in by_hand(model, PROMPT + first, 15)]


@along({"kind": DECODERS, "chunk": [1, 3, 7, 11, 100]})
def test_a_prompt_in_chunks_is_the_prompt_in_one_pass(kind: str, chunk: int) -> None:
    model = untied(kind)
    prompt = some_ids(model.config, 1, 11)[0].tolist()
    assert_same(steps_of(model, prompt, chunk=chunk), steps_of(model, prompt, use_cache=False))


def test_no_more_than_a_chunk_of_a_prompt_goes_through_at_once() -> None:
    model, lengths = untied("gpt2"), []
    model.embed.tokens.register_forward_pre_hook(lambda module, args: lengths.append(args[0].shape[1]))
    prompt = some_ids(model.config, 1, 11)[0].tolist()
    steps_of(model, prompt, chunk=3, max_tokens=3)
    assert lengths == [3, 3, 3, 2, 1, 1]
    cache = model.cache()
    with torch.no_grad():
        model.hidden(torch.tensor([prompt[:4]]), cache=cache)
    lengths.clear()
    steps_of(model, prompt, chunk=3, max_tokens=1, cache=cache)
    assert lengths == [3, 3, 1]  # of what is not in the cache yet


def test_chunks_go_together_with_samples_and_with_sliding() -> None:
    model = untied("mistral, a window and stretched waves", context=9)
    settings = {"samples": 2, "max_tokens": 14, "on_overflow": "slide", "sampling": WARM}
    assert_same(steps_of(model, chunk=2, **settings), steps_of(model, use_cache=False, **settings))


def weights_after(model: Transformer, text: Sequence[int]) -> list[Tensor]:
    """Every layer's attention weights (H, K) of the last token of a text, as a trace has them."""
    trace = record(model, encoding_of(text))
    return [trace[f"L{layer}.weights"][:, -1] for layer in trace.steps.attention_layers]


LOOKED_AT = [(None, None, 0), (1, None, 3), (0, 3, 0), (None, 2, 3)]


@along({"kind": DECODERS, "layer, head, chunk": LOOKED_AT})
def test_what_a_step_looked_at_is_what_a_trace_of_the_text_shows(
    kind: str, layer: int | None, head: int | None, chunk: int
) -> None:
    model = untied(kind, context=9)
    attending = table_of(model.config).attention_layers
    if layer is not None and layer not in attending:
        with pytest.raises(UsageError, match=f"layer {layer} has no attention weights"):
            steps_of(model, looking=Looking(layer, head))
        return
    found = steps_of(model, looking=Looking(layer, head), on_overflow="slide", chunk=chunk)
    text, dropped = list(PROMPT), 0
    for step in found:
        text, dropped = text[step.dropped - dropped :], step.dropped
        every = weights_after(model, text)
        chosen = every if layer is None else [every[attending.index(layer)]]
        expected = torch.stack([each.mean(0) if head is None else each[head] for each in chosen])
        assert step.attention is not None
        assert step.attention.shape == (len(chosen), len(text))
        assert furthest(step.attention, expected) < 1e-5
        whole = step.attention.sum(-1)
        has_sinks = [model.config.at(one).attention_sinks for one in (attending if layer is None else [layer])]
        assert torch.allclose(whole, torch.ones(len(chosen)), atol=1e-5) != any(has_sinks)
        assert bool((whole < 1 + 1e-5).all())
        text.append(step.id)
    assert dropped > 0
    assert_same(found, steps_of(model, on_overflow="slide"))


def test_attention_is_nothing_unless_it_is_asked_for() -> None:
    assert {step.attention for step in steps_of(untied("gpt2"))} == {None}


def test_looking_with_a_prompt_of_one_token_sees_itself_alone() -> None:
    (step,) = steps_of(untied("gpt2"), PROMPT[:1], max_tokens=1, looking=Looking())
    assert torch.equal(step.attention, torch.ones(2, 1))


@pytest.mark.parametrize(
    ("looking", "more", "said"),
    [
        (Looking(layer=2), {}, "there is no layer 2"),
        (Looking(layer=-1), {}, "there is no layer -1"),
        (Looking(layer=0, head=4), {}, "there is no head 4"),
        (Looking(head=-1), {}, "there is no head -1"),
        (Looking(), {"use_cache": False}, "read from the cache, but there is none"),
    ],
)
def test_what_cannot_be_looked_at_is_said_at_once(looking: Looking, more: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        stream(untied("gpt2"), PROMPT, looking=looking, **more)
    assert caught.value.hint


def test_numbers_of_samples_and_of_chunks_are_checked_at_once() -> None:
    for wrong, said in (({"samples": 0}, "0 samples are fewer than 1"), ({"chunk": -2}, "chunks of -2 tokens")):
        with pytest.raises(UsageError, match=said):
            stream(untied("gpt2"), PROMPT, **wrong)


PLACES = {
    "embed.tokens.weight": "embed.tokens",
    "blocks.0.norm1.weight": "L0.norm1",
    "blocks.0.attention.v.weight": "L0.v",
    "blocks.1.attention.o.weight": "L1.attn",
    "blocks.1.norm2.weight": "L1.norm2",
    "blocks.0.ffn.up.weight": "L0.ffn.hidden",
    "blocks.0.ffn.down.weight": "L0.ffn",
    "final_norm.weight": "final.norm",
    "head.decoder.weight": "logits",
}
WAYS = [{}, {"use_cache": False}, {"samples": 2}, {"chunk": 2}]


@torch.no_grad()
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("kind", "value"), [("gpt2", math.inf), ("llama, grouped", math.nan)])
def test_a_number_that_is_none_is_reported_with_the_first_step_that_has_it(kind: str, place: str, value: float) -> None:
    model = untied(kind)
    model.get_parameter(place)[3] = value  # of the embeddings that is the prompt's first token
    for way in WAYS:
        with pytest.raises(GenerationError) as caught:
            steps_of(model, **way)
        assert caught.value.message.startswith("the logits of new token 1 are not finite")
        assert caught.value.message.endswith(f"they first appear at {PLACES[place]}")
        assert "float32" in caught.value.hint


@torch.no_grad()
@pytest.mark.parametrize(("layer", "name"), [(0, "q"), (1, "q"), (0, "k"), (1, "k")])
@pytest.mark.parametrize(("kind", "value"), [("gpt2", math.inf), ("llama, grouped", math.nan)])
def test_a_query_or_key_that_is_none_is_reported_by_the_second_token(
    kind: str, layer: int, name: str, value: float
) -> None:
    model = untied(kind)
    model.get_parameter(f"blocks.{layer}.attention.{name}.weight")[3] = value
    with pytest.raises(GenerationError, match=rf"new token [12] are not finite .*first appear at L{layer}\.{name}$"):
        steps_of(model)  # torch's fused core, which reads the prompt, may answer zeros for such scores


@torch.no_grad()
@pytest.mark.parametrize("value", [math.nan, math.inf], ids=str)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_token_whose_vector_is_none_is_reported_when_it_has_been_read(way: dict[str, object], value: float) -> None:
    model = untied("llama, grouped")
    ids = [step.id for step in steps_of(model)]
    place = next(place for place, each in enumerate(ids) if each not in PROMPT)
    model.embed.tokens.weight[ids[place]] = value
    steps = stream(model, PROMPT, max_tokens=10, **way)
    made = [next(steps) for _ in range((place + 1) * int(way.get("samples", 1)))]
    assert made[-1].number == place + 1
    with pytest.raises(GenerationError, match=rf"new token {place + 2} are not .*first appear at embed\.tokens$"):
        next(steps)


@pytest.mark.parametrize("use_cache", [True, False])
def test_of_several_samples_the_one_that_is_broken_is_explained(use_cache: bool) -> None:
    model = untied("llama, grouped")
    settings = {"samples": 3, "sampling": WARM, "seed": 0, "use_cache": use_cache}
    first = [step.id for step in steps_of(model, max_tokens=1, **settings)]
    assert first[2] not in (*PROMPT, *first[:2])
    with torch.no_grad():
        model.embed.tokens.weight[first[2]] = math.nan
    with pytest.raises(GenerationError, match=r"new token 2 are not .*first appear at embed\.tokens$"):
        steps_of(model, **settings)


@pytest.mark.parametrize("use_cache", [True, False])
def test_the_number_of_the_token_counts_those_that_slid_out(use_cache: bool) -> None:
    model = untied("gpt2", context=9)
    steps = stream(model, PROMPT, max_tokens=40, on_overflow="slide", use_cache=use_cache)
    made = list(itertools.islice(steps, 18))
    assert made[-1].dropped == 15
    with torch.no_grad():
        model.blocks[1].ffn.down.bias[2] = math.nan
    with pytest.raises(GenerationError, match=r"new token 19 are not finite .*first appear at L1\.ffn$"):
        next(steps)


def test_what_can_never_come_is_no_fault() -> None:
    model = lively(config_of("one key head for all", tied_head=False))
    never = steps_of(model)[1].id
    with torch.no_grad():
        model.head.decoder.bias[never] = -math.inf
    for sampling in (Sampling(), Sampling(temperature=2.0)):
        for use_cache in (True, False):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                found = steps_of(model, sampling=sampling, use_cache=use_cache, top=3)
            assert never not in [step.id for step in found]
            assert all(math.isfinite(step.entropy) and math.isfinite(step.log_probability) for step in found)


ROWS = [list(rows) for count in (1, 2, 3, 4) for rows in itertools.product(range(3), repeat=count)]


@torch.no_grad()
@pytest.mark.parametrize("kind", SOME)
def test_texts_that_are_selected_from_a_cache_go_on_as_if_computed_anew(kind: str) -> None:
    model = untied(kind)
    start = some_ids(model.config, 3, 6)
    for rows in ROWS if kind == "gpt2" else ROWS[::7]:
        cache = model.cache(9, batch=3)
        model.hidden(start, cache=cache)
        cache.select(rows)
        assert (cache.batch, cache.position) == (len(rows), 6)
        new = some_ids(model.config, len(rows), 3, seed=len(rows))
        found = model.unembed(model.hidden(new, cache=cache))
        assert furthest(found, model(torch.cat((start[rows], new), 1))[:, 6:]) < 1e-5


@torch.no_grad()
def test_selecting_again_and_again_between_the_decoders_tokens_follows_the_texts() -> None:
    model = untied("llama, grouped")
    texts = [PROMPT]
    cache = model.cache(20)
    model.hidden(torch.tensor(texts), cache=cache)
    decoder = Decoder(model, cache, texts=4)
    for rows in ([0, 0, 0], [2, 0, 1], [1, 1], [0], [0, 0, 0, 0], [3, 2, 1, 0], [1, 3]):
        ids = some_ids(model.config, len(rows), 1, seed=len(texts[0]))[:, 0]
        texts = [[*texts[row], new] for row, new in zip(rows, ids.tolist(), strict=True)]
        cache.select(rows)
        assert furthest(decoder(ids), model(torch.tensor(texts))[:, -1]) < 1e-5


def test_a_cleared_cache_takes_another_text_without_a_trace_of_the_first() -> None:
    model = untied("gpt2")
    cache = model.cache()
    steps_of(model, [8, 8, 2, 1, 30], cache=cache)
    cache.clear()
    assert_same(steps_of(model, cache=cache), steps_of(model))


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("kind", SOME)
def test_beams_over_a_runner_are_those_of_whole_texts(kind: str, cached: bool) -> None:
    model = untied(kind)
    whole = [list(PROMPT)]

    def go_on(rows: Sequence[int], ids: Sequence[int]) -> Tensor:
        whole[:] = [[*whole[row], new] for row, new in zip(rows, ids, strict=True)]
        return model(torch.tensor(whole))[:, -1]

    runner = Runner(model, PROMPT, model.cache(15) if cached else None, texts=4)
    found = list(beam_search(runner.first()[0], runner.go_on, beams=4, max_tokens=8))
    with torch.no_grad():
        expected = list(beam_search(model(torch.tensor(whole))[0, -1], go_on, beams=4, max_tokens=8))
    assert [one.ids for one in found[-1].finished] == [one.ids for one in expected[-1].finished]
    for ours, theirs in zip(found[-1].finished, expected[-1].finished, strict=True):
        assert ours.log_probability == pytest.approx(theirs.log_probability, abs=1e-5)
    assert runner.texts == whole


@pytest.mark.parametrize("settings", [{}, {"use_cache": False}, {"samples": 2}, {"looking": Looking()}], ids=str)
def test_a_model_in_training_draws_without_dropout_and_stays_in_training(settings: dict[str, object]) -> None:
    model = untied("gpt2", dropout=0.5)
    expected = steps_of(model, **settings)
    model.train()
    steps = stream(model, PROMPT, max_tokens=10, **settings)
    found = []
    for step in steps:
        assert model.training
        found.append(step)
    assert_same(found, expected)


def test_a_cache_that_is_larger_than_the_free_memory_is_refused_with_both_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = config_of("llama, grouped", context=2**20)
    model = lively(config)
    each = 2 * 2 * 2 * 6 * 4  # keys and values, layers, key heads, width, bytes
    monkeypatch.setattr(cache_module, "free_bytes", lambda device: 2**26)
    for texts, said in ((1, "1 text takes 0.19 GiB, and 0.06 GiB are free"), (3, "3 texts takes 0.56 GiB")):
        with pytest.raises(MemoryShortage, match=rf"a cache of 1,048,576 tokens for {said}") as caught:
            KVCache(config, batch=texts)
        assert "--no-cache" in caught.value.hint
    assert f"{each * 2**20 / 2**30:.2f}" == "0.19"
    with pytest.raises(MemoryShortage):
        stream(model, PROMPT, max_tokens=2**20)
    assert len(steps_of(model)) == 10
    assert len(steps_of(model, max_tokens=2, use_cache=False)) == 2


def test_exactly_the_free_memory_is_enough_and_little_is_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of("llama, grouped", context=2**20)
    needed = 2 * 2 * 2 * 6 * 4 * 2**19
    asked = []

    def free(device: torch.device) -> int:
        asked.append(device.type)
        return needed

    monkeypatch.setattr(cache_module, "free_bytes", free)
    assert KVCache(config, 2**19).capacity == 2**19
    with pytest.raises(MemoryShortage):
        KVCache(config, 2**19 + 1)
    assert asked == ["cpu", "cpu"]
    KVCache(config, 1000)
    assert len(asked) == 2
