"""How a gradient fares on its way back through the layers: does it vanish, explode, or hold?"""

import math
from dataclasses import dataclass
from typing import Any

import torch

from tinytf.gradients.trace import GradientTrace

VANISHING, EXPLODING = 0.01, 100.0
"""The ratios of first to last below and above which a gradient vanishes and explodes,"""

SHRINKING, GROWING = 0.8, 1.25
"""if a layer's part of it is beyond these: many layers of a healthy model add up to a large ratio too."""


@dataclass(frozen=True)
class LayerFlow:
    """L2 norms of the gradients of a block's input, of what its attention adds, and of what its feed-forward does."""

    layer: int
    into: float
    attn: float
    ffn: float

    def to_dict(self) -> dict[str, Any]:
        return {"layer": self.layer, "in": self.into, "attn": self.attn, "ffn": self.ffn}


@dataclass(frozen=True)
class Flow:
    """The layers from last to first; ``last`` is the norm of the gradient of ``end``, the last block's output."""

    layers: tuple[LayerFlow, ...]
    end: str
    last: float

    @property
    def first(self) -> float:
        """The norm where the way back through the blocks ends, at ``L0.in``."""
        return self.layers[-1].into

    @property
    def ratio(self) -> float:
        """First ÷ last; no number where the last is 0."""
        return self.first / self.last if self.last else math.nan

    @property
    def per_layer(self) -> float:
        """The factor of one layer, were it the same in all: a ratio of 100 over 30 layers is one of 1.17."""
        return self.ratio ** (1 / len(self.layers))

    @property
    def steepest(self) -> tuple[int, float]:
        """The layer through which the norm changes most, and its factor there: of its input ÷ of its output."""
        behind = [self.last, *(layer.into for layer in self.layers)]
        factors = {
            layer.layer: layer.into / before if before else math.nan
            for layer, before in zip(self.layers, behind, strict=False)
        }
        finite = {layer: factor for layer, factor in factors.items() if math.isfinite(factor) and factor > 0}
        layer = max(finite, key=lambda one: abs(math.log(finite[one])), default=self.layers[-1].layer)
        return layer, finite.get(layer, math.nan)

    @property
    def word(self) -> str:
        """``vanishing``, ``exploding`` or ``steady``; ``undefined`` where the ratio is no number."""
        if not math.isfinite(self.ratio):
            return "undefined"
        if self.ratio < VANISHING and self.per_layer < SHRINKING:
            return "vanishing"
        return "exploding" if self.ratio > EXPLODING and self.per_layer > GROWING else "steady"

    @property
    def verdict(self) -> str:
        """The word with its numbers, in one line."""
        return (
            f"{self.word}: the norm is {self.first:.3g} at L0.in and {self.last:.3g} at {self.end}, "
            f"a ratio of {self.ratio:.3g}, or {self.per_layer:.3g} a layer; most through L{self.steepest[0]}, "
            f"{self.steepest[1]:.3g}"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "layers": [layer.to_dict() for layer in self.layers],
            "end": self.end,
            "last": self.last,
            "first": self.first,
            "ratio": self.ratio,
            "per_layer": self.per_layer,
            "steepest": {"layer": self.steepest[0], "factor": self.steepest[1]},
            "word": self.word,
            "verdict": self.verdict,
        }


def flow(trace: GradientTrace) -> Flow:
    """The norms over the depth, over all tokens together. Raises AddressError where a layer was not recorded."""

    def norm(name: str, layer: int) -> float:
        return float(torch.linalg.vector_norm(trace.grad.step(name, layer), dtype=torch.float64))

    top = trace.config.n_layers - 1
    out = trace.steps.output
    layers = tuple(
        LayerFlow(layer, norm("in", layer), norm("attn", layer), norm("ffn", layer)) for layer in range(top, -1, -1)
    )
    return Flow(layers, f"L{top}.{out}", norm(out, top))
