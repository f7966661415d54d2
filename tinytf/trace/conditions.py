"""Conditions over a step's numbers, as a breakpoint has them: ``max > 0.9 and entropy < 0.5``."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.errors import PlacedError, UsageError
from tinytf.nearest import did_you_mean
from tinytf.steps.table import Step
from tinytf.trace.summary import visible
from tinytf.trace.trace import Trace

Measured = Callable[[str], float]
_Heads = tuple[int, ...] | None


def _finite(values: Tensor) -> Tensor:
    return values[torch.isfinite(values)]


def _of_finite(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], float]:
    def measure(values: Tensor) -> float:
        finite = _finite(values).double()
        return float(function(finite)) if finite.numel() else math.nan

    return measure


def _entropy(rows: Tensor) -> float:
    return float(torch.special.entr(rows.double()).sum(dim=-1).mean())


MEASURES: dict[str, tuple[Callable[[Tensor], float], str]] = {
    "mean": (_of_finite(torch.mean), "the mean"),
    "max": (_of_finite(torch.max), "the largest"),
    "min": (_of_finite(torch.min), "the smallest"),
    "std": (_of_finite(lambda values: values.std(correction=0)), "the standard deviation"),
    "norm": (_of_finite(torch.linalg.vector_norm), "the length: the root of the sum of squares"),
    "entropy": (_entropy, "of weights and probs: the mean entropy of a row, in nats"),
    "nan": (lambda values: float(torch.isnan(values).sum()), "how many are NaN"),
    "inf": (lambda values: float(torch.isinf(values).sum()), "how many are infinite"),
}
"""What a condition can ask of a step, over its numbers that are finite and not masked."""

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_TOKEN = re.compile(
    r"\s*(?:(?P<number>[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)|(?P<word>[A-Za-z_]+)"
    r"|(?P<sign><=|>=|==|!=|[<>()]))"
)
_DEPTH = 50


def measure(trace: Trace, name: str, step: Step, layer: int | None, heads: _Heads = None) -> float:
    """One measure of a step, of all its heads or of some; NaN where the step has no such measure."""
    if not step.is_tensor or (name == "entropy" and not step.is_distribution):
        return math.nan
    found = trace.at_logit_rows(step) if step.is_vocabulary else trace.step(step.name, layer, heads)
    allowed = visible(trace, step, layer)
    if allowed is not None and name != "entropy":
        found = found[..., allowed]
    return MEASURES[name][0](found)


@dataclass(frozen=True)
class Comparison:
    """``max > 0.9``; either side is a measure or a number."""

    left: str | float
    sign: str
    right: str | float

    def holds(self, measured: Measured) -> bool:
        left, right = (measured(side) if isinstance(side, str) else side for side in (self.left, self.right))
        return not math.isnan(left) and not math.isnan(right) and _COMPARE[self.sign](left, right)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(side for side in (self.left, self.right) if isinstance(side, str))


@dataclass(frozen=True)
class Joined:
    """Conditions that all hold (``and``), or one of which does (``or``)."""

    word: str
    parts: tuple[Comparison | Joined, ...]

    def holds(self, measured: Measured) -> bool:
        return (all if self.word == "and" else any)(part.holds(measured) for part in self.parts)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for part in self.parts for name in part.names)


@dataclass(frozen=True)
class Condition:
    """A condition as it was written, and what it means."""

    text: str
    meaning: Comparison | Joined

    def holds(self, trace: Trace, step: Step, layer: int | None, heads: _Heads = None) -> bool:
        """Whether it holds of a step; what the step has no measure of does not hold."""
        return step.is_tensor and self.meaning.holds(lambda name: measure(trace, name, step, layer, heads))

    def require_entropy(self, step: Step) -> None:
        """Raise UsageError where the entropy is asked of a step whose rows are no distributions."""
        if "entropy" in self.meaning.names and not step.is_distribution:
            raise UsageError(f"{step.name} has no entropy", "entropy is of weights and probs")


def parse_condition(text: str, line: str = "", column: int = 0) -> Condition:
    """Read ``max > 0.9``, joined by ``and`` and ``or``, in round brackets where wanted; ``nan`` alone is ``nan > 0``.

    ``text`` stands at ``column`` of ``line``. Raises PlacedError, which points at the place that is wrong.
    """
    reader = _Reader(text, line or text, column)
    meaning = reader.either(0)
    if reader.kind:
        raise reader.wrong(f"the condition ends before {reader.value!r}", "join two by and, or by or")
    return Condition(" ".join(text.split()), meaning)


class _Reader:
    """Reads a condition from left to right; ``kind`` and ``value`` are of the token that it stands at."""

    def __init__(self, text: str, line: str, column: int) -> None:
        self.text, self.line, self.column = text, line, column
        self.kind, self.value, self.start, self.end = "", "", 0, 0
        self.move()

    def move(self) -> None:
        rest = self.text[self.end :]
        if not rest.strip():
            self.kind, self.value, self.start = "", "", len(self.text.rstrip())
            return
        match = _TOKEN.match(self.text, self.end)
        if match is None or match.lastgroup is None:
            self.start = self.end + len(rest) - len(rest.lstrip())
            raise self.wrong(f"a condition has no {self.text[self.start]!r}", _EXAMPLE)
        self.kind, self.value = match.lastgroup, match[match.lastgroup]
        self.start, self.end = match.start(match.lastgroup), match.end()

    def wrong(self, message: str, hint: str = "") -> PlacedError:
        return PlacedError(message, self.line, self.column + self.start, hint)

    def either(self, depth: int) -> Comparison | Joined:
        return self._joined("or", lambda: self._joined("and", lambda: self._one(depth)))

    def _joined(self, word: str, part: Callable[[], Comparison | Joined]) -> Comparison | Joined:
        parts = [part()]
        while self.kind == "word" and self.value == word:
            self.move()
            parts.append(part())
        return parts[0] if len(parts) == 1 else Joined(word, tuple(parts))

    def _one(self, depth: int) -> Comparison | Joined:
        if self.value == "(":
            if depth == _DEPTH:
                raise self.wrong("brackets are nested too deeply")
            self.move()
            inside = self.either(depth + 1)
            if self.value != ")":
                raise self.wrong("a bracket is not closed")
            self.move()
            return inside
        left = self._side()
        if self.value not in _COMPARE:
            if isinstance(left, str) and left in ("nan", "inf"):
                return Comparison(left, ">", 0.0)
            said = f"and not {self.value!r}" if self.kind else "and the line ends"
            raise self.wrong(f"after {left if isinstance(left, str) else f'{left:g}'} comes a comparison, {said}",
                             f"one of {' '.join(_COMPARE)}")  # fmt: skip
        sign = self.value
        self.move()
        return Comparison(left, sign, self._side())

    def _side(self) -> str | float:
        kind, value = self.kind, self.value
        if kind == "number":
            self.move()
            return float(value)
        if kind == "word" and value in MEASURES:
            self.move()
            return value
        if kind == "word" and value not in ("and", "or"):
            raise self.wrong(f"there is no measure {value!r}", did_you_mean(value, MEASURES))
        said = f"here stands {value!r}" if kind else "the line ends"
        raise self.wrong(f"a measure or a number is missing: {said}", _EXAMPLE)


_EXAMPLE = "such as: max > 0.9 and entropy < 0.5"
