"""How far two numbers that should be equal may differ.

A step or a gradient that is computed twice from the same numbers is compared by ``compare``, whose allowance follows
from its own sums: their length, the precision, and the size of what cancels in them. Whole runs, in which rounding
builds up over many layers, have a table for each comparison, by precision, with its reason; each limit is relative to
the largest value compared, or to 1 if that is larger.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

ByPrecision = Mapping[torch.dtype, float]

MARGIN = 8
"""How many times the rounding of one way through the sums two ways may differ by: both round, not always alike."""

_COARSENESS = 16
"""How many times coarser rounding is in ``Coarse`` arithmetic: enough to stand out from the rounding of its own."""

_PRODUCTS = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "_linear_pointwise": 0, "addmm": 1, "addmv": 1, "baddbmm": 1}
"""Operators that sum products: the argument whose last axis they sum over."""

_SUMS = {"sum", "mean"}
"""Operators that sum numbers: over the axes of the second argument, or all."""

_SATURATED = {"sigmoid", "tanh"}
"""Functions up to 1, of which 1 − f is taken either as a difference, which cancels near 1, or as a function of its own:
both ways agree to a rounding of 1, and not of the result."""


class Coarse(TorchDispatchMode):
    """Monte Carlo arithmetic (Parker, Pierce and Eggert 2000): inside, operands are off at random as if rounded.

    Each number that an operator takes is off by up to 16 unit roundoffs of its precision, and in a sum of n by n / 8
    times that on top: libraries may add them one after the other, which is off by up to n roundoffs (Higham
    2002, section 3.1), and half as many bits lost to small summands were seen in a sum over a vocabulary. The
    ``constants``, parameters of a model, stay as they are. Seeded, so that a check gives the same result twice.
    """

    def __init__(self, constants: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._constants = {one.untyped_storage().data_ptr() for one in constants}
        self._generators: dict[torch.device, torch.Generator] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch imports its compiler, which takes a second

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema, name = func._schema, func.overloadpacket.__name__
        is_view = any(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns)
        if is_view or name == "topk":  # which experts are chosen is no matter of rounding
            return func(*args, **(kwargs or {}))
        summed = _summands(name, args)
        written = [one.alias_info is not None and one.alias_info.is_write for one in schema.arguments]
        moved = (one if fixed else self._moved(one, summed) for one, fixed in zip(args, written, strict=False))
        found = func(*moved, **(kwargs or {}))
        return (
            (_wide(found) + self._noise(found) * unit_roundoff(found.dtype)).to(found.dtype)
            if name in _SATURATED
            else found
        )

    def _moved(self, operand: Any, summed: int) -> Any:
        if not isinstance(operand, Tensor) or not operand.is_floating_point():
            return operand
        if operand.untyped_storage().data_ptr() in self._constants:
            return operand
        # Sums of 16-bit numbers are made in float32.
        off = unit_roundoff(operand.dtype) + summed / 8 * min(2.0**-24, unit_roundoff(operand.dtype))
        return (_wide(operand) * (1 + self._noise(operand) * off)).to(operand.dtype)

    def _noise(self, like: Tensor) -> Tensor:
        """16 or half as much, up or down at random: never so close to 0 that a number stays where it is."""
        if like.device not in self._generators:
            self._generators[like.device] = torch.Generator(like.device).manual_seed(0)
        noise = torch.empty_like(_wide(like)).uniform_(-0.5, 0.5, generator=self._generators[like.device])
        return (noise + 0.5 * noise.sign()) * _COARSENESS


def _summands(name: str, args: Any) -> int:
    """How many numbers an operator adds up for each number of its result; 0 where it adds none."""
    if name in _PRODUCTS:
        return int(args[_PRODUCTS[name]].shape[-1])
    if name not in _SUMS:
        return 0
    axes = args[1] if len(args) > 1 and args[1] else range(args[0].dim())
    return math.prod(args[0].shape[axis] for axis in axes)


@dataclass(frozen=True)
class Compared:
    """Two ways to the same numbers, at ``step``, as ``what`` says.

    ``difference`` is the one that comes nearest to what rounding allows, or exceeds it most, and ``allowed`` is what
    is allowed there; ``scale`` is the largest value.
    """

    step: str
    what: str
    difference: float
    scale: float
    allowed: float

    @property
    def relative(self) -> float:
        """The difference relative to the scale; infinite where either is not finite."""
        if not (math.isfinite(self.difference) and math.isfinite(self.scale)):
            return math.inf
        return self.difference / self.scale if self.scale else (math.inf if self.difference else 0.0)

    @property
    def share(self) -> float:
        """The difference as a share of what is allowed; infinite where it is not finite."""
        if not (self.is_finite and math.isfinite(self.scale)):
            return math.inf
        return self.difference / self.allowed if self.difference else 0.0

    @property
    def is_finite(self) -> bool:
        """Whether the numbers can be compared at all."""
        return math.isfinite(self.difference)

    @property
    def holds(self) -> bool:
        return self.share <= 1


def telling(items: Sequence[Compared]) -> Compared:
    """What a check says of its comparisons: the first that does not hold, or the largest difference where all do."""
    return next((one for one in items if not one.holds), None) or max(items, key=lambda one: one.difference)


@dataclass(frozen=True)
class Ways:
    """Two ways to the same numbers, before they are compared; ``axis`` is that of the tokens, whose sizes differ."""

    step: str
    what: str
    found: Tensor
    expected: Tensor
    axis: int | None = None


def compare(ways: Ways, dtype: torch.dtype, coarse: Coarse, again: Callable[[], Ways]) -> Compared:
    """Compare two ways to the same numbers, made in ``dtype``; ``again`` makes both once more.

    MARGIN times the rounding of the result is allowed, and where that is not enough the rounding on the way to it:
    by as much as ``coarse`` rounding moves the numbers, divided by how much coarser it is, rounding itself may move
    them. That counts how many summands there are, and what of them cancels. The allowance is that of the largest
    number of each token, since of a single one chance may move little.
    """
    expected = _wide(ways.expected)
    difference, size = (_wide(ways.found) - expected).abs(), expected.abs()
    if not difference.numel():
        return Compared(ways.step, ways.what, 0.0, 0.0, 0.0)
    if not bool(difference.isfinite().all()):
        return Compared(ways.step, ways.what, math.inf, float(size.max()), 0.0)
    rounding = unit_roundoff(dtype) * _largest(size, ways.axis) + _least(dtype)
    found = _furthest(ways, difference, size, MARGIN * rounding)
    if found.holds:
        return found
    with coarse:
        moved = again()
    for one, other in ((ways.found, moved.found), (ways.expected, moved.expected)):
        if one is not other:
            rounding = rounding + _largest((_wide(one) - _wide(other)).abs(), ways.axis) / _COARSENESS
    return _furthest(ways, difference, size, MARGIN * rounding)


def _furthest(ways: Ways, difference: Tensor, size: Tensor, limit: Tensor) -> Compared:
    place = (difference / limit).argmax()
    at = [float(one.flatten()[place]) for one in (difference, limit.expand_as(difference))]
    return Compared(ways.step, ways.what, at[0], float(size.max()), at[1])


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number."""
    return torch.finfo(dtype).eps / 2


