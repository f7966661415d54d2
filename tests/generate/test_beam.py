"""Beam search finds what transformers' does, and, when it is wide enough, what trying every text finds."""

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cache

import pytest
import torch
from architectures import config_of, lively
from reference import TWO_STACKS, Pair, pair
from torch import Tensor

from tinytf.errors import GenerationError, UsageError
from tinytf.generate import beam
from tinytf.generate.beam import BeamStep, Hypothesis, beam_search
from tinytf.generate.loop import stream
from tinytf.generate.score import score_ids
from tinytf.model.transformer import Transformer

FAMILIES = ["gpt2", "llama", "mistral", "qwen2", "qwen3, with biases"]
PENALTIES = [0.0, 0.5, 1.0, 2.0, -1.0]
PROMPT = [3, 17, 5, 9]
MAX_TOKENS = 9

opened = cache(pair)


@dataclass
class Texts:
    """A ``go_on`` that keeps the new ids of every row, and asks for the logits (B, V) after the whole of each."""

    logits: Callable[[list[list[int]]], Tensor]
    texts: list[list[int]] = field(default_factory=lambda: [[]])
    calls: int = 0

    def __call__(self, rows: Sequence[int], ids: Sequence[int]) -> Tensor:
        self.calls += 1
        self.texts = [[*self.texts[row], new] for row, new in zip(rows, ids, strict=True)]
        return self.logits(self.texts)


def search(model: Transformer, prompt: Sequence[int] = PROMPT, **settings: object) -> list[BeamStep]:
    def logits(texts: list[list[int]]) -> Tensor:
        with torch.no_grad():
            return model(torch.tensor([[*prompt, *text] for text in texts]))[:, -1]

    return list(beam_search(logits([[]])[0], Texts(logits), **{"max_tokens": MAX_TOKENS, **settings}))


@dataclass(frozen=True)
class Theirs:
    """What transformers' generate answers: (ids, score), best first, and after how many steps."""

    found: list[tuple[tuple[int, ...], float]]
    steps: int


def generated(models: Pair, beams: int, ends: Sequence[int], **settings: object) -> Theirs:
    with torch.no_grad():
        answer = models.theirs.generate(
            torch.tensor([PROMPT]),
            num_beams=beams,
            num_return_sequences=beams,
            max_new_tokens=MAX_TOKENS,
            do_sample=False,
            early_stopping=False,
            eos_token_id=list(ends) or None,
            pad_token_id=40,
            output_scores=True,
            return_dict_in_generate=True,
            **settings,
        )
    found = []
    for row, its_score in zip(answer.sequences.tolist(), answer.sequences_scores.tolist(), strict=True):
        new = row[len(PROMPT) :]
        length = next((place for place, one in enumerate(new, 1) if one in ends), len(new))  # padding after it
        found.append((tuple(new[:length]), its_score))
    return Theirs(found, len(answer.scores))


def assert_same(steps: Sequence[BeamStep], expected: Theirs, penalty: float = 1.0) -> None:
    assert [one.ids for one in steps[-1].finished] == [ids for ids, _ in expected.found]
    for ours, (ids, its_score) in zip(steps[-1].finished, expected.found, strict=True):
        scale = max(1.0, len(ids) ** -penalty)  # a penalty below 0 makes scores larger than log-probabilities are
        assert ours.score == pytest.approx(its_score, rel=0, abs=1e-5 * scale)
    assert [step.number for step in steps] == list(range(1, expected.steps + 1))


def ends_that_occur(model: Transformer) -> list[tuple[int, ...]]:
    """End tokens that hypotheses really have at their 2nd, 4th and 6th place, and two of them together."""
    best = search(model, beams=3)[-1].finished
    singles = [(best[place % 3].ids[place],) for place in (1, 3, 5)]
    return [*singles, singles[0] + singles[1]]


