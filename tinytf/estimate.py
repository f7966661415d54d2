"""Means over texts with a bootstrap interval, and the rank correlation of two measures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.report import Data

_RESAMPLED = 1000
_AT_ONCE = 1024  # runs that are resampled together: a quantile takes 16 million numbers at most
LEAST = 6
"""The fewest texts for quantiles of a bootstrap, which are within the range of their values: that of n symmetric values
misses 0 with a probability of 2^(1 − n), which is below 5 % from 6 on. Of fewer, ends are by Student's t."""
_STUDENT = (12.706, 4.303, 3.182, 2.776)
"""97.5 % quantiles of Student's distribution for 2 to 5 texts."""
_FEWEST = 3  # values that a rank correlation is given for


@dataclass(frozen=True)
class Estimate(Data):
    """A mean over the texts; ``low`` and ``high`` are its 95 % bootstrap interval, None for one text."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def is_clear(self) -> bool:
        """Whether the interval is on one side of 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def _ends(count: int) -> Tensor:
    """The quantiles that end a 95 % interval of ``count`` values: wider than 2.5 and 97.5 % where these are few.

    Φ(−√(n / (n − 1))·t), with the quantile t of Student's distribution (Hesterberg 2015, the expanded percentile
    interval), by its series in 1 / (n − 1).
    """
    z, v = 1.959964, count - 1
    t = z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
    low = 0.5 * math.erfc(math.sqrt(count / v) * t / math.sqrt(2))
    return torch.tensor([low, 1 - low], dtype=torch.float64)


def estimates(sums: Tensor, counts: Tensor, seed: int, *, bootstrap: bool = True) -> list[Estimate]:
    """The mean of each run over the counts of its texts: sums (N, R), counts (N,); without ``bootstrap`` no interval.

    The interval resamples the texts with replacement (the percentile bootstrap, Efron 1979, expanded for few texts). Of
    fewer than LEAST it is that of Student, with the bootstrap's standard error.
    """
    means = (sums.sum(0) / counts.sum()).tolist()
    if len(sums) < 2 or not means or not bootstrap:
        return [Estimate(mean) for mean in means]
    drawn = _resampled(sums, counts, seed)
    if len(sums) < LEAST:
        reach = _STUDENT[len(sums) - 2] * math.sqrt(len(sums) / (len(sums) - 1))
        errors = torch.cat([reach * some.std(dim=0, correction=0) for some in drawn]).tolist()
        intervals = [(mean - error, mean + error) for mean, error in zip(means, errors, strict=True)]
    else:
        intervals = _between(drawn, _ends(len(sums)))
    return [Estimate(mean, low, high) for mean, (low, high) in zip(means, intervals, strict=True)]


def difference_of(sums: Tensor, counts: Tensor, other_sums: Tensor, other_counts: Tensor, seed: int) -> list[Estimate]:
    """The difference of two independent sets' means, as ``estimates`` has them: sums (N, R) and (M, R).

    The interval resamples each set by itself. Where one has fewer than LEAST texts it is that of Student, with the
    bootstrap's standard errors and the smaller set's degrees of freedom, which is on the safe side of Welch's; its
    quantiles are expanded like those of the smaller set. Without an interval where a set has one text.
    """
    means = (sums.sum(0) / counts.sum() - other_sums.sum(0) / other_counts.sum()).tolist()
    fewest = min(len(sums), len(other_sums))
    if fewest < 2:
        return [Estimate(mean) for mean in means]
    first, second = _resampled(sums, counts, seed), _resampled(other_sums, other_counts, seed + 1)
    if fewest >= LEAST:
        intervals = _between([one - other for one, other in zip(first, second, strict=True)], _ends(fewest))
        return [Estimate(mean, low, high) for mean, (low, high) in zip(means, intervals, strict=True)]
    variances = torch.zeros(len(means), dtype=sums.dtype)
    for drawn, n in ((first, len(sums)), (second, len(other_sums))):
        variances += torch.cat([some.var(dim=0, correction=0) for some in drawn]) * n / (n - 1)
    errors = (_STUDENT[fewest - 2] * variances.sqrt()).tolist()
    return [Estimate(mean, mean - error, mean + error) for mean, error in zip(means, errors, strict=True)]


def _resampled(sums: Tensor, counts: Tensor, seed: int) -> list[Tensor]:
    """The means of texts drawn with replacement, (draws, R), in pieces of R."""
    picked = torch.randint(len(sums), (_RESAMPLED, len(sums)), generator=torch.Generator().manual_seed(seed))
    weights = torch.zeros(_RESAMPLED, len(sums), dtype=sums.dtype)
    weights.scatter_add_(1, picked, torch.ones_like(picked, dtype=sums.dtype))
    return [(weights @ some) / (weights @ counts)[:, None] for some in sums.split(_AT_ONCE, dim=1)]


def _between(drawn: Sequence[Tensor], ends: Tensor) -> list[tuple[float, float]]:
    """The two quantiles of each column."""
    pieces = (some.quantile(ends.to(some.dtype), dim=0).T.tolist() for some in drawn)
    return [(low, high) for piece in pieces for low, high in piece]


def mean_of(values: Sequence[float] | Tensor, seed: int = 0) -> Estimate:
    """The mean of one number a text, with its interval."""
    column = torch.as_tensor(values, dtype=torch.float64)
    return estimates(column[:, None], torch.ones_like(column), seed)[0]


def rank_correlation(first: Sequence[float | None], second: Sequence[float | None]) -> float | None:
    """Spearman's rank correlation; None for fewer than three pairs, or where all of one side are equal."""
    if len(first) < _FEWEST:
        return None
    correlation = float(torch.corrcoef(torch.stack([_ranks(first), _ranks(second)]))[0, 1])
    return None if math.isnan(correlation) else correlation


def _ranks(values: Sequence[float | None]) -> Tensor:
    """The rank of each value from 1; equal values share the mean of their ranks."""
    _, index, counts = torch.tensor(values, dtype=torch.float64).unique(return_inverse=True, return_counts=True)
    return (counts.cumsum(0) - (counts - 1) / 2).double()[index]
