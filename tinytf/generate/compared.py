"""The same tokens computed with a cache and without."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from tinytf.generate.loop import require_prompt
from tinytf.generate.runner import Runner
from tinytf.model.transformer import Transformer


@dataclass(frozen=True)
class CachedStep:
    """Seconds that one more token took after ``tokens`` others, with a cache and without.

    ``apart`` is the largest difference between the two sets of logits.
    """

    number: int
    tokens: int
    id: int
    with_cache: float
    without_cache: float
    apart: float


def cached_steps(model: Transformer, ids: Sequence[int], max_tokens: int) -> Iterator[CachedStep]:
    """Continue ``ids`` greedily; compute every token with a cache and again without, in turns.

    The first step is the prompt's, where both do the same work. It ends where the context is full. Raises what
    ``loop.stream`` raises.
    """
    require_prompt(model, ids, max_tokens)
    return _cached_steps(model, ids, min(max_tokens, model.config.context - len(ids) + 1))


def _cached_steps(model: Transformer, ids: Sequence[int], steps: int) -> Iterator[CachedStep]:
    cache = model.cache(min(model.config.context, len(ids) + steps))
    runners = [Runner(model, ids, cache, compare=False), Runner(model, ids)]  # every token is compared here
    Runner(model, ids).first()  # a warm-up: what torch sets up once is not timed
    chosen = 0
    for number in range(1, steps + 1):
        found: dict[Runner, tuple[Tensor, float]] = {}
        for runner in runners if number % 2 else reversed(runners):
            start = time.perf_counter()
            logits = runner.first() if number == 1 else runner.go_on([0], [chosen])
            found[runner] = logits, time.perf_counter() - start
        (logits, with_cache), (again, without) = (found[runner] for runner in runners)
        apart = float((logits - again).abs().max())
        chosen = int(logits[0].argmax())
        yield CachedStep(number, len(ids) + number - 1, chosen, with_cache, without, apart)
