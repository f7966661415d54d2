"""Finite differences: compare gradients with the loss itself, measured on both sides of an entry."""

import copy
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from tinytf.gradients.loss import Targets
from tinytf.gradients.probing import Draw, LossProbe, ProbedEntry
from tinytf.gradients.trace import record_gradients
from tinytf.model.transformer import Transformer
from tinytf.report import Data, Progress, ignore_progress
from tinytf.text.tokenizer import Encoding

TOLERANCE = 1e-6
"""The largest allowed relative error."""

SHARE = 1e-2
"""A relative error is relative to at least this share of the largest entry of the tensor's gradient.

A formula wrong by 1e-4 of that entry then has an error of at least 1e-4, a hundred times what is allowed.
"""

ROUNDING = 2e-14
"""The largest error of a loss of 1 nat in float64, extrapolation included; a derivative's is this / step."""

START = 0.05
"""The first step, relative to the root mean square of the tensor's entries."""

_STEP_SIZES, _SHORTER, _TRIES, _DRAWS = 5, 1 / 32, 4, 20


@dataclass(frozen=True)
class MeasuredEntry(Data):
    """The derivative of the loss by one entry of a parameter or step: by autograd (``analytic``), and measured.

    ``largest`` is the largest entry of the tensor's gradient. The error is relative to ``floor`` if both values are
    smaller. ``shortened`` counts how often the step was shortened: it crossed a kink of ReLU, or was too long for what
    was asked.
    """

    LESS: ClassVar = ("largest", "shortened")
    ALSO: ClassVar = ("relative_error", "resolved")

    name: str
    index: tuple[int, ...]
    analytic: float
    numeric: float
    largest: float
    floor: float
    shortened: int = 0

    @property
    def relative_error(self) -> float:
        """|a − n| / max(|a|, |n|, floor); infinite if either is not finite."""
        if not (math.isfinite(self.analytic) and math.isfinite(self.numeric)):
            return math.inf
        return abs(self.analytic - self.numeric) / max(abs(self.analytic), abs(self.numeric), self.floor)

    @property
    def resolved(self) -> bool:
        """Whether a formula wrong by 1e-4 of the largest entry would show; if not, it is only known to be about 0."""
        return not self.floor > 1e-4 * self.largest / TOLERANCE  # a gradient of NaN is not about 0


@dataclass(frozen=True)
class Differences(Data):
    """The measured entries, in the order of the draw; ``asked`` of them were requested.

    ``redrawn`` counts entries so close to a kink of ReLU that no derivative can be measured; each was drawn again.
    """

    LESS: ClassVar = ("rows",)
    ALSO: ClassVar = ("holds", "unresolved")

    rows: tuple[MeasuredEntry, ...]
    asked: int
    redrawn: int

    @property
    def worst(self) -> MeasuredEntry:
        return max(self.rows, key=lambda row: row.relative_error)

    @property
    def unresolved(self) -> int:
        """How many entries have a gradient below the rounding of the loss, such as the biases of the keys."""
        return sum(not row.resolved for row in self.rows)

    @property
    def holds(self) -> bool:
        """Whether all requested entries were measured, and none is off by more than TOLERANCE."""
        return len(self.rows) == self.asked and all(row.relative_error <= TOLERANCE for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        return {
            **super().to_dict(),
            "tolerance": TOLERANCE,
            "worst": self.worst.to_dict() if self.rows else None,
            "entries": [row.to_dict() for row in self.rows],
        }


def check(
    model: Transformer,
    encoding: Encoding,
    targets: Targets,
    count: int,
    seed: int,
    on_progress: Progress = ignore_progress,
    *,
    force: bool = False,
) -> Differences:
    """Measure the derivative of the loss by ``count`` random entries, on a copy of the model in float64.

    Parameters and steps alternate; each tensor is equally likely whatever its size, then one of its entries that the
    loss can depend on. A step that a tap cannot replace is changed at the step that it is the sum or reshape of
    (``mid`` at ``attn``). ``ffn.act``, ``head.act``, ``q_rot`` and ``k_rot`` have none and are omitted; errors in them
    show in the steps before.

    The error is relative to at least SHARE of the largest entry of the tensor's gradient, and to at least the value
    that rounding of the loss can give a gradient of 0 (biases of the keys). ``on_progress`` is called with the number
    done, and ``count``. Raises like ``record_gradients``; ``force`` is passed to it.
    """
    copied = copy.deepcopy(model).double()
    trace = record_gradients(copied, encoding, targets, force=force)
    generator = random.Random(seed)
    draw, probe = Draw(trace, generator), LossProbe(trace)
    rows: list[MeasuredEntry] = []
    redrawn = 0
    while len(rows) < count and redrawn <= _DRAWS * count:
        entry = draw.parameter() if len(rows) % 2 else draw.step()
        row = _measured(probe, trace.loss, entry)
        if row is None:
            redrawn += 1
            continue
        rows.append(row)
        on_progress(len(rows), count)
    return Differences(tuple(rows), count, redrawn)


def _measured(probe: LossProbe, loss: float, entry: ProbedEntry) -> MeasuredEntry | None:
    """The derivative by one entry, with steps short enough to cross no kink; None if even the shortest cross one.

    They are shortened, too, where extrapolations differ by more than is allowed; the last of these is taken.
    """
    step, found = START * entry.size, None
    for shortened in range(_TRIES):
        steps = [step / 2**row for row in range(_STEP_SIZES)]
        losses = probe.losses(entry, [*steps, *(-delta for delta in steps)])
        if losses is not None:
            floor = max(SHARE * entry.largest, ROUNDING * max(1.0, loss) / step / TOLERANCE)
            numeric, unsure = ridders(steps, losses[:_STEP_SIZES], losses[_STEP_SIZES:])
            measured = MeasuredEntry(entry.name, entry.index, entry.analytic, numeric, entry.largest, floor, shortened)
            if found is None or unsure < found[1]:
                found = measured, unsure
            if unsure <= TOLERANCE * max(abs(numeric), floor):
                break
        step *= _SHORTER
    return None if found is None else found[0]


def ridders(steps: Sequence[float], above: Sequence[float], below: Sequence[float]) -> tuple[float, float]:
    """The derivative at x of a function that is ``above`` at x + each of ``steps`` and ``below`` at x − each, and how
    far it may be off.

    Each step is half of the one before. Central differences are extrapolated to a step of 0; the result is the entry of
    that table that differs least from the two it was computed from (Ridders 1982, "Accurate computation of F′(x) and
    F′(x)F″(x)").
    """
    column = [(up - down) / (2 * step) for step, up, down in zip(steps, above, below, strict=True)]
    best, least = column[0], math.inf
    for order in range(1, len(steps)):
        pairs = list(pairwise(column))
        column = [(4**order * fine - coarse) / (4**order - 1) for coarse, fine in pairs]
        for (coarse, fine), extrapolated in zip(pairs, column, strict=True):
            error = max(abs(extrapolated - fine), abs(extrapolated - coarse))
            if error < least:
                best, least = extrapolated, error
    return best, least
