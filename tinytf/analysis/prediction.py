"""What a traced text predicts: its next token, or what fills each mask."""

from dataclasses import dataclass
from typing import Any

from tinytf.steps.operations.softmax import probabilities
from tinytf.text.tokenizer import Tokenizer
from tinytf.trace.trace import Trace


@dataclass(frozen=True)
class LikelyToken:
    """A token of high probability; ``token`` is how it is shown."""

    token: str
    id: int
    probability: float
    logit: float


@dataclass(frozen=True)
class Prediction:
    """The most probable tokens, the best first: ``after`` the token at ``position``, or as what ``fills`` it.

    ``shown`` is that token.
    """

    position: int
    shown: str
    fills: bool
    top: tuple[LikelyToken, ...]

    def to_dict(self) -> dict[str, Any]:
        where = "fills" if self.fills else "after"
        return {"position": self.position, where: self.shown, "top": [vars(one) for one in self.top]}


def predictions(trace: Trace, tokenizer: Tokenizer, top: int) -> tuple[Prediction, ...]:
    """For the last token of a decoder, or each [MASK] of an encoder, the ``top`` most probable tokens."""
    causal = trace.config.causal
    rows = trace.recording.logit_rows
    return tuple(_at(trace, row, tokenizer, top) for row in rows if causal or trace.tokens[row].id == tokenizer.mask_id)


def _at(trace: Trace, row: int, tokenizer: Tokenizer, top: int) -> Prediction:
    logits = trace.logits_at(row)
    shares = probabilities(logits)
    best = shares.topk(min(top, len(shares)))
    found = zip(best.indices.tolist(), best.values.tolist(), logits[best.indices].tolist(), strict=True)
    candidates = tuple(LikelyToken(tokenizer.shown(i), i, share, logit) for i, share, logit in found)
    return Prediction(row, trace.tokens[row].shown, not trace.config.causal, candidates)
