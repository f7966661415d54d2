"""The prediction at one position, its change under an intervention, and the contrast of two runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, TypeVar

from torch import Tensor

from tinytf.compare.measures import divergence
from tinytf.errors import TinytfError, UsageError
from tinytf.report import Data, Verified
from tinytf.text.tokenizer import Encoding
from tinytf.trace.faults import require_finite
from tinytf.trace.trace import Trace

_SAME = 1e-5
"""Logit differences of two runs count as equal within this share of the larger."""
Difference = TypeVar("Difference", float, Tensor)


@dataclass(frozen=True)
class Choice:
    """One token of the vocabulary, its probability before and after."""

    id: int
    before: float
    after: float

    @property
    def change(self) -> float:
        """The change of the log-probability, in nats; NaN if one of the probabilities is 0."""
        return math.log(self.after / self.before) if self.after and self.before else math.nan


@dataclass(frozen=True)
class Effect:
    """The effect on a prediction: ``kl`` is KL(before ‖ after) in nats, ``log_p_…`` belong to the target.

    ``best`` is the most probable token afterwards.
    """

    kl: float
    log_p_before: float
    log_p_after: float
    best: int

    @property
    def change(self) -> float:
        """The change of the target's log-probability, in nats."""
        return self.log_p_after - self.log_p_before

    @property
    def p_after(self) -> float:
        return math.exp(self.log_p_after)

    def to_dict(self) -> dict[str, Any]:
        return {"kl": self.kl, "log_probability_before": self.log_p_before, "log_probability_after": self.log_p_after,
                "change": self.change}  # fmt: skip


def predicted_at(trace: Trace) -> int:
    """The position of the prediction: a decoder's last token, an encoder's first mask, or the token read by a class.

    Raises UsageError for a model without a head, and for an encoder's text without a mask.
    """
    trace.model.require_choice("there is no one prediction to follow")
    rows = trace.recording.logit_rows
    if trace.config.head.kind == "token":
        raise UsageError("the head of this model classes every token, so there is no one prediction to follow")
    if not trace.config.causal and len(rows) == len(trace.tokens) > 1:
        raise UsageError("the text has no [MASK] to fill", 'write [MASK] for a word, such as "The cat [MASK] here."')
    return rows[0]


def log_probabilities(logits: Tensor) -> Tensor:
    """Log-probabilities in float64. Raises TinytfError for logits that are not finite."""
    if not bool(logits.isfinite().all()):
        raise TinytfError("the logits are not finite", "the weights hold NaN or infinity, or overflow in this dtype")
    return logits.double().log_softmax(dim=-1)


def effects(before: Tensor, after: Tensor, target: int) -> list[Effect]:
    """The effect on each of some predictions: log-probabilities ``before`` (V,), ``after`` (B, V)."""
    kl = divergence(before.exp(), before, after)
    rows = zip(kl.tolist(), after[:, target].tolist(), after.argmax(dim=-1).tolist(), strict=True)
    return [Effect(nats, float(before[target]), log_p, best) for nats, log_p, best in rows]


def choices(before: Tensor, after: Tensor, top: int, followed: Sequence[int] = ()) -> tuple[Choice, ...]:
    """The ``followed`` tokens and the ``top`` most probable ones before and after, each once."""
    count = min(top, len(before))
    ids = dict.fromkeys([*followed, *before.topk(count).indices.tolist(), *after.topk(count).indices.tolist()])
    return tuple(Choice(number, float(before[number].exp()), float(after[number].exp())) for number in ids)


def same(what: str, logits: Tensor, expected: Tensor) -> Verified:
    """Verify that two ways to the same logits, by the same arithmetic, agree exactly."""
    return Verified(what, float((logits.double() - expected.double()).abs().max()), 0.0)


class UnevenTexts(UsageError):
    """Two texts with different numbers of tokens. ``aligned`` pairs the tokens as shown, None where a text has none."""

    def __init__(self, clean: Encoding, corrupt: Encoding) -> None:
        self.aligned: tuple[tuple[str | None, str | None], ...] = _aligned(clean, corrupt)
        first = next(index for index, (left, right) in enumerate(self.aligned) if left is None or right is None)
        names = [("nothing" if token is None else token) for token in self.aligned[first]]
        super().__init__(
            f"the texts have {len(clean.tokens):,} and {len(corrupt.tokens):,} tokens, clean and corrupt: at token "
            f"{first} {names[0]} is against {names[1]}",
            "change words so that both have the same number of tokens; tinytf tokens shows how a text splits",
        )


