"""The backward pass by hand, formula by formula, and how far each formula is from what autograd found."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tinytf.gradients.loss import Targets, at_positions, cross_entropy, cross_entropy_of_probs
from tinytf.gradients.trace import GradientTrace
from tinytf.steps.operations.lookup import TOKEN_TABLE
from tinytf.steps.table import Place
from tinytf.tolerance import Coarse, Compared, Ways, compare, telling
from tinytf.trace.faults import first_not_finite
from tinytf.trace.site import Site
from tinytf.trace.trace import Trace


@dataclass(frozen=True)
class Agreement:
    """Every comparison of a formula with autograd, from the loss back: ``steps`` and ``parameters`` by name.

    ``first_not_finite`` is the first step of the forward pass with NaN or infinity, where one does not hold.
    """

    steps: dict[str, Compared]
    parameters: dict[str, Compared]
    first_not_finite: str | None = None

    @property
    def items(self) -> tuple[Compared, ...]:
        return (*self.steps.values(), *self.parameters.values())

    @property
    def telling(self) -> Compared:
        return telling(self.items)

    @property
    def holds(self) -> bool:
        return self.telling.holds

    def to_dict(self) -> dict[str, Any]:
        told = self.telling
        return {
            "holds": self.holds,
            "steps": len(self.steps),
            "parameters": len(self.parameters),
            "at": told.step,
            "difference": told.difference,
            "of": told.scale,
            "relative": told.relative,
            "allowed": told.allowed,
            **({"first_not_finite": self.first_not_finite} if self.first_not_finite else {}),
        }


@torch.no_grad()
def agreement(trace: GradientTrace) -> Agreement:
    """Compare each formula with autograd, step by step and parameter by parameter.

    A formula gets autograd's gradients of the steps after it, so that rounding does not accumulate over the depth and
    each formula is judged alone.
    """
    dtype, coarse, underived = trace.last_hidden.dtype, Coarse(trace.model.parameters()), trace.underived()
    steps: dict[str, Compared] = {}
    parameters: dict[str, Compared] = {}
    makers: dict[str, list[Place]] = {}  # of each parameter, the steps that are made with it
    parts: dict[str, Tensor] = {}  # of parameters that a step before is made with too

    def known(site: Site) -> Tensor:
        return trace.grad.step(site.step.name, site.layer)

    def compared(
        name: str, by_hand: Tensor, gradient: Tensor, axis: int | None, again: Callable[[], Tensor]
    ) -> Compared:
        ways = Ways(name, "its formula", by_hand, gradient, axis)
        return compare(ways, dtype, coarse, lambda: replace(ways, found=again()))

    for site, by_hand in step_gradients(trace, trace.targets, known):
        if by_hand is None or not site.step.to_loss:
            continue
        place, gradient = (site.step.name, site.layer), known(site)
        again = partial(_of_step, trace, underived, place)
        steps[site.name] = compared(site.name, by_hand, gradient, site.step.token_axis, again)
        for name, found in site.operation.parameter_gradients(site, passed_on(site, gradient)):
            makers.setdefault(name, []).append(place)
            found = found + parts.pop(name, 0.0)
            if comes_again(site, name):
                parts[name] = found
                continue
            again = partial(_of_parameter, trace, underived, name, makers[name])
            parameters[name] = compared(name, found, trace.parameters[name], None, again)
    agreed = Agreement(steps, parameters)
    return agreed if agreed.holds else replace(agreed, first_not_finite=first_not_finite(trace))


def _of_step(trace: GradientTrace, underived: Trace, place: Place) -> Tensor:
    """The gradient of a step by its formula, from autograd's gradients of the steps that are computed from it."""
    if place[0] == "logits":
        return at_positions(underived.step("logits"), trace.targets, cross_entropy)
    consumers = ((Site(underived, step, layer), number) for step, layer, number in trace.steps.consumers(place))
    parts = [
        site.operation.input_gradients(site, passed_on(site, trace.grad.step(site.step.name, site.layer)))[number]
        for site, number in consumers
        if site.step.to_loss
    ]
    return sum(parts[1:], start=parts[0])


def _of_parameter(trace: GradientTrace, underived: Trace, name: str, makers: Sequence[Place]) -> Tensor:
    sites = [Site(underived, trace.steps.at(*place), place[1]) for place in makers]
    parts = [
        dict(site.operation.parameter_gradients(site, passed_on(site, trace.grad.step(site.step.name, site.layer))))
        for site in sites
    ]
    return sum((part[name] for part in parts[1:]), start=parts[0][name])


def comes_again(site: Site, parameter: str) -> bool:
    """Whether a step before this one has the same parameter: tied embeddings, or weights shared by layers or steps."""
    return not site.trace.steps.has_own(site.step, site.layer) or (parameter == TOKEN_TABLE and site.step.is_vocabulary)


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
