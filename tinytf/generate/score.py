"""How well a model predicts a text: the probability of each token after the earlier ones, and the cost of int8."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, overload

import torch
from torch import Tensor

from tinytf.errors import GenerationError, UsageError
from tinytf.generate.decoder import Kind
from tinytf.generate.loop import figures
from tinytf.generate.runner import Runner, first_fault
from tinytf.model.batches import batches, padded
from tinytf.model.cache import require_decoder
from tinytf.model.transformer import Transformer, evaluating
from tinytf.report import About, Report
from tinytf.sentences import choices, percent
from tinytf.tables import ColumnStyle
from tinytf.text.chat import Written
from tinytf.text.library import Limit
from tinytf.text_model import TextModel

_POSITIONS_AT_ONCE = 128
"""The number of positions whose logits are in memory at a time."""


@dataclass(frozen=True)
class TokenScore:
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
    """The loss of a text of ``tokens`` tokens without and with int8 weights, in nats per token (without the first).

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
        """These figures in bits per token."""
        nats = math.log(2)
        return replace(self, loss=self.loss / nats, int8_loss=self.int8_loss / nats, worst=self.worst / nats)

    def to_dict(self) -> dict[str, float]:
        """The losses in nats."""
        return asdict(self)


@dataclass(frozen=True)
class Score(Report):
    """The scores of every token but the first, which nothing predicts; ``loss`` is the mean −log p in nats.

    ``int8_cost`` is the cost of 8-bit weights, where it was measured. A text longer than the context is read in several
    ``windows``; from the second on, every scored token has at least ``before`` tokens before it in its window.
    """

    KIND = "score"
    REPR_FIRST = ("loss", "perplexity")
    EVENTS: ClassVar = {"scores": "token_score"}

    tokens: tuple[TokenScore, ...]
    int8_cost: QuantizationCost | None = None
    windows: int = 1
    before: int = 0

    @property
    def loss(self) -> float:
        return -math.fsum(token.log_probability for token in self.tokens) / len(self.tokens)

    @property
    def bits(self) -> float:
        """The mean surprise in bits per token: the loss to base 2; the perplexity is 2 ** bits."""
        return self.loss / math.log(2)

    @property
    def worst(self) -> TokenScore:
        """The token with the largest surprise."""
        return max(self.tokens, key=lambda token: token.surprise)

    def in_a_sentence(self) -> str:
        """The perplexity as a number of choices, and the token with the largest surprise."""
        worst = self.worst
        odds = f"1 in {1 / worst.probability:,.0f}" if 0 < worst.probability <= 0.1 else percent(worst.probability)
        unsure = f"The model is as unsure as if it chose each token among {choices(self.loss)} equally likely ones"
        return f"{unsure} (the perplexity); {self.encoding.tokens[worst.position].shown} surprises it most ({odds})."

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
                    "index": token.position,
                    "shown": self.encoding.tokens[token.position].shown,
                    "id": token.id,
                    "log_probability": token.log_probability,
                    "rank": token.rank,
                    "surprise_bits": token.surprise,
                    "entropy_bits": token.entropy,
                }
                for token in self.tokens
            ],
        }


SCORE_LIMIT = 2**15
"""The default limit of tokens to score: minutes of work for a model of a hundred million parameters."""


@overload
def score(
    model: TextModel, text: Written, *, truncate: bool = False, int8: bool = False, limit: int = SCORE_LIMIT
) -> Score: ...


@overload
def score(
    model: TextModel, text: list[Written], *, truncate: bool = False, int8: bool = False, limit: int = SCORE_LIMIT
) -> list[Score]: ...
def score(
    model: TextModel,
    text: Written | list[Written],
    *,
    truncate: bool = False,
    int8: bool = False,
    limit: int = SCORE_LIMIT,
) -> Score | list[Score]:
    """How well the model predicted each token of ``text``, and with ``int8`` what 8-bit weights cost.

    A text longer than the context is read in overlapping windows, unless ``truncate`` cuts it. A list of texts goes
    through the model in batches and returns a list of scores. Raises UsageError as ``encode`` does, for a text of one
    token and for one of more than ``limit`` tokens; with ``int8`` also for a text longer than the context.
    """
    require_decoder(model.config)
    texts = text if isinstance(text, list) else [text]
    most = None if int8 else Limit(limit, "score", "--limit N takes more, --truncate only what fits the context")
    encodings = [model.encode(written, truncate=truncate, limit=most) for written in texts]
    leads = [int(encoding.tokens[0].special) for encoding in encodings]
    scored_texts = score_many(model.transformer, [encoding.ids for encoding in encodings], leads)
    scores, context = [], model.config.context
    for encoding, lead, tokens in zip(encodings, leads, scored_texts, strict=True):
        cost = quantization_cost(model.transformer, encoding.ids) if int8 else None
        windows = len(list(_windows(len(encoding.ids), context, lead)))
        before = _overlap(context, lead) + lead if windows > 1 else 0
        scores.append(Score(tokens, cost, windows, before, about=About(model, encoding)))
    return scores if isinstance(text, list) else scores[0]


