"""The backward pass in numbers: one row a step, last step first."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinytf.gradients.agreement import Agreement, Matched
from tinytf.gradients.trace import GradientTrace
from tinytf.steps.table import Step
from tinytf.trace.summary import Statistics, statistics, visible


@dataclass(frozen=True)
class GradientRow:
    """The gradient at one step, of its entries that are not masked; ``statistics`` are of the finite ones.

    ``norm`` is ‖∂loss/∂step‖ (L2), ``ratio`` that norm divided by the step's own (None for a step of zeros),
    ``by_hand`` how far the written-out formula is from it (None where no path leads to the loss).
    """

    step: Step
    layer: int | None
    shape: tuple[tuple[str, int], ...]
    norm: float
    ratio: float | None
    statistics: Statistics
    by_hand: Matched | None

    @property
    def name(self) -> str:
        return self.step.full_name(self.layer)

    @property
    def largest(self) -> float:
        return max(abs(self.statistics.min), abs(self.statistics.max))

    def to_dict(self) -> dict[str, Any]:
        s = self.statistics
        return {
            "name": self.name,
            "title": self.step.title,
            "axes": [axis for axis, _ in self.shape],
            "shape": [size for _, size in self.shape],
            "norm": self.norm,
            "ratio": self.ratio,
            "mean": s.mean,
            "std": s.std,
            "min": s.min,
            "max": s.max,
            "largest": self.largest,
            "not_finite": s.not_finite,
            "histogram": list(s.histogram),
            "by_hand": None if self.by_hand is None else self.by_hand.relative,
        }


@torch.no_grad()
def backward_rows(trace: GradientTrace, compared: Agreement) -> Iterator[GradientRow]:
    """Every step of the layers that were recorded, in the order in which the gradient comes to it."""
    for step, layer in reversed(trace.steps.rows):
        if not step.is_tensor or not (layer is None or layer in trace.recording.layers):
            continue
        gradient, value = trace.grad.step(step.name, layer), trace.step(step.name, layer)
        allowed = visible(trace, step, layer)
        size, own = _norm(gradient, allowed), _norm(value, allowed)
        name = step.full_name(layer)
        shape = tuple(zip(step.axes, gradient.shape, strict=True))
        yield GradientRow(
            step,
            layer,
            shape,
            size,
            size / own if own else None,
            statistics(gradient, allowed),
            compared.steps.get(name),
        )


def _norm(tensor: Tensor, allowed: Tensor | None) -> float:
    """L2, in float64, of what is not masked; NaN where an entry is."""
    if allowed is not None:
        tensor = tensor.masked_fill(~allowed, 0.0)
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))
