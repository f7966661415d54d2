"""Does a model give a text the same numbers alone, padded, in a batch, with a cache, after another text?

Each way of running the text is compared with the text alone, module by module; where one differs, a few experiments say
why. Shapes: B texts, T tokens.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from tinytf.report import About, Report
from tinytf.sentences import plural
from tinytf.text_model import TextModel, in_turn_of_all
from tinytf.through.model import ThroughModel
from tinytf.through.runners import Ours, Runner, Theirs
from tinytf.through.trial import Trial, Way

TEXT = "The cat sat on the mat."


@dataclass(frozen=True)
class Same(Report):
    """Whether the model gives a text the same in every one of ``ways``; ``steps`` are compared where it does not.

    ``target`` is the module of a file that ran instead of the model, with its sizes and weights.
    """

    KIND = "same"
    EVENTS: ClassVar = {"ways": "way", "check": "check"}
    ALWAYS_SAID = True

    ways: tuple[Way, ...]
    steps: int
    tolerance: float
    target: str = ""

    @property
    def differing(self) -> tuple[Way, ...]:
        return tuple(way for way in self.ways if way.holds is False)

    @property
    def holds(self) -> bool:
        """Whether no way changes the numbers, and some way was tried."""
        return not self.differing and any(way.holds for way in self.ways)

    def in_a_sentence(self) -> str:
        """The first way that changes the numbers, where it begins and why; or that none does."""
        words = self._in_words()
        return f"{self.target} is {words[0].lower()}{words[1:]}" if self.target and words else words

    def _in_words(self) -> str:
        tried = [way for way in self.ways if way.holds is not None]
        if not self.differing:
            most = max((way.difference or 0.0 for way in tried), default=0.0)
            ways = f"all {plural(len(tried), 'way')} of running the text"
            return f"The same in {ways}, to {most:.0e} of a token's largest number." if tried else ""
        first, others = self.differing[0], len(self.differing) - 1
        token = "" if first.position is None else f", at token {first.position} {first.shown}"
        why = f": {first.why}" if first.why else ""
        rest = f" ({others} more way{'s' * (others > 1)} differ{'s' * (others == 1)})" if others else ""
        begins = f", from {first.step} on{token}" if first.step else ""
        what = "Not finite" if first.is_finite is False else "Not the same"
        return f"{what} {first.way}{begins}{why}{rest}."

    def fields(self) -> dict[str, Any]:
        check = {"tolerance": self.tolerance, "holds": self.holds}
        return {**self.members("target", "steps", "ways"), "check": check}


@in_turn_of_all
def same(
    model: "TextModel | ThroughModel", text: str = TEXT, other: str | None = None, *, truncate: bool = False
) -> Same:
    """Compare a text alone with the same text padded, in a batch, with a cache, in chunks and after another text.

    ``other`` is the text beside and before it; by default one of the same tokens, longer. ``truncate`` cuts texts that
    exceed the context. Of two stacks the text is the target; its source is padded and put beside another one too, which
    is ``other``. Raises UsageError for a text of a single token.
    """
    encoding = model.encode(text, truncate=truncate)
    runner: Runner = Theirs(model) if isinstance(model, ThroughModel) else Ours(model, len(encoding.ids))
    if isinstance(model, ThroughModel) or model.transformer.reads is None:
        beside = None if other is None else model.encode(other, truncate=truncate).ids
        trial = Trial(model, encoding, beside, runner)
    else:
        own = model.transformer.reads.trace.encoding.ids
        source = own[::-1] * 2 if other is None else model.encoder.encode(other, truncate=truncate).ids
        trial = Trial(model, encoding, None, runner, source)
    return Same(trial.ways(), trial.steps, trial.tolerance, about=About(model, encoding))
