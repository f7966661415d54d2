"""One step of AdamW, written out for single weights with their real numbers."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Update:
    """How one entry of a parameter changed at ``step`` (from 1), by Loshchilov and Hutter 2019, algorithm 2.

    ``gradient`` is ∂L/∂θ, ``clip`` the factor that clipping put on it, ``g`` their product; ``m`` and ``v`` the
    moments after the step, ``m_hat`` and ``v_hat`` corrected for their beginning at 0; ``decayed`` is θ·(1 − lr·λ);
    ``after`` is decayed − lr·m̂ / (√v̂ + ε), and ``torch`` what torch's optimiser made of it.
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


@dataclass(frozen=True)
class _Entry:
    name: str
    index: tuple[int, ...]
    before: float
    gradient: float
    m: float
    v: float
    parameter: Tensor


def _shown(model: nn.Module, most: int) -> list[tuple[str, nn.Parameter]]:
    """Some parameters from all depths, matrices before vectors."""
    named = [(name, p) for name, p in model.named_parameters() if p.grad is not None]
    named.sort(key=lambda one: one[1].dim() < 2)
    count = min(most, len(named))
    return [named[round(place * (len(named) - 1) / max(1, count - 1))] for place in range(count)]


class UpdateWatch:
    """Made after the backward pass and before clipping, asked after the optimiser's step: every number of the update.

    Of each of ``most`` parameters the entry with the largest gradient is written out.
    """

    def __init__(self, model: nn.Module, optimiser: torch.optim.AdamW, most: int = 6) -> None:
        self.optimiser = optimiser
        self.entries = [self._entry(name, parameter) for name, parameter in _shown(model, most)]

    def _entry(self, name: str, parameter: nn.Parameter) -> _Entry:
        assert parameter.grad is not None
        place = int(parameter.grad.abs().argmax())
        state = self.optimiser.state.get(parameter, {})
        m, v = (float(state[key].flatten()[place]) if key in state else 0.0 for key in ("exp_avg", "exp_avg_sq"))
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), parameter.shape))
        before, gradient = (float(tensor.detach().flatten()[place]) for tensor in (parameter, parameter.grad))
        return _Entry(name, index, before, gradient, m, v, parameter)

    def updates(self, norm: float, most: float) -> list[Update]:
        """After the step; ``norm`` is that of all gradients, clipped to ``most``."""
        factor = min(1.0, most / (norm + 1e-6))
        found = []
        for entry in self.entries:
            group = next(g for g in self.optimiser.param_groups if any(p is entry.parameter for p in g["params"]))
            found.append(self._update(entry, group, factor))
        return found

    def _update(self, entry: _Entry, group: dict[str, Any], factor: float) -> Update:
        lr, decay, epsilon = (float(group[key]) for key in ("lr", "weight_decay", "eps"))
        beta1, beta2 = group["betas"]
        step = int(self.optimiser.state[entry.parameter]["step"])
        g = entry.gradient * factor
        m = beta1 * entry.m + (1 - beta1) * g
        v = beta2 * entry.v + (1 - beta2) * g * g
        m_hat, v_hat = m / (1 - beta1**step), v / (1 - beta2**step)
        decayed = entry.before * (1 - lr * decay)
        return Update(
            name=entry.name,
            index=entry.index,
            step=step,
            before=entry.before,
            gradient=entry.gradient,
            clip=factor,
            g=g,
            m_before=entry.m,
            v_before=entry.v,
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
            torch=float(entry.parameter.detach()[entry.index]),
        )