def _overlap(context: int, lead: int) -> int:
    """The number of tokens that a window repeats from the previous one."""
    return min(-(-context // 2), context - lead)


def _windows(tokens: int, context: int, lead: int) -> Iterator[tuple[int, int, int]]:
    """Yield for each window its first token, the first token that it predicts, and the end of its predictions."""
    end = min(tokens, context + 1)
    yield 0, 1, end
    while end < tokens:
        first = end - _overlap(context, lead)
        begin, end = end, min(tokens, first + context - lead + 1)
        yield first, begin, end


def score_ids(model: Transformer, ids: Sequence[int], lead: int = 0) -> tuple[TokenScore, ...]:
    """Score all of ``ids`` but the first, in windows of the context; each begins with the first ``lead`` (0 or 1) ids.

    Each token has at least half a context before it, as far as the text has one. Raises UsageError for an encoder and
    for fewer than two tokens.
    """
    (tokens,) = score_many(model, [ids], [lead])
    return tokens


@torch.no_grad()
def score_many(
    model: Transformer, texts: Sequence[Sequence[int]], leads: Sequence[int]
) -> list[tuple[TokenScore, ...]]:
    """``score_ids`` for several texts, whose windows go through the model in batches."""
    require_decoder(model.config)
    model.require_vocabulary("it predicts no next token")
    windows: list[tuple[int, int, int, int, list[int]]] = []  # text, begin and end of predictions, predicting ids, ids
    for number, (ids, lead) in enumerate(zip(texts, leads, strict=True)):
        if len(ids) < 2:
            raise UsageError(
                f"{len(ids)} token is too few: only a token that follows another is predicted", "give more"
            )
        for first, begin, end in _windows(len(ids), model.config.context, lead):
            window = [*ids[: lead if first else 0], *ids[first:end]]
            length = len(window)  # its last token predicts nothing, but the length may decide the angles of RoPE
            if length > model.config.context or model.config.turned_alike_from(length) < length:
                window.pop()
            windows.append((number, begin, end, length - 1, window))
    device, lengths = next(model.parameters()).device, [len(window) for *_, window in windows]
    by_position: list[dict[int, TokenScore]] = [{} for _ in texts]
    with evaluating(model):
        for batch in batches(lengths, model):
            batched, real = padded([windows[index][-1] for index in batch], model.config, device)
            hidden = model.hidden(batched, padding_mask=real)  # (B, T, C)
            for row, index in enumerate(batch):
                number, begin, end, last, _ = windows[index]
                predicting = hidden[row, last + begin - end : last]  # (end − begin, C)
                by_position[number] |= {
                    token.position: token for token in _score_rows(model, predicting, texts[number], begin)
                }
    return [tuple(tokens[position] for position in sorted(tokens)) for tokens in by_position]


def _score_rows(model: Transformer, hidden: Tensor, ids: Sequence[int], begin: int) -> Iterator[TokenScore]:
    """Score the tokens from ``begin`` on by the hidden states (N, C) that predict them."""
    for start in range(0, len(hidden), _POSITIONS_AT_ONCE):
        logits = model.unembed(hidden[start : start + _POSITIONS_AT_ONCE]).float().cpu()  # (rows, V)
        first = begin + start
        if not bool(logits.amax(-1).isfinite().all()):
            fault = first_fault(model, ids)
            raise GenerationError(
                f"the logits of tokens {first} to {first + len(logits) - 1} are not finite"
                + (f"; they first appear at {fault}" if fault else ""),
                "the weights hold NaN or infinity, or overflow in this dtype; try --dtype float32",
            )
        for position, row in enumerate(logits, first):
            yield TokenScore(position, ids[position], *figures(row, ids[position]))


def quantization_cost(model: Transformer, ids: Sequence[int], *, compile: bool = False) -> QuantizationCost:
    """Score ``ids`` with the original weights, and again in int8, token by token. Raises what ``score_ids`` raises."""
    exact = Score(score_ids(model, ids))
    kind = Kind(compile=compile, quantize=True)
    runner = Runner(model, ids[:1], model.cache(len(ids)), kind=kind, compare=False)
    logits = runner.first()
    changes, losses = [], []
    for index, token in enumerate(exact.tokens):
        if index:
            logits = runner.go_on([0], [ids[index]])
        log_probability = float(logits[0].log_softmax(-1)[token.id])
        losses.append(-log_probability)
        changes.append(abs(log_probability - token.log_probability))
    return QuantizationCost(len(ids), exact.loss, math.fsum(losses) / len(losses), max(changes))
