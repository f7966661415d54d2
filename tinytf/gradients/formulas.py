"""The backward pass in formulas: from the gradient of what an operation gives to that of what it took.

Every function takes ``g``, the gradient of the loss with respect to the operation's output, in that output's shape,
and returns gradients in the shapes of the inputs. No autograd. Shapes: T tokens (Q queries, K keys), H query heads,
G key-value heads, D head width, C width, V vocabulary, N targets.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tinytf.model.parts import rotate

OfLoss = Callable[[Tensor, Tensor], Tensor]


def wide(x: Tensor) -> Tensor:
    """In float32 what has 16 bits: torch's own kernels sum in it, and squares of float16 end at 256²."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


# The loss


def cross_entropy(logits: Tensor, ids: Tensor) -> Tensor:
    """(softmax − onehot) / N over logits (N, V), for the mean cross-entropy of the tokens ``ids`` (N,).

    In float64: in float32 a sum over 50,000 tokens is off by about 1e-5, and every gradient behind it by more, and a
    token that is almost certain would lose its whole gradient to 1 − p.
    """
    probs = logits.softmax(dim=-1, dtype=torch.float64)
    probs[torch.arange(len(ids), device=ids.device), ids] -= 1.0
    return (probs / len(ids)).to(logits.dtype)


def cross_entropy_of_probs(probs: Tensor, ids: Tensor) -> Tensor:
    """−1 / (N·p) at each target and 0 elsewhere, over probabilities (N, V); −∞ where p is 0 in that precision."""
    rows = torch.arange(len(ids), device=ids.device)
    gradient = torch.zeros_like(probs)
    gradient[rows, ids] = -1.0 / (len(ids) * probs[rows, ids])
    return gradient


# Attention


def softmax_rows(g: Tensor, weights: Tensor) -> Tensor:
    """w ⊙ (g − Σ g⊙w) in each row, from what the softmax gave."""
    w = wide(weights)
    return (w * (g - (g * w).sum(dim=-1, keepdim=True))).to(g.dtype)


def mask(g: Tensor, allowed: Tensor | None) -> Tensor:
    """0 where the score was masked: it was replaced, so it decides nothing."""
    return g if allowed is None else g.masked_fill(~allowed, 0.0)


def scale(g: Tensor, d_head: int) -> Tensor:
    """g / √D."""
    return g / math.sqrt(d_head)


