"""Does the gradient vanish, explode or stay steady on its way back through the layers?"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.gradients.by_hand import gradient_to_inputs
from tinytf.gradients.trace import GradientTrace
from tinytf.report import Data, plain
from tinytf.trace.site import Site
from tinytf.trace.summary import norm

VANISHING, EXPLODING = 0.01, 100.0
"""A gradient vanishes or explodes if the ratio of first to last is below or above these, and"""

SHRINKING, GROWING = 0.8, 1.25
"""the ratio per layer is below or above these: over many layers a healthy model has a large ratio too."""


@dataclass(frozen=True)
class Branch(Data):
    """What a branch passes back to the residual stream, where it leaves the stream.

    ``ends`` are the steps that it adds to the stream: two where attention and feed-forward share a norm. ``norm`` is
    that of the gradient through the branch alone. ``share`` is the part of the stream's gradient there that came
    through it: the projection on that gradient, so that the shares and that of what flows past sum to 1. It is
    negative where the branch works against the rest, and NaN where the gradient is 0.
    """

    ends: tuple[str, ...]
    norm: float
    share: float


@dataclass(frozen=True)
class StreamStep(Data):
    """The norm of the gradient of a step of the residual stream, and the branches that leave there, the last first."""

    step: str
    norm: float
    branches: tuple[Branch, ...] = ()


@dataclass(frozen=True)
class LayerFlow:
    """The residual stream of a block, from the step before its output up to its input."""

    layer: int
    stream: tuple[StreamStep, ...]

    @property
    def into(self) -> float:
        """The norm of the gradient of the block's input."""
        return self.stream[-1].norm

    def to_dict(self) -> dict[str, Any]:
        return {"layer": self.layer, "in": self.into, "stream": plain(self.stream)}


@dataclass(frozen=True)
class Flow(Data):
    """The layers from last to first; ``last`` is the norm of the gradient of ``end``, the last block's output.

    ``logits`` and ``embedded`` are where the gradient comes from and where it arrives.
    """

    ALSO: ClassVar = ("first", "ratio", "per_layer", "word", "verdict")

    layers: tuple[LayerFlow, ...]
    end: str
    last: float
    logits: StreamStep
    embedded: StreamStep

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
    def factors(self) -> dict[int, float]:
        """What each layer multiplies the norm by, on its way back: norm at its input ÷ norm at its output."""
        outputs = [self.last, *(layer.into for layer in self.layers)]
        return {
            layer.layer: layer.into / output if output else math.nan
            for layer, output in zip(self.layers, outputs, strict=False)
        }

    def _by_change(self) -> list[int]:
        """The layers whose factor is positive and finite, the one that changes the norm most first."""
        finite = {layer: factor for layer, factor in self.factors.items() if math.isfinite(factor) and factor > 0}
        return sorted(finite, key=lambda layer: -abs(math.log(finite[layer])))

    @property
    def steepest(self) -> tuple[int, float]:
        """The layer that changes the norm most, and its factor."""
        return next(((layer, self.factors[layer]) for layer in self._by_change()), (0, math.nan))

    def telling(self, most: int | None) -> list[int]:
        """At most ``most`` layers, from last to first: the last, the first, and those that change the norm most."""
        return sorted(list(dict.fromkeys([self.layers[0].layer, 0, *self._by_change(), *self.factors]))[:most])[::-1]

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


@torch.no_grad()
def flow(trace: GradientTrace) -> Flow:
    """The norms of every layer, over all tokens. Raises AddressError if a layer was not recorded."""
    steps, top = trace.steps, trace.config.n_layers - 1

    def stream_step(name: str, layer: int | None) -> StreamStep:
        gradient = trace.grad.step(name, layer)
        return StreamStep(name, norm(gradient), () if layer is None else tuple(_branches(trace, name, layer, gradient)))

    layers = tuple(
        LayerFlow(layer, tuple(stream_step(name, layer) for name in steps.stream(layer)[1:]))
        for layer in range(top, -1, -1)
    )
    embedded = next(step.name for step in steps.before if step.is_tensor)
    ends = stream_step(steps.over_vocabulary[-1].name, None), stream_step(embedded, None)
    return Flow(layers, f"L{top}.{steps.output}", norm(trace.grad.step(steps.output, top)), *ends)


def _branches(trace: GradientTrace, name: str, layer: int, gradient: Tensor) -> Iterator[Branch]:
    """The branches that leave a step of the stream, with the gradient that each passes back by its formula."""
    passed: dict[tuple[str, ...], Tensor] = {}
    for reader, reader_layer, number in trace.steps.consumers((name, layer)):
        if reader_layer == layer and reader.name not in trace.steps.stream(layer):
            site = Site(trace, reader, layer)
            after = gradient_to_inputs(site, trace.grad.step(reader.name, layer))
            part = site.operation.input_gradients(site, after)[number].double()
            ends = trace.steps.branch_ends(reader, layer)
            passed[ends] = passed[ends] + part if ends in passed else part
    whole = gradient.double()
    for ends, part in reversed(passed.items()):
        squared = float((whole * whole).sum())
        yield Branch(ends, norm(part), float((part * whole).sum()) / squared if squared else math.nan)
