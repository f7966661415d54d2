"""Beam search: the most probable continuations, several at a time (Graves 2012; Sutskever et al. 2014).

``beam_search`` works on logits and ids, ``search`` runs a model for it. Selection, termination and length penalty match
transformers' ``generate`` with ``num_beams``, ``do_sample=False`` and ``early_stopping=False``.
"""

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tinytf.errors import GenerationError, UsageError
from tinytf.generate.loop import CONTEXT_FULL, END_TOKEN, MAX_TOKENS, require_prompt
from tinytf.generate.options import Options, by_keyword
from tinytf.generate.runner import Runner
from tinytf.generate.samplers import Sampling, penalise_repetition
from tinytf.memory import require_free
from tinytf.model.transformer import Transformer
from tinytf.steps.work import cache_bytes_per_token

GoOn = Callable[[Sequence[int], Sequence[int]], Tensor]
Adjust = Callable[[Tensor, Sequence[Sequence[int]]], Tensor]

_LARGEST_EXPONENT = 690.0  # e^690 is near the largest double, with room for a factor of a log-probability


@dataclass(frozen=True)
class Hypothesis:
    """A continuation: its new ``ids`` and their joint probability.

    ``log_probability`` is the sum over the ids, in nats. ``score``, log_probability / len(ids) ** length_penalty,
    compares continuations of different lengths. ``ended`` says whether the last id is an end token.
    """

    ids: tuple[int, ...]
    log_probability: float
    score: float
    ended: bool


@dataclass(frozen=True)
class BeamStep:
    """The hypotheses after ``number`` tokens: ``running`` and ``finished``, both best first.

    In the last step ``ended`` says why the search ended. After ``max_tokens`` none is running: those that still ran
    count as ``finished`` where they are good enough. After an end token ``running`` are those that were given up.
    ``pruned`` has, for each hypothesis of the step before of which nothing is left, its best continuation that does
    not end: it scores no more than the ``beams`` that were kept. ``note`` is explained at ``loop.GeneratedToken``.
    """

    number: int
    running: tuple[Hypothesis, ...]
    finished: tuple[Hypothesis, ...]
    ended: str = ""
    note: str = ""
    pruned: tuple[Hypothesis, ...] = ()


def beam_search(
    first: Tensor,
    go_on: GoOn,
    *,
    beams: int,
    max_tokens: int,
    length_penalty: float = 1.0,
    ends: Collection[int] = (),
    adjust: Adjust | None = None,
) -> Iterator[BeamStep]:
    """Keep the ``beams`` most probable continuations at every token; the last step has the best finished ones.

    ``first`` are the logits (V,) after the prompt. ``go_on(rows, ids)`` selects ``rows`` of the running batch, in this
    order and possibly repeated (before the first call there is one row, 0), appends one id to each, and returns the
    logits (len(rows), V) after it. ``adjust`` may change log-probabilities (B, V) before they are summed; it also gets
    each row's new ids so far. A token at −∞ cannot come next.

    A hypothesis that ends counts as finished if it is among the best ``beams`` of its step, running or not. The search
    ends when ``beams`` are finished and the best running one scores no more than the worst of them, at its present
    length. (With a ``length_penalty`` above 0, which favours longer texts, it might have overtaken later.) Where there
    are fewer continuations than ``beams``, all of them are kept.

    Raises UsageError for a number outside its range; GenerationError when no token can come next.
    """
    _require_settings(beams, max_tokens, length_penalty)
    ends = frozenset(ends)
    logits = first[None]  # (1, V)
    running: tuple[Hypothesis, ...] = (Hypothesis((), 0.0, 0.0, ended=False),)
    finished: tuple[Hypothesis, ...] = ()
    for number in range(1, max_tokens + 1):
        log_probabilities = logits.float().log_softmax(-1)  # (B, V)
        if adjust is not None:
            log_probabilities = adjust(log_probabilities, [hypothesis.ids for hypothesis in running])
        candidates = []
        for total, row, new in _candidates(log_probabilities, running, beams, len(ends)):
            score = total / number**length_penalty
            candidates.append((row, Hypothesis((*running[row].ids, new), total, score, new in ends)))
        # Only the first ``beams`` may end here, or a poor early end would be kept for lack of competitors.
        finished = _best([*finished, *(hypothesis for _, hypothesis in candidates[:beams] if hypothesis.ended)], beams)
        survivors = [(row, hypothesis) for row, hypothesis in candidates if not hypothesis.ended][:beams]
        before, running = running, tuple(hypothesis for _, hypothesis in survivors)
        if not running and not finished:
            raise GenerationError(
                f"none of the {logits.shape[-1]:,} tokens can be new token {number:,} of any hypothesis",
                "the adjustment of log-probabilities leaves none above −∞",
            )
        ended = ""
        if not running or (len(finished) == beams and running[0].score <= finished[-1].score):
            ended = END_TOKEN
        elif number == max_tokens:
            ended, finished, running = MAX_TOKENS, _best([*finished, *running], beams), ()
        left = {row for row, hypothesis in candidates if hypothesis in finished or hypothesis in running}
        pruned = [
            Hypothesis((*parent.ids, new), total, total / number**length_penalty, ended=False)
            for row, parent in enumerate(before)
            if row not in left
            for total, new in _best_that_goes_on(log_probabilities[row], parent.log_probability, ends)
        ]
        yield BeamStep(number, running, finished, ended, pruned=_best(pruned, beams))
        if ended:
            return
        logits = go_on([row for row, _ in survivors], [hypothesis.ids[-1] for _, hypothesis in survivors])


