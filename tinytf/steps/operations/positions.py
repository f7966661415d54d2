"""One vector per position: learned, or fixed sines and cosines (Vaswani et al. 2017)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations.operation import Operation, Parameter, Pass
from tinytf.steps.operations.protocols import Cell, Site
from tinytf.steps.operations.rotate import table_length
from tinytf.steps.operations.working import Value, Working, single


def position_rows(g: Tensor, count: int, offset: int = 0) -> Tensor:
    """The gradient of the table: g in the rows from ``offset`` on, else 0: (T, C) -> (count, C)."""
    table = g.new_zeros(count, g.shape[-1])
    table[offset : offset + len(g)] = g
    return table


def halves_frequencies(width: int, halves: int) -> Tensor:
    """The frequencies of waves in halves, 10000^(−i/halves) radians a token, (width / 2,), in float32.

    Those of fairseq, for width/2 − 1, and of CTRL, for width/2, are each rounded as there.
    """
    numbers = torch.arange(width // 2).float()
    if halves == len(numbers):
        return torch.pow(10_000, numbers / halves).reciprocal()
    return (numbers * -(math.log(10_000) / halves)).exp()


@lru_cache(maxsize=8)
def _sinusoidal(length: int, d_model: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():
        position = torch.arange(length, dtype=torch.float64)[:, None]
        pair = torch.arange(0, d_model, 2, dtype=torch.float64)
        angle = position / 10_000 ** (pair / d_model)
        table = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)  # (T, C/2, 2) -> (T, C)
        return table.to(device=device, dtype=dtype)


@lru_cache(maxsize=8)
def _halves(length: int, d_model: int, device: torch.device, dtype: torch.dtype, halves: int) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():
        angle = (torch.arange(length).float()[:, None] * halves_frequencies(d_model, halves)).double()
        return torch.cat((angle.sin(), angle.cos()), dim=-1).to(device=device, dtype=dtype)


def sinusoidal_table(length: int, d_model: int, device: torch.device, dtype: torch.dtype, halves: int = 0) -> Tensor:
    """Sines in the even and cosines in the odd dimensions, (length, d_model), computed in float64.

    Vaswani et al. 2017, section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d_model)). With ``halves`` all sines come before
    all cosines, with the frequencies 10000^(−i/halves) and angles in float32, as in fairseq's models and CTRL.
    """
    size = (table_length(length), d_model, device, dtype)
    return (_halves(*size, halves) if halves else _sinusoidal(*size))[:length]


class LearnedPositions(nn.Module):
    """One learned vector per position; the first token has row ``offset``."""

    def __init__(self, offset: int, context: int, width: int) -> None:
        super().__init__()
        self.offset = offset
        self.weight = nn.Parameter(torch.empty(offset + context, width))

    def forward(self, ids: Tensor, dtype: torch.dtype, start: int = 0) -> Tensor:
        first = self.offset + start
        return self.weight[first : first + ids.shape[1]].to(dtype)  # (T, C)


class SinusoidalPositions(nn.Module):
    """Fixed sines and cosines (Vaswani et al. 2017); the first token has row ``offset``."""

    def __init__(self, offset: int, width: int, halves: int) -> None:
        super().__init__()
        self.offset, self.width, self.halves = offset, width, halves

    def forward(self, ids: Tensor, dtype: torch.dtype, start: int = 0) -> Tensor:
        first = self.offset + start
        return sinusoidal_table(first + ids.shape[1], self.width, ids.device, dtype, self.halves)[first:]  # (T, C)


@dataclass(frozen=True)
class Positions(Operation):
    """Rows from ``offset`` on of a learned table, or of sines and cosines.

    They alternate, or are in halves with the frequencies 10000^(−i/halves), where that is not 0.
    """

    learned: bool
    offset: int
    halves: int = 0

    words = "a position"

    def parameters(self, step: Step) -> tuple[Parameter, ...]:
        absent = "" if self.learned else "positions are sines and cosines, computed and not learned"
        return (Parameter(step.parameter, "weight", ("position", *step.axes[-1:]), absent=absent),)

    def make_module(self, config: ModelConfig, step: Step) -> nn.Module:
        width = config.sizes[step.axes[-1]]
        if self.learned:
            return LearnedPositions(self.offset, config.context, width)
        return SinusoidalPositions(self.offset, width, self.halves)

    def arguments(self, now: Pass, *inputs: Tensor) -> tuple[Any, ...]:
        assert now.table is not None, "positions are added to embeddings"
        return now.ids, now.table.dtype, now.start

    def derive(self, site: Site, heads: tuple[int, ...] | None = None) -> Tensor:
        like = site.trace.model.unembedding
        return site.module(torch.tensor([list(site.ids)], device=like.device), like.dtype)

    def parameter_gradients(self, site: Site, g: Tensor) -> Iterator[tuple[str, Tensor]]:
        if self.learned:
            yield f"{site.path}.weight", position_rows(g, len(site.module.weight), self.offset)

    def code(self, site: Site) -> str:
        if self.learned:
            return f"{site.variable} = P[{f'{self.offset}:{self.offset} + T' if self.offset else ':T'}]"
        width = site.config.summed_width
        if self.halves:
            papers = f"torch.pow(10_000, torch.arange({width // 2}) / {self.halves}).reciprocal()"
            fairseqs = f"(torch.arange({width // 2}) * {-math.log(10_000) / self.halves}).exp()"
            return (
                f"frequency = {papers if self.halves == width // 2 else fairseqs}\n"
                f"angle = torch.arange({self.offset}, {self.offset} + T)[:, None] * frequency\n"
                f"{site.variable} = torch.cat((angle.sin(), angle.cos()), dim=-1).to({site.value.dtype})"
            )
        return (
            f"frequency = 10_000.0 ** (-torch.arange(0, {width}, 2, dtype=torch.float64) / {width})\n"
            "angle = torch.arange(T)[:, None] * frequency\n"
            f"{site.variable} = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1).to({site.value.dtype})"
        )

    def arithmetic(self, cell: Cell) -> Working:
        """A learned row, or sin and cos of position · 10000^(−2i/d_model) (Vaswani et al. 2017, section 3.5).

        In halves the angle is rounded to float32, as in the model.
        """
        (token, width), d_model = cell.index, cell.site.config.summed_width
        if self.learned:
            row = self.offset + token
            return Working((), single(f"P[{row},{width}]", [("P", float(cell.site.module.weight[row, width]))]))
        if self.halves:
            half, row_number = d_model // 2, self.offset + token
            turn, wave_number = halves_frequencies(d_model, self.halves)[width % half], width // half
            before = (
                Value("frequency", float(turn), f"10000^(−{width % half}/{self.halves}), radians a token"),
                Value("angle", float(row_number * turn), f"row {row_number} × frequency"),
            )
            value = (math.sin, math.cos)[wave_number](float(row_number * turn))
            note = f"d{width} is in the {('first', 'second')[wave_number]} half"
            after = Value(("sin", "cos")[wave_number], value, f"{('sin', 'cos')[wave_number]}(angle), as {note}")
            return Working((), before=before, after=(after,))
        frequency = 10_000 ** (-(width // 2 * 2) / d_model)
        angle, wave = token * frequency, ("sin", "cos")[width % 2]
        before = (
            Value("frequency", frequency, f"10000^(−{width // 2 * 2}/{d_model}), radians a token"),
            Value("angle", angle, f"position {token} × frequency"),
        )
        value = (math.sin, math.cos)[width % 2](angle)
        after = Value(wave, value, f"{wave}(angle), as d{width} is {('even', 'odd')[width % 2]}")
        return Working((), before=before, after=(after,))
