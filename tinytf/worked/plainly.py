"""The operations of worked examples by their textbook formulas, in float64 numpy; none of them calls torch's."""

import math
from functools import cache
from typing import Any

import numpy as np
import torch

from tinytf.model.transformer import Transformer
from tinytf.presets import preset

PARTS = {
    "": "",
    "attention": ".attention.",
    "feed-forward": ".ffn.",
    "tokens": "embed.tokens",
    "positions": "embed.positions",
}


def numbers(value: Any) -> np.ndarray:
    """A float64 array of a number or an array."""
    return np.asarray(value, dtype=np.float64)


def softmax(x: Any, axis: int = -1) -> Any:
    x = numbers(x)
    with np.errstate(invalid="ignore"):
        powers = np.exp(x - np.max(x, axis=axis, keepdims=True))
    total = powers.sum(axis=axis, keepdims=True)
    return np.where(np.isnan(powers), 0.0, powers / np.where(np.isnan(total), 1.0, total))


def sinusoidal(length: int, d_model: int) -> Any:
    table = np.zeros((length, d_model))
    for position in range(length):
        for dimension in range(d_model):
            angle = position / 10_000 ** ((dimension - dimension % 2) / d_model)
            table[position, dimension] = math.cos(angle) if dimension % 2 else math.sin(angle)
    return table


def norm(x: Any, eps: float = 1e-5) -> Any:
    x = numbers(x)
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)


def rms_norm(x: Any, eps: float = 1e-5) -> Any:
    x = numbers(x)
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)


erf = np.vectorize(math.erf, otypes=[np.float64])


def gelu(x: Any) -> Any:
    return numbers(x) * 0.5 * (1 + erf(numbers(x) / math.sqrt(2)))


def gelu_tanh(x: Any) -> Any:
    x = numbers(x)
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def causal_mask(x: Any) -> Any:
    x = numbers(x)
    queries, keys = np.indices(x.shape[-2:])
    return np.where(keys > queries, -math.inf, x)


def adam(theta: float, g: float, m: float, v: float, t: int, lr: float, beta1: float, beta2: float, eps: float) -> Any:
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
    return np.array([m, v, m_hat, v_hat, theta - lr * m_hat / (math.sqrt(v_hat) + eps)])


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
    return sum(numbers for where, numbers in _weights(name) if PARTS.get(part, "") in where)


def split_heads(x: Any, n_heads: int) -> Any:
    x = numbers(x)
    return np.swapaxes(x.reshape(*x.shape[:-1], n_heads, -1), -3, -2)


def join_heads(x: Any) -> Any:
    x = np.swapaxes(numbers(x), -3, -2)
    return x.reshape(*x.shape[:-2], -1)


def windows(ids: Any, length: int) -> Any:
    return np.stack([numbers(ids)[first : first + length] for first in range(len(ids) - length + 1)])
