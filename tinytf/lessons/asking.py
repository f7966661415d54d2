"""Questions with one right answer: choices that are plausible, and that nobody can take for each other."""

import math
import random
from collections.abc import Iterable, Sequence

from tinytf.lessons.data import Question

_MOST = 4
_APART = 0.05


def figure(value: float) -> str:
    """One number in about four digits."""
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if value == int(value) and abs(value) < 1e12:
        return f"{int(value):,}"
    if 1e-4 <= abs(value) < 1e4:
        return f"{value:.4g}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.2e}"


def bracketed(value: float) -> str:
    """A number that stands behind an operator: in brackets where it begins with a minus."""
    return f"({figure(value)})" if value < 0 else figure(value)


def figures(values: Sequence[float]) -> str:
    """Several numbers in brackets, all with the same digits after the point."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    digits = 3 if largest < 10 else 2 if largest < 100 else 1
    shown = (f"{value:.{digits}f}" for value in values)
    return f"[{', '.join(text.removeprefix('-') if not text.strip('-0.') else text for text in shown)}]"


class Asked:
    """Makes the questions of one lesson; the order of the choices hangs on its name and the seed alone."""

    def __init__(self, name: str, seed: int) -> None:
        self.random = random.Random(f"{name} {seed}")

    def words(self, text: str, right: str, wrong: Iterable[str], reveal: str, value: Sequence[float] = ()) -> Question:
        """Choices in words; of the wrong ones, those that read like the right one or another are passed over."""
        kept = list(dict.fromkeys(choice for choice in wrong if choice != right))[: _MOST - 1]
        choices = [right, *kept]
        self.random.shuffle(choices)
        return Question(text, tuple(choices), choices.index(right), reveal, tuple(map(float, value)))

    def number(self, text: str, right: float, wrong: Iterable[float], reveal: str, unit: str = "") -> Question:
        """Choices that are numbers, each well apart from the others; simple slips stand in where too few are."""
        slips = [2 * right, right / 2, -right, right + 1, 3 * right, 0.0, 1.0, 2.0]
        kept = _well_apart([(right,), *((value,) for value in [*wrong, *slips])])
        shown = [figure(value) + unit for (value,) in kept]
        return self.words(text, shown[0], shown[1:], reveal, (right,))

    def vector(self, text: str, right: Sequence[float], wrong: Iterable[Sequence[float]], reveal: str) -> Question:
        """Choices that are several numbers each."""
        slips = [[2 * value for value in right], [value / 2 for value in right], [value + 1 for value in right]]
        kept = _well_apart([tuple(right), *map(tuple, [*wrong, *slips])])
        shown = [figures(values) for values in kept]
        return self.words(text, shown[0], shown[1:], reveal, right)


def _well_apart(candidates: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """The first, and those after it that nobody would take for one before."""
    kept = [candidates[0]]
    for one in candidates[1:]:
        if all(map(math.isfinite, one)) and all(_apart(one, other) for other in kept):
            kept.append(one)
    return kept[:_MOST]


def _apart(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    if not all(map(math.isfinite, other)):
        return True
    scale = max(abs(value) for value in (*one, *other))
    return max(abs(a - b) for a, b in zip(one, other, strict=True)) > max(_APART * scale, 1e-3 if len(one) > 1 else 0.0)
