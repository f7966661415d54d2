"""Which input tokens and attention heads the predictions depend on, by their gradients."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from tinytf.gradients.loss import Targets, require_targets
from tinytf.gradients.trace import GradientTrace, differentiable
from tinytf.memory import require_free
from tinytf.model.transformer import Source, Transformer, run_each
from tinytf.report import Data, Progress, ignore_progress
from tinytf.resume_log import ResumeLog
from tinytf.text.tokenizer import Encoding
from tinytf.trace.hooks import tap_steps

SHARE, NEARLY_NONE = 0.01, 1e-4
"""The error allowed in the sum of attributions: a share of the difference or, if that is nearly 0, a number of nats."""

PIECES, AT_ONCE, MOST_POINTS = 4, 32, 768
"""The pieces that the path starts with, the most pieces to halve at once, and the most points in all."""

_NUMBERS = 2**27
"""The approximate limit on the numbers in one batch of points."""


def gradient_times_input(trace: GradientTrace) -> tuple[float, ...]:
    """∂(−loss)/∂x · x of each token's embedding x, summed over d_model, in nats.

    To first order, this is what the token adds to the mean log-probability of the targets: positive if it makes them
    more probable (Shrikumar et al. 2017).
    """
    product = trace.grad.step("embed.tokens").double() * trace.step("embed.tokens").double()  # (T, C)
    return tuple((-product.sum(dim=-1)).tolist())


@dataclass(frozen=True)
class Integrated(Data):
    """What each token adds to the mean log-probability of the targets, in nats, on the path from baseline to text.

    In a model of two stacks so do the tokens of its ``source``, on the same path. The integral uses ``points`` points,
    too few if it was ``interrupted``. ``at_input`` and ``at_baseline`` are the mean log-probabilities at the ends.
    """

    ALSO: ClassVar = ("sum", "difference", "relative_error", "holds")

    attributions: tuple[float, ...]
    points: int
    at_input: float
    at_baseline: float
    interrupted: bool = False
    source: tuple[float, ...] = ()

    @property
    def sum(self) -> float:
        return math.fsum((*self.attributions, *self.source))

    @property
    def difference(self) -> float:
        """The number that the attributions must sum to (Sundararajan et al. 2017, "completeness")."""
        return self.at_input - self.at_baseline

    @property
    def relative_error(self) -> float:
        """The error of the sum, relative to the difference or, if that is nearly 0, scaled to the allowed error."""
        return abs(self.sum - self.difference) / max(abs(self.difference), NEARLY_NONE / SHARE)

    @property
    def holds(self) -> bool:
        return self.relative_error <= SHARE


def integrated_gradients(
    model: Transformer,
    encoding: Encoding,
    targets: Targets,
    on_progress: Progress = ignore_progress,
    resume: Path | None = None,
) -> Integrated:
    """Integrated gradients of the mean log-probability of ``targets`` (Sundararajan et al. 2017, equation 1).

    The path is the straight line from the mean of the embedding table, the same for every token, to the tokens'
    embeddings, of both texts at once where the model reads another; positions and all else stay. (At embeddings of
    zeros norms would jump.) Each piece of the path is integrated by Simpson's rule, and halved if that misses too much
    of the change of the log-probability along it: deep models jump, and evenly spaced points miss that. The halving
    ends when the errors of the pieces, by magnitude, sum to no more than SHARE, or at MOST_POINTS; ``holds`` says
    whether the points sufficed. They cannot suffice if a token changes its experts on the way, or an indexer its keys:
    the log-probability jumps there, and no gradient sees it. A model in 16 bits is computed in float32, since rounded
    numbers move in steps and have no slope to integrate. ``on_progress`` is called with the points so far, and
    MOST_POINTS. An interrupt ends the work with the points so far; with ``resume`` they are saved in this file, and a
    later call continues from it. The model does not change. Raises like ``require_targets`` and ``differentiable``.
    """
    require_targets(model, len(encoding.ids), targets)
    model = _unrounded(model)
    *read, _ = (text.ids for _, text in model.texts(encoding).values())
    log = ResumeLog(resume, "integrated gradients", model, encoding.ids, targets.positions, targets.ids, read)
    path = _Path(model, encoding, targets, log)
    points = path.at([i / (2 * PIECES) for i in range(2 * PIECES + 1)])
    pieces = [_Piece(*points[first : first + 3]) for first in range(0, 2 * PIECES, 2)]
    ends = points[0], points[-1]
    allowed = max(SHARE * abs(ends[1].value - ends[0].value), NEARLY_NONE)
    interrupted = False
    try:
        while sum(abs(piece.error) for piece in pieces) > allowed:
            pieces.sort(key=lambda piece: -abs(piece.error))
            room = max(0, (MOST_POINTS - 1) // 2 - len(pieces))
            poor = [piece for piece in pieces[: min(AT_ONCE, room)] if abs(piece.error) > allowed / len(pieces)]
            if not poor:
                break
            points = path.at([position for piece in poor for position in piece.quarters])
            halves = [half for i, piece in enumerate(poor) for half in piece.halves(*points[2 * i : 2 * i + 2])]
            pieces = [*pieces[len(poor) :], *halves]
            on_progress(2 * len(pieces) + 1, MOST_POINTS)
    except KeyboardInterrupt:
        interrupted = True
    sums = torch.tensor([piece.attributions for piece in pieces], dtype=torch.float64).sum(dim=0).tolist()
    own, of_source = tuple(sums[: len(encoding.ids)]), tuple(sums[len(encoding.ids) :])
    return Integrated(own, 2 * len(pieces) + 1, ends[1].value, ends[0].value, interrupted, of_source)


def _unrounded(model: Transformer) -> Transformer:
    """The model itself or, for a model in 16 bits, a copy in float32."""
    weight = model.embed.tokens.weight
    if weight.itemsize >= 4:
        return model
    wide = 4 * sum(parameter.numel() for parameter in model.parameters())
    require_free("the weights in float32 take", wide, weight.device, "open the model with --dtype float32")
    return copy.deepcopy(model).float()


class _Point(NamedTuple):
    """A point at ``position`` (0 … 1) of the path: the mean log-probability in nats, and its slope by token.

    The tokens of a source come last.
    """

    position: float
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
        share = (self.end.position - self.start.position) / 6
        slopes = zip(self.start.slopes, self.middle.slopes, self.end.slopes, strict=True)
        return tuple(share * (start + 4 * middle + end) for start, middle, end in slopes)

    @property
    def error(self) -> float:
        """The sum of the attributions minus the change of the log-probability along the piece."""
        return math.fsum(self.attributions) - (self.end.value - self.start.value)

    @property
    def quarters(self) -> tuple[float, float]:
        return (self.start.position + self.middle.position) / 2, (self.middle.position + self.end.position) / 2

    def halves(self, first: _Point, second: _Point) -> "tuple[_Piece, _Piece]":
        """Both halves of the piece, from the points at ``quarters``; known points are reused."""
        return _Piece(self.start, first, self.middle), _Piece(self.middle, second, self.end)


class _Line:
    """The straight line from baseline to the text of one stack, in the space of its token embeddings."""

    def __init__(self, model: Transformer, ids: Sequence[int]) -> None:
        table = model.embed.tokens.weight
        self.model, self.ids = model, torch.tensor([ids], device=table.device)
        with torch.no_grad():
            self.end = model.embed.tokens(self.ids)[0]  # (T, C)
            mean = table.double().mean(dim=0) * model.embed.tokens.scale
        self.start = mean.to(table.dtype).expand_as(self.end)

    def at(self, positions: Tensor) -> Tensor:
        """The embeddings (B, T, C) at some positions, whose gradients are to be known."""
        share = positions.to(self.end)[:, None, None]
        return (self.start + share * (self.end - self.start)).requires_grad_()

    def slopes(self, gradients: Tensor) -> Tensor:
        """By token (B, T), from the gradients by the embeddings (B, T, C)."""
        return ((self.end - self.start).double() * gradients.double()).sum(dim=-1)


class _Path:
    """The straight line from baseline to text; in a model of two stacks of both texts at once."""

    def __init__(self, model: Transformer, encoding: Encoding, targets: Targets, log: ResumeLog) -> None:
        self._model, self._targets, self._log = model, targets, log
        config, count = model.config, len(encoding.ids)
        if config.causal:  # no target depends on tokens after the last one
            count = min(count, max(max(targets.positions) + 1, config.turned_alike_from(count)))
        ids = {**{at: text.ids for at, (_, text) in model.texts(encoding).items()}, "": encoding.ids[:count]}
        self._lines = [_Line(model.stacks[at], of) for at, of in ids.items()]
        self._after_targets = (0.0,) * (len(encoding.ids) - count)
        hidden = config.n_layers * (8 * config.d_model + 3 * config.d_ff + 4 * config.n_heads * len(encoding.ids))
        self._batch = max(1, _NUMBERS // (len(encoding.ids) * (2 * config.n_outcomes + 2 * hidden)))

    def at(self, positions: Sequence[float]) -> list[_Point]:
        """The points at some positions of the path, computed in batches."""
        points: list[_Point] = []
        for batch in torch.tensor(positions, dtype=torch.float64).split(self._batch):
            names = [repr(position) for position in batch.tolist()]
            if any(name not in self._log.found for name in names):
                self._log.add(dict(zip(names, self._computed(batch), strict=True)))
            for position, name in zip(batch.tolist(), names, strict=True):
                value, slope = self._log.found[name]
                points.append(_Point(position, value, tuple(slope)))
        return points

    def _computed(self, positions: Tensor) -> list[tuple[float, list[float]]]:
        """The mean log-probability at each position of the path, and its slopes by token."""
        points: list[Tensor] = []

        def run(line: _Line, source: Source | None) -> Tensor:
            points.append(line.at(positions))
            with tap_steps(line.model, lambda name, x: points[-1] if name == "embed.tokens" else x):
                return line.model.hidden(line.ids.expand(len(positions), -1), source=source)

        with differentiable(self._model):
            hidden = run_each(self._lines, run)
            logits = self._model.unembed(hidden[:, list(self._targets.positions)])  # (B, N, V)
            log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)
            chosen = torch.tensor(self._targets.ids, device=logits.device).expand(len(positions), -1)
            values = log_probs.gather(2, chosen[:, :, None])[:, :, 0].double().mean(dim=1)
            gradients = torch.autograd.grad(values.sum(), points)
        slopes = (line.slopes(at).tolist() for line, at in zip(self._lines, gradients, strict=True))
        rows = [[*own, *self._after_targets, *chain(*read)] for *read, own in zip(*slopes, strict=True)]
        return list(zip(values.tolist(), rows, strict=True))


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
        heads = [(layer, head, value) for layer, row in enumerate(self.absolute) for head, value in enumerate(row)]
        return sorted((entry for entry in heads if not math.isnan(entry[2])), key=lambda entry: -entry[2])


def attention_times_gradient(trace: GradientTrace) -> HeadSaliency:
    """How much the loss depends on each head's attention weights (Chefer et al. 2021, without their propagation).

    NaN in layers without attention weights, and for heads that a layer lacks. Raises AddressError if a layer was not
    recorded.
    """
    name = trace.steps.weights
    absolute, signed, most = [], [], trace.config.n_heads
    for layer in range(trace.config.n_layers):
        if layer not in trace.steps.attention_layers:
            missing = (math.nan,) * most
            absolute.append(missing)
            signed.append(missing)
            continue
        product = trace.step(name, layer).double() * trace.grad.step(name, layer).double()  # (H, Q, K)
        lacking = (math.nan,) * (most - len(product))
        absolute.append((*product.abs().sum(dim=(1, 2)).tolist(), *lacking))
        signed.append((*product.sum(dim=(1, 2)).tolist(), *lacking))
    return HeadSaliency(tuple(absolute), tuple(signed))
