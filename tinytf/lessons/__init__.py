"""Lessons about a user's own text and model, in the order of the pipeline: ``lesson`` makes one of them."""

from collections.abc import Callable, Iterator

from tinytf.lessons import attention, block, inputs, output, training
from tinytf.lessons.data import Figures, Lesson, Question
from tinytf.lessons.live import Live, default_text
from tinytf.lessons.titles import NAMES, TITLES, find

__all__ = ["NAMES", "TITLES", "Figures", "Lesson", "Live", "Question", "default_text", "find", "lesson", "lessons"]

_MAKERS: dict[str, Callable[[Live, int], Lesson]] = {
    **inputs.LESSONS,
    **attention.LESSONS,
    **block.LESSONS,
    **output.LESSONS,
    **training.LESSONS,
}


def lesson(number: int | str, live: Live) -> Lesson:
    """A lesson by number (from 1) or name; only what it shows is computed.

    Raises UsageError for one that there is not, and what ``record`` and ``record_gradients`` raise.
    """
    place = find(str(number))
    return _MAKERS[NAMES[place - 1]](live, place)


def lessons(live: Live) -> Iterator[Lesson]:
    """All of them, each made when it is asked for."""
    return (lesson(number, live) for number in range(1, len(NAMES) + 1))
