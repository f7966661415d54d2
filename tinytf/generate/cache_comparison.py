"""Decoding with a cache and without it, compared token by token."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.generate.loop import require_prompt
from tinytf.generate.report import Continued
from tinytf.generate.runner import Runner
from tinytf.model.transformer import Transformer
from tinytf.report import About, Verified, plain
from tinytf.sentences import percent
from tinytf.steps.work import StepWork, cache_bytes_per_token, step_work
from tinytf.tables import in_bytes
from tinytf.text.tokenizer import Encoding
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


@dataclass(frozen=True)
class Spent:
    """The totals of all steps in one way: work in multiply-adds, and the shortest measured seconds."""

    keys_values: int
    attention: int
    multiply_adds: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class CacheComparison(Continued[CachedStep]):
    """Time and work of every step, with a cache and without.

    ``bytes_per_token`` is the cache's memory for a token. Of two stacks, the ``source`` has so many tokens, whose keys
    and values take ``source_bytes`` beside.
    """

    KIND = "cache_comparison"
    TABLE = ("steps",)

    config: ModelConfig
    bytes_per_token: int
    source: int = 0
    source_bytes: int = 0

    @classmethod
    def begin(cls, about: About, prompt: Encoding, model: Transformer) -> Self:
        """The report before its first step."""
        config, size = model.config, next(model.parameters()).itemsize
        source = model.tokens_read
        of_source = source * cache_bytes_per_token(config, size, of_source=True)
        return cls(
            about=about, prompt=prompt, config=config, bytes_per_token=cache_bytes_per_token(config, size),
            source=source, source_bytes=of_source,
        )  # fmt: skip

    def works(self, step: CachedStep) -> tuple[StepWork, StepWork]:
        """The work of a step with the cache and without; the first step computes the whole prompt in both."""
        cached, without = (step_work(self.config, step.tokens, self.source, cached=cached) for cached in (True, False))
        return (without if step.number == 1 else cached), without

    @property
    def spent(self) -> tuple[Spent, Spent]:
        """The sums over all steps, with the cache and without."""
        cached, plain = zip(*map(self.works, self.steps), strict=True)
        seconds = [(step.with_cache, step.without_cache) for step in self.steps]
        return _spent(cached, [t for t, _ in seconds]), _spent(plain, [t for _, t in seconds])

    @property
    def cache_bytes(self) -> int:
        """The bytes that the cache holds at the end."""
        return self.source_bytes + self.bytes_per_token * self.steps[-1].tokens if self.steps else 0

    @property
    def check(self) -> Verified | None:
        """Whether the logits of both agree, at the step that is nearest to its limit; None without steps."""
        if not self.steps:
            return None
        step = max(self.steps, key=lambda step: step.apart / step.allowed)
        return Verified("the logits with the cache are those without", step.apart, step.allowed)

    def in_a_sentence(self) -> str:
        """The share of the multiplications that the cache saves, and the memory that it takes."""
        if not self.steps:
            return ""
        cached, plain = self.spent
        saved = percent(1 - cached.multiply_adds / plain.multiply_adds)
        new = f"{len(self.steps):,} new token{'s' * (len(self.steps) != 1)}"
        what = f"Keeping keys and values saves {saved} of the multiplications of {new}"
        return f"{what}, for {in_bytes(self.cache_bytes)} of memory."

    def _settings(self) -> dict[str, Any]:
        return {**self.members("bytes_per_token", "source", "source_bytes"), "runs": RUNS}

    def _outcome(self) -> dict[str, Any]:
        if not self.steps:
            return {}
        with_cache, without = self.spent
        return {
            "cache_bytes": self.cache_bytes,
            "with_cache": plain(with_cache),
            "without_cache": plain(without),
            "check": plain(self.check),
        }

    def _step(self, step: CachedStep) -> dict[str, Any]:
        cached, without = self.works(step)
        return {
            "number": step.number,
            **self.named(step.id),
            "tokens": step.tokens,
            "reused": step.reused,
            "apart": step.apart,
            "with_cache": {"seconds": step.with_cache, **cached.to_dict()},
            "without_cache": {"seconds": step.without_cache, **without.to_dict()},
        }


def _spent(works: Sequence[StepWork], seconds: Sequence[float]) -> Spent:
    keys_values, attention, multiply_adds = (
        sum(getattr(work, name) for work in works) for name in ("keys_values", "attention", "whole")
    )
    return Spent(keys_values, attention, multiply_adds, sum(seconds))