@dataclass(frozen=True, kw_only=True)
class BeamOptions(Options):
    """The settings of ``search``, explained at ``beam_search`` and at Options.

    The ``repetition_penalty`` acts on log-probabilities, so one beam with a penalty is not quite greedy decoding.
    """

    beams: int = 4
    length_penalty: float = 1.0
    repetition_penalty: float = 1.0


def search_with(model: Transformer, ids: Sequence[int], options: BeamOptions) -> Iterator[BeamStep]:
    """``beam_search`` with a model, from ``ids``, with the settings of BeamOptions.

    The search ends where the context is full; with ``on_overflow`` "error" it raises GenerationError at the start if
    that could happen. Raises what ``beam_search`` and ``loop.stream`` raise, before the first step.
    """
    max_tokens, penalty = options.max_tokens, options.repetition_penalty
    require_prompt(model, ids, max_tokens)
    if options.on_overflow not in ("stop", "error"):
        raise UsageError(f"on_overflow {options.on_overflow!r} is not one of stop, error, for beams")
    context = model.config.context
    room = context - len(ids) + 1
    if room < max_tokens and options.on_overflow == "error":
        raise GenerationError(
            f"the context of {context:,} tokens has room for {room:,} new ones, but {max_tokens:,} were asked for",
            "ask for fewer, or let it end there with --on-overflow stop",
        )
    Sampling(repetition_penalty=penalty)  # checks the range
    steps = min(max_tokens, room)
    _require_settings(options.beams, steps, options.length_penalty)
    _require_beams(model, options.beams, min(context, len(ids) + steps) if options.use_cache else 0)

    cache = None
    if options.use_cache and not model.recomputes:
        cache = model.cache(min(context, len(ids) + steps))
        cache.require_memory(options.beams)

    def adjust(log_probabilities: Tensor, texts: Sequence[Sequence[int]]) -> Tensor:
        texts_so_far = [[*ids, *new] for new in texts]
        rows = zip(log_probabilities, texts_so_far, strict=True)
        return torch.stack([penalise_repetition(row, text, penalty) for row, text in rows])

    def steps_of_search() -> Iterator[BeamStep]:
        runner = Runner(model, ids, cache, texts=options.beams, chunk=options.chunk, kind=options.kind)
        search_steps = beam_search(
            runner.first()[0],
            runner.go_on,
            beams=options.beams,
            max_tokens=steps,
            length_penalty=options.length_penalty,
            ends=options.ends,
            adjust=None if penalty == 1 else adjust,
        )
        for step in search_steps:
            full = step.ended == MAX_TOKENS and steps < max_tokens
            yield replace(step, ended=CONTEXT_FULL if full else step.ended, note=runner.note)

    return steps_of_search()