def _least(dtype: torch.dtype) -> float:
    """The smallest number above 0: what a result that underflows may be off by."""
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def _largest(x: Tensor, axis: int | None) -> Tensor:
    """The largest number at each place of ``axis``, or of all."""
    others = [one for one in range(x.dim()) if one != axis]
    return x.amax(dim=others, keepdim=True) if others else x


STEP: ByPrecision = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""A step computed again from the steps before it: the same numbers, summed in another order."""

PARTS: ByPrecision = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""The parts of a logit and the logit: the rounding of each layer is in the logit and not in the parts."""

DECODED: ByPrecision = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 1e-1, torch.float16: 2e-2}
"""Logits of the fast decoder and of the model's modules: about 1e-6 in float32 is rounding, about 1e-3 a missing soft
cap; with 8 or 11 bits the two round at different places of every layer."""

RUN: ByPrecision = {torch.float64: 1e-11, torch.float32: 1e-4, torch.bfloat16: 1e-1, torch.float16: 3e-2}
"""A step of two runs that should be equal: at most three times what rounding came to in the 30 layers of SmolLM2."""

STUDENT: ByPrecision = {torch.float32: 2e-5}
"""A step in the first layer of somebody else's code, with the same weights: other orders of sums, below 1e-6; GELU by
tanh in place of erf is beyond it. After n layers it is √(1 + n) times that: 1.4e-5 was the most in SmolLM2's 30."""

INT8: ByPrecision = {torch.float32: 0.15}
"""Logits of int8 weights and of the weights as they are: some 0.01 to 0.04 for trained and random models; scales
that are wrong by a factor of 2 are beyond it."""


def allowed(table: ByPrecision, dtype: torch.dtype) -> float:
    """The limit of whole runs in a precision; float32's for a precision without one."""
    return table.get(dtype, table[torch.float32])
