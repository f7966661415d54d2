"""Two runs: how far a step, a parameter and the predictions of both are apart.

A token of a large model may hold numbers a thousand times those of the others (the first one, often, which attention
rests on). So each token is measured by its own largest number, in both runs; of a map each query by its row's.
Shapes: T tokens or queries, N all that a step has of one; P positions, C width, V vocabulary.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from tinytf.compare.alignment import Alignment, AnySide
from tinytf.model.transformer import Transformer
from tinytf.parts.row import Step
from tinytf.report import Data
from tinytf.steps.operations.softmax import probabilities
from tinytf.steps.table import table_of
from tinytf.text.tokenizer import Encoding
from tinytf.trace.summary import norm

_CHUNK = 2**22  # numbers of a parameter that are in memory in float64 at a time
_ROWS = 16  # positions whose logits are in memory at a time


@dataclass(frozen=True)
class Compared(Data):
    """One step in both runs.

    ``largest`` is the largest difference of two cells, at the cell ``at``, where the numbers are ``values``.
    ``relative`` is the largest difference within a token in units of the largest magnitude there, and ``token`` the
    one where it is the largest (None of a step without tokens); infinite where a number is not finite, and of these
    there are ``unlike`` on one side alone. ``cosine`` is that of a token's finite numbers, the mean over the tokens.
    ``kl`` is KL(first ‖ second) in nats, the mean over the positions, of logits and probabilities alone.
    ``note`` is what was done to the numbers of a dump.
    """

    LESS: ClassVar = ("step",)
    ALSO: ClassVar = ("head",)

    name: str
    step: Step
    layer: int | None
    shape: tuple[int, ...]
    largest: float
    relative: float
    token: int | None
    cosine: float
    at: tuple[int, ...]
    values: tuple[float, float]
    kl: float | None = None
    note: str = ""
    unlike: int = 0

    @property
    def head(self) -> int | None:
        """The head with the largest difference, where the step has heads."""
        return self.at[0] if self.step.is_split else None


class Sums:
    """A comparison of a step that comes in parts along its first axis, tokens or heads."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.axis = next((i for i, axis in enumerate(step.axes) if axis in ("token", "query")), None)
        self.largest, self.unlike = -1.0, 0
        self.at: tuple[int, ...] = ()
        self.values = (math.nan, math.nan)
        self.shape: tuple[int, ...] = ()
        self.parts: list[Tensor] = []

    def add(self, first: Tensor, second: Tensor, start: int) -> None:
        """Another part, whose first row is row ``start`` of the whole."""
        kind = torch.promote_types(first.dtype, second.dtype)
        kind = torch.promote_types(kind, torch.float32)
        a, b = first.to(kind), second.to(first.device, kind)
        apart = (a - b).abs()
        finite = bool(apart.max().isfinite())
        if not finite:
            apart = torch.where(a == b, 0.0, apart).nan_to_num(nan=math.inf, posinf=math.inf)  # equal where both are −∞
            self.unlike += int(apart.isinf().sum())
        flat = int(apart.argmax())
        if float(apart.flatten()[flat]) > self.largest:
            self.largest = float(apart.flatten()[flat])
            # torch.unravel_index would import sympy, which takes seconds.
            place = [int(i) for i in np.unravel_index(flat, a.shape)]
            self.at = (place[0] + start, *place[1:])
            self.values = float(a.flatten()[flat]), float(b.flatten()[flat])
        if not finite:
            seen = a.isfinite() & b.isfinite()
            a, b = torch.where(seen, a, 0.0), torch.where(seen, b, 0.0)
        self.parts.append(self._of_tokens(a, b, apart))
        self.shape = (start + first.shape[0], *first.shape[1:])

    def compared(self, name: str, layer: int | None, kl: float | None = None, note: str = "") -> Compared:
        largest, scale, dot, one, other = self._joined()
        relative = torch.where(largest == 0, 0.0, (largest / scale).nan_to_num(nan=math.inf, posinf=math.inf))
        size = (one * other).sqrt()
        cosine = torch.where(largest == 0, 1.0, torch.where(size == 0, 0.0, dot / size).clamp(-1.0, 1.0))
        worst = int(relative.argmax())
        return Compared(
            name,
            self.step,
            layer,
            self.shape,
            self.largest,
            float(relative[worst]),
            None if self.axis is None else worst,
            float(cosine.mean()),
            self.at,
            self.values,
            kl,
            note,
            self.unlike,
        )

    def _of_tokens(self, a: Tensor, b: Tensor, apart: Tensor) -> Tensor:
        """Of each token (5, T): largest difference, largest magnitude, a·b, a·a and b·b."""
        a, b, apart = (self._rows(one) for one in (a, b, apart))  # (T, N)
        scale = torch.maximum(*((one.amax(dim=-1).maximum(-one.amin(dim=-1))) for one in (a, b)))
        a, b = a.double(), b.double()
        dots = (torch.linalg.vecdot(*pair) for pair in ((a, b), (a, a), (b, b)))
        return torch.stack((apart.amax(dim=-1).double(), scale.double(), *dots)).cpu()

    def _rows(self, tensor: Tensor) -> Tensor:
        return tensor.reshape(1, -1) if self.axis is None else tensor.movedim(self.axis, 0).flatten(1)

    def _joined(self) -> Tensor:
        """The parts as one: side by side where they are of other tokens, else of other heads of the same ones."""
        if self.axis == 0:
            return torch.cat(self.parts, dim=1)
        parts = torch.stack(self.parts)  # (parts, 5, T)
        return torch.cat((parts[:, :2].amax(dim=0), parts[:, 2:].sum(dim=0)))


