"""What a program did to its log-probabilities, found by experiment.

An explanation predicts the difference Δ = one side − the other of every token. It explains them if what it leaves is
rounding (``rounding_tests``), and at most half of what there was; a tenth, where the model's own rounding is unknown.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tinytf.compare.logprob_trials import VAGUE, Logged, Numbers, Pair, Trial, error, with_model
from tinytf.compare.rounding import is_rounding, rounding_tests
from tinytf.report import Data
from tinytf.text_model import TextModel

_LOG_BASES = {1 / math.log(2): "are logarithms to base 2", 1 / math.log(10): "are logarithms to base 10"}
_LAST_DIGIT, _EXACT, _ALIKE = 1e-6, 0.01, 1.2
_MOST = 3
"""The most explanations that are given, where the numbers cannot tell."""


@dataclass(frozen=True)
class Explanation(Data):
    """What was done to the log-probabilities of ``side``; ``left`` nats (root mean square) are not explained."""

    side: str
    words: str
    left: float


@torch.no_grad()
def explain_logprobs(
    pairs: Sequence[Pair], names: tuple[str, str], model: TextModel | None, own: float | None
) -> tuple[tuple[Explanation, ...], tuple[str, ...]]:
    """What explains the difference, best first (several where the numbers cannot tell), and all that was tried.

    With a model, the side that is further from it was changed; without one, either may have been. ``own`` is the
    model's own rounding in nats, if it is known.
    """
    logged = Logged(model, pairs) if model is not None and all(pair.ids for pair in pairs) else None
    found: list[tuple[float, float, Explanation]] = []
    tried: dict[str, None] = {}
    for name, side, other in _sides(pairs, names, logged):
        deltas, logprobs = np.concatenate(side) - np.concatenate(other), np.concatenate(other)
        for kind, trials in (*_without_model(side, other), *(with_model(logged, deltas) if logged else ())):
            tried[kind] = None
            for trial in trials:
                left = _left(trial, deltas, logprobs, own)
                if left is not None:
                    found.append((left + _LAST_DIGIT, trial.penalty, Explanation(name, trial.words, left)))
    found.sort(key=lambda one: one[0] * one[1])
    alike = [one for one in found if one[0] <= _ALIKE * found[0][0] and one[1] == found[0][1]]
    return tuple(explanation for *_, explanation in alike[:_MOST]), tuple(tried)


def _sides(
    pairs: Sequence[Pair], names: tuple[str, str], logged: Logged | None
) -> Iterator[tuple[str, list[Numbers], list[Numbers]]]:
    """The name of a side that may have been changed, its log-probabilities text by text, and the other's."""
    texts = pairs if logged is None else logged.pairs
    both = [pair.first for pair in texts], [pair.second for pair in texts]
    orders = [(1, 0), (0, 1)]
    if logged is not None:
        first, second = (error(logged.plain.double().numpy(), np.concatenate(side)) for side in both)
        orders = orders[:1] if second >= first else orders[1:]
    for changed, other in orders:
        yield names[changed], both[changed], both[other]


def _left(trial: Trial, deltas: Numbers, logprobs: Numbers, own: float | None) -> float | None:
    """The root mean square of what a trial leaves; None if it does not explain the differences."""
    known = np.isfinite(deltas) & np.isfinite(trial.predicted)
    if known.sum() < 0.8 * np.isfinite(deltas).sum():
        return None
    rest = (deltas - trial.predicted)[known]
    left, before = (float(np.sqrt((numbers**2).mean())) for numbers in (rest, deltas[known]))
    if left > (0.5 if own else 0.1) * before:
        return None
    is_last_digits = left <= _EXACT * before
    return left if is_last_digits or is_rounding(rounding_tests(rest, logprobs[known], own)) else None


def _without_model(side: Sequence[Numbers], other: Sequence[Numbers]) -> Iterator[tuple[str, Iterator[Trial]]]:
    """What the numbers of both sides show alone: in words, with its trials."""
    yield "another base of the logarithm, or a factor", _factor(np.concatenate(side), np.concatenate(other))
    yield "a constant", _constant(np.concatenate(side) - np.concatenate(other))
    yield "tokens shifted by one", _shifted(other)


def _factor(side: Numbers, other: Numbers) -> Iterator[Trial]:
    known = np.isfinite(side) & np.isfinite(other)
    size = float((other[known] ** 2).sum())
    factor = float((side[known] * other[known]).sum()) / size if size else 0.0
    base = next((base for base in _LOG_BASES if abs(factor / base - 1) < 0.01), None)
    if base is not None:
        yield Trial(_LOG_BASES[base], (base - 1) * other)
    elif factor > 0:
        yield Trial(f"are divided by {1 / factor:.4g} after the softmax", (factor - 1) * other, VAGUE)


def _constant(deltas: Numbers) -> Iterator[Trial]:
    constant = float(np.median(deltas[np.isfinite(deltas)]))
    words = f"are {'higher' if constant > 0 else 'lower'} by {abs(constant):.3g} at every token"
    yield Trial(words, np.full_like(deltas, constant), VAGUE)


def _shifted(texts: Sequence[Numbers]) -> Iterator[Trial]:
    for by, words in ((-1, "are those of the token after"), (1, "are those of the token before")):
        moved = [np.roll(text, by) for text in texts]
        for text in moved:
            text[min(by, 0)] = math.nan  # it has no such neighbour
        yield Trial(words, np.concatenate([a - b for a, b in zip(moved, texts, strict=True)]))
