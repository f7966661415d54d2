"""The operations of worked examples by their textbook formulas, in float64 numpy, independent of torch."""

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tinytf.model.transformer import Transformer
from tinytf.presets import preset

Array = NDArray[np.float64]

PARTS = {
    "attention": ("attention,", ".attention."),
    "feed-forward": ("feed-forward,", ".ffn."),
    "tokens": ("token emb", "embed.tokens"),
    "positions": ("positions", "embed.positions"),
}
"""For each part of a model: the start of its rows in the size report, and a piece of the names of its weights."""


def softmax(x: Array, axis: int = -1) -> Array:
    with np.errstate(invalid="ignore"):
        powers = np.exp(x - np.max(x, axis=axis, keepdims=True))
    total = powers.sum(axis=axis, keepdims=True)
    return np.where(np.isnan(powers), 0.0, powers / np.where(np.isnan(total), 1.0, total))


def sinusoidal(length: int, d_model: int) -> Array:
    table = np.zeros((length, d_model))
    for position in range(length):
        for dimension in range(d_model):
            angle = position / 10_000 ** ((dimension - dimension % 2) / d_model)
            table[position, dimension] = math.cos(angle) if dimension % 2 else math.sin(angle)
    return table


def norm(x: Array, eps: float = 1e-5) -> Array:
    return rms_norm(x - x.mean(axis=-1, keepdims=True), eps)


def rms_norm(x: Array, eps: float = 1e-5) -> Array:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)


erf = np.vectorize(math.erf, otypes=[np.float64])


def gelu(x: Array) -> Array:
    return x * 0.5 * (1 + erf(x / math.sqrt(2)))


def gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def causal_mask(x: Array) -> Array:
    queries, keys = np.indices(x.shape[-2:])
    return np.where(keys > queries, -math.inf, x)


def adam(
    theta: Any, g: Any, m: Any, v: Any, t: int, lr: float, beta1: float, beta2: float, eps: float, decay: float = 0.0
) -> Array:
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
    return np.array([m, v, m_hat, v_hat, theta - lr * decay * theta - lr * m_hat / (np.sqrt(v_hat) + eps)])


def learning_rate(step: int, lr: float, warmup: int, steps: int) -> float:
    if step < warmup:
        return lr * (step + 1) / warmup
    return lr * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def clip_factor(norm: float, most: float) -> float:
    return min(1.0, most / (norm + 1e-6))


@cache
def _weights(name: str) -> tuple[tuple[str, int], ...]:
    with torch.device("meta"):
        model = Transformer(preset(name))
    return tuple((where, weight.numel()) for where, weight in model.named_parameters())


def parameters(name: str, part: str = "") -> int:
    return sum(count for where, count in _weights(name) if not part or PARTS[part][1] in where)


def split_heads(x: Array, n_heads: int) -> Array:
    return np.swapaxes(x.reshape(*x.shape[:-1], n_heads, -1), -3, -2)  # (…, T, C) -> (…, H, T, D)


def join_heads(x: Array) -> Array:
    x = np.swapaxes(x, -3, -2)
    return x.reshape(*x.shape[:-2], -1)  # (…, T, H, D) -> (…, T, C)
