"""How the gradients and updates of one step are distributed over the layers.

Groups are the layers of the model, ``L0`` …, then ``rest``: embeddings, final norm, head, and an encoder that is read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from tinytf.training.tuning.processes import Processes
from tinytf.training.tuning.sharding import local_part

REST = "rest"


@dataclass(frozen=True)
class Health:
    """For each group: the norm of its gradient before clipping, and the ratio of the norms of its update and weights.

    For each layer, on the probes of the film: ``rms`` of its output, and ``dead``, the share of units without
    activation; see ``frames.Frame``.
    """

    groups: tuple[str, ...]
    gradient_norm: tuple[float, ...]
    update_ratio: tuple[float, ...]
    rms: tuple[float, ...] = ()
    dead: tuple[float, ...] = ()

    def with_activations(self, measured: Mapping[str, Tensor]) -> "Health":
        """These figures, with ``rms`` and ``dead`` from the tensors of a frame."""
        activations = {name: tuple(measured[name].tolist()) for name in ("rms", "dead") if name in measured}
        return replace(self, **activations)

    def to_dict(self) -> dict[str, list[float]]:
        """Plain JSON data, four significant digits each; the groups are the layers in order, then the rest."""
        numbers = {name: values for name, values in vars(self).items() if name != "groups" and values}
        return {name: [float(f"{value:.4g}") for value in values] for name, values in numbers.items()}


def layers_of(model: nn.Module) -> Sequence[nn.Module]:
    """The layers of a model: the longest of its lists of modules of one class, of those that lie least deep."""
    lists = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and len({*map(type, module)}) == 1
        if any(module[0].children())
    }
    name = min(lists, key=lambda name: (name.count("."), -len(lists[name])), default="")
    return list(lists[name]) if lists else []


def groups_of(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """The trained parameters of each group, layers in order."""
    group_of = {parameter: REST for parameter in model.parameters() if parameter.requires_grad}
    layers = list(enumerate(layers_of(model)))
    for number, layer in reversed(layers):  # what layers share belongs to the first
        group_of |= {parameter: f"L{number}" for parameter in layer.parameters() if parameter.requires_grad}
    groups: dict[str, list[nn.Parameter]] = {name: [] for name in (*(f"L{number}" for number, _ in layers), REST)}
    for parameter, group in group_of.items():
        groups[group].append(parameter)
    return {name: parameters for name, parameters in groups.items() if parameters}


class StepHealth:
    """Measures one step: create it after the backward pass, before clipping; call ``after`` after the step."""

    @torch.no_grad()
    def __init__(self, model: nn.Module, processes: Processes) -> None:
        self.processes, self.groups = processes, groups_of(model)
        gradients = [
            [local_part(parameter.grad) for parameter in group if parameter.grad is not None]
            for group in self.groups.values()
        ]
        self._norms = [self._norm(group) for group in gradients]
        self._before = {
            parameter: local_part(parameter).clone() for group in self.groups.values() for parameter in group
        }
        self._matrices = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter in self._before and parameter.dim() >= 2
        }

    def _norm(self, parts: list[Tensor]) -> float:
        """The joint norm of tensors, summed over processes where each has only a part of them."""
        squares = sum(float(part.float().square().sum()) for part in parts)
        return float((self.processes.total(squares) if self.processes.shard else squares) ** 0.5)

    @torch.no_grad()
    def _update_ratio(self, parameters: Sequence[nn.Parameter]) -> float:
        """The ratio of the norms of an update and of the weights before it; 0 for weights of zeros."""
        norm = self._norm([self._before[parameter] for parameter in parameters])
        changes = [local_part(parameter) - self._before[parameter] for parameter in parameters]
        return self._norm(changes) / norm if norm else 0.0

    def after(self) -> Health:
        """The health of the step."""
        return Health(tuple(self.groups), tuple(self._norms), tuple(map(self._update_ratio, self.groups.values())))

    def by_matrix(self) -> dict[str, float]:
        """The update ratio of each trained matrix after the step, with four significant digits."""
        ratios = {name: self._update_ratio([parameter]) for name, parameter in self._matrices.items()}
        return {name: float(f"{ratio:.4g}") for name, ratio in ratios.items()}
