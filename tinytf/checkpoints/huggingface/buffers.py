"""The values of buffers that a file may store although its configuration determines them: masks, waves, positions.

Each function takes the configuration of the buffer's layer and the stored tensor, for its shape and precision.
"""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from tinytf.checkpoints.table import Computed, Skip
from tinytf.config import ModelConfig
from tinytf.steps.operations.positions import sinusoidal_table
from tinytf.steps.operations.rotate import rotary_frequencies

_HIDDEN = -1e4
"""The score of a hidden pair: at most that of GPT-2. Other families store −1e9, or the least number of a dtype."""
_ANGLE = 2.0**-23
"""The error of an angle in float32, in radians a position: half a rounding each of frequency and product."""


def causal_mask(config: ModelConfig, stored: Tensor) -> Computed:
    """1 where a query (row) sees a key (column): itself and those before it, within the window of the layer."""
    if stored.dim() < 2:
        return Computed(torch.ones(1, 1))
    return Computed(_mask(stored.shape[-2], stored.shape[-1], config.window, stored.dtype).expand(stored.shape))


@lru_cache(maxsize=2)
def _mask(queries: int, keys: int, window: int, dtype: torch.dtype) -> Tensor:
    distance = torch.arange(queries, dtype=torch.int32)[:, None] - torch.arange(keys, dtype=torch.int32)
    return ((distance >= 0) & (distance < (window or queries))).to(dtype)


def hidden_score(config: ModelConfig, stored: Tensor) -> Computed:
    """What a hidden pair scores."""
    return Computed(stored.double().clamp(max=_HIDDEN))


def frequencies(config: ModelConfig, stored: Tensor) -> Computed:
    """The frequencies of RoPE, or those before scaling: older versions of transformers scaled the positions."""
    rope = config.rope.of_text(1)
    scaled, unscaled = rotary_frequencies(rope), rotary_frequencies(rope._replace(scaling="none"))
    if stored.shape != scaled.shape:
        return Computed(scaled)
    return Computed(min(scaled, unscaled, key=lambda values: float((values - stored.double()).abs().max())))


ROTARY_FREQUENCIES = Skip(
    r"(.+\.)?(rotary_emb|rotary_embeddings)\.(original_)?inv_freq",
    "rotary frequencies, a buffer",
    computed=frequencies,
)
"""Those of a layer or of the model, and in some families those before scaling too."""


def rotary_waves(config: ModelConfig, stored: Tensor) -> Computed:
    """The sines of each position's rotary angles, then their cosines: (positions, rotary width)."""
    rows = len(stored) if stored.shape[1:] == (config.rope.width,) else 0
    angles = torch.arange(rows)[:, None] * rotary_frequencies(config.rope).double()
    return Computed(torch.cat((angles.sin(), angles.cos()), dim=-1), rows * _ANGLE)


def fairseq_waves(config: ModelConfig, stored: Tensor) -> Computed:
    """The sines, then cosines, that are added to embeddings. The rows before the first position are never read."""
    rows = len(stored) if stored.shape[1:] == (config.d_model,) else 0
    return _waves(config, stored, rows, config.d_model // 2 - 1)


def paper_waves(config: ModelConfig, stored: Tensor) -> Computed:
    """The sines, then cosines, of the paper's frequencies."""
    rows = len(stored) if stored.shape[1:] == (config.d_model,) else 0
    return _waves(config, stored, rows, config.d_model // 2)


def _waves(config: ModelConfig, stored: Tensor, rows: int, halves: int) -> Computed:
    values = sinusoidal_table(rows, config.d_model, torch.device("cpu"), torch.float64, halves)
    first = config.position_offset
    return Computed(torch.cat((stored[:first], values[first:])) if rows else values, rows * _ANGLE)


def positions(config: ModelConfig, stored: Tensor) -> Computed:
    """0, 1, 2 …"""
    return Computed(torch.ones(stored.shape).cumsum(-1) - 1)


POSITIONS = Skip(r"(.+\.)?position_ids", "positions, a buffer", computed=positions)


def constant(value: float, error: float = 0.0) -> Callable[[ModelConfig, Tensor], Computed]:
    """One number in every place."""
    return lambda config, stored: Computed(torch.full(stored.shape, value), error)


zeros = constant(0.0)
"""The types of the tokens of a single text."""
