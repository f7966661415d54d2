"""What follows a prompt, as a report: whole, or one that is read while it is made."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from tinytf.generate.cache_comparison import CacheComparison, cached_steps
from tinytf.generate.continuing import Searching, Streaming, beams_after, encoded, steps_after
from tinytf.generate.loop import GeneratedToken, cache_for
from tinytf.generate.options import by_keyword
from tinytf.generate.report import BeamSearch, Continued, Generation
from tinytf.generate.score import quantization_cost
from tinytf.model.transformer import Transformer
from tinytf.report import About, Report
from tinytf.tables import Sheet
from tinytf.text.chat import Written
from tinytf.text.tokenizer import Encoding
from tinytf.text_model import TextModel

Whole = TypeVar("Whole", bound=Continued[Any])

_COST_TOKENS = 512
"""The cost of int8 weights is measured on the last tokens of a text, at most so many."""


@dataclass
class _Progress:
    """What an Underway has computed so far; ``more`` are fields of its report that only the last step decides."""

    steps: list[Any] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)
    interrupted: bool = False
    over: bool = False


@dataclass(frozen=True, kw_only=True)
class Underway(Report, Generic[Whole]):
    """A report that is made while it is read. It is lazy on purpose; every other report is complete.

    ``begun`` is the report before its first step. A step is computed when it is first asked for, and stays. Inside
    ``interruptible`` Ctrl-C ends the report with the steps that are there; without it KeyboardInterrupt is raised.
    """

    begun: Whole
    model: Transformer = field(repr=False)
    start: Callable[[dict[str, Any]], Iterator[Any]] = field(repr=False)
    interruptible: Callable[[], AbstractContextManager[None]] | None = field(default=None, repr=False)
    _progress: _Progress = field(default_factory=_Progress, repr=False, compare=False)

    @property
    def drawn_as(self) -> type[Report]:
        return type(self.begun)

    @property
    def prompt(self) -> Encoding:
        return self.begun.prompt

    @property
    def now(self) -> Whole:
        """The report with the steps that are there."""
        so_far = self._progress
        return replace(
            self.begun, steps=tuple(so_far.steps), times=tuple(so_far.times), interrupted=so_far.interrupted,
            **so_far.more,
        )  # fmt: skip

    def coming(self) -> Iterator[Any]:
        """Yield each step as it is computed; once all are there, yield them again."""
        progress = self._progress
        if progress.over:
            yield from progress.steps
            return
        steps = self.start(progress.more)
        while not progress.over:
            step = self._next(steps)
            progress.over = step is None
            if step is not None:
                progress.steps.append(step)
                progress.times.append(time.perf_counter())
                yield step

    def _next(self, steps: Iterator[Any]) -> Any:
        """The next step, or None after the last one and after Ctrl-C."""
        if self.interruptible is None:
            return next(steps, None)
        try:
            with self.interruptible():
                return next(steps, None)
        except KeyboardInterrupt:
            self._progress.interrupted = True
            return None

    @property
    def whole(self) -> Whole:
        """The report after its last step, with the cost of int8 weights where the text came to its end."""
        for _ in self.coming():
            pass
        report = self.now
        if not report.kind.quantize or report.interrupted:
            return report
        ids = report.text_ids[-min(_COST_TOKENS, self.model.config.context) :]
        if len(ids) < 2:
            return report
        if "int8_cost" not in self._progress.more:
            self._progress.more["int8_cost"] = quantization_cost(self.model, ids, compile=report.kind.compile)
        return self.now

    @property
    def holds(self) -> bool:
        return self.now.holds

    @property
    def interrupted(self) -> bool:
        return self._progress.interrupted

    def to_dict(self) -> dict[str, Any]:
        return self.whole.to_dict()

    def events(self) -> Iterator[dict[str, Any]]:
        """The events of the report, each as soon as it is known."""
        yield self.begun.first_event()
        yield from map(self.begun.step_event, self.coming())
        yield from self.whole.last_events()

    def sheet(self, *, long: bool = False) -> Sheet | None:
        return self.whole.sheet(long=long)


def begin_generation(model: TextModel, prompt: Encoding, options: Streaming) -> Underway[Generation]:
    """The texts that follow ``prompt``, token by token; settings and errors are those of ``stream``.

    The cache is made with the first token, and freed after the last.
    """

    def steps(more: dict[str, Any]) -> Iterator[GeneratedToken]:
        cache = cache_for(model.transformer, prompt.ids, options)
        try:
            yield from steps_after(model, prompt, replace(options, cache=cache))
        finally:
            more["cache"] = tuple(cache.use()) if cache is not None and cache.position else None

    about = About(model)
    return Underway(
        about=about, begun=Generation.begin(about, prompt, options), model=model.transformer, start=steps
    )  # fmt: skip


def begin_beam_search(
    model: TextModel, prompt: Encoding, options: Searching, count: int | None = None
) -> Underway[BeamSearch]:
    """The hypotheses of a beam search, step by step; its report has the best ``count``.

    Settings and errors are those of ``beams``.
    """
    about, steps = About(model), beams_after(model, prompt, options)
    return Underway(
        about=about, begun=BeamSearch.begin(about, prompt, options, count), model=model.transformer,
        start=lambda more: steps,
    )  # fmt: skip


def begin_cache_comparison(model: TextModel, prompt: Encoding, max_tokens: int) -> Underway[CacheComparison]:
    """Time and work of every greedy step after ``prompt``, with a cache and without; errors are those of ``stream``."""
    about = About(model)
    return Underway(
        about=about, begun=CacheComparison.begin(about, prompt, model.transformer), model=model.transformer,
        start=lambda more: cached_steps(model.transformer, prompt.ids, max_tokens),
    )  # fmt: skip


@by_keyword(Streaming)
def generation(model: TextModel, prompt: Written | Encoding, options: Streaming) -> Generation:
    """What follows ``prompt`` as a report: every step, the texts, what the cache holds, what int8 weights cost.

    Settings and errors are those of ``stream``.
    """
    return begin_generation(model, encoded(model, prompt, truncate=options.truncate), options).whole


@by_keyword(Searching)
def beam_search(model: TextModel, prompt: Written | Encoding, options: Searching) -> BeamSearch:
    """What ``beams`` finds from ``prompt`` as a report; settings and errors are those of ``beams``."""
    return begin_beam_search(model, encoded(model, prompt, truncate=options.truncate), options).whole


def compare_cache(
    model: TextModel, prompt: Written, *, max_tokens: int = 50, truncate: bool = False
) -> CacheComparison:
    """Time and work of every greedy step after ``prompt``, with a cache and without; errors are those of ``stream``."""
    return begin_cache_comparison(model, encoded(model, prompt, truncate=truncate), max_tokens).whole
