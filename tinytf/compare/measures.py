"""How far a step, a parameter and the predictions of two runs are apart.

One token of a large model (often the first, as an attention sink) may hold numbers a thousand times those of the
others. So differences are relative to the largest number of their own token in both runs, or of their row in a map;
where a token has a single number, to the largest of all.
Shapes: T tokens or queries, N numbers of a token; P positions, C width, V vocabulary.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from tinytf.compare.alignment import Alignment, AnySide
from tinytf.metric import divergence
from tinytf.model.transformer import Transformer
from tinytf.parts.row import Step
from tinytf.report import Data
from tinytf.sentences import changed, sign_of
from tinytf.steps.operations import Mask
from tinytf.steps.operations.softmax import probabilities
from tinytf.steps.table import table_of
from tinytf.text.tokenizer import Encoding
from tinytf.trace.summary import norm

_CHUNK = 2**22  # numbers of a parameter converted to float64 at a time
_POSITIONS_AT_ONCE = 16  # positions whose logits are in memory at a time


@dataclass(frozen=True)
class NotFinite(Data):
    """NaN or ∞ in a step of A, B or ``both``, at the first token that has it: the cell ``at``, and its ``values``.

    A row that sees no key is ``unseen``: on one side, all its scores are −∞. A score that is −∞ is hidden by design.
    ``overflow`` says which number beyond its largest a side in float16 reaches, where its model is known.
    """

    name: str
    sides: str
    at: tuple[int, ...]
    token: int | None
    values: tuple[float, float]
    unseen: bool = False
    overflow: str = ""

    @classmethod
    def of(
        cls, name: str, first: Tensor, second: Tensor, axis: int | None = None, hides: bool = False
    ) -> "NotFinite | None":
        """The first token along ``axis`` that is not finite on a side; −∞ on both, or where a step ``hides``, is.

        None where all numbers are.
        """
        hidden = first.isneginf() | second.isneginf() if hides else (first == second) & first.isneginf()
        bad = [~x.isfinite() & ~hidden for x in (first, second)]
        places = (bad[0] | bad[1]).nonzero()
        if not len(places):
            return None
        tokens = places[:, axis] if axis is not None else torch.zeros(len(places), dtype=torch.long)
        cell = tuple(places[int(tokens.argmin())].tolist())
        sides = "both" if bad[0][cell] and bad[1][cell] else "A" if bad[0][cell] else "B"
        token = None if axis is None else int(tokens.min())
        return cls(name, sides, cell, token, (float(first[cell]), float(second[cell])))

    def who(self, first: str = "A", second: str = "B") -> str:
        """The sides that are not finite, with their verb."""
        return f"{first} and {second} are" if self.sides == "both" else f"{first if self.sides == 'A' else second} is"

    @property
    def why(self) -> str:
        """Where it comes from, as far as these numbers tell it; else what it is."""
        own, other = self.values if self.sides == "A" else self.values[::-1]
        if self.unseen:
            return f"row {self.token} of {self.name} has no key to look at: softmax of only −∞"
        if self.overflow:
            return self.overflow
        if math.isinf(own) and math.isfinite(other) and abs(other) > torch.finfo(torch.float16).max:
            return f"passed 65,504, the largest number of float16: {other:,.0f}"
        return sign_of(own)


@dataclass(frozen=True)
class StepComparison(Data):
    """One step in both runs.

    ``largest`` is the largest difference of two cells, at the cell ``at``, where the numbers are ``values``.
    ``relative`` is the largest difference within a token, divided by the largest magnitude there, for the ``token``
    where this is largest (None for a step without tokens). It is infinite where unequal numbers are not both
    finite; ``unlike`` counts these. ``cosine`` is between the finite numbers of a token, averaged over the tokens.
    ``kl`` is KL(first ‖ second) in nats, averaged over the positions, for logits and probabilities only.
    ``not_finite`` is where a side has NaN or ∞. ``note`` says what was done to the numbers of a dump. It ``begins`` at
    the first token that differs by more than the tolerance; None where none does. It ``follows`` where it was computed
    here, from numbers that are the same on both sides within the tolerance. ``stack`` is what the addresses of its
    stack begin with, in the name too.
    """

    LESS: ClassVar = ("step", "follows", "not_finite", "stack")
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
    begins: int | None = None
    follows: bool = False
    not_finite: NotFinite | None = None
    stack: str = ""

    def differs(self, tolerance: float) -> bool:
        """Whether it differs by more: probabilities do only where logits do, whose error they multiply."""
        return self.relative > tolerance and not self.follows

    @property
    def block(self) -> tuple[str, int] | None:
        """Its stack and layer; None outside the layers."""
        return None if self.layer is None else (self.stack, self.layer)

    @property
    def head(self) -> int | None:
        """The head with the largest difference, where the step has heads."""
        return self.at[0] if self.step.is_split else None


class Sums:
    """The comparison of a step, summed over parts along its first axis, tokens or heads."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.axis = next((i for i, axis in enumerate(step.axes) if axis in ("token", "query")), None)
        self.largest, self.unlike = -1.0, 0
        self.at: tuple[int, ...] = ()
        self.values = (math.nan, math.nan)
        self.shape: tuple[int, ...] = ()
        self.parts: list[Tensor] = []
        self.bad: NotFinite | None = None

    def add(self, first: Tensor, second: Tensor, start: int) -> None:
        """Add a part whose first row is row ``start`` of the whole step."""
        kind = torch.promote_types(first.dtype, second.dtype)
        kind = torch.promote_types(kind, torch.float32)
        a, b = first.to(kind), second.to(first.device, kind)
        difference = (a - b).abs()
        finite = bool(difference.max().isfinite())
        if not finite:
            self._note_bad(a, b, start)
            # Equal where both are −∞, or both NaN.
            equal = (a == b) | (a.isnan() & b.isnan())
            difference = torch.where(equal, 0.0, difference).nan_to_num(nan=math.inf, posinf=math.inf)
            self.unlike += int(difference.isinf().sum())
        flat = int(difference.argmax())
        if float(difference.flatten()[flat]) > self.largest:
            self.largest = float(difference.flatten()[flat])
            # torch.unravel_index would import sympy, which takes seconds.
            index = [int(i) for i in np.unravel_index(flat, a.shape)]
            self.at = (index[0] + start, *index[1:])
            self.values = float(a.flatten()[flat]), float(b.flatten()[flat])
        if not finite:
            seen = a.isfinite() & b.isfinite()
            a, b = torch.where(seen, a, 0.0), torch.where(seen, b, 0.0)
        self.parts.append(self._token_sums(a, b, difference))
        self.shape = (start + first.shape[0], *first.shape[1:])

    def _note_bad(self, a: Tensor, b: Tensor, start: int) -> None:
        """Keep the first token with NaN or ∞."""
        bad = NotFinite.of("", a, b, self.axis, isinstance(self.step.operation, Mask))
        if bad is None:
            return
        token = (bad.token or 0) + (start if self.axis == 0 else 0)
        if self.bad is None or token < (self.bad.token or 0):
            at = (bad.at[0] + start, *bad.at[1:])
            self.bad = replace(bad, at=at, token=None if self.axis is None else token)

    def compared(
        self, name: str, layer: int | None, kl: float | None = None, note: str = "", tolerance: float = math.inf
    ) -> StepComparison:
        largest, scale, dot, squares_a, squares_b = self._merged_parts()
        relative = torch.where(largest == 0, 0.0, (largest / scale).nan_to_num(nan=math.inf, posinf=math.inf))
        size = (squares_a * squares_b).sqrt()
        cosine = torch.where(largest == 0, 1.0, torch.where(size == 0, 0.0, dot / size).clamp(-1.0, 1.0))
        worst = int(relative.argmax())
        return StepComparison(
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
            next(iter((relative > tolerance).nonzero().flatten().tolist()), None) if self.axis is not None else None,
            not_finite=self.bad and replace(self.bad, name=name),
        )

    def _token_sums(self, a: Tensor, b: Tensor, difference: Tensor) -> Tensor:
        """For each token (5, T): largest difference, largest magnitude, a·b, a·a and b·b."""
        a, b, difference = (self._rows(tensor) for tensor in (a, b, difference))  # (T, N)
        scale = torch.maximum(*((rows.amax(dim=-1).maximum(-rows.amin(dim=-1))) for rows in (a, b)))
        if a.shape[-1] == 1:  # a single number of a token may be as small as rounding: it is held to the largest
            scale = scale.amax().expand_as(scale)
        a, b = a.double(), b.double()
        dots = (torch.linalg.vecdot(*pair) for pair in ((a, b), (a, a), (b, b)))
        return torch.stack((difference.amax(dim=-1).double(), scale.double(), *dots)).cpu()

    def _rows(self, tensor: Tensor) -> Tensor:
        return tensor.reshape(1, -1) if self.axis is None else tensor.movedim(self.axis, 0).flatten(1)

    def _merged_parts(self) -> Tensor:
        """The parts merged: side by side if each has its own tokens, else summed over heads of the same tokens."""
        if self.axis == 0:
            return torch.cat(self.parts, dim=1)
        parts = torch.stack(self.parts)  # (parts, 5, T)
        return torch.cat((parts[:, :2].amax(dim=0), parts[:, 2:].sum(dim=0)))


