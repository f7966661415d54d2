"""What is to be predicted, and how badly it was: the loss that gradients are of."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.trace.trace import Trace


@dataclass(frozen=True)
class Targets:
    """Token ``ids[i]`` is to be predicted from ``positions[i]``; a position may come more than once.

    Raises UsageError for none at all, and for more of one than of the other.
    """

    positions: tuple[int, ...]
    ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.positions:
            raise UsageError("there is nothing to predict, so there is no loss")
        if len(self.positions) != len(self.ids):
            raise UsageError(f"{len(self.positions)} positions do not go with {len(self.ids)} target tokens")


def require_head(model: Transformer) -> None:
    """Raise UsageError where the model has no logits."""
    if model.head is None:
        raise UsageError("this model has no language-model head, so there is no loss and no gradient")


def require_targets(model: Transformer, length: int, targets: Targets) -> None:
    """Raise UsageError where the model has no logits, or where a target is beyond the text or the vocabulary."""
    require_head(model)
    vocabulary = model.config.vocab_size
    for position, token_id in zip(targets.positions, targets.ids, strict=True):
        if not 0 <= position < length:
            raise UsageError(
                f"there is no position {position}: the text has {length} tokens, 0 to {length - 1}",
                "tinytf tokens numbers them",
            )
        if not 0 <= token_id < vocabulary:
            raise UsageError(f"there is no token {token_id}: the vocabulary has {vocabulary:,}, 0 to {vocabulary - 1}")


@torch.no_grad()
def loss(trace: Trace, targets: Targets) -> float:
    """Cross-entropy in nats, the mean over the targets, summed in float64. Raises what require_targets raises."""
    require_targets(trace.model, len(trace.tokens), targets)
    logits = trace.step("logits")[list(targets.positions)].double()  # (N, V)
    chosen = torch.tensor(targets.ids, device=logits.device)[:, None]
    return -float(logits.log_softmax(dim=-1).gather(-1, chosen).mean())


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
