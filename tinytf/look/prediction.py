"""The predictions of a traced text: its next token, the token of each mask, or the classes of its head."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tinytf.short_repr import ShortRepr
from tinytf.text_model import TextModel
from tinytf.trace.trace import Trace

_IN_REPR = 3


@dataclass(frozen=True)
class Likely:
    """A token or class of high probability; ``shown`` is its printable form.

    ``id`` is its number in the vocabulary or among the classes, or the position of a token where an answer starts or
    ends. ``probability`` is None if the head gives a number, which is then the ``logit``.
    """

    shown: str
    id: int
    probability: float | None
    logit: float


@dataclass(frozen=True)
class Prediction(ShortRepr):
    """The ``top`` most probable outcomes, the best first, read at the token ``shown`` at ``position``.

    ``what`` is their kind: the ``next`` token, one that ``fills`` a mask, the ``class`` or ``number`` of the text, the
    class of a ``token``, or the ``place`` of the class ``label`` of a question head. ``column`` is the best
    one's column in the logits.
    """

    position: int
    shown: str
    what: str
    column: int
    top: tuple[Likely, ...]
    label: str = ""

    def repr_members(self) -> dict[str, Any]:
        """The best outcomes, each with its probability or logit."""
        best = ((top.shown, top.logit if top.probability is None else top.probability) for top in self.top[:_IN_REPR])
        return {"best": " ".join(f"{name} {share:.3g}" for name, share in best)}

    @property
    def of_tokens(self) -> bool:
        """Whether a token of the vocabulary is predicted."""
        return self.what in ("next", "fills")

    @property
    def title(self) -> str:
        """The predicted kind, in a word or two."""
        titles = {"fills": f"[MASK] at {self.position}", "token": self.shown, "place": self.label}
        return titles.get(self.what, self.what)

    @property
    def best(self) -> str:
        """The printable form of the token or class with the largest logit."""
        return self.label or self.top[0].shown

    @property
    def address(self) -> str:
        """The address of its logit."""
        token = self.top[0]
        named = token.shown if token.shown.lstrip("·").isalpha() else f"#{token.id}"
        return f"logits[{self.position},{named if self.of_tokens else self.column}]"

    def to_dict(self) -> dict[str, Any]:
        keys = {"next": ("after", self.shown), "fills": ("fills", self.shown), "place": ("class", self.label)}
        key_of_name, name = keys.get(self.what, ("at", self.shown))
        kind = "token" if self.what in keys else "class"
        number = "position" if self.label else "id"
        top = [{kind: t.shown, number: t.id, "probability": t.probability, "logit": t.logit} for t in self.top]
        return {"position": self.position, key_of_name: name, "top": top}


def predictions(trace: Trace, model: TextModel, top: int) -> tuple[Prediction, ...]:
    """The ``top`` most probable tokens, for the last token of a decoder or each [MASK] of an encoder.

    A head of classes predicts those of the text or of each token that is not special; a question head predicts the
    tokens where an answer starts and ends.
    """
    config, rows = trace.config, trace.recording.logit_rows
    if config.head.kind == "question":
        return tuple(_of_column(trace, model, column, top) for column in range(len(config.labels)))
    if config.head.kind == "token":
        rows = tuple(row for row in rows if not trace.tokens[row].special) or rows
    elif config.predicts_tokens and not config.causal:
        rows = tuple(row for row in rows if trace.tokens[row].id == model.tokenizer.mask_id)
    return tuple(prediction_at(trace, model, row, top) for row in rows)


def prediction_at(trace: Trace, model: TextModel, row: int, top: int) -> Prediction:
    """The ``top`` most probable outcomes at one position."""
    logits, shares, config = trace.logits_at(row), trace.steps.probabilities, trace.config
    kind = {"sequence": "class", "token": "token"}.get(config.head.kind, "next" if config.causal else "fills")
    operation = None if shares is None else shares.operation
    probabilities = None if operation is None else operation.forward(logits)
    likely = _likely(logits, probabilities, top, model.shown)
    return Prediction(
        row, trace.tokens[row].shown, kind if probabilities is not None else "number", likely[0].id, likely
    )


def _of_column(trace: Trace, model: TextModel, column: int, top: int) -> Prediction:
    """The tokens of highest probability in one class of a question head."""
    assert trace.steps.probabilities is not None
    logits, shares = (trace.step(name)[:, column] for name in ("logits", trace.steps.probabilities.name))
    likely = _likely(logits, shares, top, lambda position: trace.tokens[position].shown)
    return Prediction(likely[0].id, likely[0].shown, "place", column, likely, model.shown(column))


def _likely(logits: Tensor, shares: Tensor | None, top: int, shown: Callable[[int], str]) -> tuple[Likely, ...]:
    best = (logits if shares is None else shares).topk(min(top, len(logits))).indices
    probabilities = [None] * len(best) if shares is None else shares[best].tolist()
    entries = zip(best.tolist(), probabilities, logits[best].tolist(), strict=True)
    return tuple(Likely(shown(i), i, share, logit) for i, share, logit in entries)
