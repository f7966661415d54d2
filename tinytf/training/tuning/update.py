"""One step of AdamW, worked out for single weights."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from tinytf.errors import UsageError
from tinytf.nearest import did_you_mean
from tinytf.training.tuning.optimiser import clip_factor


@dataclass(frozen=True)
class Update:
    """How one entry of a parameter changed at ``step`` (from 1), by Loshchilov and Hutter 2019, algorithm 2.

    ``gradient`` is ∂loss/∂θ, ``clip`` the factor of clipping, ``g`` their product; ``m`` and ``v`` the moments after
    the step, ``m_hat`` and ``v_hat`` with bias correction; ``decayed`` is θ·(1 − lr·λ); ``after`` is
    decayed − lr·m̂ / (√v̂ + ε), and ``torch`` the result of torch's optimiser.
    """

    name: str
    index: tuple[int, ...]
    step: int
    before: float
    gradient: float
    clip: float
    g: float
    m_before: float
    v_before: float
    m: float
    v: float
    m_hat: float
    v_hat: float
    lr: float
    weight_decay: float
    beta1: float
    beta2: float
    epsilon: float
    decayed: float
    after: float
    torch: float

    @property
    def difference(self) -> float:
        return abs(self.after - self.torch)


_WEIGHT = re.compile(r"([^\[\]]+)(?:\[([0-9, ]+)\])?")


@dataclass(frozen=True)
class ChosenWeight:
    """A parameter whose update is worked out at ``index``, or where its gradient is largest."""

    name: str
    index: tuple[int, ...] | None = None


def choose_weight(model: nn.Module, text: str) -> ChosenWeight:
    """The parameter that ``text`` names, such as ``blocks.0.attention.q.weight``, or an entry of it: ``…[3,5]``.

    Raises UsageError for an unknown name or entry.
    """
    parameters = dict(model.named_parameters())
    match = _WEIGHT.fullmatch(text.strip())
    name = match[1] if match else text
    if match is None or name not in parameters:
        raise UsageError(f"the model has no weight {text!r}", did_you_mean(name, parameters))
    if match[2] is None:
        return ChosenWeight(name)
    shape = tuple(parameters[name].shape)
    try:
        index = tuple(int(number) for number in match[2].split(","))
    except ValueError:
        index = ()
    if len(index) != len(shape) or not all(0 <= number < size for number, size in zip(index, shape, strict=True)):
        sizes = " × ".join(str(size) for size in shape)
        raise UsageError(f"{text!r} is not an entry of {name}, which is {sizes}", "indices count from 0")
    return ChosenWeight(name, index)


def _spread_weights(model: nn.Module, limit: int) -> list[ChosenWeight]:
    """At most ``limit`` parameters with gradients, spread over all depths, matrices before vectors."""
    candidates = [(name, p) for name, p in model.named_parameters() if p.grad is not None]
    candidates.sort(key=lambda candidate: candidate[1].dim() < 2)
    count = min(limit, len(candidates))
    return [
        ChosenWeight(candidates[round(number * (len(candidates) - 1) / max(1, count - 1))][0])
        for number in range(count)
    ]


class UpdateWatch:
    """Records every number of an update: create it after the backward pass, before clipping; read it after the step.

    Watches the chosen ``weights``, or ``count`` parameters, each at its largest gradient.
    """

    def __init__(
        self, model: nn.Module, optimiser: torch.optim.Optimizer, weights: Sequence[ChosenWeight] = (), count: int = 6
    ) -> None:
        self.optimiser = optimiser
        self.entries = [
            self._entry(model.get_parameter(weight.name), weight) for weight in weights or _spread_weights(model, count)
        ]

    def _entry(self, parameter: nn.Parameter, weight: ChosenWeight) -> tuple[nn.Parameter, dict[str, Any]]:
        """A parameter, and the values of one of its entries before the step."""
        if parameter.grad is None:
            raise UsageError(f"{weight.name} has no gradient, so it has no update")
        index = weight.index
        if index is None:
            index = tuple(map(int, np.unravel_index(int(parameter.grad.abs().argmax()), tuple(parameter.shape))))
        state = self.optimiser.state.get(parameter, {})
        return parameter, {
            "name": weight.name,
            "index": index,
            "before": float(parameter.detach()[index]),
            "gradient": float(parameter.grad[index]),
            "m_before": float(state["exp_avg"][index]) if state else 0.0,
            "v_before": float(state["exp_avg_sq"][index]) if state else 0.0,
        }

    def updates(self, norm: float, max_norm: float) -> list[Update]:
        """The updates, after the step; ``norm`` is the norm of all gradients, clipped to ``max_norm``."""
        factor = clip_factor(norm, max_norm)
        return [self._update(parameter, entry, factor) for parameter, entry in self.entries]

    def _update(self, parameter: nn.Parameter, entry: Mapping[str, Any], factor: float) -> Update:
        group = next(g for g in self.optimiser.param_groups if any(p is parameter for p in g["params"]))
        lr, decay, epsilon = (float(group[key]) for key in ("lr", "weight_decay", "eps"))
        beta1, beta2 = group["betas"]
        step = int(self.optimiser.state[parameter]["step"])
        g = entry["gradient"] * factor
        m = beta1 * entry["m_before"] + (1 - beta1) * g
        v = beta2 * entry["v_before"] + (1 - beta2) * g * g
        m_hat, v_hat = m / (1 - beta1**step), v / (1 - beta2**step)
        decayed = entry["before"] * (1 - lr * decay)
        return Update(
            **entry,
            step=step,
            clip=factor,
            g=g,
            m=m,
            v=v,
            m_hat=m_hat,
            v_hat=v_hat,
            lr=lr,
            weight_decay=decay,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
            decayed=decayed,
            after=decayed - lr * m_hat / (math.sqrt(v_hat) + epsilon),
            torch=float(parameter.detach()[entry["index"]]),
        )
