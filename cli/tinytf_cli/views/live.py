"""What follows a prompt, shown while it is made: the steps as they come, and the report that they become."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, Generic, TypeVar

from tinytf.generate.decoder import PLAIN
from tinytf.generate.report import Continued, with_cost
from tinytf.loading import Model
from tinytf_cli.host import current_interrupt
from tinytf_cli.views.banner import exchanged
from tinytf_cli.views.continuation import cost_in_words

Found = TypeVar("Found", bound=Continued[Any])


class LiveView(Generic[Found]):
    """Every form reads ``coming``, and what came stays; ``begun`` is the report before its first step.

    ``times`` are the seconds (of time.perf_counter) at which each step came.
    """

    def __init__(self, model: Model, begun: Found, start: Callable[[], Iterator[Any]]) -> None:
        self.model, self.encoding, self.begun = model, begun.prompt, begun
        self.steps: list[Any] = []
        self.times: list[float] = []
        self.interrupted = False
        self._start, self._over = start, False

    def coming(self) -> Iterator[Any]:
        """Yield each step as it comes, and all of them again once they are there. Ctrl-C ends them."""
        if self._over:
            yield from self.steps
            return
        steps = self._start()
        while not self._over:
            try:
                with current_interrupt().let_in():
                    step = next(steps, None)
            except KeyboardInterrupt:
                self.interrupted, step = True, None
            self._over = step is None
            if step is not None:
                self.steps.append(step)
                self.times.append(time.perf_counter())
                yield step

    @property
    def found(self) -> Found:
        """The report so far."""
        return replace(self.begun, steps=tuple(self.steps), interrupted=self.interrupted)

    @cached_property
    def whole(self) -> Found:
        """The report after the last step, with the cost of int8 weights."""
        for _ in self.coming():
            pass
        return with_cost(self.found, self.model.transformer)

    def data(self) -> dict[str, Any]:
        return self.whole.to_dict()

    def events(self) -> Iterator[dict[str, Any]]:
        """The events of the report, each as soon as it is known."""
        yield self.begun.first_event()
        yield from map(self.begun.step_event, self.coming())
        yield from self.whole.last_events()

    def notes(self) -> Iterator[str]:
        """What a reader of the text should know as well."""
        yield from exchanged(self.model)
        found = self.whole
        if found.dropped:
            yield f"the context was full: the first {found.dropped:,} tokens were dropped on the way"
        if found.note:
            yield found.note
        rate, cost = found.tokens_per_second, found.int8_cost
        words = ["compiled"] if found.kind.compile else []
        words += ["int8"] if found.kind.quantize and cost is None else []
        words += [f"{rate:,.1f} tokens/s after the first two"] if rate is not None else []
        words += [f"int8 costs {cost_in_words(cost)}"] if cost is not None else []
        if found.kind != PLAIN and not found.interrupted:
            yield ", ".join(words)
