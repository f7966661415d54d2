"""The loss beside a point: one entry of a parameter or of a step changed by a little, and nothing else."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from tinytf.gradients.graph import Site, sources
from tinytf.gradients.places import Drawn
from tinytf.gradients.trace import GradientTrace, losses_of
from tinytf.trace.taps import tapped


class Probe:
    """Losses of the text of ``trace`` with its model, in which an entry at a time is changed."""

    def __init__(self, trace: GradientTrace) -> None:
        self._trace, self._model = trace, trace.model
        self._ids = torch.tensor([trace.encoding.ids], device=next(trace.model.parameters()).device)
        self._positive = {site.name: site.value > 0 for site in _into_relu(trace)}

    @torch.no_grad()
    def losses(self, drawn: Drawn, deltas: Sequence[float]) -> list[float] | None:
        """The loss with each of ``deltas`` added to the entry, in nats.

        None where one of them takes an input of ReLU to the other side of 0: the loss is another function there.
        """
        if drawn.step is not None:
            return self._passes(len(deltas), _adding(drawn.step, drawn.at, deltas))
        parameter = self._model.get_parameter(drawn.name)
        before = float(parameter[drawn.index])
        found: list[float] = []
        try:
            for delta in deltas:
                parameter[drawn.index] = before + delta
                loss = self._passes(1, lambda _, tensor: tensor)
                if loss is None:
                    return None
                found += loss
        finally:
            parameter[drawn.index] = before
        return found

    def _passes(self, batch: int, change: Callable[[str, Tensor], Tensor]) -> list[float] | None:
        crossed = False

        def tap(name: str, tensor: Tensor) -> Tensor:
            nonlocal crossed
            tensor = change(name, tensor)
            if name in self._positive:
                crossed = crossed or bool(((tensor > 0) != self._positive[name]).any())
            return tensor

        with tapped(self._model, tap):
            logits = self._model(self._ids.expand(batch, -1))  # (B, T, V)
        return None if crossed else [float(losses_of(row, self._trace.targets).mean()) for row in logits]


def _adding(step: str, at: tuple[int, ...], deltas: Sequence[float]) -> Callable[[str, Tensor], Tensor]:
    index: tuple[Any, ...] = (slice(None), *at)

    def change(name: str, tensor: Tensor) -> Tensor:
        if name != step:
            return tensor
        changed = tensor.expand(len(deltas), *tensor.shape[tensor.dim() - len(at) :]).clone()  # positions have no batch
        changed[index] += torch.tensor(deltas, dtype=tensor.dtype, device=tensor.device)
        return changed

    return change


def _into_relu(trace: GradientTrace) -> Iterator[Site]:
    """The steps that ReLU is taken of."""
    for step, layer in trace.steps.rows:
        if step.name in ("ffn.act", "head.act") and Site(trace, step, layer).activation == "relu":
            name, within = sources(trace.steps, step, layer)[0]
            yield Site(trace, trace.steps.by_name[name], within)
