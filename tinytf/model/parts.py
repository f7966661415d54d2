"""Norms, activations, positions and feed-forwards: tables from a word of the configuration to a part."""

import math
from collections.abc import Callable
from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinytf.config import ModelConfig, Rope
from tinytf.model.linear import Linear

NORMS: dict[str, Callable[[int, float], nn.Module]] = {
    "layernorm": lambda width, eps: nn.LayerNorm(width, eps=eps),
    "rmsnorm": lambda width, eps: nn.RMSNorm(width, eps=eps),
}

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


def make_norm(config: ModelConfig, width: int | None = None) -> nn.Module:
    """The configured norm over the last axis, ``width`` wide (d_model unless given)."""
    return NORMS[config.norm](width or config.d_model, config.norm_eps)


def _table_length(length: int) -> int:
    """Tables are made for the next power of two, so that a growing text seldom needs a new one."""
    return 1 << max(5, (length - 1).bit_length())


@lru_cache(maxsize=8)
def _sinusoidal(length: int, d_model: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():
        position = torch.arange(length, dtype=torch.float64)[:, None]
        pair = torch.arange(0, d_model, 2, dtype=torch.float64)
        angle = position / 10_000 ** (pair / d_model)
        table = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)  # (T, C/2, 2) -> (T, C)
        return table.to(device=device, dtype=dtype)


def sinusoidal_table(length: int, d_model: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Sines in the even and cosines in the odd dimensions, (length, d_model), computed in float64.

    Vaswani et al. 2017, section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d_model)).
    """
    return _sinusoidal(_table_length(length), d_model, device, dtype)[:length]


def _stretched(frequency: Tensor, rope: Rope) -> Tensor:
    """Llama 3's scaling of the frequencies: long waves become slower, short ones stay (Grattafiori et al. 2024)."""
    wavelength = 2 * math.pi / frequency
    turns = rope.original_context / wavelength  # how often a wave turns within the context that was trained on
    keep = ((turns - rope.low_frequency) / (rope.high_frequency - rope.low_frequency)).clamp(0.0, 1.0)
    return (1 - keep) * frequency / rope.factor + keep * frequency


ROPE_SCALINGS: dict[str, Callable[[Tensor, Rope], Tensor]] = {
    "none": lambda frequency, _: frequency,
    "linear": lambda frequency, rope: frequency / rope.factor,
    "llama3": _stretched,
}


def rotary_frequencies(rope: Rope) -> Tensor:
    """By how much each pair of dimensions turns from one position to the next, in radians, (d_head / 2,).

    In float32, as the checkpoints of this family were trained with.
    """
    place = torch.arange(0, rope.d_head, 2, dtype=torch.int64).float() / rope.d_head
    return ROPE_SCALINGS[rope.scaling](1.0 / rope.theta**place, rope)


@lru_cache(maxsize=8)
def _rotary(length: int, rope: Rope, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False), torch.no_grad():
        angle = torch.arange(length).float()[:, None] * rotary_frequencies(rope)  # (T, D/2)
        angle = torch.cat((angle, angle), dim=-1)  # (T, D): both halves turn by the same angles
        return angle.cos().to(device=device, dtype=dtype), angle.sin().to(device=device, dtype=dtype)


def rotary_table(length: int, rope: Rope, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary angles, each (length, d_head); Su et al. 2021, half rotation."""
    cosine, sine = _rotary(_table_length(length), rope, device, dtype)
    return cosine[:length], sine[:length]


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn each pair (x[i], x[i + D/2]) of ``x`` (..., T, D) by the angle of its position."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


class Embedding(nn.Module):
    """A table of ``count`` vectors, multiplied by ``scale`` when they are looked up; not initialised.

    (torch's own class initialises itself, which on the meta device imports a compiler and takes a second.)
    """

    def __init__(self, count: int, width: int, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, width))
        self.scale = scale

    def forward(self, ids: Tensor) -> Tensor:
        vectors = F.embedding(ids, self.weight)  # (B, T) -> (B, T, C)
        return vectors if self.scale == 1.0 else vectors * self.scale


class LearnedPositions(nn.Module):
    """One learned vector a position: P[0…T-1], behind the ``offset`` rows that no token has."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.offset = config.position_offset
        self.weight = nn.Parameter(torch.empty(self.offset + config.context, config.d_model))

    def forward(self, ids: Tensor, dtype: torch.dtype, start: int = 0) -> Tensor:
        first = self.offset + start
        return self.weight[first : first + ids.shape[1]].to(dtype)  # (T, C)


class SinusoidalPositions(nn.Module):
    """The fixed waves of Vaswani et al. 2017; nothing is learned."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.d_model = config.d_model

    def forward(self, ids: Tensor, dtype: torch.dtype, start: int = 0) -> Tensor:
        return sinusoidal_table(start + ids.shape[1], self.d_model, ids.device, dtype)[start:]  # (T, C)


class FeedForward(nn.Module):
    """Two linear maps with an activation between: act(x·W₁ + b₁)·W₂ + b₂."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = Linear(config.d_model, config.d_ff, bias=config.ffn_bias)
        self.down = Linear(config.d_ff, config.d_model, bias=config.ffn_bias)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


class GatedFeedForward(FeedForward):
    """The gated form, (act(x·W_gate) ⊙ x·W_up)·W_down; with SiLU this is SwiGLU (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.gate = Linear(config.d_model, config.d_ff, bias=config.ffn_bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.gate(x)) * self.up(x))
