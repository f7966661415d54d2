"""Do the formulas give what autograd gives? Each of them, put to the gradients that autograd found behind it."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinytf.gradients.by_hand import passed_on, step_gradients
from tinytf.gradients.trace import GradientTrace
from tinytf.steps.operations.lookup import TOKEN_TABLE
from tinytf.tolerance import GRADIENT, allowed
from tinytf.trace.site import Site


@dataclass(frozen=True)
class Matched:
    """The gradient of a step or a parameter: the largest ``difference`` of both, and the ``largest`` entry.

    For a parameter that of the step that it made counts too: what is a sum of many of those rounds as they do, also
    where they cancel out (a bias of keys, which moves all scores of a row alike).
    """

    name: str
    difference: float
    largest: float

    @property
    def relative(self) -> float:
        """The difference in units of the largest entry; infinite where it is no number."""
        if not math.isfinite(self.difference):
            return math.inf
        return self.difference / self.largest if self.largest else (math.inf if self.difference else 0.0)


@dataclass(frozen=True)
class Agreement:
    """All that was compared: ``steps`` and ``parameters`` by their names."""

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
    """Every step and parameter by its formula, from autograd's gradients of the steps that were computed from it.

    So each formula answers for itself alone: what rounding adds up on the way through all of them is not counted.
    """
    steps: dict[str, Matched] = {}
    parameters: dict[str, Matched] = {}
    of_token_table: Tensor | None = None

    def known(site: Site) -> Tensor:
        return trace.grad.step(site.step.name, site.layer)

    for site, by_hand in step_gradients(trace, trace.targets, known):
        if by_hand is None or not site.step.to_loss:
            continue
        gradient = known(site)
        steps[site.name] = _compared(site.name, by_hand, gradient)
        for name, found in site.operation.parameter_gradients(site, passed_on(site, gradient)):
            if name == TOKEN_TABLE and site.step.is_vocabulary:
                of_token_table = found
                continue
            if name == TOKEN_TABLE and of_token_table is not None:
                found = found + of_token_table
            parameters[name] = _compared(name, found, trace.parameters[name], gradient)
    return Agreement(steps, parameters, allowed(GRADIENT, trace.last_hidden.dtype))


def _compared(name: str, by_hand: Tensor, gradient: Tensor, *scales: Tensor) -> Matched:
    largest = max(_largest(one) for one in (gradient, *scales))
    return Matched(name, _largest(by_hand - gradient), largest)


def _largest(tensor: Tensor) -> float:
    least, most = (float(end) for end in torch.aminmax(tensor))
    return max(most, -least)
