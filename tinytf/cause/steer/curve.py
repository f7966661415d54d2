"""Dose and response: what a steering vector does to a prediction, and to other texts, at several strengths."""

import itertools
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.cause.interventions.controls import CONTROLS, Control, random_vectors, require_controls
from tinytf.cause.interventions.edits import Edit, edited
from tinytf.cause.interventions.prediction import log_probabilities, metric_data, predicted_at
from tinytf.cause.interventions.values import Reference
from tinytf.cause.steer.applying import Change, Steering, Vectors, hidden_states, signed, steered_model, steering_of
from tinytf.errors import UsageError
from tinytf.estimate import Estimate, estimates
from tinytf.metric import METRICS, Asked, Metric, MetricFunction, divergence
from tinytf.model.cache import require_decoder
from tinytf.model.transformer import Transformer
from tinytf.report import About, Data, Progress, Report, Verified, ignore_progress
from tinytf.sentences import percent
from tinytf.text.tokenizer import Encoding
from tinytf.text_model import TextModel
from tinytf.tolerance import RUN, allowed
from tinytf.trace.trace import Text

STRENGTHS = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
TOKENS = 256
"""The most tokens of other texts that are run at each strength."""
_MOST, _ROWS = 101, 128
_EDITED = "the logits at the largest strength are those of Model.edited"


@dataclass(frozen=True)
class Dose(Data):
    """The prediction at one strength: a probability and logit for each asked token, and the most probable token.

    ``value`` is the metric of the curve. ``kl`` is KL(plain ‖ steered) in nats
    of the prediction, ``elsewhere`` its mean over the tokens of the other texts, with its interval over texts.
    """

    strength: float
    probabilities: tuple[float, ...]
    logits: tuple[float, ...]
    best: int
    kl: float
    value: float
    elsewhere: Estimate | None = None


@dataclass(frozen=True)
class SteeringCurve(Report):
    """What a vector does at rising strengths to the prediction at ``position``, for the tokens ``asked``.

    ``metric`` is what is followed: by default the difference of the logits of the first two tokens asked for, or the
    probability of a single one. ``steering`` is the vector at strength 1; ``reference`` names the other texts and is
    empty without any. ``control`` has the change of the metric at the strongest dose beside those of random vectors of
    the same lengths at the same steps. ``check`` compares the strongest dose with the same change made by
    ``Model.edited``. ``planned`` is the number of strengths that were asked for: Ctrl-C leaves fewer.
    """

    KIND = "steer_curve"
    EVENTS: ClassVar = {"doses": "dose"}

    steering: str
    position: int
    asked: tuple[int, ...]
    metric: Metric
    doses: tuple[Dose, ...]
    reference: str
    control: Control | None
    check: Verified
    planned: int

    @property
    def interrupted(self) -> bool:
        return len(self.doses) < self.planned

    @property
    def response(self) -> tuple[float, ...]:
        """The metric at each strength."""
        return tuple(dose.value for dose in self.doses)

    @property
    def direction(self) -> int:
        """1 if ``response`` rises at every step, −1 if it falls at every step, else 0."""
        steps = [after - before for before, after in itertools.pairwise(self.response)]
        return int(all(step > 0 for step in steps)) - int(all(step < 0 for step in steps)) if steps else 0

    def in_a_sentence(self) -> str:
        """What the response does from the lowest strength to the highest, and what the largest costs other texts."""
        first, last = self.doses[0], self.doses[-1]
        metric, is_share = self.metric, self.metric.name == "prob"
        what = f"{metric.words}{metric.in_unit and f' in{metric.in_unit}'}"
        what = str(self.shown(metric.answer[0])) if is_share and len(metric.answer) == 1 else what
        values = [percent(value) if is_share else signed(round(value, 2) + 0.0, "+.2f") for value in self.response]
        where, has = f"From {signed(first.strength)} to {signed(last.strength)}", "has" if is_share else "is"
        if len(values) == 1:
            where, does = f"At {signed(first.strength)}", f"{has} {values[0]}"
        elif values[0] != values[-1]:
            always = "" if len(values) == 2 else " at every step" if self.direction else " but not at every step"
            verb = "falls" if self.response[-1] < self.response[0] else "rises"
            does = f"{verb} from {values[0]} to {values[-1]}{always}"
        else:
            does = f"stays at {values[0]}" if len(set(values)) == 1 else f"{has} {values[0]} at both ends"
        words = f"{where} × {self.steering}, {what} {does}"
        largest = max(reversed(self.doses), key=lambda dose: abs(dose.strength))
        if largest.elsewhere is None or not largest.strength:
            return f"{words}."
        moved = f"{largest.elsewhere.value:.2g} nats a token"
        return f"{words}; at {signed(largest.strength)}, the predictions on other texts move by {moved}."

    def fields(self) -> dict[str, Any]:
        data = self.members("steering", "position", "doses", "reference", "control", "check", "planned", "interrupted")
        for dose in data["doses"]:
            numbers = zip(self.asked, dose.pop("probabilities"), dose.pop("logits"), strict=True)
            dose["asked"] = [{**self.named(i), "probability": share, "logit": logit} for i, share, logit in numbers]
            dose["best"] = self.named(dose["best"])
        return {**data, **metric_data(self, self.metric), "asked": [self.named(token) for token in self.asked]}


