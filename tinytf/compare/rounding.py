"""Is a difference rounding? Four tests of the differences Δ between two programs' log-probabilities.

Rounding has a mean near 0, falls to both sides, does not depend on the token's probability, and is as large as the
model's own. Each test has a limit that n rounding errors pass but for one time in some ten thousand: four standard
deviations. Below the least that matters, a lean is none: the model's own rounding leans a little too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tinytf.compare.floor import LIMIT
from tinytf.compare.logprob_trials import Numbers
from tinytf.estimate import rank_correlation
from tinytf.report import Data

MEAN, SIGNS, PROBABILITY, SIZE = "mean", "signs", "probability", "size"
_LEAST = {MEAN: 0.25, SIGNS: 0.25, PROBABILITY: 1 / 3}
_DEVIATIONS = {MEAN: 4.0, SIGNS: 2.0, PROBABILITY: 4.0}
"""Four standard deviations in units of 1/√n; that of a share of signs is ½/√n."""


@dataclass(frozen=True)
class RoundingTest(Data):
    """One test: its ``value``, at most ``limit`` for rounding.

    ``mean``: |mean Δ| / root mean square. ``signs``: how far the share of positive Δ is from ½. ``probability``: the
    rank correlation of Δ and log p, without its sign. ``size``: the root mean square in units of the model's own.
    """

    ALSO: ClassVar = ("holds",)

    name: str
    value: float
    limit: float

    @property
    def holds(self) -> bool:
        return self.value <= self.limit


def rounding_tests(deltas: Numbers, logprobs: Numbers, own: float | None = None) -> tuple[RoundingTest, ...]:
    """The tests of ``deltas`` (n,) of tokens with ``logprobs`` (n,); that of the size if the model's ``own`` is known.

    Up to 16 tokens none but the size can fail: so few do not tell. Without differences, all hold.
    """
    count, rms = len(deltas), float(np.sqrt((deltas**2).mean()))
    signs = np.sign(deltas[deltas != 0])
    values = {
        MEAN: abs(float(deltas.mean())) / rms if rms else 0.0,
        SIGNS: abs(float((signs > 0).mean()) - 0.5) if len(signs) else 0.0,
        PROBABILITY: abs(rank_correlation(deltas.tolist(), logprobs.tolist()) or 0.0),
    }
    limits = {name: max(_LEAST[name], _DEVIATIONS[name] / math.sqrt(count)) for name in values}
    tests = [RoundingTest(name, value, limits[name]) for name, value in values.items()]
    if own is not None:
        tests.append(RoundingTest(SIZE, rms / own if own else math.inf * bool(rms), LIMIT))
    return tuple(tests)


def is_rounding(tests: Sequence[RoundingTest]) -> bool:
    return all(test.holds for test in tests)
