"""Which input tokens and attention heads the predictions depend on, by their gradients."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from tinytf.gradients.loss import Targets, require_targets
from tinytf.gradients.trace import GradientTrace, differentiable
from tinytf.memory import require_free
from tinytf.model.transformer import Transformer
from tinytf.report import Data, Progress, unheard
from tinytf.resume_log import ResumeLog
from tinytf.text.tokenizer import Encoding
from tinytf.trace.hooks import tapped

SHARE, NEARLY_NONE = 0.01, 1e-4
"""How much the attributions may miss: a share of the difference, and where that is nearly 0 so many nats."""

PIECES, AT_ONCE, MOST_POINTS = 4, 32, 768
"""How many pieces the path begins with, the most of them that are halved at once, and the most points in all."""

_NUMBERS = 2**27
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
    Fewer points than it needs are there where it was ``interrupted``.
    """

    ALSO: ClassVar = ("sum", "difference", "relative_error", "holds")

    attributions: tuple[float, ...]
    points: int
    at_input: float
    at_baseline: float
    interrupted: bool = False

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
    model: Transformer,
    encoding: Encoding,
    targets: Targets,
    on_progress: Progress = unheard,
    resume: Path | None = None,
) -> Integrated:
    """Integrated gradients of the mean log-probability of ``targets`` (Sundararajan et al. 2017, equation 1).

    The path is the straight line from the mean of the embedding table, the same for every token, to the tokens'
    embeddings; positions and all else stay. (At embeddings of zeros norms would jump.) Each piece of the path is
    integrated by Simpson's rule, and halved where that misses too much of the change of the log-probability along it:
    deep models jump, and evenly spaced points miss that. It ends when what the pieces miss, by magnitude, comes to no
    more than SHARE, or at MOST_POINTS; ``holds`` says whether they sufficed. Where a token changes its experts on the
    way they cannot: the log-probability jumps there, and no gradient sees it. A model in 16 bits is computed in
    float32: what is rounded goes in steps, and has no slope to integrate. ``on_progress`` is called with the points so
    far, and MOST_POINTS. An interrupt ends it with the points so far; with ``resume`` they are kept in this file and
    continued from it. The model does not change. Raises what ``require_targets`` and ``differentiable`` raise.
    """
    require_targets(model, len(encoding.ids), targets)
    model = _unrounded(model)
    kept = ResumeLog(resume, "integrated gradients", model, encoding.ids, targets.positions, targets.ids)
    path = _Path(model, encoding, targets, kept)
    points = path.at([place / (2 * PIECES) for place in range(2 * PIECES + 1)])
    pieces = [_Piece(*points[first : first + 3]) for first in range(0, 2 * PIECES, 2)]
    ends = points[0], points[-1]
    allowed = max(SHARE * abs(ends[1].value - ends[0].value), NEARLY_NONE)
    interrupted = False
    try:
        while sum(abs(piece.missed) for piece in pieces) > allowed:
            pieces.sort(key=lambda piece: -abs(piece.missed))
            room = max(0, (MOST_POINTS - 1) // 2 - len(pieces))
            poor = [piece for piece in pieces[: min(AT_ONCE, room)] if abs(piece.missed) > allowed / len(pieces)]
            if not poor:
                break
            points = path.at([where for piece in poor for where in piece.quarters])
            halves = [half for i, piece in enumerate(poor) for half in piece.halves(*points[2 * i : 2 * i + 2])]
            pieces = [*pieces[len(poor) :], *halves]
            on_progress(2 * len(pieces) + 1, MOST_POINTS)
    except KeyboardInterrupt:
        interrupted = True
    sums = torch.tensor([piece.attributions for piece in pieces], dtype=torch.float64).sum(dim=0)
    return Integrated(tuple(sums.tolist()), 2 * len(pieces) + 1, ends[1].value, ends[0].value, interrupted)


def _unrounded(model: Transformer) -> Transformer:
    """The model, or in the place of one in 16 bits another with its numbers in float32."""
    weight = model.embed.tokens.weight
    if weight.itemsize >= 4:
        return model
    wide = 4 * sum(parameter.numel() for parameter in model.parameters())
    require_free("the weights in float32 take", wide, weight.device, "open the model with --dtype float32")
    return copy.deepcopy(model).float()


class _Point(NamedTuple):
    """A place on the path, 0 … 1: the mean log-probability there in nats, and what each token adds to its slope."""

    where: float
    value: float
    slopes: tuple[float, ...]


class _Piece(NamedTuple):
    """A piece of the path, by Simpson's rule."""

    start: _Point
    middle: _Point
    end: _Point

    @property
    def attributions(self) -> tuple[float, ...]:
        """(x − baseline) · ∫ gradient, for each token."""
        share = (self.end.where - self.start.where) / 6
        slopes = zip(self.start.slopes, self.middle.slopes, self.end.slopes, strict=True)
        return tuple(share * (start + 4 * middle + end) for start, middle, end in slopes)

    @property
    def missed(self) -> float:
        """What the attributions exceed the change of the log-probability by."""
        return math.fsum(self.attributions) - (self.end.value - self.start.value)

    @property
    def quarters(self) -> tuple[float, float]:
        return (self.start.where + self.middle.where) / 2, (self.middle.where + self.end.where) / 2

    def halves(self, first: _Point, second: _Point) -> "tuple[_Piece, _Piece]":
        """Both halves, by the points at ``quarters``: none that is known is computed again."""
        return _Piece(self.start, first, self.middle), _Piece(self.middle, second, self.end)


class _Path:
    """The straight line from baseline to text, in the space of the token embeddings."""

    def __init__(self, model: Transformer, encoding: Encoding, targets: Targets, kept: ResumeLog) -> None:
        self._model, self._targets, self._kept = model, targets, kept
        table = model.embed.tokens.weight
        self._ids = torch.tensor([encoding.ids], device=table.device)
        with torch.no_grad():
            self._end = model.embed.tokens(self._ids)[0]  # (T, C)
            mean = table.double().mean(dim=0) * model.embed.tokens.scale
            self._start = mean.to(table.dtype).expand_as(self._end)
        config = model.config
        if config.causal:  # nothing that is asked depends on tokens after the last target
            seen = max(targets.positions) + 1
            self._ids, self._end, self._start = self._ids[:, :seen], self._end[:seen], self._start[:seen]
        self._unseen = (0.0,) * (len(encoding.ids) - len(self._end))
        hidden = config.n_layers * (8 * config.d_model + 3 * config.d_ff + 4 * config.n_heads * len(encoding.ids))
        self._batch = max(1, _NUMBERS // (len(encoding.ids) * (2 * config.n_outcomes + 2 * hidden)))

    def at(self, places: Sequence[float]) -> list[_Point]:
        """The points at some places, in batches."""
        found: list[_Point] = []
        for some in torch.tensor(places, dtype=torch.float64).split(self._batch):
            names = [repr(where) for where in some.tolist()]
            if any(name not in self._kept.found for name in names):
                values, gradients = self._gradients(some)
                slopes = ((self._end - self._start).double() * gradients.double()).sum(dim=-1)  # (B, T)
                rows = zip(values, ([*row, *self._unseen] for row in slopes.tolist()), strict=True)
                self._kept.add(dict(zip(names, rows, strict=True)))
            for where, name in zip(some.tolist(), names, strict=True):
                value, slope = self._kept.found[name]
                found.append(_Point(where, value, tuple(slope)))
        return found

    def _gradients(self, where: Tensor) -> tuple[list[float], Tensor]:
        """The mean log-probability at each place of the path, and its gradients by the embeddings (B, T, C)."""
        share = where.to(self._end)[:, None, None]
        with differentiable(self._model), tapped(self._model, lambda name, x: point if name == "embed.tokens" else x):
            point = (self._start + share * (self._end - self._start)).requires_grad_()
            logits = self._model(self._ids.expand(len(where), -1))[:, list(self._targets.positions)]  # (B, N, V)
            log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)
            chosen = torch.tensor(self._targets.ids, device=logits.device).expand(len(where), -1)
            values = log_probs.gather(2, chosen[:, :, None])[:, :, 0].double().mean(dim=1)
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
        return sorted((one for one in found if not math.isnan(one[2])), key=lambda one: -one[2])


def attention_times_gradient(trace: GradientTrace) -> HeadSaliency:
    """How much the loss depends on each head's attention weights (Chefer et al. 2021, without their propagation).

    NaN in layers that have none. Raises AddressError where a layer was not recorded.
    """
    name = trace.steps.weights
    absolute, signed = [], []
    for layer in range(trace.config.n_layers):
        if layer not in trace.steps.attending:
            none = (math.nan,) * trace.config.n_heads
            absolute.append(none)
            signed.append(none)
            continue
        product = trace.step(name, layer).double() * trace.grad.step(name, layer).double()  # (H, Q, K)
        absolute.append(tuple(product.abs().sum(dim=(1, 2)).tolist()))
        signed.append(tuple(product.sum(dim=(1, 2)).tolist()))
    return HeadSaliency(tuple(absolute), tuple(signed))