def require_strengths(strengths: Sequence[float]) -> tuple[float, ...]:
    """The strengths in rising order. Raises UsageError for none, too many, and numbers that are not finite."""
    if not strengths or len(strengths) > _MOST:
        raise UsageError(f"{len(strengths):,} strengths are not 1 to {_MOST}", "such as -8:8:2, from −8 to 8 by 2")
    if not all(math.isfinite(strength) for strength in strengths):
        raise UsageError("a strength is not finite", "such as -8:8:2, from −8 to 8 by 2")
    return tuple(sorted(set(map(float, strengths))))


@torch.no_grad()
def steer_curve(
    model: TextModel,
    text: Text,
    add: Vectors,
    *,
    strengths: Sequence[float] = STRENGTHS,
    ask: Sequence[str | int] = (),
    metric: str | MetricFunction | None = None,
    reference: Reference | None = None,
    tokens: int = TOKENS,
    controls: int = CONTROLS,
    seed: int = 0,
    on_progress: Progress = ignore_progress,
) -> SteeringCurve:
    """What the vectors ``add`` do to the prediction for ``text``, times each of ``strengths``, and to other texts.

    ``ask`` are tokens; by default those that are most probable at the lowest strength, at 0 and at the highest.
    ``metric`` is one of METRICS of the tokens asked for, or a function as in ``patch``; by default ``logit_diff`` of
    the first two, or ``prob`` of one.
    ``reference`` are other texts (see ``Model.reference``), of which the first are run, up to ``tokens`` tokens.
    ``controls`` random vectors as long as the strongest dose, drawn by ``seed``, are added beside it. Raises
    UsageError for a text without a prediction and for strengths that are not finite, and the errors of ``steered``.
    """
    require_controls(controls)
    strengths, steering = require_strengths(strengths), steering_of(model, add)
    others = [] if reference is None else _first(model, reference, tokens)
    wanted = None if metric is None else _asked_for(model, metric, ask)
    trace = model.trace(text) if wanted is None else wanted.trace(model, text)
    plain, predicted = model.transformer, predicted_at(trace)
    position, encoding, followed = predicted, trace.encoding, None
    if wanted is None:
        asked = list(dict.fromkeys(model.find_outcome(word, "ask") for word in ask))
    else:
        position = wanted.position(predicted)
        second = int(trace.logits_at(position).topk(2).indices[1])
        followed = wanted.bind(trace, predicted, second, shown=model.shown, run="plain")
        asked = list(dict.fromkeys(followed.followed))
    read = (position,) if followed is None else followed.read(position)
    unsteered = _prediction(plain, encoding, read)
    before = unsteered[read.index(position)]
    hidden = [hidden_states(plain, other.ids, other.types) for other in others]
    after: list[Tensor] = []
    costs: list[Estimate | None] = []
    try:
        for number, strength in enumerate(strengths):
            steered = steered_model(model, _times(steering, strength)).transformer
            logits = _prediction(steered, encoding, read)
            costs.append(_cost(plain, steered, others, hidden))
            after.append(logits)
            on_progress(number + 1, len(strengths))
    except KeyboardInterrupt:
        if not after:
            raise
    there = [logits[read.index(position)] for logits in after]
    asked = asked or list(dict.fromkeys(int(logits.argmax()) for logits in (before, there[0], there[-1])))
    if followed is None:
        name, versus = ("logit_diff", (asked[1],)) if len(asked) > 1 else ("prob", None)
        followed = Asked(name, (asked[0],), versus).bind(trace, predicted, shown=model.shown, run="plain")
    before = log_probabilities(before)
    doses = []
    for strength, every, logits, cost in zip(strengths, after, there, costs, strict=False):
        log_p, row = log_probabilities(logits), logits.double()[asked]
        value = float(followed.of(every[None]))
        moved = float(divergence(before.exp(), before, log_p))
        shares = tuple(log_p[asked].exp().tolist())
        doses.append(Dose(strength, shares, tuple(row.tolist()), int(logits.argmax()), moved, value, cost))
    largest = max(range(len(doses)), key=lambda number: abs(strengths[number]))
    changes = _times(steering, strengths[largest])
    random = [random_vectors(change.vector, controls, seed + number) for number, change in enumerate(changes)]
    of_random = [
        [replace(change, vector=vector) for change, vector in zip(changes, vectors, strict=True)]
        for vectors in zip(*random, strict=True)
    ]
    plain_value = float(followed.of(unsteered[None]))
    moves = [
        float(followed.of(_prediction(steered_model(model, vectors).transformer, encoding, read)[None])) - plain_value
        for vectors in (of_random if strengths[largest] else ())
    ]
    control = Control.of("random vectors of the same length", doses[largest].value - plain_value, moves)
    check = _checked(model, encoding, read, changes, after[largest])
    where = "" if reference is None else str(replace(reference, texts=tuple(others)))
    return SteeringCurve(
        str(steering), position, tuple(asked), followed, tuple(doses), where, control, check, len(strengths),
        about=About(model, encoding),
    )  # fmt: skip


