"""Which lesson is about a step, from the addresses that the lessons themselves are about."""

import re
from collections.abc import Iterator

from tinytf.errors import UsageError
from tinytf.lessons import NAMES, TEXTS
from tinytf.lessons.course import lesson
from tinytf.lessons.live import Live
from tinytf.loading import Model
from tinytf.trace.trace import Trace

_ABOUT_STEPS = NAMES[: NAMES.index("logits") + 1]
"""Later lessons are about what is done with the logits."""
_STEP = re.compile(r"(?:L[^.\[]*\.)?([a-z]\w*(?:\.\w+)*)")


def lesson_of(model: Model, trace: Trace, step: str) -> int | None:
    """The number of the lesson that shows a step, before one whose example alone it is, before one of a step like it.

    The first of several; None where there is none, and for a model that lacks what lessons are about.
    """
    try:
        live = Live(model, trace.encoding.text)
    except UsageError:
        return None
    steps = trace.steps.by_name
    wanted = type(steps[step].operation)

    def closeness(name: str) -> int:
        example = [one for one in _addressed(live, name, "cell") if one in steps]
        shown = [*_addressed(live, name, "shown"), *_addressed(live, name, "revealed")]
        alike = any(type(steps[one].operation) is wanted for one in example)
        return 3 * (step in shown) + 2 * (step in example) + alike

    close = {number: closeness(name) for number, name in enumerate(_ABOUT_STEPS, 1)}
    best = max(close, key=lambda number: close[number])
    return best if close[best] else None


def _addressed(live: Live, name: str, what: str) -> Iterator[str]:
    """The steps at the addresses of a lesson's text, in every variant; those that depend on the model are asked for."""
    for texts in (TEXTS[name], *(part for part in TEXTS[name].values() if isinstance(part, dict))):
        written = texts.get(what, ())
        for address in [written] if isinstance(written, str) else written:
            match = _STEP.match(address)
            if match:
                yield match[1]
            elif what == "cell":
                asked = _STEP.match(lesson(name, live).cell)
                yield from [asked[1]] if asked else []