def _aligned(clean: Encoding, corrupt: Encoding) -> tuple[tuple[str | None, str | None], ...]:
    clean_tokens, corrupt_tokens = ([token.shown for token in text.tokens] for text in (clean, corrupt))
    pairs: list[tuple[str | None, str | None]] = []
    for _, a, b, c, d in SequenceMatcher(a=clean_tokens, b=corrupt_tokens, autojunk=False).get_opcodes():
        count = max(b - a, d - c)
        left = [*clean_tokens[a:b], *[None] * (count - (b - a))]
        right = [*corrupt_tokens[c:d], *[None] * (count - (d - c))]
        pairs += zip(left, right, strict=True)
    return tuple(pairs)


def compared(clean: Trace, corrupt: Trace) -> tuple[Encoding, Encoding]:
    """The texts in which two runs differ: the sources, where two stacks write one target."""
    if clean.encoding.ids == corrupt.encoding.ids and clean.source is not None and corrupt.source is not None:
        return clean.source.encoding, corrupt.source.encoding
    return clean.encoding, corrupt.encoding


def require_even(clean: Encoding, corrupt: Encoding) -> None:
    """Raise UnevenTexts for different numbers of tokens, UsageError for the same tokens."""
    if len(clean.tokens) != len(corrupt.tokens):
        raise UnevenTexts(clean, corrupt)
    if clean.ids == corrupt.ids:
        raise UsageError("the clean and the corrupt text have the same tokens", "change a word of one of them")


@dataclass(frozen=True)
class Contrast(Data):
    """The difference of two logits, ``answer`` − ``versus``, at ``position``, in the clean and the corrupt run."""

    position: int
    answer: int
    versus: int
    clean: float
    corrupt: float

    def of(self, logits: Tensor) -> list[float]:
        """The difference in each row of logits (B, V)."""
        differences = logits[:, self.answer].double() - logits[:, self.versus].double()
        return [float(difference) for difference in differences.tolist()]

    def normalised(self, difference: Difference) -> Difference:
        """Scale a difference (or a tensor of them) so that the clean run has 1 and the corrupt run 0."""
        return (difference - self.corrupt) / (self.clean - self.corrupt)


def contrast(clean: Trace, corrupt: Trace, answer: int | None = None, versus: int | None = None) -> Contrast:
    """The contrast of two runs: ``answer`` is by default the clean run's prediction, ``versus`` the corrupt run's.

    Raises UsageError if the two are one token, if an encoder's masks are at different positions, and if the difference
    is the same in both runs, so that it measures nothing; TinytfError for logits that are not finite.
    """
    position = predicted_at(clean)
    if predicted_at(corrupt) != position:
        raise UsageError(
            f"[MASK] is at {position} in the clean text and at {predicted_at(corrupt)} in the corrupt one",
            "put it at the same place in both",
        )
    logits = [trace.logits_at(position) for trace in (clean, corrupt)]
    for trace, row in zip((clean, corrupt), logits, strict=True):
        require_finite(trace, row)
    best = [int(row.argmax()) for row in logits]
    chosen = (best[0] if answer is None else answer, best[1] if versus is None else versus)
    if chosen[0] == chosen[1]:
        both = "both runs predict the same token" if best[0] == best[1] and answer is None else "both are one token"
        raise UsageError(f"{both}, so there is no difference to follow", "name two: --answer A --versus B")
    unmeasured = Contrast(position, *chosen, 0.0, 0.0)
    differences = [unmeasured.of(row[None])[0] for row in logits]
    scale = max(1.0, *(abs(difference) for difference in differences))
    if abs(differences[0] - differences[1]) <= _SAME * scale:
        raise UsageError(
            f"the difference of the two logits is {differences[0]:.4g} in both runs, so there is nothing to measure by",
            "name tokens that the two texts disagree on: --answer A --versus B",
        )
    return Contrast(position, *chosen, *differences)


def first_different(clean: Sequence[int], corrupt: Sequence[int]) -> int:
    """The first position at which two texts of the same length have different tokens; 0 where only sources differ."""
    return next((position for position, (a, b) in enumerate(zip(clean, corrupt, strict=True)) if a != b), 0)
