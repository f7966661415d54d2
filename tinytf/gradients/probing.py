"""Draw entries of parameters and steps that the loss can depend on, and measure the loss with one entry changed."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tinytf.gradients.trace import GradientTrace, losses_of
from tinytf.model.transformer import Source, run_each
from tinytf.parts.row import Step
from tinytf.steps.operations import Operation
from tinytf.steps.table import StepTable
from tinytf.trace.hooks import tap_steps
from tinytf.trace.site import Site
from tinytf.trace.trace import Trace

_LOGITS = 2**25
"""The most logits of one batch of texts."""


@dataclass(frozen=True)
class ProbedEntry:
    """An entry of a parameter or step, with autograd's gradient (``analytic``) and the ``largest`` of the tensor.

    ``size`` is the root mean square of the tensor's entries. For a step, the entry is changed at ``step``, index
    ``at``; for a parameter ``step`` is None.
    """

    name: str
    index: tuple[int, ...]
    analytic: float
    largest: float
    size: float
    step: str | None
    at: tuple[int, ...]


class Draw:
    """Draws entries of the parameters and steps of one trace."""

    def __init__(self, trace: GradientTrace, random_numbers: random.Random) -> None:
        self._trace, self._random = trace, random_numbers
        config, length = trace.config, len(trace.tokens)
        self._visible = torch.ones(length, length, dtype=torch.bool)
        self._target_positions = sorted(set(trace.targets.positions))
        self._read_positions = range(length if config.looks_ahead else max(self._target_positions) + 1)
        self._steps = [
            (step, layer)
            for step, layer in trace.steps.rows
            if step.to_loss and step.is_tensor and (not step.is_map or self._queries(step, layer))
        ]
        unused = {step.module for step in trace.steps.after if step.module and not step.to_loss}
        self._parameters = [name for name in trace.parameters if name.rpartition(".")[0] not in unused]

    def step(self) -> ProbedEntry:
        """An entry of a step; every step of every layer is equally likely, whatever its size."""
        step, layer = self._random.choice(self._steps)
        value, gradient = (t.step(step.name, layer) for t in (self._trace, self._trace.grad))
        index = self._index_in(step, layer, value)
        name = step.full_name(layer)
        return _entry(name, index, gradient, value, name, self._in_model(step, layer, index))

    def parameter(self) -> ProbedEntry:
        """An entry of a parameter; in a table, of a row that the text uses."""
        name = self._random.choice(self._parameters)
        gradient, value = self._trace.parameters[name], self._trace.model.get_parameter(name).detach()
        row = self._random.choice(self._rows_of(name, len(value)))
        index = (row, *(self._random.randrange(size) for size in value.shape[1:]))
        return _entry(name, index, gradient, value, None, index)

    def _rows_of(self, name: str, count: int) -> Sequence[int]:
        config = self._trace.config
        if name == "embed.tokens.weight":
            looked_up = [self._trace.encoding.ids[position] for position in self._read_positions]
            return range(count) if config.tied_head and self._random.random() < 0.5 else looked_up
        if name == "embed.positions.weight":
            return [config.position_offset + position for position in self._read_positions]
        return [0] if name == "embed.types.weight" else range(count)

    def _index_in(self, step: Step, layer: int | None, value: Tensor) -> tuple[int, ...]:
        if step.is_map:
            query = self._random.choice(self._queries(step, layer))
            keys = self._allowed(step, layer)[query].nonzero().flatten().tolist()
            return self._random.randrange(len(value)), query, self._random.choice(keys)
        rows = self._rows(step, layer)
        axes = zip(step.axes, value.shape, strict=True)
        return tuple(
            self._random.choice(rows) if axis in ("token", "query") else self._random.randrange(n) for axis, n in axes
        )

    def _rows(self, step: Step, layer: int | None) -> Sequence[int]:
        """The positions where a step leads to the loss: after the last attention, only those with a target."""
        last = step.role == "output" or step.from_stream if layer is None else layer == self._trace.config.n_layers - 1
        return (
            self._target_positions
            if last and not _becomes_a_key(self._trace.steps, step, layer)
            else self._read_positions
        )

    def _queries(self, step: Step, layer: int | None) -> list[int]:
        """Queries that see more than one key: the weight of a lone key is 1, whatever its score."""
        return [query for query in self._rows(step, layer) if int(self._allowed(step, layer)[query].sum()) > 1]

    def _allowed(self, step: Step, layer: int | None) -> Tensor:
        if step.of_source:  # which a target sees whole
            return torch.ones_like(self._trace.step(step.name, layer)[0], dtype=torch.bool)
        mask = self._trace.allowed(layer, blocks=self._trace.steps.of_blocks(step, layer))
        return self._visible if mask is None else mask.cpu()

    def _in_model(self, step: Step, layer: int | None, index: tuple[int, ...]) -> tuple[int, ...]:
        """The index of a step's number in the output of the model's module."""
        if step.has_heads and step.operation is not None and step.operation.side_by_side:  # (T, H·D)
            return (index[1], index[0] * self._trace.config.at(layer).sizes[step.axes[-1]] + index[2])
        return index


def _becomes_a_key(table: StepTable, step: Step, layer: int | None) -> bool:
    """Whether other positions of the layer use a step through keys and values."""
    return any(
        (consumer.core and number == 1 and "token" in step.axes)
        or (consumer.role in ("residual", "k", "v") and _becomes_a_key(table, consumer, layer))
        for consumer, consumer_layer, number in table.consumers((step.name, layer))
        if consumer_layer == layer
    )


def _entry(
    name: str, index: tuple[int, ...], gradient: Tensor, value: Tensor, step: str | None, at: tuple[int, ...]
) -> ProbedEntry:
    finite = value[value.isfinite()]
    size = math.sqrt(float(finite.square().mean())) if finite.numel() else 0.0
    return ProbedEntry(name, index, float(gradient[index]), float(gradient.abs().max()), size or 1.0, step, at)


class LossProbe:
    """Losses of a trace's text with its model, one entry changed at a time."""

    def __init__(self, trace: GradientTrace) -> None:
        self._trace, self._model = trace, trace.model
        self._kinks = {
            at + site.name: (operation, number)
            for at, stack in trace.stacks.items()
            for site, operation, number in _kinked_inputs(stack)
        }
        self._sides: dict[str, Tensor] = {}
        with torch.no_grad():
            self._passes(1, lambda _, tensor: tensor)

    @torch.no_grad()
    def losses(self, entry: ProbedEntry, deltas: Sequence[float]) -> list[float] | None:
        """The loss in nats with each of ``deltas`` added to the entry.

        None if one of them moves a number across a kink, such as ReLU's: beyond it the loss is a different function.
        """
        all_losses: list[float] = []
        for losses in self._of_parameter(entry, deltas) if entry.step is None else self._of_step(entry, deltas):
            if losses is None:
                return None
            all_losses += losses
        return all_losses

    def _of_step(self, entry: ProbedEntry, deltas: Sequence[float]) -> Iterator[list[float] | None]:
        batch = max(1, _LOGITS // (len(self._trace.tokens) * self._trace.config.n_outcomes))
        index: tuple[Any, ...] = (slice(None), *entry.at)
        for first in range(0, len(deltas), batch):
            chunk = deltas[first : first + batch]

            def change(name: str, tensor: Tensor, chunk: Sequence[float] = chunk) -> Tensor:
                if name != entry.step:
                    return tensor
                shape = tensor.shape[tensor.dim() - len(entry.at) :]  # positions have no batch axis
                changed = tensor.expand(len(chunk), *shape).clone()
                changed[index] += torch.tensor(chunk, dtype=tensor.dtype, device=tensor.device)
                return changed

            yield self._passes(len(chunk), change)

    def _of_parameter(self, entry: ProbedEntry, deltas: Sequence[float]) -> Iterator[list[float] | None]:
        parameter = self._model.get_parameter(entry.name)
        original = float(parameter[entry.index])
        for delta in deltas:
            try:
                parameter[entry.index] = original + delta
                losses = self._passes(1, lambda _, tensor: tensor)
            finally:
                parameter[entry.index] = original
            yield losses

    def _passes(self, batch: int, change: Callable[[str, Tensor], Tensor]) -> list[float] | None:
        crossed = False

        def tap(at: str, name: str, tensor: Tensor) -> Tensor:
            nonlocal crossed
            name = at + name
            tensor = change(name, tensor)
            if name in self._kinks:
                operation, number = self._kinks[name]
                side = operation.side(number, tensor)
                assert side is not None, "the operation has a kink"
                crossed = crossed or bool((side != self._sides.setdefault(name, side)).any())
            return tensor

        def run(at: str, source: Source | None) -> Tensor:  # of every stack: its parameters may be changed too
            trace = self._trace.stacks[at]
            ids = torch.tensor([trace.encoding.ids], device=next(trace.model.parameters()).device)
            return trace.model.hidden(ids.expand(1 if at else batch, -1), source=source)

        with ExitStack() as taps:
            for at, stack in self._trace.stacks.items():
                taps.enter_context(tap_steps(stack.model, partial(tap, at)))
            logits = self._model.unembed(run_each(self._trace.stacks, run))  # (B, T, V)
        return None if crossed else [float(losses_of(row, self._trace.targets).mean()) for row in logits]


def _kinked_inputs(trace: Trace) -> Iterator[tuple[Site, Operation, int]]:
    """The inputs of operations with a kink, such as ReLU: the step, the operation, and the number of the input."""
    for step, layer in trace.steps.rows:
        for number, (name, source_layer) in enumerate(trace.steps.sources(step, layer)):
            if step.operation is not None and step.operation.side(number, torch.zeros(1)) is not None:
                yield Site(trace, trace.steps.at(name, source_layer), source_layer), step.operation, number