@pytest.mark.share(8)
@pytest.mark.parametrize(("family", "beams"), [*itertools.product(FAMILIES, [3]), ("gpt2", 2), ("llama", 5)])
def test_hypotheses_scores_and_steps_are_those_of_transformers(family: str, beams: int) -> None:
    models = opened(family)
    early = 0
    for penalty in PENALTIES:
        for ends in [(), *ends_that_occur(models.ours)]:
            steps = search(models.ours, beams=beams, length_penalty=penalty, ends=ends)
            assert_same(steps, generated(models, beams, ends, length_penalty=penalty), penalty)
            early += any(one.ended for one in steps[-1].finished)
            all_ended = all(one.ended for one in steps[-1].finished)
            assert [step.ended for step in steps[:-1]] == [""] * (len(steps) - 1)
            assert steps[-1].ended == ("end token" if all_ended else "max tokens")
    assert early >= len(PENALTIES)  # the end tokens did end something


@pytest.mark.share(8)
@pytest.mark.parametrize("family", TWO_STACKS)
def test_four_beams_with_a_cache_of_a_model_that_reads_another_text_are_those_of_transformers(family: str) -> None:
    models = opened(family)
    for ends in [(), ends_that_occur(models.ours)[1]]:
        steps = list(beam.search(models.ours, PROMPT, beams=4, max_tokens=MAX_TOKENS, ends=ends))
        assert_same(steps, generated(models, 4, ends))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_repetition_penalty_on_the_log_probabilities_is_that_of_transformers(family: str) -> None:
    models = opened(family)

    def adjust(log_probabilities: Tensor, ids: Sequence[Sequence[int]]) -> Tensor:
        penalised = log_probabilities.clone()
        for row, new in enumerate(ids):
            seen = sorted({*PROMPT, *new})
            penalised[row, seen] *= 1.7
        return penalised

    changed = 0
    for beams, ends in itertools.product([2, 5], [(), *ends_that_occur(models.ours)]):
        steps = search(models.ours, beams=beams, ends=ends, adjust=adjust)
        assert_same(steps, generated(models, beams, ends, repetition_penalty=1.7))
        changed += steps != search(models.ours, beams=beams, ends=ends)
    assert changed >= 5  # of ten; some end before anything comes again


def logits_of_a_language(vocabulary: int, seed: int) -> Callable[[list[list[int]]], Tensor]:
    """Logits (B, V) that depend on the whole text, and are the same for the same text."""

    @cache
    def after(text: tuple[int, ...]) -> Tensor:
        number = seed
        for one in text:
            number = number * (vocabulary + 1) + one + 1
        return torch.randn(vocabulary, generator=torch.Generator().manual_seed(number)) * 2

    return lambda texts: torch.stack([after(tuple(text)) for text in texts])


def every_text(
    logits: Callable[[list[list[int]]], Tensor], vocabulary: int, length: int, penalty: float, ends: Collection[int]
) -> list[tuple[tuple[int, ...], float]]:
    """All texts of ``length`` tokens, or that end before, with their scores, best first."""
    found: dict[tuple[int, ...], float] = {}
    for text in itertools.product(range(vocabulary), repeat=length):
        until = next((place for place, one in enumerate(text, 1) if one in ends), length)
        total = 0.0
        for place in range(until):
            total += float(logits([list(text[:place])])[0].double().log_softmax(-1)[text[place]])
        found[text[:until]] = total / until**penalty
    return sorted(found.items(), key=lambda one: -one[1])


