"""``lesson`` computes one lesson, ``Course`` is several of them as a report."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from tinytf.lessons import NAMES, attention, block, find, inputs, output, training, without
from tinytf.lessons.lesson import Lesson
from tinytf.lessons.live import Live
from tinytf.report import About, Report

_MAKERS = (
    inputs.tokens, inputs.embeddings, inputs.neighbours, inputs.positions,
    attention.qkv, attention.scores, attention.scaling, attention.mask, attention.softmax, attention.values,
    attention.heads, attention.concat, without.without,
    block.residual, block.norm, block.feed_forward, block.stack,
    output.logits, output.sampling, output.cache,
    training.loss, training.backward, training.optimiser,
)  # fmt: skip
"""In the order of NAMES."""


def lesson(number: int | str, live: Live) -> Lesson:
    """A lesson by number (from 1) or name; only what it shows is computed.

    Raises UsageError for an unknown one or a text that is too long, MemoryShortage where a trace does not fit.
    """
    return _MAKERS[find(str(number)) - 1](live)


@dataclass(frozen=True)
class Course(Report):
    """Lessons about one text and model."""

    KIND = "lessons"
    EVENTS: ClassVar = {"tokens": "token", "lessons": "lesson"}

    live: Live
    lessons: tuple[Lesson, ...]

    @classmethod
    def of(cls, live: Live, number: int | None = None) -> "Course":
        """The lesson of a number (from 1), or all of them."""
        wanted = NAMES if number is None else (number,)
        return cls(live, tuple(lesson(one, live) for one in wanted), about=About(live.model, live.encoding))

    def fields(self) -> dict[str, Any]:
        """Each lesson with the numbers at its addresses."""

        def told(one: Lesson) -> dict[str, Any]:
            addresses = dict.fromkeys((*one.shown, *one.revealed))
            return {**asdict(one), "values": {address: self.live.at(address).tolist() for address in addresses}}

        return {"seed": self.live.seed, "lessons": [told(one) for one in self.lessons]}