@dataclass(frozen=True)
class Moved(Data):
    """One parameter in two models: the norm of the change ‖Δ‖ and that of the first model's weights ‖W‖."""

    ALSO: ClassVar = ("ratio",)

    name: str
    shape: tuple[int, ...]
    change: float
    norm: float

    @property
    def ratio(self) -> float:
        """‖Δ‖ ÷ ‖W‖; infinite where weights that were all 0 moved, and 0 where nothing did."""
        if not self.change:
            return 0.0
        return self.change / self.norm if self.norm else float("inf")


@torch.no_grad()
def moved_weights(first: Transformer, second: Transformer) -> tuple[Moved, ...]:
    """The parameters that both have in one shape, the one that moved most for its size first; in float64."""
    others = dict(second.named_parameters())
    found = [
        _moved(name, weight, others[name])
        for name, weight in first.named_parameters()
        if name in others and others[name].shape == weight.shape
    ]
    return tuple(sorted(found, key=lambda one: -one.ratio))


def _moved(name: str, first: Tensor, second: Tensor) -> Moved:
    if first is second:  # a model without some steps has the weights of the whole one
        return Moved(name, tuple(first.shape), 0.0, norm(first))
    change = size = 0.0
    ends = zip(first.flatten().split(_CHUNK), second.to(first.device).flatten().split(_CHUNK), strict=True)
    for before, after in ends:
        change += float((after.double() - before.double()).square().sum())
        size += float(before.double().square().sum())
    return Moved(name, tuple(first.shape), change**0.5, size**0.5)


@dataclass(frozen=True)
class Position:
    """What both predict at one position: KL(first ‖ second) in nats, and the most probable id of each."""

    index: int
    kl: float
    first: tuple[int, float]
    second: tuple[int, float]


@dataclass(frozen=True)
class BothPredict:
    """The most probable ids of either run after its text, or at a mask, with their probabilities in both runs.

    ``kl`` is KL(first ‖ second) in nats.
    """

    position: int
    other_position: int
    kl: float
    ids: tuple[int, ...]
    first: tuple[float, ...]
    second: tuple[float, ...]

    @property
    def change(self) -> tuple[float, ...]:
        """Second less first."""
        return tuple(b - a for a, b in zip(self.first, self.second, strict=True))


