"""Computing lessons: ``lesson`` makes one, ``Course`` is a report of several."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from tinytf.errors import UsageError
from tinytf.learn import (
    NAMES,
    OF_TWO_STACKS,
    attention,
    block,
    find,
    heads,
    inputs,
    output,
    schedule,
    training,
    two_stacks,
    without,
)
from tinytf.learn.lesson import Lesson
from tinytf.learn.live import Live
from tinytf.report import About, Report

_MAKERS = (
    inputs.tokens, inputs.embeddings, inputs.neighbours, inputs.positions,
    attention.qkv, attention.scores, attention.scaling, attention.mask, attention.softmax, attention.values,
    heads.heads, heads.concat, without.without,
    block.residual, block.norm, block.feed_forward, block.stack,
    output.logits, output.sampling, output.cache,
    training.loss, training.backward, training.optimiser, schedule.schedule,
    two_stacks.encoder_decoder, two_stacks.teacher_forcing, two_stacks.cross_attention,
)  # fmt: skip
"""In the order of NAMES."""


def lesson(number: int | str, live: Live) -> Lesson:
    """A lesson by number (from 1) or name; nothing is computed that it does not show.

    Raises UsageError for an unknown lesson, one of two stacks on a model of one, or a text that is too long,
    MemoryShortage if a trace does not fit.
    """
    place = find(str(number)) - 1
    if NAMES[place] in OF_TWO_STACKS and NAMES[place] not in live.lessons:
        raise UsageError(
            f"lesson {NAMES[place]} is about two stacks, and {live.model.name} has one",
            f"tinytf learn {NAMES[place]} -m tiny-translator",
        )
    return _MAKERS[place](live)


@dataclass(frozen=True)
class Course(Report):
    """Lessons about one text and model."""

    KIND = "learn"
    EVENTS: ClassVar = {"tokens": "token", "lessons": "lesson"}

    live: Live
    lessons: tuple[Lesson, ...]

    @classmethod
    def of(cls, live: Live, number: int | None = None) -> "Course":
        """The lesson with this number (from 1), or all that the model has."""
        numbers = live.lessons if number is None else (number,)
        return cls(live, tuple(lesson(n, live) for n in numbers), about=About(live.model, live.encoding))

    def fields(self) -> dict[str, Any]:
        """Each lesson with the numbers at its addresses."""

        def with_values(entry: Lesson) -> dict[str, Any]:
            addresses = dict.fromkeys((*entry.shown, *entry.revealed))
            return {**asdict(entry), "values": {address: self.live.at(address).tolist() for address in addresses}}

        return {"seed": self.live.seed, "lessons": [with_values(entry) for entry in self.lessons]}
