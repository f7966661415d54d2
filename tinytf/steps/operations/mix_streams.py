"""Sums of residual streams, by constants and by weights computed from the text: AltUp (Baykal et al. 2023)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.operation import Consumer, Operation, Quantity, Summand, dimension
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.working import Working, product


def _place(cell: Cell) -> str:
    """Which stream of its step a cell is in, and where."""
    return dimension(cell.step.axes[-1], cell.index[1], cell.site.config)


def _weighted_sum(factors: Sequence[float], streams: Sequence[Tensor]) -> Tensor:
    """The sum of the streams with a factor other than 0; zeros where there are none."""
    used = [x if factor == 1 else x * factor for factor, x in zip(factors, streams, strict=True) if factor]
    total = used[0] if used else torch.zeros_like(streams[0])
    for x in used[1:]:
        total = total + x
    return total


@dataclass(frozen=True)
class MixStreams(Operation):
    """Streams side by side, (…, T, n·C) -> (…, T, m·C): each of the m is a sum of the n, by its row of ``constants``.

    The n are those of all inputs. If ``weighted``, the last input (…, T, m·k) is added to the columns of the k streams
    of the first.
    """

    constants: tuple[tuple[float, ...], ...]
    weighted: int = 0

    words = "a sum of products"

    def forward(self, *inputs: Tensor) -> Tensor:
        streams = inputs[:-1] if self.weighted else inputs
        width = sum(x.shape[-1] for x in streams) // len(self.constants[0])
        apart = [x.unflatten(-1, (-1, width)) for x in streams]
        columns = [column for x in apart for column in x.unbind(-2)]
        rows = [_weighted_sum(row, columns) for row in self.constants]
        mixed = torch.stack(torch.broadcast_tensors(*rows), dim=-2)
        if self.weighted:
            mixed = mixed + self._weights(inputs[-1]).to(mixed.dtype) @ apart[0]
        return mixed.flatten(-2)

    def _streams(self, *inputs: Tensor) -> Tensor:
        """The streams of all inputs, (…, T, n, C)."""
        streams = inputs[:-1] if self.weighted else inputs
        return torch.cat(streams, dim=-1).unflatten(-1, (len(self.constants[0]), -1))

    def _weights(self, weights: Tensor) -> Tensor:
        """(…, T, m·k) -> (…, T, m, k)."""
        return weights.unflatten(-1, (len(self.constants), self.weighted))

    def factors(self, *inputs: Tensor) -> Tensor:
        """What multiplies each stream in each sum, (m, n), or (…, T, m, n) where it depends on the token."""
        constants = torch.tensor(self.constants, dtype=inputs[0].dtype, device=inputs[0].device)
        if not self.weighted:
            return constants
        weights = self._weights(inputs[-1])
        rest = weights.new_zeros(*weights.shape[:-1], constants.shape[-1] - self.weighted)
        return constants + torch.cat((weights, rest), dim=-1)

    def of_input(self, number: int, x: Tensor, inputs: Sequence[Tensor]) -> Tensor:
        """What vectors x (N, k·C) give in the place of one input; the weights are those of a token's ``inputs``."""
        width = sum(map(len, inputs[:-1] if self.weighted else inputs)) // len(self.constants[0])
        first, streams = sum(map(len, inputs[:number])) // width, x.unflatten(-1, (-1, width))
        of_input = self.factors(*inputs)[:, first : first + streams.shape[1]]  # (m, k)
        return (of_input @ streams).flatten(-2)

    def _widths(self, site: Site) -> list[int]:
        """How many numbers a token has in each input that holds streams."""
        inputs = site.inputs()
        return [x.shape[-1] for x in (inputs[:-1] if self.weighted else inputs)]

    def input_gradients(self, site: Site, g: Tensor) -> tuple[Tensor, ...]:
        """Each stream's is the sum of those it is in, times their factors; a weight's is g·x of its two streams."""
        inputs = site.inputs()
        g = g.unflatten(-1, (len(self.constants), -1))  # (T, m, C)
        of_streams = (self.factors(*inputs).mT @ g).flatten(-2).split(self._widths(site), dim=-1)
        if not self.weighted:
            return of_streams
        return *of_streams, (g @ self._streams(*inputs)[..., : self.weighted, :].mT).flatten(-2)

    def code(self, site: Site) -> str:
        *streams, weights = site.names if self.weighted else (*site.names, "")
        count, wanted = len(self.constants[0]), len(self.constants)
        dtype = f"dtype={streams[0]}.dtype"
        joined = f"torch.cat(({', '.join(streams)},), dim=-1).unflatten(-1, ({count}, -1))"
        summed = f"torch.tensor({self.constants}, {dtype}) @ streams"
        if weights:
            summed += f" + {weights}.unflatten(-1, ({wanted}, {self.weighted})) @ streams[:, :{self.weighted}]"
        return f"streams = {joined}\n{site.variable} = ({summed}).flatten(-2)"

    def arithmetic(self, cell: Cell) -> Working:
        token, column = cell.index
        width = cell.site.value.shape[-1] // len(self.constants)
        row, column = divmod(column, width)
        cells = [
            cell.source(number, token, first + column)
            for number, size in enumerate(self._widths(cell.site))
            for first in range(0, size, width)
        ]
        factors = torch.tensor(self.constants[row], dtype=torch.float64)
        weights = [
            cell.source(len(cell.site.source_steps) - 1, token, row * self.weighted + k) for k in range(self.weighted)
        ]
        for k, weight in enumerate(weights):
            factors[k] += weight.value
        used = [j for j, factor in enumerate(self.constants[row]) if factor or j < self.weighted]
        values = torch.tensor([cells[j].value for j in used], dtype=torch.float64)
        series = product(
            ("x", "factor"),
            (values, factors[used]),
            lambda i: f"{cells[used[i]].step.name} {_place(cells[used[i]])}",
            lambda i: (cells[used[i]], *weights[used[i] : used[i] + 1]),
        )
        return Working(tuple((source, 2) for source in [*(cells[j] for j in used), *weights]), series)

    def summand(self, to: Consumer) -> Summand:
        g, inputs, place = to.incoming, to.site.inputs(), to.row.place
        rows = g.values.unflatten(0, (len(self.constants), -1))  # (m, C)
        if self.weighted and to.number == len(inputs) - 1:
            x = self._streams(*inputs)[place, : self.weighted]  # (k, C)
            quantities = (g, *(Quantity(f"stream {k} of {to.site.step.name}", row) for k, row in enumerate(x)))
            return Summand(f"{g.name}·streamᵀ", (rows @ x.T).flatten(), ("of each pair of streams",), quantities)
        factors = self.factors(*inputs)
        factors = factors[place] if self.weighted else factors
        widths = self._widths(to.site)
        result = (factors.T @ rows).flatten().split(widths)[to.number]
        first = sum(widths[: to.number]) // rows.shape[1]
        of_input = factors[:, first : first + widths[to.number] // rows.shape[1]]
        names = (f"w of stream {k} in {to.site.step.name}" for k in range(of_input.shape[1]))
        quantities = (g, *map(Quantity, names, of_input.T))
        return Summand(f"Σ w·{g.name} over the sums", result, ("w: what multiplies a stream in each sum",), quantities)

    def multiply_adds(self, config: ModelConfig, step: Step, tokens: int, keys: int) -> int:
        return tokens * len(self.constants) * self.weighted * config.d_model
