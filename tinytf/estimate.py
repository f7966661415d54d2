"""Means over texts with a bootstrap interval, and the rank correlation of two measures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.report import Data

_RESAMPLED = 1000
_AT_ONCE = 1024  # runs that are resampled together: a quantile takes 16 million numbers at most
_FEWEST = 3  # values that a rank correlation is given for


@dataclass(frozen=True)
class Estimate(Data):
    """A mean over the texts; ``low`` and ``high`` are its 95 % bootstrap interval, None for one text."""

    value: float
    low: float | None = None
    high: float | None = None


def estimates(sums: Tensor, counts: Tensor, seed: int) -> list[Estimate]:
    """The mean of each run over the counts of its texts: sums (N, R), counts (N,).

    The interval resamples the texts with replacement (the percentile bootstrap, Efron 1979).
    """
    means = (sums.sum(0) / counts.sum()).tolist()
    if len(sums) < 2 or not means:
        return [Estimate(mean) for mean in means]
    drawn = torch.randint(len(sums), (_RESAMPLED, len(sums)), generator=torch.Generator().manual_seed(seed))
    weights = torch.zeros(_RESAMPLED, len(sums), dtype=sums.dtype)
    weights.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=sums.dtype))
    ends, drawn_counts = torch.tensor([0.025, 0.975], dtype=sums.dtype), weights @ counts
    intervals = [
        interval
        for some in sums.split(_AT_ONCE, dim=1)
        for interval in ((weights @ some) / drawn_counts[:, None]).quantile(ends, dim=0).T.tolist()
    ]
    return [Estimate(mean, low, high) for mean, (low, high) in zip(means, intervals, strict=True)]


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
