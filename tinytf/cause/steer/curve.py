"""Dose and response: what a steering vector does to a prediction, and to other texts, at several strengths."""

import itertools
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.cause.interventions.edits import Edit, edited
from tinytf.cause.interventions.prediction import log_probabilities, predicted_at
from tinytf.cause.interventions.values import Reference
from tinytf.cause.steer.applying import Change, Steering, Vectors, hidden_states, signed, steered_model, steering_of
from tinytf.errors import UsageError
from tinytf.estimate import Estimate, estimates
from tinytf.metric import divergence
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

    ``difference`` is the logit of the first asked token minus that of the second. ``kl`` is KL(plain ‖ steered) in nats
    of the prediction, ``elsewhere`` its mean over the tokens of the other texts, with its interval over texts.
    """

    strength: float
    probabilities: tuple[float, ...]
    logits: tuple[float, ...]
    best: int
    kl: float
    difference: float | None = None
    elsewhere: Estimate | None = None


@dataclass(frozen=True)
class SteeringCurve(Report):
    """What a vector does at rising strengths to the prediction at ``position``, for the tokens ``asked``.

    ``steering`` is the vector at strength 1; ``reference`` names the other texts and is empty without any. ``check``
    compares the strongest dose with the same change made by ``Model.edited``. ``planned`` is the number of strengths
    that were asked for: Ctrl-C leaves fewer.
    """

    KIND = "steer_curve"
    EVENTS: ClassVar = {"doses": "dose"}

    steering: str
    position: int
    asked: tuple[int, ...]
    doses: tuple[Dose, ...]
    reference: str
    check: Verified
    planned: int

    @property
    def interrupted(self) -> bool:
        return len(self.doses) < self.planned

    @property
    def response(self) -> tuple[float, ...]:
        """What the sentence is about at each strength: the first two asked tokens' difference of logits, or of one
        token its probability.
        """
        return tuple(dose.probabilities[0] if dose.difference is None else dose.difference for dose in self.doses)

    @property
    def direction(self) -> int:
        """1 if ``response`` rises at every step, −1 if it falls at every step, else 0."""
        steps = [after - before for before, after in itertools.pairwise(self.response)]
        return int(all(step > 0 for step in steps)) - int(all(step < 0 for step in steps)) if steps else 0

    def in_a_sentence(self) -> str:
        """What the response does from the lowest strength to the highest, and what the largest costs other texts."""
        first, last = self.doses[0], self.doses[-1]
        is_share, name = first.difference is None, self.shown(self.asked[0])
        what = str(name) if is_share else f"the lead of {name} over {self.shown(self.asked[1])} in logits"
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
        data = self.members("steering", "position", "doses", "reference", "check", "planned", "interrupted")
        for dose in data["doses"]:
            numbers = zip(self.asked, dose.pop("probabilities"), dose.pop("logits"), strict=True)
            dose["asked"] = [{**self.named(i), "probability": share, "logit": logit} for i, share, logit in numbers]
            dose["best"] = self.named(dose["best"])
        return {**data, "asked": [self.named(token) for token in self.asked]}


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
    reference: Reference | None = None,
    tokens: int = TOKENS,
    on_progress: Progress = ignore_progress,
) -> SteeringCurve:
    """What the vectors ``add`` do to the prediction for ``text``, times each of ``strengths``, and to other texts.

    ``ask`` are tokens; by default those that are most probable at the lowest strength, at 0 and at the highest.
    ``reference`` are other texts (see ``Model.reference``), of which the first are run, up to ``tokens`` tokens. Raises
    UsageError for a text without a prediction and for strengths that are not finite, and the errors of ``steered``.
    """
    strengths, steering = require_strengths(strengths), steering_of(model, add)
    others = [] if reference is None else _first(model, reference, tokens)
    trace, plain = model.trace(text), model.transformer
    position, encoding = predicted_at(trace), trace.encoding
    asked = list(dict.fromkeys(model.find_outcome(word, "ask") for word in ask))
    before = _prediction(plain, encoding, position)
    hidden = [hidden_states(plain, other.ids, other.types) for other in others]
    after: list[Tensor] = []
    costs: list[Estimate | None] = []
    try:
        for number, strength in enumerate(strengths):
            steered = steered_model(model, _times(steering, strength)).transformer
            logits = _prediction(steered, encoding, position)
            costs.append(_cost(plain, steered, others, hidden))
            after.append(logits)
            on_progress(number + 1, len(strengths))
    except KeyboardInterrupt:
        if not after:
            raise
    asked = asked or list(dict.fromkeys(int(logits.argmax()) for logits in (before, after[0], after[-1])))
    before = log_probabilities(before)
    doses = []
    for strength, logits, cost in zip(strengths, after, costs, strict=False):
        log_p, row = log_probabilities(logits), logits.double()[asked]
        difference = float(row[0] - row[1]) if len(asked) > 1 else None
        moved = float(divergence(before.exp(), before, log_p))
        shares = tuple(log_p[asked].exp().tolist())
        doses.append(Dose(strength, shares, tuple(row.tolist()), int(logits.argmax()), moved, difference, cost))
    largest = max(range(len(doses)), key=lambda number: abs(strengths[number]))
    check = _checked(model, encoding, position, _times(steering, strengths[largest]), after[largest])
    where = "" if reference is None else str(replace(reference, texts=tuple(others)))
    return SteeringCurve(
        str(steering), position, tuple(asked), tuple(doses), where, check, len(strengths), about=About(model, encoding)
    )


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


def _prediction(model: Transformer, encoding: Encoding, position: int) -> Tensor:
    """The logits (V,) at a position."""
    return model.unembed(hidden_states(model, encoding.ids, encoding.types)[position]).cpu()


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
    model: TextModel, encoding: Encoding, position: int, changes: Sequence[Change], logits: Tensor
) -> Verified:
    """Compare the logits with those of ``Model.edited``, whose functions add the same vectors to whole texts."""

    def added(vector: Tensor) -> Edit:
        return lambda value: value.add(vector.to(value))

    with ExitStack() as stack:
        for change in changes:
            stack.enter_context(edited(model, {change.at: added(change.vector)}))
        expected = _prediction(model.transformer, encoding, position)
    limit = allowed(RUN, logits.dtype) * max(1.0, float(expected.abs().max()))
    return Verified(_EDITED, float((logits.double() - expected.double()).abs().max()), limit)
