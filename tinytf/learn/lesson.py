"""The data of a lesson, all of it JSON: texts, addresses, numbers, and a question with one right answer."""

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from tinytf.training.pace import Pace

Figure: TypeAlias = "str | int | float"

SEEN = 4
"""Dimensions of a vector that any screen shows as numbers; questions are about these."""
_MOST_CHOICES = 4
_MIN_DIFFERENCE = 0.05
"""Two choices differ by more than this share of their largest number."""
_TWICE, _HALF = "That is twice as much.", "That is half as much."


@dataclass(frozen=True)
class LiveTable:
    """A small table of live numbers; the column ``share``, if any, holds shares of 1.

    Without room for all rows, ``keep`` says which to show: the first, the last, or a spread of all.
    """

    titles: tuple[str, ...]
    rows: tuple[tuple[Figure, ...], ...]
    share: int | None = None
    keep: str = "first"


@dataclass(frozen=True)
class Map:
    """Attention weights (Q, K), None where masked, with a title and a few words on what they do."""

    title: str
    word: str
    weights: tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True)
class Question:
    """A question to answer before the answer is shown. ``choices[answer]`` is right, and ``reveal`` says why.

    ``reasons`` say of each other choice why it is wrong; that of the right one is empty. ``value`` is the right answer
    as numbers, if it is numeric.
    """

    text: str
    choices: tuple[str, ...]
    answer: int
    reveal: str
    reasons: tuple[str, ...]
    value: tuple[float, ...] = ()


@dataclass(frozen=True)
class Lesson:
    """One step of the pipeline on a user's own text and model.

    ``why`` says what the step is for, ``pytorch`` is the line that computes it. ``shown`` are addresses of the trace
    and ``figures`` a table, to look at before the question is answered; ``revealed`` and ``revealed_figures`` hold the
    answer. ``cell`` is the address of one number to explain, ``focus`` the position of the token in question. ``maps``
    are small pictures, and ``revealed_maps`` are those that show the answer; ``pace`` is drawn with them.
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
    pace: Pace | None = None


def figure(value: float) -> str:
    """A number in about four digits."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e12:
        return f"{int(value):,}"
    if 1e-4 <= abs(value) < 1e4:
        return f"{value:.4g}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.2e}"


def bracketed(value: float) -> str:
    """A number to follow an operator: in parentheses if negative."""
    return f"({figure(value)})" if value < 0 else figure(value)


def figures(values: Iterable[float]) -> str:
    """Several numbers in square brackets, all with equally many digits after the point."""
    values = list(values)
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    digits = 3 if largest < 10 else 2 if largest < 100 else 1
    return f"[{', '.join(f'{value:z.{digits}f}' for value in values)}]"


class Asker:
    """Make the questions of one lesson; the order of the choices depends only on the lesson's name and the seed.

    Each wrong choice comes with the reason why it is wrong.
    """

    def __init__(self, name: str, seed: int) -> None:
        self.random = random.Random(f"{name} {seed}")

    def words(
        self, text: str, right: str, wrong: Iterable[tuple[str, str]], reveal: str, value: Iterable[float] = ()
    ) -> Question:
        """A question with choices in words; wrong choices that repeat the right one or each other are skipped."""
        distractors: dict[str, str] = {}
        for choice, reason in wrong:
            if choice != right and len(distractors) < _MOST_CHOICES - 1:
                distractors.setdefault(choice, reason)
        choices = [right, *distractors]
        self.random.shuffle(choices)
        reasons = tuple(distractors.get(choice, "") for choice in choices)
        return Question(text, tuple(choices), choices.index(right), reveal, reasons, tuple(map(float, value)))

    def number(self, text: str, right: float, wrong: Iterable[tuple[float, str]], reveal: str) -> Question:
        """A question with clearly different numbers as choices; common slips fill in if ``wrong`` has too few."""
        slips = [(2 * right, _TWICE), (right / 2, _HALF), (-right, "That has the wrong sign.")]
        slips += [(right + 1, "That is 1 more than the right number."), (3 * right, "That is three times as much.")]
        slips += [(value, f"That is off by {figure(abs(value - right))}.") for value in (0.0, 1.0, 2.0)]
        distinct = _distinct((right,), [((value,), reason) for value, reason in [*wrong, *slips]])
        choices = [(figure(value), reason) for (value,), reason in distinct]
        return self.words(text, figure(right), choices, reveal, (right,))

    def vector(
        self, text: str, right: Iterable[float], wrong: Iterable[tuple[Iterable[float], str]], reveal: str
    ) -> Question:
        """A question whose choices are several numbers each."""
        right = tuple(right)
        slips = [([2 * value for value in right], _TWICE), ([value / 2 for value in right], _HALF)]
        slips += [([value + 1 for value in right], "Each is 1 too large.")]
        distinct = _distinct(right, [(tuple(values), reason) for values, reason in [*wrong, *slips]])
        choices = [(figures(values), reason) for values, reason in distinct]
        return self.words(text, figures(right), choices, reveal, right)


_Candidate: TypeAlias = "tuple[tuple[float, ...], str]"


def _distinct(right: tuple[float, ...], candidates: Iterable[_Candidate]) -> list[_Candidate]:
    """The candidates that cannot be confused with the right choice or with an earlier candidate."""
    distinct: list[_Candidate] = []
    for values, reason in candidates:
        chosen = [right, *(earlier for earlier, _ in distinct)]
        if all(map(math.isfinite, values)) and all(_differ_clearly(values, earlier) for earlier in chosen):
            distinct.append((values, reason))
    return distinct


def _differ_clearly(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    if not all(map(math.isfinite, b)):
        return True
    scale = max(abs(value) for value in (*a, *b))
    return max(abs(x - y) for x, y in zip(a, b, strict=True)) > max(
        _MIN_DIFFERENCE * scale, 1e-3 if len(a) > 1 else 0.0
    )
