"""What a model predicts at one position, and how far another prediction is from it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinytf.errors import TinytfError, UsageError
from tinytf.report import Verified
from tinytf.tolerance import STEP, allowed
from tinytf.trace.trace import Trace


@dataclass(frozen=True)
class Choice:
    """One token of the vocabulary, its probability before and after."""

    id: int
    before: float
    after: float


@dataclass(frozen=True)
class Effect:
    """What became of a prediction: ``kl`` is KL(before ‖ after) in nats, ``log_p_…`` are of the target.

    ``best`` is the most probable token afterwards.
    """

    kl: float
    log_p_before: float
    log_p_after: float
    best: int

    @property
    def change(self) -> float:
        """How much more probable the target has become, in nats."""
        return self.log_p_after - self.log_p_before

    def to_dict(self) -> dict[str, Any]:
        return {"kl": self.kl, "log_probability_before": self.log_p_before, "log_probability_after": self.log_p_after,
                "change": self.change}  # fmt: skip


def predicted_at(trace: Trace) -> int:
    """Where a prediction is looked at: after the last token, or in an encoder at the first masked one.

    Raises UsageError for a model without a head, and for an encoder's text without a mask.
    """
    if trace.model.head is None:
        raise UsageError("this model has no language-model head, so it predicts nothing")
    rows = trace.recording.logit_rows
    if not trace.config.causal and len(rows) == len(trace.tokens) > 1:
        raise UsageError("the text has no [MASK] to fill", 'write [MASK] for a word, such as "The cat [MASK] here."')
    return rows[0]


def log_probabilities(logits: Tensor) -> Tensor:
    """In float64. Raises TinytfError for logits that are no finite numbers."""
    if not bool(logits.isfinite().all()):
        raise TinytfError("the logits are not finite", "the weights hold NaN or infinity, or overflow in this dtype")
    return logits.double().log_softmax(dim=-1)


def effects(before: Tensor, after: Tensor, target: int) -> list[Effect]:
    """The effect on each of some predictions: log-probabilities ``before`` (V,), ``after`` (B, V)."""
    kl = (before.exp() * (before - after)).sum(dim=-1).clamp(min=0.0)  # rounding can make it a little less than 0
    rows = zip(kl.tolist(), after[:, target].tolist(), after.argmax(dim=-1).tolist(), strict=True)
    return [Effect(one, float(before[target]), log_p, best) for one, log_p, best in rows]


def choices(before: Tensor, after: Tensor, top: int, followed: Sequence[int] = ()) -> tuple[Choice, ...]:
    """The tokens that are ``followed``, the ``top`` most probable ones before, and those afterwards, each once."""
    count = min(top, len(before))
    ids = dict.fromkeys([*followed, *before.topk(count).indices.tolist(), *after.topk(count).indices.tolist()])
    return tuple(Choice(number, float(before[number].exp()), float(after[number].exp())) for number in ids)


def mean_loss(logits: Tensor, ids: list[int]) -> float | None:
    """Cross-entropy of each next token of a text in nats, the mean: logits (T, V). None for a text of one token."""
    if len(ids) < 2:
        return None
    chosen = torch.tensor(ids[1:], device=logits.device)[:, None]
    own = logits[:-1].gather(-1, chosen)[:, 0].double() - logits[:-1].double().logsumexp(dim=-1)
    return -float(own.mean())


def compared(what: str, found: Tensor, expected: Tensor, *, exactly: bool = False) -> Verified:
    """Two ways to the same logits; allowed is what a trace's check allows, of the largest of them, or nothing."""
    difference = float((found.double() - expected.double()).abs().max())
    scale = max(1.0, float(expected.abs().max()))
    return Verified(what, difference, 0.0 if exactly else allowed(STEP, expected.dtype) * scale)