@pytest.mark.parametrize("ends", [(), (1,), (0, 3)])
@pytest.mark.parametrize(("length", "beams"), [(2, 4), (3, 16)])
def test_a_wide_enough_beam_finds_what_trying_every_text_finds(length: int, beams: int, ends: tuple[int, ...]) -> None:
    for seed, penalty in itertools.product(range(1, 6), [0.0, 1.0, 2.5, -0.5]):
        logits = logits_of_a_language(4, seed)
        settings = {"beams": beams, "max_tokens": length, "length_penalty": penalty, "ends": ends}
        found = list(beam_search(logits([[]])[0], Texts(logits), **settings))[-1].finished
        expected = every_text(logits, 4, length, penalty, ends)[:beams]
        assert [one.ids for one in found] == [ids for ids, _ in expected]
        assert [one.score for one in found] == pytest.approx([number for _, number in expected], abs=1e-5)
        assert [one.ended for one in found] == [ids[-1] in ends for ids, _ in expected]


def test_more_beams_than_there_are_texts_give_every_text_once() -> None:
    logits = logits_of_a_language(3, 1)
    steps = list(beam_search(logits([[]])[0], Texts(logits), beams=50, max_tokens=3, ends=[2]))
    expected = every_text(logits, 3, 3, 1.0, [2])
    assert [one.ids for one in steps[-1].finished] == [ids for ids, _ in expected]
    assert [len(step.running) for step in steps] == [2, 4, 0]
    only_ends = list(beam_search(logits([[]])[0], Texts(logits), beams=5, max_tokens=3, ends=[0, 1, 2]))
    assert [(step.ended, len(step.finished), step.running) for step in only_ends] == [("end token", 3, ())]


@pytest.mark.parametrize("kind", ["gpt2", "llama, grouped", "mistral, a window and stretched waves"])
def test_one_beam_is_greedy(kind: str) -> None:
    transformer = lively(config_of(kind))
    greedy = [step.id for step in stream(transformer, PROMPT, max_tokens=MAX_TOKENS)]
    (found,) = search(transformer, beams=1)[-1].finished
    assert list(found.ids) == greedy
    end = greedy[4]
    steps = search(transformer, beams=1, ends=[end])
    assert list(steps[-1].finished[0].ids) == greedy[: greedy.index(end) + 1]
    assert (len(steps), steps[-1].ended) == (greedy.index(end) + 1, "end token")


def test_log_probabilities_are_those_of_the_whole_text_and_scores_are_by_length() -> None:
    transformer = lively(config_of("llama, grouped"))
    end = search(transformer, beams=4)[-1].finished[1].ids[3]
    steps = search(transformer, beams=4, ends=[end], length_penalty=0.7)
    every = [one for step in steps for one in (*step.running, *step.finished)]
    assert {len(one.ids) for one in steps[-1].finished} > {MAX_TOKENS}
    for one in every:
        tokens = score_ids(transformer, PROMPT + list(one.ids))[len(PROMPT) - 1 :]
        assert one.log_probability == pytest.approx(sum(token.log_probability for token in tokens), abs=1e-5)
        assert one.score == pytest.approx(one.log_probability / len(one.ids) ** 0.7)
        assert one.ended == (one.ids[-1] == end)
    for step in steps:
        for kept in (step.running, step.finished):
            assert [one.score for one in kept] == sorted((one.score for one in kept), reverse=True)
            assert len(kept) <= 4


def after_a_while(*rows: Sequence[float]) -> Callable[[list[list[int]]], Tensor]:
    """The same probabilities (V,) after every text of a length: the first row after none, the next after one …"""
    return lambda texts: torch.tensor([rows[len(text)] for text in texts]).log()


def test_an_end_is_kept_only_among_the_best_of_its_step_and_the_search_stops_when_none_can_win() -> None:
    logits = after_a_while([0.5, 0.3, 0.2], [0.05, 0.05, 0.9], [0.9, 0.09, 0.01])
    steps = list(beam_search(logits([[]])[0], Texts(logits), beams=2, max_tokens=9, ends=[2], length_penalty=0.0))
    assert steps[0].finished == ()  # 0.2 is the third best of two beams
    assert [one.ids for one in steps[1].finished] == [(0, 2), (1, 2)]  # 0.45 and 0.27; what runs has 0.025
    assert [step.ended for step in steps] == ["", "end token"]
    assert [one.ids for one in steps[1].running] == [(0, 0), (0, 1)]  # given up; the lowest id first at a tie


