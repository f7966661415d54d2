"""The positions of a model, as for a picture: waves over positions and dimensions, and their wavelengths.

Shapes: P positions, W waves (pairs of dimensions), C model width.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.report import About, Data, Report, Verified
from tinytf.steps.operations.positions import (
    LearnedPositions,
    SinusoidalPositions,
    halves_frequencies,
    sinusoidal_table,
)
from tinytf.steps.operations.rotate import rotary_frequencies, rotary_table, rotate
from tinytf.tables import Array
from tinytf.text_model import TextModel

LENGTH = 64
"""The number of positions read of fixed waves; learned positions are read completely."""
DISTANCES = (0, 1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Wave(Data):
    """One wave: its ``dimensions``, its angle per position in radians, and its length in positions.

    For a learned dimension it is measured: the strongest period of its values, with its ``share`` of their variance.
    """

    dimensions: tuple[int, ...]
    frequency: float
    wavelength: float
    share: float = 1.0


@dataclass(frozen=True, eq=False)
class Positions(Report):
    """The positions of a model; ``how`` is sinusoidal, learned or rotary.

    ``table`` has the ``sines`` and ``cosines`` (P, W), or the ``learned`` table (P, C). ``similarity`` is the cosine of
    two positions at each of ``DISTANCES``, averaged over the table; for RoPE it is the mean cosine of the angles
    between them. ``check`` compares the model's numbers with the formula; learned positions have none.
    """

    KIND = "positions"
    EVENTS: ClassVar = {"waves": "wave"}

    how: str
    formula: str
    context: int
    table: Mapping[str, Tensor]
    waves: tuple[Wave, ...]
    similarity: tuple[float, ...]
    check: Verified | None = None

    def fields(self) -> dict[str, Any]:
        distances = [{"distance": k, "cosine": c} for k, c in zip(DISTANCES, self.similarity, strict=False)]
        return {**self.members("how", "formula", "context", "waves"), "similarity": distances, **self.members("check")}

    def stored(self) -> list[Array]:
        axes = ["position", "d_model" if self.how == "learned" else "wave"]
        return [Array.of(name, axes, tensor) for name, tensor in self.table.items()]


@torch.no_grad()
def positions(model: TextModel) -> Positions:
    """The positions of a model, of the first layer with RoPE if they differ. Raises UsageError if it has none."""
    return replace(positions_of(model.transformer), about=About(model))


def positions_of(model: Transformer) -> Positions:
    """The positions of a transformer; see ``positions``."""
    module = getattr(model.embed, "positions", None)
    if isinstance(module, SinusoidalPositions):
        return _sinusoidal(model.config, module)
    if isinstance(module, LearnedPositions):
        return _learned(model.config, module)
    if model.config.positions == "rotary":
        return _rotary(model.config.at(model.config.rotary_layers[0]))
    if model.config.positions == "alibi":
        raise UsageError(
            "the positions of this model are distances alone: scores fall by a slope of each head (ALiBi)",
            "tinytf explain TEXT 'L0H0.biased[2,0]' shows one",
        )
    raise UsageError("this model has no positions", "tinytf info shows what a model has")


def _sinusoidal(config: ModelConfig, module: SinusoidalPositions) -> Positions:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), 2i + 1 the cosine (Vaswani et al. 2017, section 3.5)."""
    length, width = min(LENGTH, config.context), config.summed_width
    half = width // 2
    if module.halves:
        own_table = sinusoidal_table(length, width, torch.device("cpu"), torch.float32, module.halves)
        table = {"sines": own_table[:, :half], "cosines": own_table[:, half:]}
        frequencies = halves_frequencies(width, module.halves).double().tolist()
        waves = tuple(Wave((i, i + half), f, 2 * math.pi / f) for i, f in enumerate(frequencies))
        formula = f"di, di+{half} = sin, cos of (pos + {module.offset}) / 10000^(i/{module.halves})"
        checked = _checked(table, frequencies)
        return Positions("sinusoidal", formula, config.context, table, waves, _similarity(own_table), checked)
    own_table = module(torch.zeros(1, length), torch.float32).cpu()  # (P, C)
    table = {"sines": own_table[:, 0::2], "cosines": own_table[:, 1::2]}
    frequencies = [10_000 ** (-2 * pair / width) for pair in range(width // 2)]
    waves = tuple(Wave((2 * i, 2 * i + 1), f, 2 * math.pi / f) for i, f in enumerate(frequencies))
    formula = f"d2i, d2i+1 = sin, cos of pos / 10000^(2i/{width})"
    return Positions(
        "sinusoidal", formula, config.context, table, waves, _similarity(own_table), _checked(table, frequencies)
    )


def _rotary(config: ModelConfig) -> Positions:
    """The pairs of RoPE: at position p pair i turns by p·θ^(−2i/width), stretched by the scaling (Su et al. 2021)."""
    length = min(LENGTH, config.context)
    rope = config.rope.of_text(length)
    half = rope.width // 2
    tables = rotary_table(length, rope, torch.device("cpu"), torch.float32)
    rotated = rotate(torch.cat((torch.ones(length, half), torch.zeros(length, half)), dim=-1), *tables)  # (P, width)
    rotated = rotated / rope.attention_factor
    table = {"sines": rotated[:, half:], "cosines": rotated[:, :half]}
    frequencies = rotary_frequencies(rope).double().tolist()
    if rope.scaling in ("none", "linear"):
        divisor = rope.factor if rope.scaling == "linear" else 1.0
        frequencies = [rope.theta ** (-2 * pair / rope.width) / divisor for pair in range(half)]
    waves = tuple(Wave((i, i + half), f, 2 * math.pi / f) for i, f in enumerate(frequencies))
    similarity = tuple(sum(math.cos(k * f) for f in frequencies) / half for k in DISTANCES if k < length)
    long = f", long waves / {rope.factor:g}"
    ends = {"none": "", "linear": f" / {rope.factor:g}", "llama3": long, "yarn": long, "longrope": " / its own factor"}
    formula = f"di and di+{half} of q and k turn by pos · {rope.theta:g}^(−2i/{rope.width}){ends[rope.scaling]}"
    return Positions("rotary", formula, config.context, table, waves, similarity, _checked(table, frequencies))


def _learned(config: ModelConfig, module: LearnedPositions) -> Positions:
    """The learned table, and the strongest period of each dimension over the context, by a Fourier transform."""
    table = module.weight[module.offset :].detach().float().cpu()  # (P, C)
    power = torch.fft.rfft(table - table.mean(dim=0), dim=0).abs().square()[1:]  # (P/2, C)
    waves = []
    if len(power):
        shares, best = (power / power.sum(dim=0).clamp(min=1e-30)).max(dim=0)
        for dimension, (share, turns) in enumerate(zip(shares.tolist(), best.tolist(), strict=True)):
            wavelength = len(table) / (turns + 1)
            waves.append(Wave((dimension,), 2 * math.pi / wavelength, wavelength, share))
    return Positions("learned", "P[pos]", config.context, {"learned": table}, tuple(waves), _similarity(table))


def _similarity(table: Tensor) -> tuple[float, ...]:
    unit = torch.nn.functional.normalize(table.double(), dim=-1)
    count = len(table)
    return tuple(float((unit[: count - k] * unit[k:]).sum(dim=-1).mean()) for k in DISTANCES if k < count)


def _checked(table: Mapping[str, Tensor], frequencies: list[float]) -> Verified:
    """Compare every number with the sine and cosine of position · frequency, in Python's own floats."""
    worst = max(
        abs(number - wave(position * frequency))
        for name, wave in (("sines", math.sin), ("cosines", math.cos))
        for position, row in enumerate(table[name].tolist())
        for number, frequency in zip(row, frequencies, strict=True)
    )
    count = 2 * table["sines"].numel()
    return Verified(f"the model's {count:,} numbers are those of the formula", worst, 1e-5)