def scores(g: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Of q (H, Q, D) and k (G, K, D) from that of q·kᵀ (H, Q, K); a shared key sums over its query heads."""
    grouped = _by_group(g, k)  # (G, H/G, Q, K)
    of_q = (grouped @ k[:, None]).flatten(0, 1)
    of_k = (grouped.transpose(-2, -1) @ _by_group(q, k)).sum(dim=1)
    return of_q, of_k


def weighted_values(g: Tensor, weights: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Of the weights (H, Q, K) and v (G, K, D) from that of weights·v (H, Q, D)."""
    grouped = _by_group(g, v)  # (G, H/G, Q, D)
    of_weights = (grouped @ v[:, None].transpose(-2, -1)).flatten(0, 1)
    of_v = (_by_group(weights, v).transpose(-2, -1) @ grouped).sum(dim=1)
    return of_weights, of_v


def _by_group(x: Tensor, shared: Tensor) -> Tensor:
    return x.unflatten(0, (len(shared), -1))  # (H, …) -> (G, H/G, …)


def rotation(g: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turned back by the same angles: the transpose of a rotation is its inverse (Su et al. 2021)."""
    return rotate(g, cosine, -sine)


def side_by_side(heads: Tensor) -> Tensor:
    """(H, T, D) -> (T, H·D)."""
    return heads.transpose(0, 1).flatten(1)


def into_heads(wide: Tensor, d_head: int) -> Tensor:
    """(T, H·D) -> (H, T, D)."""
    return wide.unflatten(-1, (-1, d_head)).transpose(0, 1)


# Linear maps and tables, y = x·Wᵀ + b with W (out, in)


def linear_input(g: Tensor, weight: Tensor) -> Tensor:
    """g·W: (T, out) -> (T, in)."""
    return g @ weight


def linear_weight(g: Tensor, x: Tensor) -> Tensor:
    """gᵀ·x, summed over the tokens: (T, out) and (T, in) -> (out, in)."""
    return g.transpose(0, 1) @ x


def summed(g: Tensor) -> Tensor:
    """Over every axis but the last: what was added to each token gets the sum, (…, C) -> (C,)."""
    return g.flatten(0, -2).sum(dim=0)


def embedding(g: Tensor, ids: Tensor, count: int, factor: float = 1.0) -> Tensor:
    """factor·g added to the row of each token: (T, C) and ids (T,) -> (count, C)."""
    return g.new_zeros(count, g.shape[-1]).index_add_(0, ids, factor * g)


def position_rows(g: Tensor, count: int, offset: int = 0) -> Tensor:
    """g in the rows from ``offset`` on, 0 in those that no token has: (T, C) -> (count, C)."""
    table = g.new_zeros(count, g.shape[-1])
    table[offset : offset + len(g)] = g
    return table


# Norms over the last axis, y = x̂ ⊙ gain + bias


def layer_normed(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x̂ = (x − mean) / σ and σ = √(variance + eps), (…, 1) (Ba et al. 2016); both ``wide``."""
    x = wide(x)
    centred = x - x.mean(dim=-1, keepdim=True)
    sigma = (centred.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    return centred / sigma, sigma


def rms_normed(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x̂ = x / σ and σ = √(mean of squares + eps), (…, 1) (Zhang and Sennrich 2019); both ``wide``."""
    x = wide(x)
    sigma = (x.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    return x / sigma, sigma


def layer_norm(g: Tensor, x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """(ĝ − mean ĝ − x̂·mean(ĝ⊙x̂)) / σ with ĝ = g ⊙ gain."""
    normed, sigma = layer_normed(x, eps)
    of_normed = wide(g) * gain
    along = normed * (of_normed * normed).mean(dim=-1, keepdim=True)
    return ((of_normed - of_normed.mean(dim=-1, keepdim=True) - along) / sigma).to(g.dtype)


def rms_norm(g: Tensor, x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """(ĝ − x̂·mean(ĝ⊙x̂)) / σ with ĝ = g ⊙ gain; nothing was centred, so no mean is taken off."""
    normed, sigma = rms_normed(x, eps)
    of_normed = wide(g) * gain
    return ((of_normed - normed * (of_normed * normed).mean(dim=-1, keepdim=True)) / sigma).to(g.dtype)


NORMED: dict[str, Callable[[Tensor, float], tuple[Tensor, Tensor]]] = {
    "layernorm": layer_normed,
    "rmsnorm": rms_normed,
}
NORM_INPUTS: dict[str, Callable[[Tensor, Tensor, Tensor, float], Tensor]] = {
    "layernorm": layer_norm,
    "rmsnorm": rms_norm,
}


# Activations: their derivatives at x


def relu_slope(x: Tensor) -> Tensor:
    """1 above 0, else 0; at 0 itself it is 0, as in torch."""
    return (x > 0).to(x.dtype)


def gelu_slope(x: Tensor) -> Tensor:
    """Φ(x) + x·φ(x) (Hendrycks and Gimpel 2016); by erfc, so that Φ keeps its digits far to the left."""
    below = torch.special.erfc(x * -math.sqrt(0.5)) / 2
    density = torch.exp(-0.5 * x.square()) / math.sqrt(2 * math.pi)
    return below + x * density


def gelu_tanh_slope(x: Tensor) -> Tensor:
    """GELU(tanh) is x·σ(2u) with u = √(2/π)·(x + 0.044715·x³): its slope is σ(2u) + 2x·u′·σ(2u)·σ(−2u)."""
    root, cubic = math.sqrt(2 / math.pi), 0.044715
    u = root * (x + cubic * x**3)
    u_slope = root * (1 + 3 * cubic * x.square())
    return torch.sigmoid(2 * u) * (1 + 2 * x * u_slope * torch.sigmoid(-2 * u))


def silu_slope(x: Tensor) -> Tensor:
    """σ(x)·(1 + x·σ(−x)), of x·σ(x)."""
    return torch.sigmoid(x) * (1 + x * torch.sigmoid(-x))


SLOPES: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": relu_slope,
    "gelu": gelu_slope,
    "gelu_tanh": gelu_tanh_slope,
    "silu": silu_slope,
}


def activation(g: Tensor, x: Tensor, name: str) -> Tensor:
    """g ⊙ act′(x)."""
    return (g * SLOPES[name](wide(x))).to(g.dtype)


def gated(g: Tensor, gate: Tensor, hidden: Tensor, activated: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Of gate and hidden from that of act(gate) ⊙ hidden; ``activated`` is act(gate)."""
    return (wide(g * hidden) * SLOPES[name](wide(gate))).to(g.dtype), g * activated
