"""Find the first step of a pass that fails a test; with tests for NaN and infinity."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.errors import TinytfError
from tinytf.model.transformer import Transformer, evaluating
from tinytf.parts.row import Step
from tinytf.report import Data
from tinytf.steps.operations import Mask
from tinytf.text.printable import printable
from tinytf.text.tokenizer import Encoding, Token
from tinytf.trace.record import record
from tinytf.trace.trace import Trace


@dataclass(frozen=True)
class Fault(Data):
    """A fault at a ``step`` (full name) in a ``direction`` (forward, backward), with the numbers as evidence."""

    step: str
    direction: str
    kind: str
    evidence: str


@dataclass(frozen=True)
class Inspected:
    """A step of a trace as a test sees it, with its values or its gradient."""

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

    def counted(self, mask: Tensor, what: str) -> str:
        """``3 of 240 entries are NaN, the first at …`` for the entries in ``mask``; empty for none."""
        return describe_entries(mask, what, self.place)


def describe_entries(mask: Tensor, what: str, place: Callable[[list[int]], str]) -> str:
    """``3 of 240 entries are NaN, the first at …`` for the entries in ``mask``; empty for none."""
    count = int(mask.sum())
    if not count:
        return ""
    first = place(mask.nonzero()[0].tolist())
    return f"{count:,} of {mask.numel():,} entries {'is' if count == 1 else 'are'} {what}, the first at {first}"


Test = Callable[[Inspected], str]
"""Describe what is wrong with a step, as a clause with numbers; empty if nothing is."""


def allowed(inspected: Inspected, head: int | None = None) -> Tensor:
    """Which keys (Q, K) each query of a step's layer may look at in some head, or in one."""
    trace = inspected.trace
    blocks = trace.steps.of_blocks(inspected.step, inspected.layer)
    mask, length = trace.allowed(inspected.layer, head, blocks=blocks), len(trace.tokens)
    return torch.ones(length, length, dtype=torch.bool, device=inspected.values.device) if mask is None else mask


def _nan(inspected: Inspected) -> str:
    return inspected.counted(inspected.values.isnan(), "NaN")


def _infinite(inspected: Inspected) -> str:
    infinite = inspected.values.isinf()
    if isinstance(inspected.step.operation, Mask):
        seen = torch.stack([allowed(inspected, head) for head in range(len(inspected.values))])
        infinite &= ~(inspected.values.isneginf() & ~seen)
    return inspected.counted(infinite, "infinite")


NOT_FINITE: dict[str, Test] = {"nan": _nan, "inf": _infinite}
"""The tests for values that are not finite, by kind. −∞ at a masked key passes."""


def first_of(
    values: Trace, rows: Iterable[tuple[Step, int | None]], direction: str, tests: Mapping[str, Test]
) -> Fault | None:
    """The first of ``rows`` to fail one of ``tests``, in order; rows that ``values`` lacks are skipped.

    Logits are tested where the pass computed them, forward also before they are capped or scaled; probabilities follow
    from them and are skipped.
    """
    for step, layer in rows:
        if (
            not step.is_tensor
            or (step.is_vocabulary and not (step.recorded or (direction == "forward" and step.to_loss)))
            or (layer is not None and layer not in values.recording.layers)
        ):
            continue
        tensor = values.at_logit_rows(step) if step.is_vocabulary else values.step(step.name, layer)
        inspected = Inspected(values, step, layer, tensor)
        for kind, test in tests.items():
            if evidence := test(inspected):
                return Fault(inspected.name, direction, kind, evidence)
    return None


def first_not_finite(trace: Trace) -> str | None:
    """The full name of the first step with NaN or infinity in the forward pass; None if there is none.

    The stacks come in the order in which they run: of an encoder it is ``enc.L0.attn``.
    """
    for at, stack in trace.stacks.items():
        if (fault := first_of(stack, stack.steps.rows, "forward", NOT_FINITE)) is not None:
            return at + fault.step
    return None


@torch.no_grad()
def overflow_at(trace: Trace, step: str) -> str:
    """``it reaches 71,234, beyond float16's 65,504``: what a step that is not finite holds in float32; else empty."""
    if trace.last_hidden.dtype != torch.float16:
        return ""
    exact = record(copy.deepcopy(trace.model).float(), trace.encoding, force=True)[step]
    finite = exact[exact.isfinite()]  # a masked score is −∞ in any numbers
    most = float(finite.abs().max()) if finite.numel() else 0.0
    return overflow_in_words(most)


def overflow_in_words(most: float) -> str:
    """``it reaches 71,234, beyond float16's 65,504`` for the largest number of a step in float32; else empty."""
    largest = torch.finfo(torch.float16).max
    return f"it reaches {most:,.0f}, beyond float16's {largest:,.0f}" if most > largest else ""


@torch.no_grad()
def where_not_finite(model: Transformer, texts: Iterable[Sequence[int]]) -> str:
    """Where the numbers of the first of some texts are not finite, in words: see ``in_words``; empty where all are."""
    device = next(model.parameters()).device
    for ids in texts:
        with evaluating(model):
            last = model.hidden(torch.tensor([list(ids)], device=device))
            made = [last] if model.head is None else [last, model.unembed(last[:, -1:])]
        if not all(bool(numbers.isfinite().all()) for numbers in made):
            tokens = tuple(Token(token_id, f"#{token_id}", 0, 0, b"", False) for token_id in ids)
            return in_words(record(model, Encoding("", tokens, ""), force=True))
    return ""


def in_words(trace: Trace) -> str:
    """``first at L2.ffn``, with the number that it reaches in float32 where it passes float16's largest."""
    step = first_not_finite(trace)
    overflow = overflow_at(trace, step) if step else ""
    return (f"first at {step}" if step else "in the logits") + (f": {overflow}" if overflow else "")


HINT = "the weights hold NaN or infinity, or overflow in this dtype; try --dtype float32"
"""What to do about numbers that are not finite."""


def require_finite_texts(name: str, model: Transformer, texts: Iterable[Sequence[int]]) -> None:
    """Raise TinytfError, naming the model and its first step that is not finite, if its numbers on a text are not."""
    if where := where_not_finite(model, texts):
        raise TinytfError(f"{printable(name, spaces=False)} is not finite, {where}", HINT)


def require_finite(trace: Trace, numbers: Tensor) -> None:
    """Raise TinytfError, naming the first step that is not finite, if any of ``numbers`` is not."""
    if not bool(numbers.isfinite().all()):
        raise TinytfError(f"not every number is finite, {in_words(trace)}", HINT)
