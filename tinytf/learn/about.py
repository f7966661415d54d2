"""Find the lesson about a step, from the addresses in the texts of the lessons."""

import re
from collections.abc import Iterator

from tinytf.learn import NAMES, OF_ANY, TEXTS
from tinytf.learn.course import lesson
from tinytf.learn.live import Live
from tinytf.steps.operations import Add, Norm

_ABOUT_STEPS = OF_ANY[: OF_ANY.index("sampling") + 1]
"""Later lessons are about uses of the probabilities."""
_STEP = re.compile(r"(?:L[^.\[]*\.)?([a-z]\w*(?:\.\w+)*)")


def lesson_of(live: Live, step: str) -> int | None:
    """The number of the lesson about a step: one that shows it, else one with it as an example, else one of its kind.

    The first of several; None where there is none.
    """
    steps = live.trace.steps.by_name
    if steps[step].role == "ffn" and not isinstance(steps[step].operation, Norm):  # experts and routers too
        return NAMES.index("feed-forward") + 1
    if step == "source" or step.startswith("cross."):
        return NAMES.index("encoder-decoder" if step == "source" else "cross-attention") + 1
    operation = type(steps[step].operation)
    is_copy = operation is Add and len(steps[step].inputs) == 1

    def closeness(name: str) -> int:
        example = [step_name for step_name in _addressed(live, name, "cell") if step_name in steps]
        shown = [*_addressed(live, name, "shown"), *_addressed(live, name, "revealed")]
        alike = not is_copy and any(type(steps[step_name].operation) is operation for step_name in example)
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
