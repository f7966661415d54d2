"""Which input tokens and attention heads the predictions depend on, by their gradients."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from tinytf.gradients.loss import Targets, require_targets
from tinytf.gradients.trace import GradientTrace, differentiable, losses_of
from tinytf.model.transformer import Transformer
from tinytf.report import Data, Progress, unheard
from tinytf.text.tokenizer import Encoding
from tinytf.trace.hooks import tapped

SHARE, NEARLY_NONE = 0.01, 1e-4
"""How much the attributions may miss: a share of the difference, and where that is nearly 0 so many nats."""

POINTS, MOST_POINTS = 4, 512
"""Gauss–Legendre points per piece of the path, and the most for all pieces together."""

_NUMBERS = 2**26
"""About how many numbers one batch of points holds at most."""


def gradient_times_input(trace: GradientTrace) -> tuple[float, ...]:
    """∂(−loss)/∂x · x of each token's embedding x, summed over d_model, in nats.

    To first order what the token adds to the mean log-probability of the targets: positive where it makes them more
    probable (Shrikumar et al. 2017).
    """
    product = trace.grad.step("embed.tokens").double() * trace.step("embed.tokens").double()  # (T, C)
    return tuple((-product.sum(dim=-1)).tolist())


@dataclass(frozen=True)
class Integrated(Data):
    """What each token adds to the mean log-probability of the targets, in nats, on the path from baseline to text.

    The integral uses ``points`` points. ``at_input`` and ``at_baseline`` are the mean log-probabilities at the ends.
    """

    ALSO: ClassVar = ("sum", "difference", "relative_error", "holds")

    attributions: tuple[float, ...]
    points: int
    at_input: float
    at_baseline: float

    @property
    def sum(self) -> float:
        return math.fsum(self.attributions)

    @property
    def difference(self) -> float:
        """What the attributions must sum to (Sundararajan et al. 2017, "completeness")."""
        return self.at_input - self.at_baseline

    @property
    def relative_error(self) -> float:
        """What the sum misses, relative to the difference, or to what is allowed where that is nearly 0."""
        return abs(self.sum - self.difference) / max(abs(self.difference), NEARLY_NONE / SHARE)

    @property
    def holds(self) -> bool:
        return self.relative_error <= SHARE


def integrated_gradients(
    model: Transformer, encoding: Encoding, targets: Targets, on_progress: Progress = unheard
) -> Integrated:
    """Integrated gradients of the mean log-probability of ``targets`` (Sundararajan et al. 2017, equation 1).

    The path is the straight line from the mean of the embedding table, the same for every token, to the tokens'
    embeddings; positions and all else stay. (At embeddings of zeros norms would jump.) Each piece of the path has
    POINTS points, and is halved where they miss too much of the change of the log-probability along it: deep models
    jump, and evenly spaced points miss that. There are at most MOST_POINTS; ``holds`` says whether they sufficed.
    ``on_progress`` is called with the points so far, and MOST_POINTS. The model does not change. Raises what
    ``require_targets`` and ``differentiable`` raise.
    """
    require_targets(model, len(encoding.ids), targets)
    path = _Path(model, encoding, targets)
    baseline, text = path.point(0.0), path.point(1.0)
    allowed = max(SHARE * abs(text[1] - baseline[1]), NEARLY_NONE)
    pieces = [path.piece(baseline, text)]
    while sum(piece.missed for piece in pieces) > allowed:
        by_missed = sorted(pieces, key=lambda piece: piece.missed, reverse=True)
        poor = [piece for piece in by_missed if piece.missed > allowed / len(pieces)]
        poor = poor[: MOST_POINTS // POINTS - len(pieces)]
        if not poor:
            break
        pieces = [piece for piece in pieces if piece not in poor]
        for piece in poor:
            pieces += path.halves(piece)
            on_progress(POINTS * len(pieces), MOST_POINTS)
    sums = torch.tensor([piece.attributions for piece in pieces], dtype=torch.float64).sum(dim=0)
    return Integrated(tuple(sums.tolist()), POINTS * len(pieces), text[1], baseline[1])


_Point = tuple[float, float]
"""A place on the path, 0 … 1, and the mean log-probability of the targets there, in nats."""


@dataclass(frozen=True)
class _Piece:
    """A piece of the path."""

    start: _Point
    end: _Point
    attributions: tuple[float, ...]

    @property
    def missed(self) -> float:
        return abs(sum(self.attributions) - (self.end[1] - self.start[1]))


class _Path:
    """The straight line from baseline to text, in the space of the token embeddings."""

    def __init__(self, model: Transformer, encoding: Encoding, targets: Targets) -> None:
        self._model, self._targets = model, targets
        table = model.embed.tokens.weight
        self._ids = torch.tensor([encoding.ids], device=table.device)
        with torch.no_grad():
            self._end = model.embed.tokens(self._ids)[0]  # (T, C)
            mean = table.double().mean(dim=0) * model.embed.tokens.scale
            self._start = mean.to(table.dtype).expand_as(self._end)
        config = model.config
        hidden = config.n_layers * (8 * config.d_model + 3 * config.d_ff + 4 * config.n_heads * len(encoding.ids))
        self._batch = max(1, _NUMBERS // (len(encoding.ids) * (2 * config.n_outcomes + 2 * hidden)))

    def point(self, where: float) -> _Point:
        return where, self._at(torch.tensor([where]))[0][0]

    def halves(self, piece: _Piece) -> tuple[_Piece, _Piece]:
        middle = self.point((piece.start[0] + piece.end[0]) / 2)
        return self.piece(piece.start, middle), self.piece(middle, piece.end)

    def piece(self, start: _Point, end: _Point) -> _Piece:
        """(x − baseline) · ∫ gradient from ``start`` to ``end``, for each token."""
        length = end[0] - start[0]
        nodes, weights = (torch.from_numpy(array) for array in np.polynomial.legendre.leggauss(POINTS))
        nodes, weights = start[0] + length * (nodes + 1) / 2, length * weights / 2  # from −1 … 1
        integral = torch.zeros(self._end.shape, dtype=torch.float64, device=self._end.device)
        for some, share in zip(nodes.split(self._batch), weights.split(self._batch), strict=True):
            _, gradients = self._at(some)
            integral += torch.einsum("b,btc->tc", share.to(integral.device), gradients.double())
        attributions = ((self._end - self._start).double() * integral).sum(dim=-1)
        return _Piece(start, end, tuple(attributions.tolist()))

    def _at(self, where: Tensor) -> tuple[list[float], Tensor]:
        """The mean log-probability at each point of the path, and its gradients by the embeddings (B, T, C)."""
        share = where.to(self._end)[:, None, None]
        with differentiable(self._model), tapped(self._model, lambda name, x: point if name == "embed.tokens" else x):
            point = (self._start + share * (self._end - self._start)).requires_grad_()
            logits = self._model(self._ids.expand(len(where), -1))  # (B, T, V)
            values = torch.stack([-losses_of(row, self._targets).mean() for row in logits])
            (gradients,) = torch.autograd.grad(values.sum(), point)
        return values.tolist(), gradients


@dataclass(frozen=True)
class HeadSaliency(Data):
    """Attention × gradient by layer and head, in nats: Σ |w ⊙ ∂loss/∂w| over a head's map, and Σ w ⊙ ∂loss/∂w.

    The signed sum is, to first order, how the loss changes when all weights of the head grow in proportion.
    """

    absolute: tuple[tuple[float, ...], ...]
    signed: tuple[tuple[float, ...], ...]

    @property
    def ranked(self) -> list[tuple[int, int, float]]:
        """Layer, head and the absolute sum of every head, the largest first."""
        found = [(layer, head, one) for layer, row in enumerate(self.absolute) for head, one in enumerate(row)]
        return sorted(found, key=lambda one: -one[2])


def attention_times_gradient(trace: GradientTrace) -> HeadSaliency:
    """How much the loss depends on each head's attention weights (Chefer et al. 2021, without their propagation).

    Raises AddressError where a layer was not recorded.
    """
    name = trace.steps.weights
    absolute, signed = [], []
    for layer in range(trace.config.n_layers):
        product = trace.step(name, layer).double() * trace.grad.step(name, layer).double()  # (H, Q, K)
        absolute.append(tuple(product.abs().sum(dim=(1, 2)).tolist()))
        signed.append(tuple(product.sum(dim=(1, 2)).tolist()))
    return HeadSaliency(tuple(absolute), tuple(signed))
