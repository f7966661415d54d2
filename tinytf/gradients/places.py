"""Which entries of parameters and steps are drawn to be measured: those that the loss can depend on."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.gradients.trace import GradientTrace
from tinytf.steps.operations import Add, Concat, Linear
from tinytf.steps.table import Place, Step, StepTable


@dataclass(frozen=True)
class Drawn:
    """An entry: its ``name`` and ``index``, the gradient by autograd there and at its ``largest``.

    ``size`` is the root mean square of the tensor's entries. ``step`` is where it is changed instead of in a
    parameter, and ``at`` its index there.
    """

    name: str
    index: tuple[int, ...]
    analytic: float
    largest: float
    size: float
    step: str | None
    at: tuple[int, ...]


class Places:
    """Draws entries of the steps and parameters of one trace."""

    def __init__(self, trace: GradientTrace, draw: random.Random) -> None:
        self._trace, self._draw = trace, draw
        config, length = trace.config, len(trace.tokens)
        self._visible = torch.ones(length, length, dtype=torch.bool)
        self._asked = sorted(set(trace.targets.positions))
        self._reached = range(max(self._asked) + 1) if config.causal else range(length)
        self._steps = [
            (step, layer)
            for step, layer in trace.steps.rows
            if step.to_loss
            and step.is_tensor
            and _instead(trace.steps, step, layer) is not None
            and (not step.is_map or self._queries(step, layer))
        ]
        self._parameters = [name for name in trace.parameters if not name.startswith("pooler.")]

    def step(self) -> Drawn:
        """An entry of a step: any step of any layer alike, whatever its size."""
        step, layer = self._draw.choice(self._steps)
        value, gradient = (t.step(step.name, layer) for t in (self._trace, self._trace.grad))
        index = self._index_in(step, layer, value)
        replaced, at = self._replaced(step, layer, index)
        return _drawn(step.full_name(layer), index, gradient, value, replaced, at)

    def parameter(self) -> Drawn:
        """An entry of a parameter; of the rows of a table those that the text uses."""
        name = self._draw.choice(self._parameters)
        gradient, value = self._trace.parameters[name], self._trace.model.get_parameter(name).detach()
        row = self._draw.choice(self._rows_of(name, len(value)))
        index = (row, *(self._draw.randrange(size) for size in value.shape[1:]))
        return _drawn(name, index, gradient, value, None, index)

    def _rows_of(self, name: str, count: int) -> Sequence[int]:
        config = self._trace.config
        if name == "embed.tokens.weight":
            looked_up = [self._trace.encoding.ids[position] for position in self._reached]
            return range(count) if config.tied_head and self._draw.random() < 0.5 else looked_up
        if name == "embed.positions.weight":
            return [config.position_offset + position for position in self._reached]
        return [0] if name == "embed.types.weight" else range(count)

    def _index_in(self, step: Step, layer: int | None, value: Tensor) -> tuple[int, ...]:
        if step.is_map:
            query = self._draw.choice(self._queries(step, layer))
            keys = self._allowed(layer)[query].nonzero().flatten().tolist()
            return self._draw.randrange(len(value)), query, self._draw.choice(keys)
        rows = self._rows(step, layer)
        axes = zip(step.axes, value.shape, strict=True)
        return tuple(self._draw.choice(rows) if axis == "token" else self._draw.randrange(n) for axis, n in axes)

    def _rows(self, step: Step, layer: int | None) -> Sequence[int]:
        """The positions at which a step leads to the loss: behind the last attention only those with a target."""
        last = step.role == "output" or step.from_stream if layer is None else layer == self._trace.config.n_layers - 1
        return self._asked if last and not _becomes_a_key(self._trace.steps, step, layer) else self._reached

    def _queries(self, step: Step, layer: int | None) -> list[int]:
        """Queries that see more than one key: the weight of a lone key is 1, whatever its score."""
        return [query for query in self._rows(step, layer) if int(self._allowed(layer)[query].sum()) > 1]

    def _allowed(self, layer: int | None) -> Tensor:
        found = self._trace.allowed(layer)
        return self._visible if found is None else found.cpu()

    def _replaced(self, step: Step, layer: int | None, index: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        table, at = self._trace.steps, index
        name, within = _instead(table, step, layer) or (step.name, layer)
        replaced = table.at(name, within)
        if isinstance(step.operation, Concat):
            at = (index[1] // self._trace.config.d_head, index[0], index[1] % self._trace.config.d_head)
        if step.has_heads and isinstance(step.operation, Linear):  # as it is projected: (T, H·D)
            at = (index[1], index[0] * self._trace.config.d_head + index[2])
        return replaced.full_name(within), at


def _instead(table: StepTable, step: Step, layer: int | None) -> Place | None:
    """The step where a change of ``step`` can be made: itself, or a part of a sum that goes nowhere else.

    None where there is no such step: what is only seen on its way into a module.
    """
    if step.replaceable:
        return step.name, layer
    if isinstance(step.operation, (Add, Concat)):
        for place in table.sources(step, layer):
            if len(table.consumers(place)) == 1 and (found := _instead(table, table.at(*place), place[1])):
                return found
    return None


def _becomes_a_key(table: StepTable, step: Step, layer: int | None) -> bool:
    """Whether other positions of the layer use a step, as keys and values."""
    return any(
        (one.core and number == 1) or (one.role in ("residual", "k", "v") and _becomes_a_key(table, one, layer))
        for one, within, number in table.consumers((step.name, layer))
        if within == layer
    )


def _drawn(
    name: str, index: tuple[int, ...], gradient: Tensor, value: Tensor, step: str | None, at: tuple[int, ...]
) -> Drawn:
    finite = value[value.isfinite()]
    size = math.sqrt(float(finite.square().mean())) if finite.numel() else 0.0
    return Drawn(name, index, float(gradient[index]), float(gradient.abs().max()), size or 1.0, step, at)