@pytest.mark.parametrize("ends", [(), (4,)])
def test_what_is_pruned_is_each_hypothesis_that_nothing_goes_on_from_at_its_best(ends: tuple[int, ...]) -> None:
    logits = logits_of_a_language(5, 3)
    steps = list(beam_search(logits([[]])[0], Texts(logits), beams=3, max_tokens=6, ends=ends))
    for before, step in itertools.pairwise(steps):
        kept = [each for each in (*step.running, *step.finished) if len(each.ids) == step.number]
        expected = {}
        for parent in before.running:
            if all(each.ids[:-1] != parent.ids for each in kept):
                best, token = max(
                    (float(p), i) for i, p in enumerate(logits([list(parent.ids)])[0].log_softmax(-1)) if i not in ends
                )
                expected[*parent.ids, token] = pytest.approx((parent.log_probability + best) / step.number, rel=1e-5)
        assert {each.ids: each.score for each in step.pruned} == expected
        going_on = [each.score for each in kept if not each.ended]
        assert all(each.score <= min(going_on or [step.finished[-1].score]) for each in step.pruned)
    assert any(step.pruned for step in steps)


def test_the_model_is_asked_once_a_token_and_not_after_the_last() -> None:
    logits = logits_of_a_language(5, 3)
    texts = Texts(logits)
    numbers = [step.number for step in beam_search(logits([[]])[0], texts, beams=3, max_tokens=6)]
    assert (numbers, texts.calls) == ([1, 2, 3, 4, 5, 6], 5)


def test_a_long_text_keeps_the_digits_of_its_log_probability() -> None:
    (*_, last) = beam_search(torch.zeros(3), lambda rows, ids: torch.zeros(1, 3), beams=1, max_tokens=3000)
    exact = 3000 * float(torch.zeros(3).log_softmax(-1)[0])
    assert last.finished == (
        Hypothesis((0,) * 3000, pytest.approx(exact, rel=1e-12), pytest.approx(exact / 3000), False),
    )


def test_what_an_adjustment_rules_out_never_comes_and_ruling_out_all_is_an_error() -> None:
    logits = logits_of_a_language(4, 2)

    def no_repeats(log_probabilities: Tensor, ids: Sequence[Sequence[int]]) -> Tensor:
        for row, new in enumerate(ids):
            log_probabilities[row, list(new)] = -math.inf
        return log_probabilities

    (*_, last) = beam_search(logits([[]])[0], Texts(logits), beams=30, max_tokens=4, adjust=no_repeats)
    assert {one.ids for one in last.finished} == set(itertools.permutations(range(4)))
    steps = beam_search(logits([[]])[0], Texts(logits), beams=2, max_tokens=5, adjust=no_repeats)
    assert [next(steps).number for _ in range(4)] == [1, 2, 3, 4]
    with pytest.raises(GenerationError, match="none of the 4 tokens can be new token 5 of any hypothesis"):
        next(steps)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"beams": 0}, "0 beams are fewer than 1"),
        ({"max_tokens": 0}, "0 new tokens are fewer than 1"),
        ({"length_penalty": math.nan}, "a length penalty of nan is not a finite number"),
        ({"length_penalty": -math.inf}, "a length penalty of -inf is not a finite number"),
        ({"length_penalty": -400.0}, "a length penalty of -400.0 is outside ±300, the limit for 10 tokens"),
    ],
)
def test_a_number_outside_its_range_is_said_before_the_first_step(wrong: dict[str, float], said: str) -> None:
    logits = logits_of_a_language(4, 1)
    with pytest.raises(UsageError, match=said) as error:
        next(beam_search(logits([[]])[0], Texts(logits), **{"beams": 2, "max_tokens": 10, **wrong}))
    assert error.value.hint