_LOGITS, _CANDIDATE, _SHARES = 12, 64, 2
"""Bytes of a logit with its log-probability and sum; of a candidate; and how many times that must be free."""


search = by_keyword(BeamOptions)(search_with)


def _require_settings(beams: int, max_tokens: int, length_penalty: float) -> None:
    if beams < 1:
        raise UsageError(f"{beams} beams are fewer than 1", "1 is greedy, 4 is usual")
    if max_tokens < 1:
        raise UsageError(f"{max_tokens} new tokens are fewer than 1", "ask for at least 1")
    if not math.isfinite(length_penalty):
        raise UsageError(f"a length penalty of {length_penalty} is not a finite number", "use 0 to ignore the length")
    if abs(length_penalty) * math.log(max_tokens) > _LARGEST_EXPONENT:
        limit = _LARGEST_EXPONENT / math.log(max_tokens)
        raise UsageError(
            f"a length penalty of {length_penalty} is outside ±{limit:.0f}, the limit for {max_tokens:,} tokens",
            "1 scores by the mean log-probability per token, 0 ignores the length",
        )


def _require_beams(model: Transformer, beams: int, cached: int) -> None:
    """Raise UsageError for more beams than tokens; MemoryShortage if a step takes more than half of the free memory."""
    weight, vocabulary = next(model.parameters()), model.config.vocab_size
    if beams > vocabulary:
        raise UsageError(f"{beams:,} beams are more than the {vocabulary:,} tokens that can come next", "4 is usual")
    kept, of_source = (cache_bytes_per_token(model.config, weight.itemsize, of_source=of) for of in (False, True))
    row = _LOGITS * vocabulary + cached * kept + (cached > 0) * model.tokens_read * of_source
    needed = beams * row + _CANDIDATE * beams**2
    require_free(f"a step of {beams:,} beams takes", _SHARES * needed, weight.device, "ask for fewer beams; 4 is usual")


def _candidates(
    log_probabilities: Tensor, running: Sequence[Hypothesis], beams: int, ends: int
) -> list[tuple[float, int, int]]:
    """(joint log-probability, row, id) of the best next tokens, best first; ties go to the lowest row and id.

    Returns enough of them that ``beams`` can go on even where the best of every row are its ``ends`` end tokens.
    """
    values, ids = (tensor.cpu() for tensor in log_probabilities.topk(min(beams + ends, log_probabilities.shape[-1])))
    ids, order = ids.sort(dim=-1)
    # In float64: float32 would lose digits over a long text.
    sums = torch.tensor([tensor.log_probability for tensor in running], dtype=torch.float64)
    totals = (sums[:, None] + values.gather(-1, order).double()).flatten()
    best = totals.sort(descending=True, stable=True).indices[: beams * (1 + ends)]
    rows = (best // ids.shape[-1]).tolist()
    candidates = zip(totals[best].tolist(), rows, ids.flatten()[best].tolist(), strict=True)
    return [candidate for candidate in candidates if candidate[0] != -math.inf]


def _best_that_goes_on(log_probabilities: Tensor, so_far: float, ends: Collection[int]) -> Iterator[tuple[float, int]]:
    """(joint log-probability, id) of the best next token (V,) that is no end token, if there is one."""
    values, ids = log_probabilities.topk(min(1 + len(ends), len(log_probabilities)))
    pairs = ((so_far + value, new) for value, new in zip(values.tolist(), ids.tolist(), strict=True) if new not in ends)
    yield from (pair for pair in itertools.islice(pairs, 1) if pair[0] != -math.inf)


def _best(hypotheses: Iterable[Hypothesis], beams: int) -> tuple[Hypothesis, ...]:
    return tuple(sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)[:beams])
