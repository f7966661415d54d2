"""Does the error of a step lean? Rounding falls to both sides and does not depend on the value; a fault seldom does.

A factor turns the signs of the errors Δ with those of the value x, a constant turns them all one way, and a bias is a
vector that every token has. Each test is compared with the leans of the model's own rounding at steps of that name:
that of weights is the same for all tokens, so it leans a little too. Shapes: T tokens, H heads, D numbers of a head.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.parts.row import Step
from tinytf.report import Data

FACTOR, BIAS, VECTOR = "factor", "bias", "vector"
_LEAST = 0.1
"""A lean of the signs that is none: 55 % of the errors on one side."""
_FEWEST_TOKENS, _FEWEST_COLUMNS = 3, 12
"""Fewer do not tell whether an error is of the step, or of a token or a row of the weights."""
MOST = 6.0
"""How many times the model's own a vector is that every token has, so that it is no rounding."""
Where = tuple[str, int | None]
"""A test, and the head it is of; None for all numbers."""


@dataclass(frozen=True)
class Lean(Data):
    """A test that the errors of a step fail: the ``value`` is above the ``limit``.

    ``factor``, ``bias``: |mean sign(Δ·x)| and |mean sign(Δ)|; the ``amount`` is the median of (x + Δ)/x − 1, and of Δ
    in units of the root mean square of x. ``vector``: the mean of Δ over the tokens, in units of the model's own; the
    ``amount`` is its size relative to x. ``own`` is the largest amount of the model's own rounding. ``head`` is the one
    that leans, None where all do.
    """

    test: str
    value: float
    limit: float
    amount: float
    own: float
    head: int | None = None

    def in_words(self, name: str, dtype: str) -> str:
        """What the errors of the step ``name`` have in common, and what the model's own rounding has."""
        where = f"{name} is" if self.head is None else f"head {self.head} of {name} is"
        if self.test == FACTOR:
            return f"{where} {1 + self.amount:.4f} times what it should be (rounding in {dtype}: 1 ± {self.own:.1g})"
        share = f"{abs(self.amount):.2g} of its root mean square (rounding in {dtype}: {self.own:.1g})"
        if self.test == BIAS:
            return f"{where} too {'large' if self.amount > 0 else 'small'} everywhere, by {share}"
        return f"{where} off by one vector at every token, {share}"


@dataclass(frozen=True, eq=False)
class Leaning:
    """How much the errors of a step lean: by test and head its value, the noise of that value, and the amount."""

    values: Mapping[Where, tuple[float, float, float]]
    vector: float
    noise: float


def leaning(exact: Tensor, other: Tensor, step: Step) -> Leaning | None:
    """The leans of the errors of ``other``; None where there are none to judge, or too few tokens."""
    x, y = (one.double() for one in (exact, other))
    seen = x.isfinite() & y.isfinite()
    x, y = (torch.where(seen, one, 0.0) for one in (x, y))
    if step.token_axis is None or x.dim() < 2 or torch.equal(x, y):
        return None
    heads = len(x) if step.has_heads and x.dim() == 3 else 1
    x, y = (one.movedim(step.token_axis, 0).reshape(one.shape[step.token_axis], heads, -1) for one in (x, y))
    delta, size = y - x, float(x.square().mean().sqrt())
    if len(x) < _FEWEST_TOKENS or x.shape[-1] < _FEWEST_COLUMNS or not size:
        return None
    ratio = torch.where(x.abs() > size / 10, delta / x, torch.nan)
    values: dict[Where, tuple[float, float, float]] = {}
    for test, signs, amounts in ((FACTOR, (delta * x).sign(), ratio), (BIAS, delta.sign(), delta / size)):
        values[test, None] = _lean(signs.flatten(1), amounts.flatten(1))
        for head in range(heads) if heads > 1 else ():
            values[test, head] = _lean(signs[:, head], amounts[:, head])
    relative = delta / x.square().mean((1, 2), keepdim=True).sqrt().clamp(min=size * 1e-6)
    noise = float(relative.square().mean().sqrt()) / math.sqrt(len(x))
    return Leaning(values, float(relative.mean(0).square().mean().sqrt()), noise)


def _lean(signs: Tensor, amounts: Tensor) -> tuple[float, float, float]:
    """The mean sign of (T, D) errors, four standard deviations of it, and the median amount.

    Errors of a token may have one origin, such as the length by which a norm divides it, and so may those of a column:
    a rounded row of weights.
    """
    deviations = [1 / math.sqrt(max(int((signs != 0).sum()), 1))]
    for axis in (0, 1):
        alike = signs.mean(axis)
        deviations.append(float(alike.std()) / math.sqrt(len(alike)) * (1 + 4 / len(alike)))  # of few, uncertain itself
    return abs(float(signs.mean())), 4 * max(deviations), float(amounts.nanmedian().nan_to_num())


@dataclass(frozen=True, eq=False)
class OwnLeans:
    """The largest leans of the model's own rounding at the steps of one name: their values and amounts, by test."""

    values: Mapping[tuple[str, bool], float]
    amounts: Mapping[tuple[str, bool], float]

    @classmethod
    def of(cls, runs: Iterable[Leaning]) -> "OwnLeans":
        values, amounts = dict[tuple[str, bool], float](), dict[tuple[str, bool], float]()
        for run in runs:
            for (test, head), (value, _, amount) in run.values.items():
                of = test, head is None
                values[of], amounts[of] = max(value, values.get(of, 0.0)), max(abs(amount), amounts.get(of, 0.0))
        return cls(values, amounts)

    def failed(self, theirs: Leaning, own: Iterable[Leaning]) -> Lean | None:
        """The test that another program fails by most; ``own`` are the model's runs of this very step."""
        found = []
        for (test, head), (value, noise, amount) in theirs.values.items():
            most, spread = (of.get((test, head is None), 0.0) for of in (self.values, self.amounts))
            limit = max(_LEAST, 2 * most, most + noise)
            if value > limit and abs(amount) > spread:
                found.append(Lean(test, value, limit, amount, spread, head))
        if found:  # one head that leans alone is more than what all do with it
            heads = [lean for lean in found if lean.head is not None]
            alone = [lean for lean in heads if sum(other.test == lean.test for other in heads) == 1]
            return max(alone or [lean for lean in found if lean.head is None] or heads, key=lambda lean: lean.value)
        vector = max((max(run.vector, run.noise) for run in own), default=0.0)
        times = theirs.vector / vector if vector else 0.0
        return Lean(VECTOR, times, MOST, theirs.vector, vector) if times > MOST else None
