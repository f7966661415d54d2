"""The pipeline in numbers: per step its shape, mean, standard deviation, range and a small histogram."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tinytf.parts.row import Step
from tinytf.report import plain

BINS = 8
_LARGE = 1e15  # squares of larger numbers overflow float32


@dataclass(frozen=True)
class Statistics:
    """Statistics of ``count`` finite values; population ``std``, ``histogram`` in equal bins from min to max."""

    count: int
    not_finite: int
    mean: float
    std: float
    min: float
    max: float
    histogram: tuple[int, ...]


@dataclass(frozen=True)
class StepSummary:
    """One step of the pipeline; ``shape`` pairs axes with sizes, ``statistics`` is None for tokens, ids and next."""

    number: int
    step: Step
    layer: int | None
    shape: tuple[tuple[str, int], ...]
    statistics: Statistics | None
    note: str = ""

    @property
    def name(self) -> str:
        return self.step.full_name(self.layer)

    def to_dict(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "name": self.name,
            "title": self.step.title,
            "formula": self.step.formula,
            "inputs": list(self.step.inputs),
            "axes": [axis for axis, _ in self.shape],
            "shape": [size for _, size in self.shape],
            "recorded": self.step.recorded,
            "statistics": plain(self.statistics),
            "note": self.note,
        }


def norm(tensor: Tensor) -> float:
    """The L2 norm of all numbers, in float64."""
    return float(torch.linalg.vector_norm(tensor.detach(), dtype=torch.float64))


def statistics(tensor: Tensor, allowed: Tensor | None = None) -> Statistics:
    """Statistics of a tensor's finite values; ``allowed`` (Q, K) excludes the masked cells of each map.

    A bin includes its lower edge, the last one also its upper edge. (Comparisons and a norm are ten times faster at
    these sizes than torch's histc and std.)
    """
    values = tensor.detach().float()
    if allowed is not None:
        values = values.flatten(-2).index_select(-1, allowed.flatten().nonzero().squeeze(1))
    values = values.flatten()
    total = values.numel()
    low, high = (float(end) for end in torch.aminmax(values)) if total else (math.nan, math.nan)
    if not math.isfinite(low) or not math.isfinite(high):
        values = values[torch.isfinite(values)]
        low, high = (float(end) for end in torch.aminmax(values)) if values.numel() else (math.nan, math.nan)
    count = values.numel()
    if not count:
        return Statistics(0, total, math.nan, math.nan, math.nan, math.nan, (0,) * BINS)
    if max(-low, high) > _LARGE:
        values = values.double()
    mean = values.mean()
    std = float(torch.linalg.vector_norm(values - mean)) / math.sqrt(count)
    return Statistics(count, total - count, float(mean), std, low, high, _histogram(values, low, high))


def _histogram(values: Tensor, low: float, high: float) -> tuple[int, ...]:
    """How many values lie in each of BINS equal bins from ``low`` to ``high``."""
    if low == high:
        return (values.numel(),) + (0,) * (BINS - 1)
    array = values.cpu().numpy()
    edges = (low + (high - low) * i / BINS for i in range(1, BINS))
    cumulative = [0, *(int(np.count_nonzero(array < edge)) for edge in edges), len(array)]
    return tuple(high_count - low_count for low_count, high_count in itertools.pairwise(cumulative))
