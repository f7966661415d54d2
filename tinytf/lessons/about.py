"""Find the lesson about a step, from the addresses in the texts of the lessons."""

import re
from collections.abc import Iterator

from tinytf.lessons import NAMES, TEXTS
from tinytf.lessons.course import lesson
from tinytf.lessons.live import Live

_ABOUT_STEPS = NAMES[: NAMES.index("sampling") + 1]
"""Later lessons are about uses of the probabilities."""
_STEP = re.compile(r"(?:L[^.\[]*\.)?([a-z]\w*(?:\.\w+)*)")


def lesson_of(live: Live, step: str) -> int | None:
    """The number of the lesson about a step: one that shows it, else one with it as an example, else one of its kind.

    Steps are of one kind with the same operation on as many inputs. The first of several; None where there is none.
    """
    steps = live.trace.steps.by_name
    operation, reads = type(steps[step].operation), len(steps[step].inputs)

    def closeness(name: str) -> int:
        example = [step_name for step_name in _addressed(live, name, "cell") if step_name in steps]
        shown = [*_addressed(live, name, "shown"), *_addressed(live, name, "revealed")]
        alike = any(
            type(steps[step_name].operation) is operation and len(steps[step_name].inputs) == reads
            for step_name in example
        )
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
