"""The loss beside a point: one entry of a parameter or of a step changed by a little, and nothing else."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from tinytf.gradients.places import Drawn
from tinytf.gradients.trace import GradientTrace, losses_of
from tinytf.steps.operations import Activate
from tinytf.trace.site import Site
from tinytf.trace.taps import tapped

_LOGITS = 2**25
"""How many logits one batch of texts may have."""


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
        found: list[float] = []
        for losses in self._of_parameter(drawn, deltas) if drawn.step is None else self._of_step(drawn, deltas):
            if losses is None:
                return None
            found += losses
        return found

    def _of_step(self, drawn: Drawn, deltas: Sequence[float]) -> Iterator[list[float] | None]:
        assert drawn.step is not None
        batch = max(1, _LOGITS // (self._ids.shape[1] * self._trace.config.vocab_size))
        for first in range(0, len(deltas), batch):
            some = deltas[first : first + batch]
            yield self._passes(len(some), _adding(drawn.step, drawn.at, some))

    def _of_parameter(self, drawn: Drawn, deltas: Sequence[float]) -> Iterator[list[float] | None]:
        parameter = self._model.get_parameter(drawn.name)
        before = float(parameter[drawn.index])
        for delta in deltas:
            try:
                parameter[drawn.index] = before + delta
                losses = self._passes(1, lambda _, tensor: tensor)
            finally:
                parameter[drawn.index] = before
            yield losses

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
        if step.operation == Activate("relu"):
            name, within = trace.steps.sources(step, layer)[0]
            yield Site(trace, trace.steps.at(name, within), within)
