"""A text's tokens computed with a cache and without."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from tinytf.generate.loop import require_prompt
from tinytf.generate.runner import Runner
from tinytf.model.transformer import Transformer
from tinytf.tolerance import DECODED, allowed

RUNS = 3
"""How often each token is computed in each way; the least time counts, which other programs disturbed least."""


@dataclass(frozen=True)
class CachedStep:
    """The least seconds that one more token took after ``tokens`` others, with a cache and without, of RUNS each.

    ``apart`` is the largest difference between the two sets of logits, of which ``allowed`` is what rounding may make.
    """

    number: int
    tokens: int
    id: int
    with_cache: float
    without_cache: float
    apart: float
    allowed: float


def cached_steps(model: Transformer, ids: Sequence[int], max_tokens: int) -> Iterator[CachedStep]:
    """Continue ``ids`` greedily; compute every token RUNS times with a cache and without, in turns.

    The first step is the prompt's, where both do the same work. It ends where the context is full. Raises what
    ``loop.stream`` raises.
    """
    require_prompt(model, ids, max_tokens)
    return _cached_steps(model, ids, min(max_tokens, model.config.context - len(ids) + 1))


def _cached_steps(model: Transformer, ids: Sequence[int], steps: int) -> Iterator[CachedStep]:
    room = min(model.config.context, len(ids) + steps)
    cached = [Runner(model, ids, model.cache(room), compare=False) for _ in range(RUNS)]  # every token is compared here
    plain = [Runner(model, ids) for _ in range(RUNS)]
    turns = [runner for pair in zip(cached, plain, strict=True) for runner in pair]
    Runner(model, ids).first()  # a warm-up: what torch sets up once is not timed
    chosen, dtype = 0, next(model.parameters()).dtype
    for number in range(1, steps + 1):
        logits: dict[Runner, Tensor] = {}
        seconds: dict[Runner, float] = {}
        for runner in turns if number % 2 else reversed(turns):
            start = time.perf_counter()
            logits[runner] = runner.first() if number == 1 else runner.go_on([0], [chosen])
            seconds[runner] = time.perf_counter() - start
        apart = float((logits[cached[0]] - logits[plain[0]]).abs().max())
        limit = allowed(DECODED, dtype) * max(1.0, float(logits[plain[0]].abs().max()))
        chosen = int(logits[cached[0]][0].argmax())
        with_cache, without = (min(seconds[runner] for runner in runners) for runners in (cached, plain))
        yield CachedStep(number, len(ids) + number - 1, chosen, with_cache, without, apart, limit)
