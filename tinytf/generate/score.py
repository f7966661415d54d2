"""How well a model predicts a text: the probability of each token, given those before it; and again in int8."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import torch

from tinytf.errors import GenerationError, UsageError
from tinytf.generate.decoder import Kind
from tinytf.generate.loop import figures
from tinytf.generate.runner import Runner
from tinytf.model.cache import require_decoder
from tinytf.model.transformer import Transformer, evaluating
from tinytf.report import About, Report
from tinytf.text.chat import Written
from tinytf.text_model import TextModel

_ROWS = 128
"""How many positions have their logits in memory at a time."""


@dataclass(frozen=True)
class Scored:
    """One token of a text: ``log_probability`` in nats, ``rank`` from 1, ``surprise`` and ``entropy`` in bits."""

    position: int
    id: int
    log_probability: float
    rank: int
    surprise: float
    entropy: float

    @property
    def probability(self) -> float:
        return math.exp(self.log_probability)


@dataclass(frozen=True)
class QuantizationCost:
    """The loss of a text of ``tokens`` tokens without and with int8 weights, in nats per token (each but the first).

    ``worst`` is the largest change of one token's log-probability.
    """

    tokens: int
    loss: float
    int8_loss: float
    worst: float

    @property
    def cost(self) -> float:
        return self.int8_loss - self.loss

    @property
    def in_bits(self) -> "QuantizationCost":
        """The same in bits per token."""
        nats = math.log(2)
        return replace(self, loss=self.loss / nats, int8_loss=self.int8_loss / nats, worst=self.worst / nats)

    def to_dict(self) -> dict[str, float]:
        """The losses in nats."""
        return asdict(self)


@dataclass(frozen=True)
class Score(Report):
    """Every token but the first, which nothing predicts; ``loss`` is their mean −log p in nats.

    ``int8_cost`` is the cost of 8-bit weights, where it was measured.
    """

    KIND = "score"
    EVENTS: ClassVar = {"scores": "token_score"}

    tokens: tuple[Scored, ...]
    int8_cost: QuantizationCost | None = None

    @property
    def loss(self) -> float:
        return -math.fsum(token.log_probability for token in self.tokens) / len(self.tokens)

    @property
    def bits(self) -> float:
        """The mean surprise in bits per token: the loss, to another base; 2 to its power is the perplexity."""
        return self.loss / math.log(2)

    @property
    def worst(self) -> Scored:
        """The token that was least expected."""
        return max(self.tokens, key=lambda one: one.surprise)

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))

    def fields(self) -> dict[str, Any]:
        return {
            "loss": self.loss,
            "perplexity": self.perplexity,
            **({} if self.int8_cost is None else {"int8_cost": self.int8_cost.to_dict()}),
            "scores": [
                {
                    "index": one.position,
                    "id": one.id,
                    "log_probability": one.log_probability,
                    "rank": one.rank,
                    "surprise_bits": one.surprise,
                    "entropy_bits": one.entropy,
                }
                for one in self.tokens
            ],
        }


def score(model: TextModel, text: Written, *, truncate: bool = False, int8: bool = False) -> Score:
    """How well the model predicted each token of ``text``, and with ``int8`` what 8-bit weights cost.

    Raises UsageError as ``encode`` does, and for a text of one token.
    """
    require_decoder(model.config)
    encoding = model.encode(text, truncate=truncate)
    found = scored(model.transformer, encoding.ids)
    cost = quantization_cost(model.transformer, encoding.ids) if int8 else None
    return Score(found, cost, about=About(model, encoding))


@torch.no_grad()
def scored(model: Transformer, ids: Sequence[int]) -> tuple[Scored, ...]:
    """Score ``ids`` in one pass, all but the first. Raises UsageError for an encoder and for fewer than two tokens."""
    require_decoder(model.config)
    model.require_vocabulary("it predicts no next token")
    if len(ids) < 2:
        raise UsageError(f"{len(ids)} token is too few: only a token that follows another is predicted", "give more")
    found: list[Scored] = []
    with evaluating(model):
        hidden = model.hidden(torch.tensor([list(ids)], device=next(model.parameters()).device))[0, :-1]  # (T − 1, C)
        for start in range(0, len(hidden), _ROWS):
            logits = model.unembed(hidden[start : start + _ROWS]).float().cpu()  # (rows, V)
            if not bool(logits.amax(-1).isfinite().all()):
                raise GenerationError(
                    f"the logits of tokens {start + 1} to {start + len(logits)} are not finite",
                    "the weights hold NaN or infinity, or overflow in this dtype; try --dtype float32",
                )
            for place, row in enumerate(logits, start + 1):
                found.append(Scored(place, ids[place], *figures(row, ids[place])))
    return tuple(found)


def quantization_cost(model: Transformer, ids: Sequence[int], *, compile: bool = False) -> QuantizationCost:
    """Score ``ids`` with the original weights, and again in int8, token by token. Raises what ``scored`` raises."""
    exact = Score(scored(model, ids))
    kind = Kind(compile=compile, quantize=True)
    runner = Runner(model, ids[:1], model.cache(len(ids)), kind=kind, compare=False)
    logits = runner.first()
    changes, losses = [], []
    for place, token in enumerate(exact.tokens):
        if place:
            logits = runner.go_on([0], [ids[place]])
        own = float(logits[0].log_softmax(-1)[token.id])
        losses.append(-own)
        changes.append(abs(own - token.log_probability))
    return QuantizationCost(len(ids), exact.loss, math.fsum(losses) / len(losses), max(changes))
