"""What a model predicts at one position, how far another prediction is from it, and what tells two runs apart."""

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
"""A difference of two logits is the same in two runs where it is apart by no more than this, of the larger."""
Difference = TypeVar("Difference", float, Tensor)


@dataclass(frozen=True)
class Choice:
    """One token of the vocabulary, its probability before and after."""

    id: int
    before: float
    after: float

    @property
    def change(self) -> float:
        """Of the log-probability, in nats; NaN where one of the two is 0."""
        return math.log(self.after / self.before) if self.after and self.before else math.nan


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

    @property
    def p_after(self) -> float:
        return math.exp(self.log_p_after)

    def to_dict(self) -> dict[str, Any]:
        return {"kl": self.kl, "log_probability_before": self.log_p_before, "log_probability_after": self.log_p_after,
                "change": self.change}  # fmt: skip


def predicted_at(trace: Trace) -> int:
    """The position of the prediction: after the last token, in an encoder at the first masked one, or that of a class.

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
    """In float64. Raises TinytfError for logits that are not finite."""
    if not bool(logits.isfinite().all()):
        raise TinytfError("the logits are not finite", "the weights hold NaN or infinity, or overflow in this dtype")
    return logits.double().log_softmax(dim=-1)


def effects(before: Tensor, after: Tensor, target: int) -> list[Effect]:
    """The effect on each of some predictions: log-probabilities ``before`` (V,), ``after`` (B, V)."""
    kl = divergence(before.exp(), before, after)
    rows = zip(kl.tolist(), after[:, target].tolist(), after.argmax(dim=-1).tolist(), strict=True)
    return [Effect(one, float(before[target]), log_p, best) for one, log_p, best in rows]


def choices(before: Tensor, after: Tensor, top: int, followed: Sequence[int] = ()) -> tuple[Choice, ...]:
    """The tokens that are ``followed``, the ``top`` most probable ones before, and those afterwards, each once."""
    count = min(top, len(before))
    ids = dict.fromkeys([*followed, *before.topk(count).indices.tolist(), *after.topk(count).indices.tolist()])
    return tuple(Choice(number, float(before[number].exp()), float(after[number].exp())) for number in ids)


def same(what: str, found: Tensor, expected: Tensor) -> Verified:
    """Two ways to the same logits, by the same arithmetic: no difference is allowed."""
    return Verified(what, float((found.double() - expected.double()).abs().max()), 0.0)


class UnevenTexts(UsageError):
    """Two texts of different numbers of tokens. ``aligned`` pairs the tokens as shown, None where one has no token."""

    def __init__(self, clean: Encoding, corrupt: Encoding) -> None:
        self.aligned: tuple[tuple[str | None, str | None], ...] = _aligned(clean, corrupt)
        first = next(place for place, (one, other) in enumerate(self.aligned) if one is None or other is None)
        names = [("nothing" if token is None else token) for token in self.aligned[first]]
        super().__init__(
            f"the texts have {len(clean.tokens):,} and {len(corrupt.tokens):,} tokens, clean and corrupt: at token "
            f"{first} {names[0]} is against {names[1]}",
            "change words so that both have the same number of tokens; tinytf tokens shows how a text splits",
        )


def _aligned(clean: Encoding, corrupt: Encoding) -> tuple[tuple[str | None, str | None], ...]:
    ones, others = ([token.shown for token in text.tokens] for text in (clean, corrupt))
    pairs: list[tuple[str | None, str | None]] = []
    for _, a, b, c, d in SequenceMatcher(a=ones, b=others, autojunk=False).get_opcodes():
        count = max(b - a, d - c)
        left = [*ones[a:b], *[None] * (count - (b - a))]
        right = [*others[c:d], *[None] * (count - (d - c))]
        pairs += zip(left, right, strict=True)
    return tuple(pairs)


def require_even(clean: Encoding, corrupt: Encoding) -> None:
    """Raise UnevenTexts for different numbers of tokens, UsageError for the same tokens."""
    if len(clean.tokens) != len(corrupt.tokens):
        raise UnevenTexts(clean, corrupt)
    if clean.ids == corrupt.ids:
        raise UsageError("the clean and the corrupt text have the same tokens", "change a word of one of them")


@dataclass(frozen=True)
class Contrast(Data):
    """The difference of two logits, ``answer`` − ``versus``, at ``position``, in the clean run and in the corrupt."""

    position: int
    answer: int
    versus: int
    clean: float
    corrupt: float

    def of(self, logits: Tensor) -> list[float]:
        """The difference in each of some rows of logits (B, V)."""
        found = logits[:, self.answer].double() - logits[:, self.versus].double()
        return [float(one) for one in found.tolist()]

    def normalised(self, difference: Difference) -> Difference:
        """1 where a difference (or each of a tensor of them) is the clean run's, 0 where it is the corrupt one's."""
        return (difference - self.corrupt) / (self.clean - self.corrupt)


def contrast(clean: Trace, corrupt: Trace, answer: int | None = None, versus: int | None = None) -> Contrast:
    """The contrast of two runs: ``answer`` is by default the clean run's prediction, ``versus`` the corrupt one's.

    Raises UsageError where the two are one token, where an encoder's masks stand at different positions, and where the
    difference is the same in both runs, so that nothing can be measured by it; TinytfError for logits that are not
    finite.
    """
    position = predicted_at(clean)
    if predicted_at(corrupt) != position:
        raise UsageError(
            f"[MASK] is at {position} in the clean text and at {predicted_at(corrupt)} in the corrupt one",
            "put it at the same place in both",
        )
    logits = [trace.logits_at(position) for trace in (clean, corrupt)]
    for trace, own in zip((clean, corrupt), logits, strict=True):
        require_finite(trace, own)
    best = [int(one.argmax()) for one in logits]
    chosen = (best[0] if answer is None else answer, best[1] if versus is None else versus)
    if chosen[0] == chosen[1]:
        both = "both runs predict the same token" if best[0] == best[1] and answer is None else "both are one token"
        raise UsageError(f"{both}, so there is no difference to follow", "name two: --answer A --versus B")
    found = Contrast(position, *chosen, 0.0, 0.0)
    differences = [found.of(one[None])[0] for one in logits]
    scale = max(1.0, *(abs(one) for one in differences))
    if abs(differences[0] - differences[1]) <= _SAME * scale:
        raise UsageError(
            f"the difference of the two logits is {differences[0]:.4g} in both runs, so there is nothing to measure by",
            "name tokens that the two texts disagree on: --answer A --versus B",
        )
    return Contrast(position, *chosen, *differences)


def first_different(clean: Sequence[int], corrupt: Sequence[int]) -> int:
    """The first position at which two texts of the same length have different tokens."""
    return next(place for place, (one, other) in enumerate(zip(clean, corrupt, strict=True)) if one != other)
