"""One number a head: where its attention goes, on one text."""

from collections.abc import Callable

import torch
from torch import Tensor

from tinytf.errors import UsageError
from tinytf.nearest import did_you_mean
from tinytf.trace.trace import Trace


def _entropy(weights: Tensor) -> Tensor:
    return torch.special.entr(weights).sum(dim=-1).mean(dim=-1)


def _distance(weights: Tensor) -> Tensor:
    place = torch.arange(weights.shape[-1], device=weights.device, dtype=weights.dtype)
    return (weights * (place[:, None] - place).abs()).sum(dim=-1).mean(dim=-1)


def _previous(weights: Tensor) -> Tensor:
    return weights.diagonal(offset=-1, dim1=-2, dim2=-1).mean(dim=-1)


def _first(weights: Tensor) -> Tensor:
    return weights[..., 1:, 0].mean(dim=-1)


def _self(weights: Tensor) -> Tensor:
    return weights.diagonal(dim1=-2, dim2=-1).mean(dim=-1)


MEASURES: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "entropy": (_entropy, "mean entropy of a query's weights, in nats: 0 is one key, ln T is all T alike"),
    "distance": (_distance, "mean distance from query to key, in tokens, weighted"),
    "previous": (_previous, "mean weight on the token before, queries 1…T−1"),
    "first": (_first, "mean weight on the first token, queries 1…T−1"),
    "self": (_self, "mean weight on the query's own token"),
}
"""Each takes weights (…, Q, K) and gives (…); the text says what of."""


def measure_heads(trace: Trace, by: str) -> Tensor:
    """A measure of every head, (layers, heads), float32. NaN where the text is too short for it."""
    if by not in MEASURES:
        raise UsageError(f"there is no measure {by!r}", did_you_mean(by, MEASURES))
    measure = MEASURES[by][0]
    return torch.stack([measure(trace.step("weights", layer).float()) for layer in range(trace.config.n_layers)])
