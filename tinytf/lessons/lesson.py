"""What a lesson consists of, all of it JSON: words, addresses, numbers, and a question with one right answer."""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Figure: TypeAlias = "str | int | float"

SEEN = 4
"""Dimensions of a vector that are numbers on any screen; questions are about these."""
_MOST_CHOICES = 4
_APART = 0.05


@dataclass(frozen=True)
class LiveTable:
    """A small table of live numbers; the column ``share``, if any, holds shares of 1.

    Where there is no room for all rows, those are shown that ``keep`` says: the first, the last, or a spread of all.
    """

    titles: tuple[str, ...]
    rows: tuple[tuple[Figure, ...], ...]
    share: int | None = None
    keep: str = "first"


@dataclass(frozen=True)
class Map:
    """Attention weights (Q, K), None where they are masked, under a title and a word on what they do."""

    title: str
    word: str
    weights: tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True)
class Question:
    """To be answered before the answer is looked up. ``choices[answer]`` is right, and ``reveal`` says why.

    ``value`` is the right answer as numbers, where it is one.
    """

    text: str
    choices: tuple[str, ...]
    answer: int
    reveal: str
    value: tuple[float, ...] = ()


@dataclass(frozen=True)
class Lesson:
    """One step of the pipeline on a user's own text and model.

    ``why`` says what the step is for, ``pytorch`` is the line that does it. ``shown`` are addresses of the trace and
    ``figures`` a table, to look at before the question is answered; ``revealed`` and ``revealed_figures`` hold its
    answer. ``cell`` is a number of this step to explain, ``focus`` the place of the token that is asked about. ``maps``
    are small pictures, and ``revealed_maps`` those of the answer.
    """

    number: int
    name: str
    title: str
    why: str
    formula: str
    pytorch: str
    cell: str
    question: Question
    role: str
    focus: int
    shown: tuple[str, ...]
    figures: LiveTable | None
    revealed: tuple[str, ...]
    revealed_figures: LiveTable | None
    maps: tuple[Map, ...] = ()
    revealed_maps: tuple[Map, ...] = ()


def figure(value: float) -> str:
    """One number in about four digits."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e12:
        return f"{int(value):,}"
    if 1e-4 <= abs(value) < 1e4:
        return f"{value:.4g}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.2e}"


def bracketed(value: float) -> str:
    """A number that follows an operator: in brackets where it begins with a minus."""
    return f"({figure(value)})" if value < 0 else figure(value)


def figures(values: Iterable[float]) -> str:
    """Several numbers in brackets, all with the same digits after the point."""
    values = list(values)
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    digits = 3 if largest < 10 else 2 if largest < 100 else 1
    return f"[{', '.join(f'{value:z.{digits}f}' for value in values)}]"


class Asker:
    """Makes the questions of one lesson; the order of the choices depends only on its name and the seed."""

    def __init__(self, name: str, seed: int) -> None:
        self.random = random.Random(f"{name} {seed}")

    def words(self, text: str, right: str, wrong: Iterable[str], reveal: str, value: Iterable[float] = ()) -> Question:
        """Choices in words; a wrong one that reads like the right one or another is skipped."""
        kept = list(dict.fromkeys(choice for choice in wrong if choice != right))[: _MOST_CHOICES - 1]
        choices = [right, *kept]
        self.random.shuffle(choices)
        return Question(text, tuple(choices), choices.index(right), reveal, tuple(map(float, value)))

    def number(self, text: str, right: float, wrong: Iterable[float], reveal: str) -> Question:
        """Choices that are numbers, each well apart from the others; simple slips stand in where too few are."""
        slips = [2 * right, right / 2, -right, right + 1, 3 * right, 0.0, 1.0, 2.0]
        kept = _well_apart([(right,), *((value,) for value in [*wrong, *slips])])
        shown = [figure(value) for (value,) in kept]
        return self.words(text, shown[0], shown[1:], reveal, (right,))

    def vector(self, text: str, right: Iterable[float], wrong: Iterable[Iterable[float]], reveal: str) -> Question:
        """Choices that are several numbers each."""
        right = tuple(right)
        slips = [[2 * value for value in right], [value / 2 for value in right], [value + 1 for value in right]]
        shown = [figures(values) for values in _well_apart([right, *map(tuple, [*wrong, *slips])])]
        return self.words(text, shown[0], shown[1:], reveal, right)


def _well_apart(candidates: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """The first, and those after it that nobody would take for one before."""
    kept = [candidates[0]]
    for one in candidates[1:]:
        if all(map(math.isfinite, one)) and all(_apart(one, other) for other in kept):
            kept.append(one)
    return kept[:_MOST_CHOICES]


def _apart(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    if not all(map(math.isfinite, other)):
        return True
    scale = max(abs(value) for value in (*one, *other))
    return max(abs(a - b) for a, b in zip(one, other, strict=True)) > max(_APART * scale, 1e-3 if len(one) > 1 else 0.0)
