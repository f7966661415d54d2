"""A mistake cannot be the cause if it would break what the same check finds unbroken in the student's module."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Protocol

from tinytf.check.invariances import Invariance
from tinytf.check.steps import difference
from tinytf.compare.mistakes.mistake import Mistake, Wrong
from tinytf.compare.mistakes.wrong_trace import WrongTrace
from tinytf.loading import Model
from tinytf.steps.table import StepKey
from tinytf.trace.trace import Trace

_BREAKS = 10.0
"""How many times its tolerance a mistake must break an invariance by, so that a module without it would show that."""


class Broken(Protocol):
    """The largest change that some mistakes make to what an invariance compares, relative to the largest number."""

    def __call__(self, mistakes: Sequence[Mistake], wrong: Mapping[StepKey, Wrong]) -> float: ...


class Consistency:
    """What the student's module was found not to depend on, so that no mistake may make the reference depend on it."""

    def __init__(self, model: Model, trace: Trace, found: Sequence[Invariance]) -> None:
        self.model, self.trace = model, trace
        self.holding = {one.name: one.tolerance for one in found if one.holds and one.difference is not None}
        self.breaks: Mapping[str, Broken] = {"padding": self.of_later_tokens, "batch": self.of_other_texts}

    def refuted_by(self, mistakes: Sequence[Mistake], wrong: Mapping[StepKey, Wrong]) -> str:
        """The name of an invariance that the module has and a reference with these mistakes has not; empty if none."""
        for name, change in self.breaks.items():
            if name in self.holding and not change(mistakes, wrong) <= _BREAKS * self.holding[name]:
                return name
        return ""

    @cached_property
    def longer(self) -> Trace:
        """The trace of the text with more tokens after it."""
        ids = self.trace.encoding.ids
        return self.model.trace_of(self.model.encode_ids([*ids, *ids[:3]]))

    def of_later_tokens(self, mistakes: Sequence[Mistake], wrong: Mapping[StepKey, Wrong]) -> float:
        """How far tokens after a text change its logits."""
        logits = self.trace.steps.over_vocabulary[-1].name
        alone, longer = (WrongTrace(trace, wrong).step(logits) for trace in (self.trace, self.longer))
        return difference(longer[: len(alone)], alone)

    @staticmethod
    def of_other_texts(mistakes: Sequence[Mistake], wrong: Mapping[StepKey, Wrong]) -> float:
        """Whether a text in a batch depends on the others: a reference has no batch, so mistakes say it."""
        return float(any(mistake.across_texts for mistake in mistakes))
