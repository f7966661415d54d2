"""The backward pass by hand, formula by formula, and the difference of each formula from autograd."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tinytf.counting import counted
from tinytf.gradients.loss import Targets, at_positions, cross_entropy, cross_entropy_of_probs
from tinytf.gradients.trace import GradientTrace
from tinytf.model.transformer import PATHS
from tinytf.steps.operations.lookup import TOKEN_TABLE
from tinytf.steps.table import StepKey
from tinytf.tolerance import Coarse, Comparison, TwoResults, compare, worst_or_first_failure
from tinytf.trace.faults import first_not_finite
from tinytf.trace.site import Site
from tinytf.trace.trace import Trace


@dataclass(frozen=True)
class Agreement:
    """All comparisons of a formula with autograd, from the loss back: ``steps`` and ``parameters`` by name.

    ``first_not_finite`` is the first step of the forward pass with NaN or infinity, if a comparison fails.
    """

    steps: dict[str, Comparison]
    parameters: dict[str, Comparison]
    first_not_finite: str | None = None

    @property
    def items(self) -> tuple[Comparison, ...]:
        return (*self.steps.values(), *self.parameters.values())

    @property
    def telling(self) -> Comparison:
        return worst_or_first_failure(self.items)

    @property
    def holds(self) -> bool:
        return self.telling.holds

    def to_dict(self) -> dict[str, Any]:
        telling = self.telling
        return {
            "holds": self.holds,
            "steps": len(self.steps),
            "parameters": len(self.parameters),
            "at": telling.step,
            "difference": telling.difference,
            "of": telling.scale,
            "relative": telling.relative,
            "allowed": telling.allowed,
            **({"first_not_finite": self.first_not_finite} if self.first_not_finite else {}),
        }


@torch.no_grad()
def agreement(trace: GradientTrace) -> Agreement:
    """Compare each formula with autograd, step by step and parameter by parameter, in both stacks where there are two.

    Each formula starts from autograd's gradients of the steps after it, so that rounding does not accumulate over the
    depth and each formula is judged alone.
    """
    found, shared = Agreement({}, {}), dict[str, Tensor]()
    for at, stack in trace.stacks.items():
        of_stack = _agreement(stack, trace.grad.step("source") if at else trace.targets, shared)
        steps = {at + name: replace(one, step=at + name) for name, one in of_stack.steps.items()}
        parameters = {
            PATHS[at] + name: replace(one, step=PATHS[at] + name) for name, one in of_stack.parameters.items()
        }
        first = of_stack.first_not_finite and at + of_stack.first_not_finite
        found = Agreement(steps | found.steps, parameters | found.parameters, found.first_not_finite or first)
    return found


def _agreement(trace: GradientTrace, loss: Targets | Tensor, shared: dict[str, Tensor]) -> Agreement:
    """The comparisons of one stack. What it has of a parameter that only the other stack lists goes into ``shared``."""
    dtype, coarse, underived = trace.last_hidden.dtype, Coarse(trace.model.parameters()), trace.underived()
    steps: dict[str, Comparison] = {}
    parameters: dict[str, Comparison] = {}
    users: dict[str, list[StepKey]] = {}  # the steps that use each parameter
    partial_sums = {name: shared[name] for name in shared if name in trace.parameters}  # of other uses, so far

    def autograd_gradient(site: Site) -> Tensor:
        return trace.grad.step(site.step.name, site.layer)

    def compare_with(
        name: str, by_hand: Tensor, gradient: Tensor, axis: int | None, recompute: Callable[[], Tensor]
    ) -> Comparison:
        ways = TwoResults(name, "its formula", by_hand, gradient, axis)
        return compare(ways, dtype, coarse, lambda: replace(ways, found=recompute()))

    for site, by_hand in step_gradients(trace, loss, autograd_gradient):
        if by_hand is None or not site.step.to_loss:
            continue
        place, gradient = (site.step.name, site.layer), autograd_gradient(site)
        recompute = partial(_step_gradient, trace, underived, place, loss)
        steps[site.name] = compare_with(site.name, by_hand, gradient, site.step.token_axis, recompute)
        for name, by_formula in site.operation.parameter_gradients(site, gradient_to_inputs(site, gradient)):
            users.setdefault(name, []).append(place)
            if name in partial_sums:
                by_formula = by_formula + partial_sums.pop(name)
            if name not in trace.parameters:
                shared[name] = by_formula
                continue
            if has_earlier_user(site, name):
                partial_sums[name] = by_formula
                continue
            recompute = partial(_parameter_gradient, trace, underived, name, users[name], shared.get(name))
            parameters[name] = compare_with(name, by_formula, trace.parameters[name], None, recompute)
    result = Agreement(steps, parameters)
    return result if result.holds else replace(result, first_not_finite=first_not_finite(trace))


def _step_gradient(trace: GradientTrace, underived: Trace, place: StepKey, loss: Targets | Tensor) -> Tensor:
    """The gradient of a step by its formula, from autograd's gradients of the steps computed from it."""
    if isinstance(loss, Tensor) and place == trace.steps.last:
        return loss
    if place[0] == "logits":
        return at_positions(underived.step("logits"), trace.targets, cross_entropy)
    consumers = ((Site(underived, step, layer), number) for step, layer, number in trace.steps.consumers(place))
    parts = [
        site.operation.input_gradients(site, gradient_to_inputs(site, trace.grad.step(site.step.name, site.layer)))[
            number
        ]
        for site, number in consumers
        if site.step.to_loss
    ]
    return sum(parts[1:], start=parts[0])


