"""The backward pass by hand, formula by formula, and how far each formula is from what autograd found."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinytf.gradients.loss import Targets, at_positions, cross_entropy, cross_entropy_of_probs
from tinytf.gradients.trace import GradientTrace
from tinytf.steps.operations.lookup import TOKEN_TABLE
from tinytf.steps.table import Place
from tinytf.tolerance import GRADIENT, allowed
from tinytf.trace.site import Site
from tinytf.trace.trace import Trace


@dataclass(frozen=True)
class Matched:
    """A gradient compared: the largest ``difference``, and the ``largest`` entry that it is relative to.

    For a parameter ``largest`` includes the gradient of its step: the parameter's is a sum over many of those entries,
    and rounds as they do even where the sum cancels (a bias of the keys shifts all scores of a row alike).
    """

    name: str
    difference: float
    largest: float

    @property
    def relative(self) -> float:
        """The difference relative to the largest entry; infinite where it is not finite."""
        if not math.isfinite(self.difference):
            return math.inf
        return self.difference / self.largest if self.largest else (math.inf if self.difference else 0.0)


@dataclass(frozen=True)
class Agreement:
    """Every comparison of a formula with autograd: ``steps`` and ``parameters`` by name."""

    steps: dict[str, Matched]
    parameters: dict[str, Matched]
    tolerance: float

    @property
    def worst(self) -> Matched:
        return max((*self.steps.values(), *self.parameters.values()), key=lambda one: one.relative)

    @property
    def holds(self) -> bool:
        return self.worst.relative <= self.tolerance

    def to_dict(self) -> dict[str, Any]:
        worst = self.worst
        return {
            "holds": self.holds,
            "steps": len(self.steps),
            "parameters": len(self.parameters),
            "at": worst.name,
            "largest_difference": worst.difference,
            "of": worst.largest,
            "relative": worst.relative,
            "tolerance": self.tolerance,
        }


@torch.no_grad()
def agreement(trace: GradientTrace) -> Agreement:
    """Compare each formula with autograd, step by step and parameter by parameter.

    A formula gets autograd's gradients of the steps after it, so that rounding does not accumulate over the depth and
    each formula is judged alone.
    """
    steps: dict[str, Matched] = {}
    parameters: dict[str, Matched] = {}
    parts: dict[str, Tensor] = {}  # of parameters that a step further up is made with too

    def known(site: Site) -> Tensor:
        return trace.grad.step(site.step.name, site.layer)

    for site, by_hand in step_gradients(trace, trace.targets, known):
        if by_hand is None or not site.step.to_loss:
            continue
        gradient = known(site)
        steps[site.name] = _compared(site.name, by_hand, gradient)
        for name, found in site.operation.parameter_gradients(site, passed_on(site, gradient)):
            found = found + parts.pop(name, 0.0)
            if comes_again(site, name):
                parts[name] = found
                continue
            parameters[name] = _compared(name, found, trace.parameters[name], gradient)
    return Agreement(steps, parameters, allowed(GRADIENT, trace.last_hidden.dtype))


def comes_again(site: Site, parameter: str) -> bool:
    """Whether a step before this one has the same parameter: tied embeddings, or weights shared by layers or steps."""
    return not site.trace.steps.has_own(site.step, site.layer) or (parameter == TOKEN_TABLE and site.step.is_vocabulary)


def _compared(name: str, by_hand: Tensor, gradient: Tensor, *scales: Tensor) -> Matched:
    largest = max(_largest(one) for one in (gradient, *scales))
    return Matched(name, _largest(by_hand - gradient), largest)


def _largest(tensor: Tensor) -> float:
    least, most = (float(end) for end in torch.aminmax(tensor))
    return max(most, -least)


@torch.no_grad()
def step_gradients(
    trace: Trace, targets: Targets, known: Callable[[Site], Tensor] | None = None
) -> Iterator[tuple[Site, Tensor | None]]:
    """The gradient of each step by its formula, last step first; None for a step that does not lead to the loss.

    Formulas read the gradients of later steps: the ``known`` ones, or those that formulas gave (the chain rule).
    Tensors may be shared between steps: do not write into them.
    """
    pending: dict[Place, Tensor] = {}
    for step, layer in reversed(trace.steps.rows):
        if not step.is_tensor:
            continue
        site = Site(trace, step, layer)
        if step.is_vocabulary and not step.to_loss:
            yield site, at_positions(trace.step(step.name), targets, cross_entropy_of_probs)
            continue
        if step.name == "logits":  # directly from the loss, without dividing by p
            pending[step.name, None] = at_positions(trace.step(step.name), targets, cross_entropy)
        gradient = pending.pop((step.name, layer), None)
        yield site, gradient
        if gradient is None or not step.to_loss:
            continue
        passed = passed_on(site, gradient if known is None else known(site))
        for source, found in zip(site.sources, site.operation.input_gradients(site, passed), strict=True):
            before = pending.get(source)
            pending[source] = found if before is None else before + found


def passed_on(site: Site, gradient: Tensor) -> Tensor:
    """The part of a step's gradient that reaches its inputs: 0 where an intervention replaced the step."""
    name, layer = site.step.name, site.layer
    if site.trace.is_exchanged(name, layer):
        return torch.zeros_like(gradient)
    gone = [head for head in range(len(gradient)) if site.trace.is_exchanged(name, layer, head)]
    if not site.step.is_split or not gone:
        return gradient
    gradient = gradient.clone()
    gradient[gone] = 0.0
    return gradient
