"""What a traced text predicts: its next token, what fills each mask, or the classes that its head gives."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tinytf.short_repr import ShortRepr
from tinytf.text_model import TextModel
from tinytf.trace.trace import Trace

_TOLD = 3


@dataclass(frozen=True)
class Likely:
    """A token or class of high probability; ``shown`` is how it is shown.

    ``id`` is its number in the vocabulary or among the classes, or the position of a token where an answer starts or
    ends. ``probability`` is None where the head gives a number, which then is the ``logit``.
    """

    shown: str
    id: int
    probability: float | None
    logit: float


@dataclass(frozen=True)
class Prediction(ShortRepr):
    """The most probable ones, the best first, read at the token ``shown`` at ``position``.

    ``what`` says of what: the ``next`` token, one that ``fills`` a mask, the ``class`` or ``number`` of the text, the
    class of a ``token``, or the ``place`` of the class ``label`` of a question head. ``column`` is that of the best one
    among the logits.
    """

    position: int
    shown: str
    what: str
    column: int
    top: tuple[Likely, ...]
    label: str = ""

    def repr_members(self) -> dict[str, Any]:
        """The best ones, with what each has."""
        given = ((one.shown, one.logit if one.probability is None else one.probability) for one in self.top[:_TOLD])
        return {"best": " ".join(f"{name} {share:.3g}" for name, share in given)}

    @property
    def of_tokens(self) -> bool:
        """Whether a token of the vocabulary is predicted."""
        return self.what in ("next", "fills")

    @property
    def title(self) -> str:
        """What is predicted, in a word or two."""
        named = {"fills": f"[MASK] at {self.position}", "token": self.shown, "place": self.label}
        return named.get(self.what, self.what)

    @property
    def best(self) -> str:
        """Whose logit is the largest: how the token or class is shown."""
        return self.label or self.top[0].shown

    def to_dict(self) -> dict[str, Any]:
        named = {"next": ("after", self.shown), "fills": ("fills", self.shown), "place": ("class", self.label)}
        where, name = named.get(self.what, ("at", self.shown))
        key = "token" if self.what in named else "class"
        number = "position" if self.label else "id"
        top = [{key: one.shown, number: one.id, "probability": one.probability, "logit": one.logit} for one in self.top]
        return {"position": self.position, where: name, "top": top}


def predictions(trace: Trace, model: TextModel, top: int) -> tuple[Prediction, ...]:
    """For the last token of a decoder, or each [MASK] of an encoder, the ``top`` most probable tokens.

    A head of classes: those of the text, or of each token that is not special; the tokens where an answer starts and
    ends.
    """
    config, rows = trace.config, trace.recording.logit_rows
    if config.head.kind == "question":
        return tuple(_of_column(trace, model, column, top) for column in range(len(config.labels)))
    if config.head.kind == "token":
        rows = tuple(row for row in rows if not trace.tokens[row].special) or rows
    elif config.predicts_tokens and not config.causal:
        rows = tuple(row for row in rows if trace.tokens[row].id == model.tokenizer.mask_id)
    return tuple(_at(trace, row, model, top) for row in rows)


def _at(trace: Trace, row: int, model: TextModel, top: int) -> Prediction:
    logits, shares, config = trace.logits_at(row), trace.steps.probabilities, trace.config
    what = {"sequence": "class", "token": "token"}.get(config.head.kind, "next" if config.causal else "fills")
    operation = None if shares is None else shares.operation
    given = None if operation is None else operation.forward(logits)
    found = _likely(logits, given, top, model.shown)
    return Prediction(row, trace.tokens[row].shown, what if given is not None else "number", found[0].id, found)


def _of_column(trace: Trace, model: TextModel, column: int, top: int) -> Prediction:
    """The tokens of highest probability in one class of a question head."""
    assert trace.steps.probabilities is not None
    logits, shares = (trace.step(name)[:, column] for name in ("logits", trace.steps.probabilities.name))
    found = _likely(logits, shares, top, lambda place: trace.tokens[place].shown)
    return Prediction(found[0].id, found[0].shown, "place", column, found, model.shown(column))


def _likely(logits: Tensor, shares: Tensor | None, top: int, shown: Callable[[int], str]) -> tuple[Likely, ...]:
    best = (logits if shares is None else shares).topk(min(top, len(logits))).indices
    probabilities = [None] * len(best) if shares is None else shares[best].tolist()
    each = zip(best.tolist(), probabilities, logits[best].tolist(), strict=True)
    return tuple(Likely(shown(i), i, share, logit) for i, share, logit in each)
