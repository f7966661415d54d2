"""By how much the weights of one model are others in another: what training moved, or what rounding cost."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinytf.model.transformer import Transformer

_CHUNK = 2**22  # numbers that are held in float64 at a time


@dataclass(frozen=True)
class Moved:
    """One parameter in two models: the norm of the change ‖Δ‖ and that of the first model's weights ‖W‖."""

    name: str
    shape: tuple[int, ...]
    change: float
    norm: float

    @property
    def ratio(self) -> float:
        """‖Δ‖ ÷ ‖W‖; infinite where weights that were all 0 moved, and 0 where nothing did."""
        if not self.change:
            return 0.0
        return self.change / self.norm if self.norm else float("inf")

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "shape": list(self.shape),
            "change": self.change,
            "norm": self.norm,
            "ratio": self.ratio,
        }


@torch.no_grad()
def moved_weights(first: Transformer, second: Transformer) -> tuple[Moved, ...]:
    """The parameters that both have in one shape, the one that moved most for its size first; in float64."""
    others = dict(second.named_parameters())
    found = [
        _moved(name, weight, others[name])
        for name, weight in first.named_parameters()
        if name in others and others[name].shape == weight.shape
    ]
    return tuple(sorted(found, key=lambda one: -one.ratio))


def _moved(name: str, first: Tensor, second: Tensor) -> Moved:
    if first is second:  # a model without some steps has the weights of the whole one
        return Moved(name, tuple(first.shape), 0.0, float(torch.linalg.vector_norm(first, dtype=torch.float64)))
    change = norm = 0.0
    ends = zip(first.flatten().split(_CHUNK), second.to(first.device).flatten().split(_CHUNK), strict=True)
    for before, after in ends:
        change += float((after.double() - before.double()).square().sum())
        norm += float(before.double().square().sum())
    return Moved(name, tuple(first.shape), change**0.5, norm**0.5)