def token_error(exact: Tensor, other: Tensor, step: Step) -> float:
    """The relative errors of the tokens as a root mean square; infinite where a number is not finite.

    Hidden scores do not count.
    """
    a, b = (x.double() for x in (exact, other))
    if NotFinite.of("", a, b, hides=isinstance(step.operation, Mask)) is not None:
        return math.inf
    seen = a.isfinite() & b.isfinite()
    a, b = (torch.where(seen, x, 0.0) for x in (a, b))
    rows = [x.reshape(1, -1) if step.token_axis is None else x.movedim(step.token_axis, 0).flatten(1) for x in (a, b)]
    sizes = rows[0].norm(dim=-1)
    if rows[0].shape[1] == 1:  # a single number of a token may be as small as rounding
        sizes = sizes.amax().expand_as(sizes)
    errors = ((rows[0] - rows[1]).norm(dim=-1) / sizes.clamp(min=1e-30))[sizes > 0]
    return float(errors.square().mean().sqrt()) if errors.numel() else 0.0


@dataclass(frozen=True)
class Moved(Data):
    """One parameter in two models: the norm ‖Δ‖ of the change and the norm ‖W‖ of the first model's weights."""

    ALSO: ClassVar = ("ratio",)

    name: str
    shape: tuple[int, ...]
    change: float
    norm: float

    @property
    def ratio(self) -> float:
        """‖Δ‖ ÷ ‖W‖; infinite where all-zero weights moved, 0 where nothing moved."""
        if not self.change:
            return 0.0
        return self.change / self.norm if self.norm else float("inf")