def _first(model: TextModel, reference: Reference, tokens: int) -> list[Encoding]:
    """The first texts of a reference, up to so many tokens. Raises UsageError if the model predicts no next token."""
    require_decoder(model.config)
    model.transformer.require_vocabulary("it predicts no next token of other texts")
    texts: list[Encoding] = []
    room = tokens
    for text in reference.texts:
        text = text.truncated(room) if len(text.ids) > room else text
        room -= len(text.ids)
        texts.append(text)
        if room < 1:
            break
    return texts


def _times(steering: Steering, strength: float) -> list[Change]:
    return [replace(change, vector=change.vector * strength) for change in steering.changes]


def _asked_for(model: TextModel, metric: str | MetricFunction, ask: Sequence[str | int]) -> Asked:
    """A metric of the tokens asked for. Raises UsageError for more of them than it takes."""
    words, kind = list(ask), METRICS.get(metric) if isinstance(metric, str) else None
    if kind is not None and kind.answer == "set":
        return Asked.of(model, metric, words or None, names=("ask", "ask"))
    if len(words) > 1 + (kind is not None and kind.versus):
        raise UsageError(f"the metric {metric} is not of {len(words)} tokens", "take prob, which is of a set")
    answer, versus = (*words, None, None)[:2]
    return Asked.of(model, metric, answer, versus, names=("ask", "ask"))


def _prediction(model: Transformer, encoding: Encoding, positions: Sequence[int]) -> Tensor:
    """The logits (P, V) at some positions."""
    return model.unembed(hidden_states(model, encoding.ids, encoding.types)[list(positions)]).cpu()


def _cost(
    plain: Transformer, steered: Transformer, others: Sequence[Encoding], hidden: Sequence[Tensor]
) -> Estimate | None:
    """The mean of KL(plain ‖ steered) over the tokens of other texts, whose plain ``hidden`` states are known."""
    sums = []
    for encoding, states in zip(others, hidden, strict=True):
        new, total = hidden_states(steered, encoding.ids, encoding.types), 0.0
        for rows in (slice(start, start + _ROWS) for start in range(0, len(new), _ROWS)):
            before, after = (
                log_probabilities(model.unembed(x[rows])) for model, x in ((plain, states), (steered, new))
            )
            total += float(divergence(before.exp(), before, after).sum())
        sums.append([total])
    counts = torch.tensor([float(len(encoding.ids)) for encoding in others], dtype=torch.float64)
    return estimates(torch.tensor(sums, dtype=torch.float64), counts, 0)[0] if others else None


def _checked(
    model: TextModel, encoding: Encoding, read: Sequence[int], changes: Sequence[Change], logits: Tensor
) -> Verified:
    """Compare the logits with those of ``Model.edited``, whose functions add the same vectors to whole texts."""

    def added(vector: Tensor) -> Edit:
        return lambda value: value.add(vector.to(value))

    with ExitStack() as stack:
        for change in changes:
            stack.enter_context(edited(model, {change.at: added(change.vector)}))
        expected = _prediction(model.transformer, encoding, read)
    limit = allowed(RUN, logits.dtype) * max(1.0, float(expected.abs().max()))
    return Verified(_EDITED, float((logits.double() - expected.double()).abs().max()), limit)
