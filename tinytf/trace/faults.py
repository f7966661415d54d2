"""The first step of a pass that fails a test: the walk over the steps, and the tests for finite numbers."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.errors import TinytfError
from tinytf.parts.row import Step
from tinytf.report import Data
from tinytf.steps.operations import Mask
from tinytf.trace.trace import Trace


@dataclass(frozen=True)
class Fault(Data):
    """What is wrong at a ``step`` (its full name), in which ``direction`` (forward, backward), with the numbers."""

    step: str
    direction: str
    kind: str
    evidence: str


@dataclass(frozen=True)
class Inspected:
    """What a test looks at: a step of a trace with its values, or with its gradient."""

    trace: Trace
    step: Step
    layer: int | None
    values: Tensor

    @property
    def name(self) -> str:
        return self.step.full_name(self.layer)

    def place(self, index: list[int]) -> str:
        """An index in words: ``head 1, query 4, key 2``."""
        numbers = list(index)
        if self.step.is_vocabulary:
            numbers[0] = self.trace.recording.logit_rows[numbers[0]]
        return ", ".join(f"{axis} {number}" for axis, number in zip(self.step.axes, numbers, strict=True))

    def counted(self, found: Tensor, what: str) -> str:
        """``3 of 240 entries are NaN, the first at …`` for a mask ``found``; empty for none."""
        return counted(found, what, self.place)


def counted(found: Tensor, what: str, place: Callable[[list[int]], str]) -> str:
    """``3 of 240 entries are NaN, the first at …`` for a mask ``found``; empty for none."""
    count = int(found.sum())
    if not count:
        return ""
    first = place(found.nonzero()[0].tolist())
    return f"{count:,} of {found.numel():,} entries {'is' if count == 1 else 'are'} {what}, the first at {first}"


Test = Callable[[Inspected], str]
"""What is wrong with a step, as a clause with numbers; empty where nothing is."""


def allowed(seen: Inspected) -> Tensor:
    """Which keys (Q, K) each query of a step's layer may look at."""
    found, length = seen.trace.allowed(seen.layer), len(seen.trace.tokens)
    return torch.ones(length, length, dtype=torch.bool, device=seen.values.device) if found is None else found


def _nan(seen: Inspected) -> str:
    return seen.counted(seen.values.isnan(), "NaN")


def _infinite(seen: Inspected) -> str:
    found = seen.values.isinf()
    if isinstance(seen.step.operation, Mask):
        found &= ~(seen.values.isneginf() & ~allowed(seen))
    return seen.counted(found, "infinite")


NOT_FINITE: dict[str, Test] = {"nan": _nan, "inf": _infinite}
"""The tests for values that are not finite, by kind. −∞ where a query may not look passes."""


def first_of(
    values: Trace, rows: Iterable[tuple[Step, int | None]], direction: str, tests: Mapping[str, Test]
) -> Fault | None:
    """The first of ``rows`` to fail one of ``tests``, in their order; rows that ``values`` lacks are skipped.

    Logits are tested where the pass computed them; probabilities follow from them and are skipped.
    """
    for step, layer in rows:
        if (
            not step.is_tensor
            or (step.is_vocabulary and not step.recorded)
            or (layer is not None and layer not in values.recording.layers)
        ):
            continue
        tensor = values.recorded_logits if step.is_vocabulary else values.step(step.name, layer)
        seen = Inspected(values, step, layer, tensor)
        for kind, test in tests.items():
            if evidence := test(seen):
                return Fault(seen.name, direction, kind, evidence)
    return None


def first_not_finite(trace: Trace) -> str | None:
    """The full name of the first step with NaN or infinity in the forward pass; None if there is none."""
    found = first_of(trace, trace.steps.rows, "forward", NOT_FINITE)
    return None if found is None else found.step


def require_finite(trace: Trace, numbers: Tensor) -> None:
    """Raise TinytfError, with the first step that is not finite, where any of these numbers of a trace is not."""
    if not bool(numbers.isfinite().all()):
        first = f"first at {found}" if (found := first_not_finite(trace)) else "in the logits"
        raise TinytfError(
            f"not every number is finite, {first}",
            "the weights hold NaN or infinity, or overflow in this dtype; try --dtype float32",
        )