@torch.no_grad()
def moved_weights(first: Transformer, second: Transformer) -> tuple[Moved, ...]:
    """The parameters that both have in one shape, sorted by ‖Δ‖ ÷ ‖W‖, largest first; computed in float64."""
    second_weights = dict(second.named_parameters())
    moved = [
        _moved(name, weight, second_weights[name])
        for name, weight in first.named_parameters()
        if name in second_weights and second_weights[name].shape == weight.shape
    ]
    return tuple(sorted(moved, key=lambda parameter: -parameter.ratio))


def _moved(name: str, first: Tensor, second: Tensor) -> Moved:
    if first is second:  # a model without some steps shares the weights of the full one
        return Moved(name, tuple(first.shape), 0.0, norm(first))
    change = size = 0.0
    chunks = zip(first.flatten().split(_CHUNK), second.to(first.device).flatten().split(_CHUNK), strict=True)
    for a, b in chunks:
        change += float((b.double() - a.double()).square().sum())
        size += float(a.double().square().sum())
    return Moved(name, tuple(first.shape), change**0.5, size**0.5)


@dataclass(frozen=True)
class Position:
    """The predictions of both at one position: KL(first ‖ second) in nats, and each one's most probable id."""

    index: int
    kl: float
    first: tuple[int, float]
    second: tuple[int, float]


