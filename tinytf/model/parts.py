"""Norms, activations, positions and feed-forwards: tables from a word of the configuration to a part."""

from collections.abc import Callable
from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.model.linear import Linear
from tinytf.steps.operations.activate import ACTIVATIONS
from tinytf.steps.operations.clamped_glu import clamped_glu
from tinytf.steps.operations.keep import Keep
from tinytf.steps.operations.positions import halves_frequencies
from tinytf.steps.operations.rotate import table_length

NORMS: dict[str, Callable[..., nn.Module]] = {
    "layernorm": nn.LayerNorm,
    "rmsnorm": lambda width, eps, gain=True, bias=False: nn.RMSNorm(width, eps, gain),
}
"""The norm of each word: of a width, ε, and whether it learns a gain and a bias."""


def make_norm(config: ModelConfig, width: int | None = None) -> nn.Module:
    """The configured norm over the last axis, ``width`` wide (d_model unless given)."""
    return NORMS[config.norm](width or config.d_model, config.norm_eps, config.norm_gain, config.norm_bias)


class HeadwiseNorm(nn.Module):
    """A norm of every head by itself, with a gain of its own for each: (…, H·D) -> (…, H·D)."""

    def __init__(self, config: ModelConfig, width: int) -> None:
        super().__init__()
        self.d_head, self.eps = config.d_head, config.norm_eps
        self.norm = F.layer_norm if config.norm == "layernorm" else F.rms_norm
        learned = config.norm_parameters
        self.weight = nn.Parameter(torch.empty(width)) if "gain" in learned else None
        self.bias = nn.Parameter(torch.empty(width)) if "bias" in learned else None

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (-1, self.d_head))  # (…, H·D) -> (…, H, D)
        normed = self.norm(heads, (self.d_head,), eps=self.eps).flatten(-2)
        gained = normed if self.weight is None else normed * self.weight
        return gained if self.bias is None else gained + self.bias


def make_head_norm(config: ModelConfig, n_heads: int) -> nn.Module:
    """The norm of queries or keys: of one head's width, or of all heads side by side."""
    if not config.qk_norm:
        return nn.Identity()
    if config.qk_norm_across == "head":
        return make_norm(config if config.qk_norm_gain else config.but(norm_gain=False), config.d_head)
    width = n_heads * config.d_head
    return HeadwiseNorm(config, width) if config.qk_norm_across == "heads" else make_norm(config, width)


class Clipping(nn.Module):
    """Keeps every number within ±``limit``."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit

    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(-self.limit, self.limit)


def make_clip(config: ModelConfig) -> nn.Module:
    """What clips queries, keys or values."""
    return Clipping(config.clip_qkv) if config.clip_qkv else nn.Identity()


@lru_cache(maxsize=8)
def _sinusoidal(length: int, d_model: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():
        position = torch.arange(length, dtype=torch.float64)[:, None]
        pair = torch.arange(0, d_model, 2, dtype=torch.float64)
        angle = position / 10_000 ** (pair / d_model)
        table = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)  # (T, C/2, 2) -> (T, C)
        return table.to(device=device, dtype=dtype)


@lru_cache(maxsize=8)
def _halves(length: int, d_model: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():
        angle = (torch.arange(length).float()[:, None] * halves_frequencies(d_model)).double()
        return torch.cat((angle.sin(), angle.cos()), dim=-1).to(device=device, dtype=dtype)


def sinusoidal_table(
    length: int, d_model: int, device: torch.device, dtype: torch.dtype, halves: bool = False
) -> Tensor:
    """Sines in the even and cosines in the odd dimensions, (length, d_model), computed in float64.

    Vaswani et al. 2017, section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d_model)). In ``halves`` the sines come first,
    then the cosines, with the frequencies of tensor2tensor and angles in float32, as models of fairseq were trained.
    """
    return (_halves if halves else _sinusoidal)(table_length(length), d_model, device, dtype)[:length]


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


class Kept(nn.Module):
    """Token vectors without those of masks, the others the larger the more masks there are."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.keep = Keep(config.masked_share, config.mask_id)

    def forward(self, x: Tensor, ids: Tensor, padding_mask: Tensor | None) -> Tensor:
        return self.keep.kept(x, ids, padding_mask)


class Rows(nn.Module):
    """A table of ``count`` vectors, all of which are read at once: () -> (1, count, C)."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, width))

    def forward(self) -> Tensor:
        return self.weight[None]


class LearnedPositions(nn.Module):
    """One learned vector per position, P[0…T-1], after the ``offset`` rows that no token uses."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.offset = config.position_offset
        self.weight = nn.Parameter(torch.empty(self.offset + config.context, config.summed_width))

    def forward(self, ids: Tensor, dtype: torch.dtype, start: int = 0) -> Tensor:
        first = self.offset + start
        return self.weight[first : first + ids.shape[1]].to(dtype)  # (T, C)


class SinusoidalPositions(nn.Module):
    """The fixed waves of Vaswani et al. 2017, from the row ``offset`` on; nothing is learned."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.width, self.offset = config.summed_width, config.position_offset
        self.halves = config.positions == "sinusoidal_halves"

    def forward(self, ids: Tensor, dtype: torch.dtype, start: int = 0) -> Tensor:
        first = self.offset + start
        return sinusoidal_table(first + ids.shape[1], self.width, ids.device, dtype, self.halves)[first:]  # (T, C)


def _open(activation: Callable[[Tensor], Tensor], gate: Tensor, up: Tensor) -> Tensor:
    return activation(gate) * up


class Scaled(nn.Module):
    """A multiplication by one number that is not learned."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class FeedForward(nn.Module):
    """Two linear maps with an activation between, act(x·W₁ + b₁)·W₂ + b₂.

    There are d_ff units, or ``width``. The gated form is (act(x·W_gate) ⊙ x·W_up)·W_down; with SiLU this is SwiGLU
    (Shazeer 2020).
    """

    def __init__(self, config: ModelConfig, width: int | None = None) -> None:
        super().__init__()
        width = width or config.d_ff
        self.up = Linear(config.d_model, width, bias=config.ffn_bias)
        self.down = Linear(width, config.d_model, bias=config.ffn_bias)
        self.gate = Linear(config.d_model, width, bias=config.ffn_bias) if config.gated else None
        self.activation = ACTIVATIONS[config.activation]
        self.open: Callable[[Tensor, Tensor], Tensor] = partial(_open, self.activation)
        if config.glu_limit:
            self.open = partial(clamped_glu, alpha=config.glu_alpha, limit=config.glu_limit)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            return self.down(self.activation(self.up(x)))
        return self.down(self.open(self.gate(x), self.up(x)))
