"""How the gradients and updates of one step are divided among the layers.

Groups are the layers of the model, ``L0`` …, and after them ``rest``: embeddings, final norm and head.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from tinytf.training.tuning.processes import Processes
from tinytf.training.tuning.sharding import own

_LAYER = re.compile(r"blocks\.(\d+)\.")
REST = "rest"


@dataclass(frozen=True)
class Health:
    """Of each group: the norm of its gradient before clipping, and that of its update as a share of its weights'.

    Of each layer, on the probes of the film: ``rms`` of its output, and ``dead``, the share of units without
    activation; see ``frames.Frame``.
    """

    groups: tuple[str, ...]
    gradient_norm: tuple[float, ...]
    update_ratio: tuple[float, ...]
    rms: tuple[float, ...] = ()
    dead: tuple[float, ...] = ()

    def of_activations(self, measured: Mapping[str, Tensor]) -> "Health":
        """These figures with what a frame measured."""
        found = {name: tuple(measured[name].tolist()) for name in ("rms", "dead") if name in measured}
        return replace(self, **found)

    def to_dict(self) -> dict[str, list[float]]:
        """Plain JSON data, four significant digits each; the groups are the layers in order, then the rest."""
        numbers = {name: values for name, values in vars(self).items() if name != "groups" and values}
        return {name: [float(f"{value:.4g}") for value in values] for name, values in numbers.items()}


def groups_of(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """The trained parameters of each group, the layers in their order."""
    found: dict[str, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            layer = _LAYER.search(name)
            found.setdefault(f"L{layer[1]}" if layer else REST, []).append(parameter)
    rest = found.pop(REST, [])
    return {**found, **({REST: rest} if rest else {})}


class StepHealth:
    """Measures one step: made after the backward pass and before clipping, asked after the optimiser's step."""

    @torch.no_grad()
    def __init__(self, model: nn.Module, processes: Processes) -> None:
        self.processes, self.groups = processes, groups_of(model)
        gradients = [[own(one.grad) for one in group if one.grad is not None] for group in self.groups.values()]
        self._norms = [self._norm(group) for group in gradients]
        self._before = [[own(one).clone() for one in group] for group in self.groups.values()]

    def _norm(self, parts: list[Tensor]) -> float:
        """The norm of tensors together; of a divided model every process has a part of each."""
        squares = sum(float(part.float().square().sum()) for part in parts)
        return float((self.processes.total(squares) if self.processes.shard else squares) ** 0.5)

    @torch.no_grad()
    def after(self) -> Health:
        """What the step did."""
        ratios = []
        for group, before in zip(self.groups.values(), self._before, strict=True):
            change = [own(now) - then for now, then in zip(group, before, strict=True)]
            weights = self._norm(before)
            ratios.append(self._norm(change) / weights if weights else 0.0)
        return Health(tuple(self.groups), tuple(self._norms), tuple(ratios))
