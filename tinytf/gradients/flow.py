"""Does the gradient vanish, explode or stay steady on its way back through the layers?"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from tinytf.gradients.trace import GradientTrace
from tinytf.report import Data
from tinytf.trace.summary import norm

VANISHING, EXPLODING = 0.01, 100.0
"""A gradient vanishes or explodes if the ratio of first to last is below or above these, and"""

SHRINKING, GROWING = 0.8, 1.25
"""the ratio per layer is below or above these: over many layers a healthy model has a large ratio too."""


@dataclass(frozen=True)
class LayerFlow:
    """L2 norms of the gradients of a block's input, of its attention's output and of its feed-forward's output."""

    layer: int
    into: float
    attn: float
    ffn: float

    def to_dict(self) -> dict[str, Any]:
        return {"layer": self.layer, "in": self.into, "attn": self.attn, "ffn": self.ffn}


@dataclass(frozen=True)
class Flow(Data):
    """The layers from last to first; ``last`` is the norm of the gradient of ``end``, the last block's output."""

    ALSO: ClassVar = ("first", "ratio", "per_layer", "word", "verdict")

    layers: tuple[LayerFlow, ...]
    end: str
    last: float

    @property
    def first(self) -> float:
        """The norm at ``L0.in``, where the backward pass through the blocks ends."""
        return self.layers[-1].into

    @property
    def ratio(self) -> float:
        """First ÷ last; NaN if the last is 0."""
        return self.first / self.last if self.last else math.nan

    @property
    def per_layer(self) -> float:
        """The geometric mean of the ratio over the layers: a ratio of 100 over 30 layers is 1.17 per layer."""
        return self.ratio ** (1 / len(self.layers))

    @property
    def steepest(self) -> tuple[int, float]:
        """The layer that changes the norm most, and its factor: norm at its input ÷ norm at its output."""
        outputs = [self.last, *(layer.into for layer in self.layers)]
        factors = {
            layer.layer: layer.into / output if output else math.nan
            for layer, output in zip(self.layers, outputs, strict=False)
        }
        finite = {layer: factor for layer, factor in factors.items() if math.isfinite(factor) and factor > 0}
        layer = max(finite, key=lambda n: abs(math.log(finite[n])), default=self.layers[-1].layer)
        return layer, finite.get(layer, math.nan)

    @property
    def word(self) -> str:
        """``vanishing``, ``exploding`` or ``steady``; ``undefined`` if the ratio is NaN or infinite."""
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
            f"a ratio of {self.ratio:.3g}, or {self.per_layer:.3g} per layer; most through L{self.steepest[0]}, "
            f"{self.steepest[1]:.3g}"
        )

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "steepest": {"layer": self.steepest[0], "factor": self.steepest[1]}}


def flow(trace: GradientTrace) -> Flow:
    """The norms of every layer, over all tokens. Raises AddressError if a layer was not recorded."""

    def size(name: str, layer: int) -> float:
        return norm(trace.grad.step(name, layer))

    top = trace.config.n_layers - 1
    out = trace.steps.output
    layers = tuple(
        LayerFlow(layer, size("in", layer), size("attn", layer), size("ffn", layer)) for layer in range(top, -1, -1)
    )
    return Flow(layers, f"L{top}.{out}", size(out, top))
