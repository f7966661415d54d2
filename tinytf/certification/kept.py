"""How well one model keeps the predictions of another: the statistics of llama.cpp's perplexity tool, in float64.

A text is cut into pieces of as many tokens as the context; the tokens in the second half of each piece are predicted,
so that each has at least half a context before it. Shapes: N predicted tokens, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.errors import UsageError
from tinytf.metric import divergence
from tinytf.model.transformer import evaluating
from tinytf.report import Data, Progress
from tinytf.text.library import DEFAULT_LIMIT
from tinytf.text_model import TextModel

KL_QUANTILES = (1.0, 0.999, 0.99, 0.95, 0.9, 0.5, 0.1, 0.05, 0.01, 0.001, 0.0)
DP_QUANTILES = (1.0, 0.999, 0.99, 0.95, 0.9, 0.75, 0.5, 0.25, 0.1, 0.05, 0.01, 0.001, 0.0)
"""Largest first; 1 is the maximum, 0 the minimum."""
_POSITIONS_AT_ONCE = 64  # positions whose logits are in memory at a time
_SHORTEST = 4


@dataclass(frozen=True)
class Mean(Data):
    """A mean, or a number that is made of means, with its standard ``error`` (0 for fewer than two tokens)."""

    value: float
    error: float

    @classmethod
    def of(cls, numbers: Tensor) -> "Mean":
        error = float(numbers.std()) / math.sqrt(len(numbers)) if len(numbers) > 1 else 0.0
        return cls(float(numbers.mean()), error)


@dataclass(frozen=True)
class Kept(Data):
    """A model beside its original, over the predicted tokens.

    ``kl`` is KL(original ‖ model) in nats, ``dp`` the model's probability of the next token less the original's, and
    ``dp_rms`` its root mean square; the ``quantiles`` interpolate linearly between tokens. ``same_top`` is the share of
    tokens at which both find the same token most probable. Of perplexities there are the original's, the correlation of
    the two losses, and logarithm, quotient and difference of the model's and the original's.
    """

    versus_perplexity: Mean
    correlation: float
    log_ratio: Mean
    ratio: Mean
    change: Mean
    kl: Mean
    kl_quantiles: tuple[float, ...]
    dp: Mean
    dp_quantiles: tuple[float, ...]
    dp_rms: Mean
    same_top: Mean

    @classmethod
    def of(cls, kl: Tensor, loss: Tensor, versus_loss: Tensor, same: Tensor) -> "Kept":
        """From four numbers of every token, (N,) in float64: KL, both losses in nats, 1 where the top is the same."""
        ratio, dp = Mean.of(loss - versus_loss), (-loss).exp() - (-versus_loss).exp()
        first, second = perplexity(loss).value, perplexity(versus_loss).value
        rms = Mean.of(dp.square())
        root = math.sqrt(rms.value)
        quantiles = [torch.quantile(numbers, torch.tensor(at, dtype=kl.dtype)).tolist()
                     for numbers, at in ((kl, KL_QUANTILES), (dp, DP_QUANTILES))]  # fmt: skip
        return cls(
            versus_perplexity=perplexity(versus_loss),
            correlation=float(torch.corrcoef(torch.stack((loss, versus_loss)))[0, 1]) if len(kl) > 1 else math.nan,
            log_ratio=ratio,
            ratio=Mean(math.exp(ratio.value), math.exp(ratio.value) * ratio.error),
            change=Mean(first - second, Mean.of(first * loss - second * versus_loss).error),
            kl=Mean.of(kl),
            kl_quantiles=tuple(quantiles[0]),
            dp=Mean.of(dp),
            dp_quantiles=tuple(quantiles[1]),
            dp_rms=Mean(root, rms.error / (2 * root) if root else 0.0),
            same_top=Mean.of(same),
        )


def perplexity(loss: Tensor) -> Mean:
    """e to the mean loss (N,), with its error to first order."""
    mean = Mean.of(loss)
    value = math.exp(min(mean.value, 700.0))
    return Mean(value, value * mean.error)


def cut(model: TextModel, text: str, context: int, pieces: int | None = None) -> list[list[int]]:
    """The ids of each piece of a text; each begins with the tokens that the tokenizer puts before a text.

    A text that is shorter than ``context`` is one piece; what is left after the last whole piece is not read. Raises
    UsageError for a text of fewer than 4 tokens, and as ``encode`` does.
    """
    ids = model.encode(text, limit=DEFAULT_LIMIT).open_ended(model.tokenizer.end_ids).ids
    if len(ids) < _SHORTEST:
        raise UsageError(f"the text has {len(ids)} tokens, and at least {_SHORTEST} are needed", "give a longer one")
    before = model.tokenizer.surrounding_ids()[0]
    size = min(context, model.config.context, len(ids))
    starts = range(0, len(ids) - size + 1, size)[:pieces]
    return [[*before, *ids[start + len(before) : start + size]] for start in starts]


@torch.no_grad()
def losses(
    model: TextModel, versus: TextModel | None, pieces: Sequence[Sequence[int]], on_progress: Progress
) -> tuple[Tensor, ...]:
    """The loss of each predicted token in nats, (N,) in float64; with ``versus`` four numbers, as ``Kept.of`` takes."""
    sides = [model.transformer] if versus is None else [model.transformer, versus.transformer]
    width = min(side.config.vocab_size for side in sides)
    found: list[Tensor] = []
    with evaluating(sides[0]), evaluating(sides[-1]):
        for done, piece in enumerate(pieces):
            first = len(piece) // 2
            hidden = [
                side.hidden(torch.tensor([list(piece)], device=next(side.parameters()).device))[0, first:-1]
                for side in sides
            ]  # (N of the piece, C) each
            for start in range(0, len(piece) - 1 - first, _POSITIONS_AT_ONCE):
                rows = slice(start, start + _POSITIONS_AT_ONCE)
                logits = (side.unembed(states[rows]) for side, states in zip(sides, hidden, strict=True))
                log_p = [x[..., :width].double().log_softmax(-1).cpu() for x in logits]  # (rows, V) each
                targets = torch.tensor(piece[first + 1 :][rows])[:, None]
                nll = [-x.gather(-1, targets)[:, 0] for x in log_p]
                if versus is not None:
                    q, p = log_p
                    nll = [divergence(p.exp(), p, q), *nll, (p.argmax(-1) == q.argmax(-1)).double()]
                found.append(torch.stack(nll))
            on_progress(done + 1, len(pieces))
    return tuple(torch.cat(found, dim=1))
