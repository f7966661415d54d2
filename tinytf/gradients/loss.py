"""The loss: which tokens to predict, and the gradients of the mean cross-entropy."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer


@dataclass(frozen=True)
class Targets:
    """Predict token, or class, ``ids[i]`` from ``positions[i]``; a position may occur more than once.

    Raises UsageError for no targets, and for different numbers of positions and ids.
    """

    positions: tuple[int, ...]
    ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.positions:
            raise UsageError("there is nothing to predict, so there is no loss")
        if len(self.positions) != len(self.ids):
            raise UsageError(f"{len(self.positions)} positions do not match {len(self.ids)} target tokens")


def require_targets(model: Transformer, length: int, targets: Targets) -> None:
    """Raise UsageError if the model has no logits, or a target is beyond the text or the vocabulary."""
    model.require_choice("there is no loss and no gradient")
    labels = model.config.labels
    count = model.config.n_outcomes
    for position, token_id in zip(targets.positions, targets.ids, strict=True):
        if not 0 <= position < length:
            raise UsageError(
                f"there is no position {position}: the text has {length} tokens, 0 to {length - 1}",
                "tinytf tokens numbers them",
            )
        if not 0 <= token_id < count:
            what, source = ("class", "head") if labels else ("token", "vocabulary")
            raise UsageError(f"there is no {what} {token_id}: the {source} has {count:,}, 0 to {count - 1}")


def cross_entropy(logits: Tensor, ids: Tensor) -> Tensor:
    """The gradient of the mean cross-entropy of the tokens ``ids`` (N,) by their logits (N, V): (softmax − onehot) / N.

    Computed in float64: in float32 a sum over 50,000 tokens is off by about 1e-5, and so is every earlier gradient;
    and an almost certain token would lose its gradient to 1 − p.
    """
    probs = logits.softmax(dim=-1, dtype=torch.float64)
    probs[torch.arange(len(ids), device=ids.device), ids] -= 1.0
    return (probs / len(ids)).to(logits.dtype)


def cross_entropy_of_probs(probs: Tensor, ids: Tensor) -> Tensor:
    """The gradient of the mean cross-entropy by the probabilities (N, V): −1 / (N·p) at each target, 0 elsewhere.

    It is −∞ where p rounds to 0.
    """
    rows = torch.arange(len(ids), device=ids.device)
    gradient = torch.zeros_like(probs)
    gradient[rows, ids] = -1.0 / (len(ids) * probs[rows, ids])
    return gradient


def at_positions(values: Tensor, targets: Targets, formula: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """A gradient by logits or probabilities (T, V): ``formula`` at the targets' positions, 0 elsewhere."""
    positions = torch.tensor(targets.positions, device=values.device)
    rows = formula(values[positions], torch.tensor(targets.ids, device=values.device))  # (N, V)
    return torch.zeros_like(values).index_add_(0, positions, rows)