def _parameter_gradient(
    trace: GradientTrace, underived: Trace, name: str, users: Sequence[StepKey], beside: Tensor | None
) -> Tensor:
    """The gradient of a parameter from the steps that use it, and what it has ``beside``, of the other stack."""
    sites = [Site(underived, trace.steps.at(*place), place[1]) for place in users]
    parts = [
        dict(
            site.operation.parameter_gradients(
                site, gradient_to_inputs(site, trace.grad.step(site.step.name, site.layer))
            )
        )
        for site in sites
    ]
    found = sum((part[name] for part in parts[1:]), start=parts[0][name])
    return found if beside is None else found + beside


def has_earlier_user(site: Site, parameter: str) -> bool:
    """Whether an earlier step uses the same parameter: tied embeddings, or weights shared by layers or steps."""
    return not site.trace.steps.has_own(site.step, site.layer) or (parameter == TOKEN_TABLE and site.step.is_vocabulary)


@torch.no_grad()
def step_gradients(
    trace: Trace, loss: Targets | Tensor, known: Callable[[Site], Tensor] | None = None
) -> Iterator[tuple[Site, Tensor | None]]:
    """The gradient of each step by its formula, last step first; None for a step that does not lead to the loss.

    The ``loss`` is the mean cross-entropy of targets, or the gradient (T, C) that the last hidden states have of it.
    Formulas read the gradients of later steps: from ``known`` if given, else from their formulas (the chain rule).
    Tensors may be shared between steps: do not write into them.
    """
    pending: dict[StepKey, Tensor] = {trace.steps.last: loss} if isinstance(loss, Tensor) else {}
    for step, layer in counted("steps taken back:", trace.steps.rows[::-1]):
        if not step.is_tensor:
            continue
        site = Site(trace, step, layer)
        if step.is_vocabulary and not step.to_loss and isinstance(loss, Targets):
            yield site, at_positions(trace.step(step.name), loss, cross_entropy_of_probs)
            continue
        if step.name == "logits" and isinstance(loss, Targets):  # directly from the loss, without dividing by p
            pending[step.name, None] = at_positions(trace.step(step.name), loss, cross_entropy)
        gradient = pending.pop((step.name, layer), None)
        yield site, gradient
        if gradient is None or not step.to_loss:
            continue
        passed = gradient_to_inputs(site, gradient if known is None else known(site))
        for source, part in zip(site.sources, site.operation.input_gradients(site, passed), strict=True):
            earlier_sum = pending.get(source)
            pending[source] = part if earlier_sum is None else earlier_sum + part


def gradient_to_inputs(site: Site, gradient: Tensor) -> Tensor:
    """The part of a step's gradient that reaches its inputs: 0 if an intervention replaced the step."""
    name, layer = site.step.name, site.layer
    if site.trace.is_exchanged(name, layer):
        return torch.zeros_like(gradient)
    replaced = [head for head in range(len(gradient)) if site.trace.is_exchanged(name, layer, head)]
    if not site.step.is_split or not replaced:
        return gradient
    gradient = gradient.clone()
    gradient[replaced] = 0.0
    return gradient
