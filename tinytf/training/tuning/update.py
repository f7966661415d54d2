"""One step of AdamW, written out for single weights."""

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
class Chosen:
    """A parameter to write out, at ``index``, or where its gradient is largest."""

    name: str
    index: tuple[int, ...] | None = None


def chosen(model: nn.Module, text: str) -> Chosen:
    """The parameter that ``text`` names, such as ``blocks.0.attention.q.weight``, or one entry of it: ``…[3,5]``.

    Raises UsageError for an unknown name or entry.
    """
    parameters = dict(model.named_parameters())
    match = _WEIGHT.fullmatch(text.strip())
    name = match[1] if match else text
    if match is None or name not in parameters:
        raise UsageError(f"the model has no weight {text!r}", did_you_mean(name, parameters))
    if match[2] is None:
        return Chosen(name)
    shape = tuple(parameters[name].shape)
    try:
        index = tuple(int(number) for number in match[2].split(","))
    except ValueError:
        index = ()
    if len(index) != len(shape) or not all(0 <= number < size for number, size in zip(index, shape, strict=True)):
        sizes = " × ".join(str(size) for size in shape)
        raise UsageError(f"{text!r} is no entry of {name}, which is {sizes}", "its numbers count from 0")
    return Chosen(name, index)


def _shown(model: nn.Module, most: int) -> list[Chosen]:
    """Some parameters from all depths, matrices before vectors."""
    named = [(name, p) for name, p in model.named_parameters() if p.grad is not None]
    named.sort(key=lambda one: one[1].dim() < 2)
    count = min(most, len(named))
    return [Chosen(named[round(place * (len(named) - 1) / max(1, count - 1))][0]) for place in range(count)]


class UpdateWatch:
    """Every number of an update: made after the backward pass and before clipping, read after the optimiser's step.

    Of the chosen ``weights``, or of ``most`` parameters, each at its largest gradient.
    """

    def __init__(
        self, model: nn.Module, optimiser: torch.optim.Optimizer, weights: Sequence[Chosen] = (), most: int = 6
    ) -> None:
        self.optimiser = optimiser
        self.entries = [self._entry(model.get_parameter(one.name), one) for one in weights or _shown(model, most)]

    def _entry(self, parameter: nn.Parameter, which: Chosen) -> tuple[nn.Parameter, dict[str, Any]]:
        """A parameter, and one of its entries before the step."""
        if parameter.grad is None:
            raise UsageError(f"{which.name} has no gradient, so it has no update")
        index = which.index
        if index is None:
            index = tuple(map(int, np.unravel_index(int(parameter.grad.abs().argmax()), tuple(parameter.shape))))
        state = self.optimiser.state.get(parameter, {})
        return parameter, {
            "name": which.name,
            "index": index,
            "before": float(parameter.detach()[index]),
            "gradient": float(parameter.grad[index]),
            "m_before": float(state["exp_avg"][index]) if state else 0.0,
            "v_before": float(state["exp_avg_sq"][index]) if state else 0.0,
        }

    def updates(self, norm: float, most: float) -> list[Update]:
        """After the step; ``norm`` is that of all gradients, clipped to ``most``."""
        factor = clip_factor(norm, most)
        return [self._update(parameter, known, factor) for parameter, known in self.entries]

    def _update(self, parameter: nn.Parameter, known: Mapping[str, Any], factor: float) -> Update:
        group = next(g for g in self.optimiser.param_groups if any(p is parameter for p in g["params"]))
        lr, decay, epsilon = (float(group[key]) for key in ("lr", "weight_decay", "eps"))
        beta1, beta2 = group["betas"]
        step = int(self.optimiser.state[parameter]["step"])
        g = known["gradient"] * factor
        m = beta1 * known["m_before"] + (1 - beta1) * g
        v = beta2 * known["v_before"] + (1 - beta2) * g * g
        m_hat, v_hat = m / (1 - beta1**step), v / (1 - beta2**step)
        decayed = known["before"] * (1 - lr * decay)
        return Update(
            **known,
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
            torch=float(parameter.detach()[known["index"]]),
        )
