"""Decoding with a cache and without it, compared token by token."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from tinytf.generate.loop import require_prompt
from tinytf.generate.runner import Runner
from tinytf.model.transformer import Transformer
from tinytf.tolerance import DECODED, allowed

RUNS = 3
"""How often each token is computed in each way; the shortest time counts, as the least disturbed by other programs."""


@dataclass(frozen=True)
class CachedStep:
    """The shortest seconds of RUNS for one more token after ``tokens`` others, with a cache and without.

    The cache held ``reused`` rows of keys and values before it. ``apart`` is the largest difference between the two
    sets of logits; rounding may cause up to ``allowed``.
    """

    number: int
    tokens: int
    reused: int
    id: int
    with_cache: float
    without_cache: float
    apart: float
    allowed: float


def cached_steps(model: Transformer, ids: Sequence[int], max_tokens: int) -> Iterator[CachedStep]:
    """Continue ``ids`` greedily; compute every token RUNS times with a cache and without, alternating.

    The first step computes the prompt, where both do the same work. The steps end where the context is full. Raises
    what ``loop.stream`` raises.
    """
    require_prompt(model, ids, max_tokens)
    return _cached_steps(model, ids, min(max_tokens, model.config.context - len(ids) + 1))


def _cached_steps(model: Transformer, ids: Sequence[int], steps: int) -> Iterator[CachedStep]:
    room = min(model.config.context, len(ids) + steps)
    caches = [model.cache(room) for _ in range(RUNS)]
    cached = [Runner(model, ids, cache, compare=False) for cache in caches]  # every token is compared here
    plain = [Runner(model, ids) for _ in range(RUNS)]
    turns = [runner for pair in zip(cached, plain, strict=True) for runner in pair]
    Runner(model, ids).first()  # a warm-up, so that torch's one-time setup is not timed
    token_id, dtype = 0, next(model.parameters()).dtype
    for number in range(1, steps + 1):
        logits: dict[Runner, Tensor] = {}
        seconds: dict[Runner, float] = {}
        tokens = len(ids) + number - 1
        reused = 0 if caches[0].is_turned(tokens) else caches[0].position
        for runner in turns if number % 2 else reversed(turns):
            start = time.perf_counter()
            logits[runner] = runner.first() if number == 1 else runner.go_on([0], [token_id])
            seconds[runner] = time.perf_counter() - start
        difference = float((logits[cached[0]] - logits[plain[0]]).abs().max())
        limit = allowed(DECODED, dtype) * max(1.0, float(logits[plain[0]].abs().max()))
        token_id = int(logits[cached[0]][0].argmax())
        seconds_with, seconds_without = (min(seconds[runner] for runner in runners) for runners in (cached, plain))
        yield CachedStep(number, tokens, reused, token_id, seconds_with, seconds_without, difference, limit)
