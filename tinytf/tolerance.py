"""The tolerance of comparisons: how far two numbers that should be equal may differ.

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

from tinytf.in_file import InFile

ByPrecision = Mapping[torch.dtype, float]

MARGIN = 8
"""The allowed difference of two computations, in roundings of one of them: both round, not always alike."""

_COARSENESS = 16
"""The factor by which ``Coarse`` arithmetic rounds more coarsely: enough to stand out from its own rounding."""

_REPETITIONS = 8
"""How often coarse arithmetic is repeated for a single number, which one time may move by chance alone."""

_PRODUCTS = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "_linear_pointwise": 0, "addmm": 1, "addmv": 1, "baddbmm": 1}
"""Operators that sum products: the argument whose last axis they sum over."""

_SUMS = {"sum", "mean"}
"""Operators that sum numbers: over the axes of the second argument, or all."""

_SATURATED = {"sigmoid", "tanh"}
"""Functions with a maximum of 1. Computing 1 − f as a difference cancels near 1, computing it directly does not: the
two agree to a rounding of 1, not of the result."""


class Coarse(TorchDispatchMode):
    """Monte Carlo arithmetic (Parker, Pierce and Eggert 2000): inside it, operands get random errors as if rounded.

    Each operand is off by up to 16 unit roundoffs of its precision, and in a sum of n numbers by n / 8 times that on
    top: libraries may add them one after the other, which is off by up to n roundoffs (Higham 2002, section 3.1), and
    half as many bits lost to small summands were seen in a sum over a vocabulary. The ``constants``, parameters of a
    model, are not changed. Seeded, so that a check gives the same result twice.
    """

    def __init__(self, constants: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        in_memory = (tensor for tensor in constants if not isinstance(tensor, InFile))
        self._constants = {tensor.untyped_storage().data_ptr() for tensor in in_memory}
        self._generators: dict[torch.device, torch.Generator] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # with True torch imports its compiler, which takes a second

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema, name = func._schema, func.overloadpacket.__name__
        is_view = any(value.alias_info is not None and not value.alias_info.is_write for value in schema.returns)
        if is_view or name == "topk":  # the choice of experts is not a matter of rounding
            return func(*args, **(kwargs or {}))
        n_summands = _summands(name, args)
        is_written = [argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments]
        perturbed = (
            operand if is_output else self._perturb(operand, n_summands)
            for operand, is_output in zip(args, is_written, strict=False)
        )
        result = func(*perturbed, **(kwargs or {}))
        return (
            (_wide(result) + self._noise(result) * unit_roundoff(result.dtype)).to(result.dtype)
            if name in _SATURATED
            else result
        )

    def _perturb(self, operand: Any, n_summands: int) -> Any:
        if not isinstance(operand, Tensor) or not operand.is_floating_point():
            return operand
        if isinstance(operand, InFile) or operand.untyped_storage().data_ptr() in self._constants:
            return operand
        # Sums of 16-bit numbers are made in float32.
        error = unit_roundoff(operand.dtype) + n_summands / 8 * min(2.0**-24, unit_roundoff(operand.dtype))
        return (_wide(operand) * (1 + self._noise(operand) * error)).to(operand.dtype)

    def _noise(self, like: Tensor) -> Tensor:
        """Random numbers of 8 to 16 in size, up or down: never so close to 0 that an operand would not change."""
        if like.device not in self._generators:
            self._generators[like.device] = torch.Generator(like.device).manual_seed(0)
        noise = torch.empty_like(_wide(like)).uniform_(-0.5, 0.5, generator=self._generators[like.device])
        return (noise + 0.5 * noise.sign()) * _COARSENESS


def _summands(name: str, args: Any) -> int:
    """The number of summands of each number in an operator's result; 0 if it sums nothing."""
    if name in _PRODUCTS:
        return int(args[_PRODUCTS[name]].shape[-1])
    if name not in _SUMS:
        return 0
    axes = args[1] if len(args) > 1 and args[1] else range(args[0].dim())
    return math.prod(args[0].shape[axis] for axis in axes)


@dataclass(frozen=True)
class Comparison:
    """A comparison of two computations of the same numbers at ``step``; ``what`` describes it.

    ``difference`` is the largest relative to what rounding allows there, and ``allowed`` that allowance; ``scale`` is
    the largest value.
    """

    step: str
    what: str
    difference: float
    scale: float
    allowed: float

    @property
    def relative(self) -> float:
        """The difference relative to the scale; infinite if either is not finite."""
        if not (math.isfinite(self.difference) and math.isfinite(self.scale)):
            return math.inf
        return self.difference / self.scale if self.scale else (math.inf if self.difference else 0.0)

    @property
    def share(self) -> float:
        """The difference as a share of the allowance; infinite if it is not finite."""
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


