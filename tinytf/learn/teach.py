"""A pass told step by step: for one layer and head, the numbers of each step with the lesson about it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, ClassVar

from tinytf.learn import NAMES, TITLES
from tinytf.learn.about import lesson_of
from tinytf.learn.course import lesson
from tinytf.learn.lesson import Lesson
from tinytf.learn.live import Live
from tinytf.loading import Model
from tinytf.look.heads.measures import require_attention
from tinytf.look.overview import overview
from tinytf.look.prediction import predictions
from tinytf.parts.row import Step
from tinytf.report import About, Report
from tinytf.trace.address import Address
from tinytf.trace.trace import Trace

_TOP = 5


@dataclass(frozen=True)
class Told:
    """Steps in a row that one lesson is about, by address; ``again`` if it was told before in this pass.

    The lesson has no question to ask here: its ``shown`` are the steps, cut to one token, and its figures the answer's.
    """

    steps: tuple[str, ...]
    lesson: Lesson
    again: bool


@dataclass(frozen=True)
class Taught(Report):
    """A pass through layer ``live.layer`` and head ``live.head``, in the order of its steps."""

    KIND = "teach"
    EVENTS: ClassVar = {"tokens": "token", "steps": "step"}

    live: Live
    parts: tuple[Told, ...]

    def fields(self) -> dict[str, Any]:
        def told(part: Told) -> dict[str, Any]:
            texts = {name: getattr(part.lesson, name) for name in ("name", "why", "formula", "pytorch")}
            values = {address: self.live.at(address).tolist() for address in part.lesson.shown}
            return {"lesson": texts.pop("name"), "steps": part.steps, **texts, "values": values}

        return {"layer": self.live.layer, "head": self.live.head, "steps": [told(part) for part in self.parts]}


def teach(model: Model, trace: Trace, place: tuple[int, int] | None = None) -> Taught:
    """Tell a pass; by default through the head that adds most to the first prediction, as a trace shows it.

    Raises UsageError for a model that lessons do not fit.
    """
    if place is None:
        attending = require_attention(trace.steps)
        ranked = overview(trace, predictions(trace, model, _TOP), model.shown).ranked
        place = next((layer, head) for layer, head, _ in ranked if layer in attending)
    live = Live(model, trace=trace, place=place)
    return Taught(live, tuple(_parts(live)), about=About(model, trace.encoding))


def _parts(live: Live) -> Iterator[Told]:
    number, told = 1, set[int]()
    numbered: list[tuple[int, Step, int | None]] = []
    for step, layer in live.trace.steps.rows:
        if layer in (None, live.layer):  # a step without a lesson goes with the one before
            own = NAMES.index(step.name) + 1 if step.name in TITLES else lesson_of(live, step.name)
            number = own or number
            numbered.append((number, step, layer))
    for number, group in groupby(numbered, lambda row: row[0]):
        steps = [(step, _address(live, step, layer)) for _, step, layer in group]
        shown = tuple(cut for step, address in steps if (cut := _cut(live, step, address)))
        one = lesson(number, live)
        figures = None if number in told else one.revealed_figures or one.figures
        one = replace(one, shown=shown, figures=figures, maps=(), focus=live.here)
        yield Told(tuple(str(address) for _, address in steps), one, number in told)
        told.add(number)


def _address(live: Live, step: Step, layer: int | None) -> Address:
    part = live.trace.shown_part(step, layer, live.head)
    return Address(step, None if layer is None else (layer,), None if part is None else (part,))


def _cut(live: Live, step: Step, address: Address) -> str:
    """A map as it is, and of vectors that of one token; empty for anything else, and for the whole vocabulary."""
    if step.is_map:
        return str(address)
    is_row = step.is_tensor and step.axes[-2:-1] == ("token",) and step.axes[-1] != "vocab"
    return f"{address}[{live.here}]" if is_row else ""
