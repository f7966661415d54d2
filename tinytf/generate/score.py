"""How well a model predicts a text: the probability of each token, given those before it; and again in int8."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, overload

import torch
from torch import Tensor

from tinytf.errors import GenerationError, UsageError
from tinytf.generate.decoder import Kind
from tinytf.generate.loop import figures
from tinytf.generate.runner import Runner
from tinytf.model.batches import batches, padded
from tinytf.model.cache import require_decoder
from tinytf.model.transformer import Transformer, evaluating
from tinytf.report import About, Report
from tinytf.tables import ColumnStyle
from tinytf.text.chat import Written
from tinytf.text.library import Limit
from tinytf.text_model import TextModel

_ROWS = 128
"""How many positions have their logits in memory at a time."""


@dataclass(frozen=True)
class Scored:
    """One token of a text: ``log_probability`` in nats, ``rank`` from 1, ``surprise`` and ``entropy`` in bits."""

    COLUMNS: ClassVar = {
        "probability": ColumnStyle("p", bar="output", spoken="probability"),
        "surprise": ColumnStyle("bits", "%.2f", spoken="surprise in bits"),
        "rank": ColumnStyle("rank", "{:,}".format),
        "entropy": ColumnStyle("entropy, bits", "%.2f", drop=1),
    }

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
        """This cost in bits per token."""
        nats = math.log(2)
        return replace(self, loss=self.loss / nats, int8_loss=self.int8_loss / nats, worst=self.worst / nats)

    def to_dict(self) -> dict[str, float]:
        """The losses in nats."""
        return asdict(self)


@dataclass(frozen=True)
class Score(Report):
    """Every token but the first, which nothing predicts; ``loss`` is their mean −log p in nats.

    ``int8_cost`` is the cost of 8-bit weights, where it was measured. A text longer than the context was read in
    several ``windows``; the tokens of all but the first have at least ``before`` others before them in theirs.
    """

    KIND = "score"
    REPR_FIRST = ("loss", "perplexity")
    EVENTS: ClassVar = {"scores": "token_score"}

    tokens: tuple[Scored, ...]
    int8_cost: QuantizationCost | None = None
    windows: int = 1
    before: int = 0

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
            **self.members("windows", "before"),
            **({} if self.int8_cost is None else {"int8_cost": self.int8_cost.to_dict()}),
            "scores": [
                {
                    "index": one.position,
                    "shown": self.encoding.tokens[one.position].shown,
                    "id": one.id,
                    "log_probability": one.log_probability,
                    "rank": one.rank,
                    "surprise_bits": one.surprise,
                    "entropy_bits": one.entropy,
                }
                for one in self.tokens
            ],
        }


SCORED = 2**15
"""Tokens that are scored unless more are asked for: minutes of work for a model of a hundred million parameters."""


@overload
def score(
    model: TextModel, text: Written, *, truncate: bool = False, int8: bool = False, limit: int = SCORED
) -> Score: ...


@overload
def score(
    model: TextModel, text: list[Written], *, truncate: bool = False, int8: bool = False, limit: int = SCORED
) -> list[Score]: ...
def score(
    model: TextModel, text: Written | list[Written], *, truncate: bool = False, int8: bool = False, limit: int = SCORED
) -> Score | list[Score]:
    """How well the model predicted each token of ``text``, and with ``int8`` what 8-bit weights cost.

    A text longer than the context is read in overlapping windows, unless ``truncate`` cuts it. A list of texts goes
    through the model in batches, and has a list of scores. Raises UsageError as ``encode`` does, for a text of one
    token and for one of more than ``limit``; with ``int8`` also for one that is longer than the context.
    """
    require_decoder(model.config)
    texts = text if isinstance(text, list) else [text]
    most = None if int8 else Limit(limit, "score", "--limit N takes more, --truncate only what fits the context")
    encodings = [model.encode(one, truncate=truncate, limit=most) for one in texts]
    leads = [int(encoding.tokens[0].special) for encoding in encodings]
    every = scored_all(model.transformer, [encoding.ids for encoding in encodings], leads)
    found, context = [], model.config.context
    for encoding, lead, tokens in zip(encodings, leads, every, strict=True):
        cost = quantization_cost(model.transformer, encoding.ids) if int8 else None
        windows = len(list(_windows(len(encoding.ids), context, lead)))
        before = _overlap(context, lead) + lead if windows > 1 else 0
        found.append(Score(tokens, cost, windows, before, about=About(model, encoding)))
    return found if isinstance(text, list) else found[0]


def _overlap(context: int, lead: int) -> int:
    """How many tokens a window repeats of the one before it."""
    return min(-(-context // 2), context - lead)


def _windows(tokens: int, context: int, lead: int) -> Iterator[tuple[int, int, int]]:
    """Where each window begins, the first token that it predicts, and the one after its last."""
    end = min(tokens, context + 1)
    yield 0, 1, end
    while end < tokens:
        first = end - _overlap(context, lead)
        begin, end = end, min(tokens, first + context - lead + 1)
        yield first, begin, end


def scored(model: Transformer, ids: Sequence[int], lead: int = 0) -> tuple[Scored, ...]:
    """Score ``ids``, all but the first, in windows of the context, each after the first ``lead`` (0 or 1) of them.

    Each token has at least half a context before it, where there is so much. Raises UsageError for an encoder and for
    fewer than two tokens.
    """
    (found,) = scored_all(model, [ids], [lead])
    return found


@torch.no_grad()
def scored_all(model: Transformer, texts: Sequence[Sequence[int]], leads: Sequence[int]) -> list[tuple[Scored, ...]]:
    """``scored`` for each of several texts, whose windows go through the model in batches."""
    require_decoder(model.config)
    model.require_vocabulary("it predicts no next token")
    windows: list[tuple[int, int, int, list[int]]] = []  # of which text, from and to where it predicts, its ids
    for number, (ids, lead) in enumerate(zip(texts, leads, strict=True)):
        if len(ids) < 2:
            raise UsageError(
                f"{len(ids)} token is too few: only a token that follows another is predicted", "give more"
            )
        for first, begin, end in _windows(len(ids), model.config.context, lead):
            windows.append((number, begin, end, [*ids[: lead if first else 0], *ids[first : end - 1]]))
    device, lengths = next(model.parameters()).device, [len(window) for *_, window in windows]
    found: list[dict[int, Scored]] = [{} for _ in texts]
    with evaluating(model):
        for batch in batches(lengths, model):
            batched, real = padded([windows[place][-1] for place in batch], model.config, device)
            hidden = model.hidden(batched, padding_mask=real)  # (B, T, C)
            for row, place in enumerate(batch):
                number, begin, end, window = windows[place]
                own = hidden[row, len(window) + begin - end : len(window)]  # (end − begin, C)
                found[number] |= {one.position: one for one in _scored_rows(model, own, texts[number], begin)}
    return [tuple(one[place] for place in sorted(one)) for one in found]


def _scored_rows(model: Transformer, hidden: Tensor, ids: Sequence[int], begin: int) -> Iterator[Scored]:
    """The tokens from ``begin`` on, by the hidden states (N, C) that predict them."""
    for start in range(0, len(hidden), _ROWS):
        logits = model.unembed(hidden[start : start + _ROWS]).float().cpu()  # (rows, V)
        place = begin + start
        if not bool(logits.amax(-1).isfinite().all()):
            raise GenerationError(
                f"the logits of tokens {place} to {place + len(logits) - 1} are not finite",
                "the weights hold NaN or infinity, or overflow in this dtype; try --dtype float32",
            )
        for at, row in enumerate(logits, place):
            yield Scored(at, ids[at], *figures(row, ids[at]))


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