def worst_or_first_failure(items: Sequence[Comparison]) -> Comparison:
    """The comparison to report: the first that fails or, if all hold, the one with the largest difference."""
    return next((item for item in items if not item.holds), None) or max(items, key=lambda item: item.difference)


@dataclass(frozen=True)
class TwoResults:
    """Two computations of the same numbers, to be compared; ``axis`` is that of the tokens, which differ in scale."""

    step: str
    what: str
    found: Tensor
    expected: Tensor
    axis: int | None = None


def compare(ways: TwoResults, dtype: torch.dtype, coarse: Coarse, again: Callable[[], TwoResults]) -> Comparison:
    """Compare two computations of the same numbers in ``dtype``; ``again`` repeats both.

    MARGIN times the rounding of the result is allowed. If that is not enough, the rounding on the way is added: the
    change of the numbers under ``coarse`` rounding, divided by its coarseness. That accounts for the number of summands
    and for cancellation. The allowance is that of the largest number of each token, since chance may hardly move a
    single number; of a single one, such as a scale, that of its largest change in several repetitions.
    """
    expected = _wide(ways.expected)
    difference = (_wide(ways.found) - expected).abs_()
    if not difference.numel():
        return Comparison(ways.step, ways.what, 0.0, 0.0, 0.0)
    scale = float(_largest(expected, None))
    if not math.isfinite(difference.max()):
        return Comparison(ways.step, ways.what, math.inf, scale, 0.0)
    rounding = unit_roundoff(dtype) * _largest(expected, ways.axis) + _least(dtype)
    result = _furthest(ways, difference, scale, MARGIN * rounding)
    if result.holds:
        return result
    with coarse:
        repeated = [again() for _ in range(1 if difference.numel() > 1 else _REPETITIONS)]
    for fine, roughs in (
        (ways.found, [one.found for one in repeated]),
        (ways.expected, [one.expected for one in repeated]),
    ):
        changes = [_largest(_wide(fine) - _wide(rough), ways.axis) for rough in roughs if fine is not rough]
        if changes:
            rounding = rounding + torch.stack(changes).amax(dim=0) / _COARSENESS
    return _furthest(ways, difference, scale, MARGIN * rounding)


def _furthest(ways: TwoResults, difference: Tensor, scale: float, limit: Tensor) -> Comparison:
    position = (difference / limit if limit.numel() > 1 else difference).argmax()
    where = torch.unravel_index(position, difference.shape)
    most, its_limit = (float(tensor[where]) for tensor in (difference, limit.expand_as(difference)))
    return Comparison(ways.step, ways.what, most, scale, its_limit)


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number."""
    return torch.finfo(dtype).eps / 2


def _least(dtype: torch.dtype) -> float:
    """The smallest number above 0: the error of a result that underflows."""
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def _largest(x: Tensor, axis: int | None) -> Tensor:
    """The largest absolute value at each index of ``axis``, or overall."""
    if axis is None:
        low, high = x.aminmax()
        return high.maximum(-low)
    other_axes = [i for i in range(x.dim()) if i != axis]
    return x.abs().amax(dim=other_axes, keepdim=True) if other_axes else x.abs()


STEP: ByPrecision = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""A step recomputed from the steps before it: the same numbers, summed in another order."""

PARTS: ByPrecision = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""The sum of a logit's parts and the logit: the rounding of each layer is in the logit but not in the parts."""

DECODED: ByPrecision = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 1e-1, torch.float16: 2e-2}
"""Logits of the fast decoder and of the model's modules: about 1e-6 in float32 is rounding, about 1e-3 a missing soft
cap; with 8 or 11 bits the two round at different places of every layer."""

RUN: ByPrecision = {torch.float64: 1e-11, torch.float32: 1e-4, torch.bfloat16: 1e-1, torch.float16: 3e-2}
"""A step of two runs that should be equal: at most three times what rounding came to in the 30 layers of SmolLM2."""

PADDED: ByPrecision = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""Numbers of a text in a padded batch and of the text by itself, as a share of its largest logit: products of another
shape sum in another order."""

STUDENT: ByPrecision = {torch.float32: 2e-5}
"""A step in the first layer of somebody else's code, with the same weights: sums in another order differ by less than
1e-6; GELU by tanh instead of erf is beyond the limit. After n layers the limit is √(1 + n) times that: 1.4e-5 was the
most in SmolLM2's 30."""

INT8: ByPrecision = {torch.float32: 0.15}
"""Logits of int8 weights and of the original weights: they differ by some 0.01 to 0.04 for trained and random models;
scales that are wrong by a factor of 2 are beyond the limit."""


def allowed(table: ByPrecision, dtype: torch.dtype) -> float:
    """The limit of whole runs in a precision; float32's for a precision without one."""
    return table.get(dtype, table[torch.float32])
