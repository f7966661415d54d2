"""The prediction at one position, its change under an intervention, and the contrast of two runs in a metric."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, TypeVar

from torch import Tensor

from tinytf.errors import TinytfError, UsageError
from tinytf.metric import Asked, Metric, divergence
from tinytf.report import Data, Report, Verified
from tinytf.text.tokenizer import Encoding
from tinytf.text_model import TextModel
from tinytf.trace.faults import require_finite
from tinytf.trace.trace import Trace

_SAME = 1e-5
"""A metric counts as equal in two runs within this share of the larger."""
Number = TypeVar("Number", float, Tensor)


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
    """The effect on a prediction: ``kl`` is KL(before ‖ after) in nats, ``before`` and ``after`` are of the metric.

    ``best`` is the most probable token afterwards.
    """

    kl: float
    before: float
    after: float
    best: int

    @property
    def change(self) -> float:
        """The change of the metric, in its unit."""
        return self.after - self.before

    @property
    def ends(self) -> tuple[float, float]:
        return self.before, self.after

    def to_dict(self) -> dict[str, Any]:
        return {"kl": self.kl, "before": self.before, "after": self.after, "change": self.change}


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


def effects(plain: Tensor, logits: Tensor, metric: Metric, position: int) -> list[Effect]:
    """The effect on each of some runs: logits ``plain`` (P, V) and (B, P, V), at what the metric reads (``read``)."""
    place = metric.read(position).index(position)
    before, after = log_probabilities(plain[place]), log_probabilities(logits[:, place])  # (V,), (B, V)
    kl, was = divergence(before.exp(), before, after), float(metric.of(plain[None]))
    rows = zip(kl.tolist(), metric.of(logits).tolist(), after.argmax(dim=-1).tolist(), strict=True)
    return [Effect(nats, was, value, best) for nats, value, best in rows]


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
    runs = [(one, corrupt.stacks[at]) for at, one in clean.stacks.items() if at in corrupt.stacks]
    pairs = [(one.encoding, other.encoding) for one, other in runs]
    return next((pair for pair in reversed(pairs) if pair[0].ids != pair[1].ids), pairs[0])


def require_even(clean: Encoding, corrupt: Encoding) -> None:
    """Raise UnevenTexts for different numbers of tokens, UsageError for the same tokens."""
    if len(clean.tokens) != len(corrupt.tokens):
        raise UnevenTexts(clean, corrupt)
    if clean.ids == corrupt.ids:
        raise UsageError("the clean and the corrupt text have the same tokens", "change a word of one of them")


@dataclass(frozen=True)
class Contrast(Data):
    """A ``metric`` in the clean and the corrupt run, which predict at ``position``."""

    metric: Metric
    position: int
    clean: float
    corrupt: float

    @property
    def read(self) -> tuple[int, ...]:
        """The positions whose logits are read: those of the metric, and that of the prediction."""
        return self.metric.read(self.position)

    def predicted(self, logits: Tensor) -> Tensor:
        """The logits of the prediction, (V,), among those that are ``read``, (P, V)."""
        return logits[self.read.index(self.position)]

    def of(self, logits: Tensor) -> list[float]:
        """The metric in each of some runs, of the logits that are ``read``, (B, P, V)."""
        return [float(value) for value in self.metric.of(logits).tolist()]

    def normalised(self, value: Number) -> Number:
        """Scale a metric (or a tensor of them) so that the clean run has 1 and the corrupt run 0."""
        return (value - self.corrupt) / (self.clean - self.corrupt)


def contrast(model: TextModel, asked: Asked, clean: Trace, corrupt: Trace) -> Contrast:
    """What is ``asked`` in two runs: by default the clean run's prediction, and for versus the corrupt run's.

    Raises UsageError if the two are one token, if an encoder's masks are at different positions, and if the metric is
    the same in both runs, so that it measures nothing; TinytfError for logits that are not finite.
    """
    predicted = predicted_at(clean)
    if predicted_at(corrupt) != predicted:
        raise UsageError(
            f"[MASK] is at {predicted} in the clean text and at {predicted_at(corrupt)} in the corrupt one",
            "put it at the same place in both",
        )
    position = asked.position(predicted)
    for trace in (clean, corrupt):
        require_finite(trace, trace.logits_at(position))
    best = [int(trace.logits_at(position).argmax()) for trace in (clean, corrupt)]
    metric = asked.bind(clean, predicted, best[1], shown=model.shown)
    if metric.is_lead and metric.answer == metric.versus:
        both = "both runs predict the same token" if best[0] == best[1] and not asked.answer else "both are one token"
        raise UsageError(f"{both}, so there is no difference to follow", "name two: --answer A --versus B")
    values = [float(metric.of(logits_at(trace, metric.positions)[None])) for trace in (clean, corrupt)]
    scale = max(1.0 if metric.unit == "logits" else 0.0, *map(abs, values))
    if abs(values[0] - values[1]) <= _SAME * scale:
        what = "the difference of the two logits" if metric.is_lead else metric.words
        raise UsageError(
            f"{what} is {values[0]:.4g} in both runs, so there is nothing to measure by",
            "name tokens that the two texts disagree on: --answer A --versus B",
        )
    return Contrast(metric, position, *values)


def logits_at(trace: Trace, positions: Sequence[int]) -> Tensor:
    """The logits of a run at some positions, (P, V)."""
    return trace.vocabulary("logits", list(positions))


def metric_data(report: Report, metric: Metric) -> dict[str, Any]:
    """A metric with its unit and the tokens that it is about."""
    named = {name: [report.named(token) for token in getattr(metric, name)] for name in ("answer", "versus")}
    return {"metric": {**metric.to_dict(), **named}}


def first_different(clean: Sequence[int], corrupt: Sequence[int]) -> int:
    """The first position at which two texts of the same length have different tokens; 0 where only sources differ."""
    return next((position for position, (a, b) in enumerate(zip(clean, corrupt, strict=True)) if a != b), 0)