@dataclass(frozen=True)
class Ends:
    """Two sides of one vocabulary, with the last part of each, and the positions whose logits both have."""

    sides: tuple[AnySide, AnySide]
    parts: tuple[Any, Any]
    alignment: Alignment
    rows: tuple[int, ...]

    def _outcomes(self, *rows: Sequence[int]) -> list[dict[str, Tensor]]:
        """The steps over the vocabulary of both sides, at positions of each."""
        read = zip(self.sides, self.parts, rows, strict=True)
        return [side.outcomes(part, places) for side, part, places in read]

    def compare(self) -> tuple[tuple[Compared, ...], tuple[Position, ...]]:
        """The steps over the vocabulary that both have, and every position; some positions at a time."""
        first, second = (table_of(side.config) for side in self.sides)
        sums = {step.name: Sums(step) for step in first.over_vocabulary if step.name in second.by_name}
        logits, shares = first.over_vocabulary[-1].name, first.probabilities
        assert shares is not None, "only heads that choose are compared"
        probs, total = Sums(shares), 0.0
        positions: list[Position] = []
        for start in range(0, len(self.rows), _ROWS):
            rows = self.rows[start : start + _ROWS]
            found, other = self._outcomes(rows, rows)
            for name, one in list(sums.items()):
                if name in found and name in other:
                    one.add(found[name], other[name], rows[0])
                else:
                    del sums[name]
            a, b = found[logits], other[logits]  # (rows, V)
            log_p, log_q = (one.log_softmax(dim=-1, dtype=torch.float64) for one in (a, b.to(a.device)))
            p, q = (one.exp() for one in (log_p, log_q))
            kl = divergence(p, log_p, log_q)
            p, q = p.float(), q.float()
            probs.add(p, q, rows[0])
            total += float(kl.sum())
            best = [one.max(dim=-1) for one in (p, q)]
            for place, row in enumerate(rows):
                tops = [(int(one.indices[place]), float(one.values[place])) for one in best]
                positions.append(Position(row, float(kl[place]), tops[0], tops[1]))
        mean = total / len(self.rows)
        sums[shares.name] = probs
        told = {logits: mean, shares.name: mean}
        ends = (one.compared(name, None, told.get(name)) for name, one in sums.items())
        return tuple(ends), tuple(positions)

    def predictions(self, top: int) -> Iterator[BothPredict]:
        """What comes after either text, or fills the masks that both have."""
        logits_name = table_of(self.sides[0].config).over_vocabulary[-1].name
        known = [set(side.rows()) for side in self.sides]
        for places in self.alignment.asked:
            if not all(place in rows for place, rows in zip(places, known, strict=True)):
                continue
            logits = [found[logits_name][0] for found in self._outcomes(*([at] for at in places))]
            p, q = (probabilities(one) for one in logits)
            log_p, log_q = (one.to(p.device).log_softmax(dim=-1, dtype=torch.float64) for one in logits)
            kl = float(divergence(log_p.exp(), log_p, log_q))
            best = [one.topk(min(top, len(one))).indices.tolist() for one in (p, q)]
            ids = sorted({*best[0], *best[1]}, key=lambda i: -max(float(p[i]), float(q[i])))
            yield BothPredict(*places, kl, tuple(ids), tuple(float(p[i]) for i in ids), tuple(float(q[i]) for i in ids))


def divergence(p: Tensor, log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p ‖ q) in nats, (…, V) -> (…); rounding can make the sum a little less than 0."""
    return (p * log_p.sub(log_q)).sum(dim=-1).clamp(min=0)


@torch.no_grad()
def loss(model: Transformer, text: Encoding, hidden: Tensor) -> float | None:
    """The mean of −log p of each next token in nats; None in an encoder and for a text of one token."""
    if model.config.head.kind != "lm":
        return None
    return loss_of(lambda rows: model.unembed(hidden[list(rows)]), text.ids)


def loss_of(logits: Callable[[Sequence[int]], Tensor], ids: Sequence[int]) -> float | None:
    """The loss, in nats a token, of what gives ``logits`` (P, V) at some positions of the text ``ids``."""
    if len(ids) < 2:
        return None
    total = 0.0
    for start in range(0, len(ids) - 1, _ROWS):
        rows = range(start, min(start + _ROWS, len(ids) - 1))
        log_p = logits(rows).double().log_softmax(dim=-1)
        targets = torch.tensor([ids[row + 1] for row in rows], device=log_p.device)
        total -= float(log_p.gather(1, targets[:, None]).sum())
    return total / (len(ids) - 1)
