"""Find the lesson about a step, from the addresses in the texts of the lessons."""

import re
from collections.abc import Iterator

from tinytf.errors import UsageError
from tinytf.lessons import NAMES, TEXTS
from tinytf.lessons.course import lesson
from tinytf.lessons.live import Live
from tinytf.loading import Model
from tinytf.trace.trace import Trace

_ABOUT_STEPS = NAMES[: NAMES.index("logits") + 1]
"""Later lessons are about uses of the logits."""
_STEP = re.compile(r"(?:L[^.\[]*\.)?([a-z]\w*(?:\.\w+)*)")


def lesson_of(model: Model, trace: Trace, step: str) -> int | None:
    """The number of the lesson about a step: one that shows it, else one with it as an example, else one of its kind.

    The first of several; None where there is none, and for a model that the lessons do not fit.
    """
    try:
        live = Live(model, trace.encoding.text)
    except UsageError:
        return None
    steps = trace.steps.by_name
    operation = type(steps[step].operation)

    def closeness(name: str) -> int:
        example = [step_name for step_name in _addressed(live, name, "cell") if step_name in steps]
        shown = [*_addressed(live, name, "shown"), *_addressed(live, name, "revealed")]
        alike = any(type(steps[step_name].operation) is operation for step_name in example)
        return 3 * (step in shown) + 2 * (step in example) + alike

    close = {number: closeness(name) for number, name in enumerate(_ABOUT_STEPS, 1)}
    best = max(close, key=lambda number: close[number])
    return best if close[best] else None


def _addressed(live: Live, name: str, kind: str) -> Iterator[str]:
    """The steps at the ``kind`` of addresses in a lesson's text, in every variant; the lesson resolves the rest."""
    for texts in (TEXTS[name], *(part for part in TEXTS[name].values() if isinstance(part, dict))):
        written = texts.get(kind, ())
        for address in [written] if isinstance(written, str) else written:
            match = _STEP.match(address)
            if match:
                yield match[1]
            elif kind == "cell":
                match = _STEP.match(lesson(name, live).cell)
                yield from [match[1]] if match else []
