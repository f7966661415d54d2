"""Finite differences: the gradients held against the loss itself, measured on both sides of an entry."""

import copy
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tinytf.gradients.loss import Targets
from tinytf.gradients.places import Drawn, Places
from tinytf.gradients.probing import Probe
from tinytf.gradients.trace import record_gradients
from tinytf.model.transformer import Transformer
from tinytf.text.tokenizer import Encoding

TOLERANCE = 1e-6
"""The largest relative error of a derivative that holds."""

SHARE = 1e-2
"""The floor of a relative error, in units of the largest entry of the tensor's gradient.

A formula that is wrong by 1e-4 of that entry is then off by 1e-4 at least, a hundred times what is allowed.
"""

ROUNDING = 2e-14
"""How far a loss of 1 nat is off in float64, at most, with what extrapolation adds; a derivative is by that / step."""

START = 0.05
"""The first step, in units of the root mean square of the tensor's entries."""

_ROWS, _SHORTER, _TRIES, _DRAWS = 5, 1 / 32, 4, 20


@dataclass(frozen=True)
class Difference:
    """The derivative of the loss by one entry of a parameter or of a step: by autograd, and measured.

    ``largest`` is the largest entry of the tensor's gradient, ``floor`` what the error is relative to where both are
    smaller. ``shortened`` counts how often the step was too long, because ReLU has a kink there.
    """

    name: str
    index: tuple[int, ...]
    analytic: float
    numeric: float
    largest: float
    floor: float
    shortened: int = 0

    @property
    def relative(self) -> float:
        """|a − n| / max(|a|, |n|, floor); infinite where it is no number."""
        if not (math.isfinite(self.analytic) and math.isfinite(self.numeric)):
            return math.inf
        return abs(self.analytic - self.numeric) / max(abs(self.analytic), abs(self.numeric), self.floor)

    @property
    def resolved(self) -> bool:
        """Whether a formula wrong by 1e-4 of the largest entry would show; else it is known to be about 0, no more."""
        return not self.floor > 1e-4 * self.largest / TOLERANCE  # a gradient of NaN is not about 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "index": list(self.index),
            "analytic": self.analytic,
            "numeric": self.numeric,
            "floor": self.floor,
            "relative_error": self.relative,
            "resolved": self.resolved,
        }


@dataclass(frozen=True)
class Differences:
    """All entries that were measured of the ``asked`` ones, in the order of the draw.

    ``redrawn`` counts those that a kink of ReLU lies so close to that no derivative can be measured: another was drawn
    for each of them.
    """

    rows: tuple[Difference, ...]
    asked: int
    redrawn: int

    @property
    def worst(self) -> Difference:
        return max(self.rows, key=lambda row: row.relative)

    @property
    def unresolved(self) -> int:
        """How many entries are of a gradient that the rounding of the loss hides, such as that of biases of keys."""
        return sum(not row.resolved for row in self.rows)

    @property
    def holds(self) -> bool:
        """Whether as many were measured as were asked for, and none is further off than TOLERANCE."""
        return len(self.rows) == self.asked and all(row.relative <= TOLERANCE for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        return {
            "holds": self.holds,
            "asked": self.asked,
            "redrawn": self.redrawn,
            "unresolved": self.unresolved,
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
    on_progress: Callable[[int, int], None] | None = None,
    *,
    force: bool = False,
) -> Differences:
    """Measure the derivative of the loss by ``count`` random entries, on a copy of the model in float64.

    Parameters and steps take turns, each of them drawn whatever its size, then one of its entries that can matter.
    Steps that a tap cannot replace are measured at the one that they are the sum or the reshape of (``mid`` at
    ``attn``); of ``ffn.act``, ``head.act``, ``q_rot`` and ``k_rot`` there is none, so they are left out, and errors
    in them show in the steps before.

    The floor of a relative error is SHARE of the largest entry of the tensor's gradient, but no less than what the
    rounding of the loss makes of a gradient that is 0 (a bias of keys). ``on_progress`` is called with how many are
    done, and ``count``; ``force`` is that of ``record_gradients``, whose errors these are too.
    """
    copied = copy.deepcopy(model).double()
    trace = record_gradients(copied, encoding, targets, force=force)
    draw = random.Random(seed)
    places, probe = Places(trace, draw), Probe(trace)
    rows: list[Difference] = []
    redrawn = 0
    while len(rows) < count and redrawn <= _DRAWS * count:
        drawn = places.parameter() if len(rows) % 2 else places.step()
        found = _measured(probe, trace.loss, drawn)
        if found is None:
            redrawn += 1
            continue
        rows.append(found)
        if on_progress is not None:
            on_progress(len(rows), count)
    return Differences(tuple(rows), count, redrawn)


def _measured(probe: Probe, loss: float, drawn: Drawn) -> Difference | None:
    """The derivative by one entry, with steps so short that no kink is crossed; None where none is short enough."""
    step = START * drawn.size
    for tried in range(_TRIES):
        steps = [step / 2**row for row in range(_ROWS)]
        found = probe.losses(drawn, [*steps, *(-one for one in steps)])
        if found is not None:
            floor = max(SHARE * drawn.largest, ROUNDING * max(1.0, loss) / step / TOLERANCE)
            numeric = ridders(steps, found[:_ROWS], found[_ROWS:])
            return Difference(drawn.name, drawn.index, drawn.analytic, numeric, drawn.largest, floor, tried)
        step *= _SHORTER
    return None


def ridders(steps: Sequence[float], above: Sequence[float], below: Sequence[float]) -> float:
    """The derivative at x of a function that is ``above`` at x + each of ``steps`` and ``below`` at x − each.

    Each step is half of the one before. Central differences, extrapolated to a step of 0; of the table, the entry that
    differs least from those that it was made of (Ridders 1982, "Accurate computation of F′(x) and F′(x)F″(x)").
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
    return best