@dataclass(frozen=True)
class BothPredict:
    """The most probable ids of either run, after its text or at a mask, with their probabilities in both runs.

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
        """Second minus first."""
        return tuple(b - a for a, b in zip(self.first, self.second, strict=True))

    def in_words(self, shown: Callable[[int], str | None]) -> str:
        """What becomes of the token that is first in the first run, and what is first in the second."""
        was, now = (max(range(len(shares)), key=shares.__getitem__) for shares in (self.first, self.second))
        outcome = "is still first" if was == now else f"{shown(self.ids[now])} comes first"
        return f"{shown(self.ids[was])} {changed(self.first[was], self.second[was])}, and {outcome}"


@dataclass(frozen=True)
class Ends:
    """Two sides with one vocabulary: the last part of each, and the positions at which both have logits."""

    sides: tuple[AnySide, AnySide]
    parts: tuple[Any, Any]
    alignment: Alignment
    rows: tuple[int, ...]

    def _outcomes(self, *rows: Sequence[int]) -> list[dict[str, Tensor]]:
        """The steps over the vocabulary of both sides, each at its own positions."""
        read = zip(self.sides, self.parts, rows, strict=True)
        return [side.outcomes(part, positions) for side, part, positions in read]

    def compare(self, tolerance: float) -> tuple[tuple[StepComparison, ...], tuple[Position, ...]]:
        """Compare the steps over the vocabulary that both have, and every position, a few positions at a time."""
        first, second = (table_of(side.config) for side in self.sides)
        sums = {step.name: Sums(step) for step in first.over_vocabulary if step.name in second.by_name}
        logits, shares = first.over_vocabulary[-1].name, first.probabilities
        assert shares is not None, "only heads that choose are compared"
        probs, total = Sums(shares), 0.0
        positions: list[Position] = []
        for start in range(0, len(self.rows), _POSITIONS_AT_ONCE):
            rows = self.rows[start : start + _POSITIONS_AT_ONCE]
            outcomes, outcomes_b = self._outcomes(rows, rows)
            for name, step_sums in list(sums.items()):
                if name in outcomes and name in outcomes_b:
                    step_sums.add(outcomes[name], outcomes_b[name], start)
                else:
                    del sums[name]
            a, b = outcomes[logits], outcomes_b[logits]  # (rows, V)
            log_p, log_q = (rows.log_softmax(dim=-1, dtype=torch.float64) for rows in (a, b.to(a.device)))
            p, q = (log.exp() for log in (log_p, log_q))
            kl = divergence(p, log_p, log_q)
            p, q = p.float(), q.float()
            probs.add(p, q, start)
            total += float(kl.sum())
            best = [shares.max(dim=-1) for shares in (p, q)]
            for index, row in enumerate(rows):
                tops = [(int(side.indices[index]), float(side.values[index])) for side in best]
                positions.append(Position(row, float(kl[index]), tops[0], tops[1]))
        mean = total / len(self.rows)
        sums[shares.name] = probs
        divergences = {logits: mean, shares.name: mean}
        compared = [
            self._at_positions(step_sums.compared(name, None, divergences.get(name), tolerance=tolerance))
            for name, step_sums in sums.items()
        ]
        if not any(step.differs(tolerance) for step in compared[:-1]):
            compared[-1] = replace(compared[-1], follows=True)
        return tuple(compared), tuple(positions)

    def _at_positions(self, step: StepComparison) -> StepComparison:
        """With positions of the text in place of numbers of rows."""
        if step.token is None:
            return step
        row, *rest = step.at
        token, begins = (None if number is None else self.rows[number] for number in (step.token, step.begins))
        bad = step.not_finite
        if bad is not None and bad.token is not None:
            bad = replace(bad, at=(self.rows[bad.at[0]], *bad.at[1:]), token=self.rows[bad.token])
        return replace(step, at=(self.rows[row], *rest), token=token, begins=begins, not_finite=bad)

    def predictions(self, top: int) -> Iterator[BothPredict]:
        """The predictions after the two texts, or at the masks that both have."""
        logits_name = table_of(self.sides[0].config).over_vocabulary[-1].name
        rows_of_sides = [set(side.rows()) for side in self.sides]
        for positions in self.alignment.asked:
            if not all(position in rows for position, rows in zip(positions, rows_of_sides, strict=True)):
                continue
            logits = [steps[logits_name][0] for steps in self._outcomes(*([at] for at in positions))]
            p, q = (probabilities(row) for row in logits)
            log_p, log_q = (row.to(p.device).log_softmax(dim=-1, dtype=torch.float64) for row in logits)
            kl = float(divergence(log_p.exp(), log_p, log_q))
            best = [shares.topk(min(top, len(shares))).indices.tolist() for shares in (p, q)]
            ids = sorted({*best[0], *best[1]}, key=lambda i: -max(float(p[i]), float(q[i])))
            yield BothPredict(
                *positions, kl, tuple(ids), tuple(float(p[i]) for i in ids), tuple(float(q[i]) for i in ids)
            )


@torch.no_grad()
def loss(model: Transformer, text: Encoding, hidden: Tensor) -> float | None:
    """The mean −log p of the next token, in nats; None for an encoder and for a text of one token."""
    if model.config.head.kind != "lm":
        return None
    return loss_of(lambda rows: model.unembed(hidden[list(rows)]), text.ids)


def loss_of(logits: Callable[[Sequence[int]], Tensor], ids: Sequence[int]) -> float | None:
    """The loss, in nats a token, of ``logits``, a function that gives (P, V) at some positions of the text ``ids``."""
    if len(ids) < 2:
        return None
    total = 0.0
    for start in range(0, len(ids) - 1, _POSITIONS_AT_ONCE):
        rows = range(start, min(start + _POSITIONS_AT_ONCE, len(ids) - 1))
        log_p = logits(rows).double().log_softmax(dim=-1)
        targets = torch.tensor([ids[row + 1] for row in rows], device=log_p.device)
        total -= float(log_p.gather(1, targets[:, None]).sum())
    return total / (len(ids) - 1)
