"""Find the steps of a reference among the tensors of a student's forward pass, and the first step that is missing."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tinytf.check.seen import Output
from tinytf.check.weights import Pair
from tinytf.compare.mistakes.mistake import Wrong
from tinytf.compare.mistakes.wrong_trace import WrongTrace
from tinytf.parts.row import Step
from tinytf.steps.operations import Add, Given, Lookup, Norm, Scores, Softmax
from tinytf.steps.table import StepKey
from tinytf.trace.lens_names import in_pairs
from tinytf.trace.trace import Trace

_MASKED = -1e4
"""Numbers below this count as masked: files use −∞, −1e9, or the lowest number of the format."""


@dataclass(frozen=True, eq=False)
class Signature:
    """A tensor without axes of size 1, and its sum of magnitudes, which no permutation of the axes changes."""

    tensor: Tensor
    total: float

    @classmethod
    def of(cls, tensor: Tensor) -> "Signature":
        values = tensor.detach().float().squeeze()
        values = values.masked_fill(values < _MASKED, 0.0) if bool((values < _MASKED).any()) else values
        return cls(values, _total(values))


def _finite(tensor: Tensor) -> Tensor:
    return tensor.masked_fill(tensor < _MASKED, 0.0).nan_to_num()


def _total(tensor: Tensor) -> float:
    return float(tensor.nan_to_num().abs().sum(dtype=torch.float64))


class Tensors:
    """Every tensor of a forward pass, by size; what it ``returned``; the first tensor that makes that ``not_finite``.

    ``constant`` are the orders of those that are alike in the pass of another text, such as masks and tables of angles.
    ``pairs`` are the weights that the module had, ``step_of`` the first step that a parameter of a path belongs to, and
    ``read`` the paths of the parameters that a tensor was computed from.
    """

    def __init__(
        self,
        outputs: Sequence[Output],
        returned: Output,
        pairs: Sequence[Pair],
        other: Sequence[Output] = (),
    ) -> None:
        self.outputs = tuple(outputs)
        self.returned = returned
        self.pairs = tuple(pairs)
        self.step_of: Mapping[str, StepKey] = {
            path: (pair.ours.steps[0][0].name, layer)
            for pair in pairs
            for (layer, _), path in pair.theirs.paths.items()
        }
        self.read = frozenset[str]().union(*(output.parameters for output in outputs))
        self.by_size: dict[int, list[tuple[Output, Signature]]] = {}
        self.constant = frozenset(
            one.order
            for one, theirs in zip(outputs, other, strict=False)
            if one.line == theirs.line and torch.equal(one.tensor.nan_to_num(), theirs.tensor.nan_to_num())
        )
        self.not_finite = self._first_not_finite()
        for output in outputs:
            self.by_size.setdefault(output.tensor.numel(), []).append((output, Signature.of(output.tensor)))

    def _first_not_finite(self) -> Output | None:
        """The first tensor with NaN or ∞ from which the returned one is computed; None where that is finite.

        An ∞ that no text changes may be that of a mask, and so may −∞.
        """
        returned = self.returned
        if bool(returned.tensor.isfinite().all()):
            return None
        behind = [one for one in self.outputs if not returned.ancestors or one.order in returned.ancestors]
        return next((one for one in behind if self._is_bad(one)), returned)

    def _is_bad(self, output: Output) -> bool:
        is_mask = output.order in self.constant
        return bool(output.tensor.isnan().any()) or (not is_mask and bool(output.tensor.isposinf().any()))


@dataclass(frozen=True, eq=False)
class Match:
    """A tensor of the student's code that equals a step; ``difference`` is relative to the step's largest number."""

    output: Output
    difference: float


def difference(actual: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest magnitude expected.

    NaN equals NaN, and ∞ itself; where another number is not finite, the difference is infinite.
    """
    gap = float((actual - expected).abs().max())
    size = float(expected.abs().max())
    if not math.isfinite(gap):
        same = (actual.isnan() & expected.isnan()) | (actual == expected)
        gap = float((actual - expected).masked_fill(same, 0.0).abs().max())
        size = float(expected.masked_fill(~expected.isfinite(), 0.0).abs().max())
    return gap / (size or 1.0) if math.isfinite(gap) else math.inf


def _permuted_difference(actual: Tensor, expected: Tensor, tolerance: float) -> float | None:
    """The difference, for the first permutation of the axes that brings it within the tolerance; None if none does."""
    if actual.dim() != expected.dim() or sorted(actual.shape) != sorted(expected.shape):
        return None
    for order in itertools.permutations(range(actual.dim())):
        if tuple(actual.shape[axis] for axis in order) == tuple(expected.shape):
            largest = difference(actual.permute(order), expected)
            if largest <= tolerance:
                return largest
    return None


class Comparison:
    """A reference's steps among a student's tensors.

    ``tolerance``, relative to the largest number of a step, applies to the first layer. A step that depends on the text
    is no tensor that does not. ``twin`` compares a text of another length, where the code takes one.
    """

    def __init__(self, trace: Trace, tensors: Tensors, tolerance: float, twin: "Comparison | None" = None) -> None:
        self.trace, self.tensors, self.tolerance, self.twin = trace, tensors, tolerance, twin
        table = trace.steps
        self.keys: list[StepKey] = [
            (step.name, layer)
            for step, layer in table.rows
            if step.operation is not None and step.to_loss and not isinstance(step.operation, Given)
        ]
        self.order: Mapping[StepKey, int] = {key: number for number, key in enumerate(self.keys)}
        self._after_layers = {step.name for step in table.after}
        self.coarse = len(tensors.outputs) < len(self.keys)
        self._matches: dict[StepKey, Match | None] = {}
        self._right: dict[StepKey, bool] = {}

    def with_mistakes(self, wrong: Mapping[StepKey, Wrong]) -> "Comparison":
        """A comparison with a reference that makes these mistakes; matches before the first mistake are reused."""
        twin = None if self.twin is None else self.twin.with_mistakes(wrong)
        comparison = Comparison(WrongTrace(self.trace, wrong), self.tensors, self.tolerance, twin)
        first = min((self.order[key] for key in wrong if key in self.order), default=0)
        comparison._matches = {key: match for key, match in self._matches.items() if self.order[key] < first}
        return comparison

    def step(self, key: StepKey) -> Step:
        return self.trace.steps.at(*key)

    def limit(self, key: StepKey) -> float:
        """The tolerance for a step: rounding errors grow as the square root of the number of layers before it."""
        name, layer = key
        layers_before = self.trace.config.n_layers if layer is None and name in self._after_layers else layer or 0
        return self.tolerance * math.sqrt(1 + layers_before)

    def value(self, key: StepKey) -> Tensor:
        return self.trace.step(*key)

    def match(self, key: StepKey) -> Match | None:
        """The first tensor of the student's code that equals a step; None where none does."""
        if key not in self._matches:
            self._matches[key] = self._find(key)
        return self._matches[key]

    def _find(self, key: StepKey) -> Match | None:
        step = self.step(key)
        value, limit = Signature.of(self.value(key)).tensor, self.limit(key)
        if key == self.keys[-1]:
            return self._returned(value, limit)
        constant = key in self._of_no_text
        layouts = self._layouts(step, value)
        matches = [match for layout in layouts if (match := self._find_tensor(layout, limit, constant))]
        if matches:
            return min(matches, key=lambda match: match.output.order)
        if not step.has_heads or value.dim() != 3:
            return None
        heads = [self._find_tensor(head, limit, constant) for head in value]
        if any(match is None for match in heads):
            return None
        return Match(heads[-1].output, max(match.difference for match in heads if match))  # type: ignore[union-attr]

    def _layouts(self, step: Step, value: Tensor) -> Iterator[Tensor]:
        """The layouts of a step: by head or concatenated, key heads repeated, rotary pairs side by side."""
        yield value
        groups = self.trace.config.n_kv_heads
        if step.has_heads and value.dim() == 3 and 1 < groups < len(value):
            yield value.unflatten(0, (groups, -1))  # (H, ...) -> (G, H/G, ...)
        if step.has_heads and value.dim() == 3 and not step.is_map:
            rotary = self.trace.config.positions == "rotary" and step.role in ("q", "k")
            for heads in (value, in_pairs(value, self.trace.config)) if rotary else (value,):
                yield heads
                yield heads.transpose(0, 1).flatten(1)  # (H, T, D) -> (T, H·D)
                if "kv head" in step.axes:
                    yield heads.repeat_interleave(self.trace.config.heads_per_kv, 0)

    @cached_property
    def _of_no_text(self) -> set[StepKey]:
        """The steps that no token reaches, such as embedded positions."""
        found: set[StepKey] = set()
        for step, layer in self.trace.steps.rows:
            sources = self.trace.steps.sources(step, layer)
            if not isinstance(step.operation, Lookup) and all(source in found for source in sources):
                found.add((step.name, layer))
        return found

    def _find_tensor(self, value: Tensor, limit: float, constant: bool) -> Match | None:
        total = _total(value)
        largest_gap = limit * value.numel() * float(value.nan_to_num().abs().max())  # bounds the difference of the sums
        for output, signature in self.tensors.by_size.get(value.numel(), ()):
            if (constant or output.order not in self.tensors.constant) and abs(signature.total - total) <= largest_gap:
                largest = _permuted_difference(signature.tensor, value, limit)
                if largest is not None:
                    return Match(output, largest)
        return None

    def _returned(self, value: Tensor, limit: float) -> Match | None:
        """Match the last step with the returned tensor, at every position or at the last one only."""
        returned = self.tensors.returned
        logits = returned.tensor.float().squeeze()
        if logits.shape not in (value.shape, value[-1].shape):
            return None
        largest = difference(logits, value if logits.shape == value.shape else value[-1])
        return Match(returned, largest) if largest <= limit else None

    def factors(self, key: StepKey) -> list[float]:
        """Factors that turn a step into one of the student's tensors of its size, or into the returned tensor."""
        value = self.value(key)
        outputs = self.tensors.by_size.get(value.numel(), ())
        signatures = [signature for output, signature in outputs if output.order not in self.tensors.constant]
        if key == self.keys[-1]:
            signatures = [Signature.of(self.tensors.returned.tensor)]
            value = value if signatures[0].tensor.shape == value.shape else value[-1]
        value = Signature.of(value).tensor
        tensors = {signature.total / _total(value): signature.tensor for signature in signatures if _total(value)}
        return [factor for factor, tensor in tensors.items() if 1e-4 < factor < 1e4 and abs(factor - 1) > 1e-3
                and _permuted_difference(tensor, value * factor, self.limit(key)) is not None]  # fmt: skip

    def goes_beyond(self, earlier: "Comparison") -> bool:
        """Whether more steps are right before the first wrong one, of the text of another length too."""
        if self.progress <= earlier.progress:
            return False
        twin, before = self.twin, earlier.twin
        return twin is None or before is None or twin.progress > before.progress or twin.progress >= self.progress

    @property
    def visible(self) -> int:
        """How many steps before the first wrong one have a tensor of their own."""
        return sum(self.match(key) is not None for key in self.keys[: self.progress])

    def is_right(self, key: StepKey) -> bool:
        """Whether a step is there, or is hidden inside a function that does several steps and gives the right result.

        Only functions that do a whole block or more can hide a sum of the residual stream.
        """
        if key not in self._right:
            right = self.match(key) is not None or (self.coarse and self.match(self.keys[-1]) is not None)
            if not right and not isinstance(self.step(key).operation, Add):
                consumers = [(later.name, layer) for later, layer, _ in self.trace.steps.consumers(key)]
                right = bool(consumers) and all(self._shows(consumer, key) for consumer in consumers)
            self._right[key] = right
        return self._right[key]

    def _shows(self, key: StepKey, hidden: StepKey) -> bool:
        """Whether a right step says that one it is computed from is: not if a mistake makes it another of them.

        One whose parameters nothing reads is not there.
        """
        unread = {place for path, place in self.tensors.step_of.items() if path not in self.tensors.read}
        if hidden not in unread and key in getattr(self.trace, "wrong", {}) and (match := self.match(key)) is not None:
            sources = self.trace.steps.sources(self.step(key), key[1])
            others = [self.match(source) for source in sources if source in self.order]
            if any(other is not None and other.output is match.output for other in others):
                return False
        return self.is_right(key)

    def first_visible_wrong(self) -> tuple[StepKey, Output | None]:
        """The first wrong step with a candidate tensor in the student's code; the first wrong one if none has any."""
        assert self.first_wrong is not None
        return next(self.candidates(), (self.first_wrong, None))

    def candidates(self) -> Iterator[tuple[StepKey, Output]]:
        """The wrong steps of the layer of the first, each with the tensor that computes what the step should be.

        It has the step's size, was not seen before, and is handed the step's own parameters or is computed from what
        the step is computed from and from nothing else that was seen. A function that does several steps shows only the
        last of them.
        """
        assert self.first_wrong is not None
        if self.first_wrong == self.keys[-1]:
            yield self.first_wrong, self.tensors.returned
            return
        seen = {key: match.output for key in self.keys[: self.progress] if (match := self.match(key))}
        known = {(output.tensor.numel(), round(_total(output.tensor), 3)) for output in seen.values()}
        for key in (key for key in self.keys if key[1] == self.first_wrong[1] and not self.is_right(key)):
            before, nearest = self._before(key, seen)
            alike = [
                output
                for output in self.tensors.outputs
                if output.tensor.numel() == self.value(key).numel()
                and (nearest or key in self._of_no_text or output.order not in self.tensors.constant)
                and (output.tensor.numel(), round(_total(output.tensor), 3)) not in known
            ]
            whole = [one for one in alike if nearest <= one.ancestors or key in self._of_no_text]
            if not whole and isinstance(self.step(key).operation, Add):  # of a sum, one may be left out
                whole = [one for one in alike if nearest & one.ancestors]
            alike = whole
            found = self._handed(key, alike) or [
                output
                for output in alike
                if not any(one.order in output.ancestors for place, one in seen.items() if place not in before)
                and all(self._reaches(path, key) for path in output.parameters)
            ]
            found = [output for output in found if not self._passes(output, nearest)] or found
            if not found:
                continue
            first, total = found[0], round(_total(found[-1].tensor), 3)
            if key[0] not in self._scores:  # what comes after the last one only moves its numbers
                first = next(output for output in found if round(_total(output.tensor), 3) == total)
            yield key, first
            yield from ((key, output) for output in found if output is not first)

    @cached_property
    def _scores(self) -> set[str]:
        """The names of scores and of what becomes of them before the softmax."""
        rows = [step for step, _ in self.trace.steps.rows]
        axes = {step.axes for step in rows if isinstance(step.operation, Scores)}
        return {step.name for step in rows if step.axes in axes and not isinstance(step.operation, Softmax)}

    def _handed(self, key: StepKey, outputs: Sequence[Output]) -> list[Output]:
        """The outputs of functions that were handed parameters of a step; else of another step of its operation."""
        last: dict[Output, StepKey] = {}
        for one in outputs:
            owners = [place for path in one.own if (place := self.tensors.step_of.get(path)) is not None]
            if owners := [place for place in owners if place in self.order]:
                last[one] = max(owners, key=self.order.__getitem__)
        own, kind = [one for one in outputs if last.get(one) == key], type(self.step(key).operation)
        if own or kind is not Norm:
            return own
        return [one for one in outputs if one in last and type(self.step(last[one]).operation) is kind]

    def in_our_axes(self, key: StepKey, output: Output) -> Tensor | None:
        """A tensor of the student's code in the axes of a step, in the order nearest to it; None if none fits."""
        ours, theirs = self.value(key), output.tensor.detach().float()
        if ours.dim() == 2 and theirs.dim() == 3 and len(theirs) > 1 and theirs.shape[1:] != ours.shape:
            return None
        theirs, shape = theirs.squeeze(), ours.shape
        ways = [theirs.permute(order) for order in itertools.permutations(range(theirs.dim()))]
        if theirs.dim() != ours.dim():  # heads in groups, or side by side
            ways = [way.reshape(shape) for way in ways if way.numel() == ours.numel() and way.shape[-1] == shape[-1]]
            if ours.dim() == 3 and theirs.shape == (shape[1], shape[0] * shape[2]):
                ways.append(theirs.unflatten(-1, (shape[0], shape[2])).transpose(0, 1))
        fitting = [way for way in ways if way.shape == shape]
        return min(fitting, key=lambda way: float((_finite(way) - _finite(ours)).abs().sum()), default=None)

    def _passes(self, output: Output, nearest: set[int]) -> bool:
        """Whether a tensor is computed from what lies behind the ``nearest`` too, as a residual sum is."""
        behind = frozenset[int]().union(*(self.tensors.outputs[order].ancestors for order in nearest)) - nearest
        between = (output.ancestors | {output.order}) - behind - nearest
        return any(self.tensors.outputs[order].parents & behind for order in between)

    def _before(self, key: StepKey, seen: Mapping[StepKey, Output]) -> tuple[set[StepKey], set[int]]:
        """The steps that a step is computed from, and the orders of the nearest that were seen."""
        before, nearest, waiting = set[StepKey](), set[int](), [(key, False)]
        while waiting:
            place, behind = waiting.pop()
            for source in self.trace.steps.sources(self.trace.steps.at(*place), place[1]):
                if source in seen and not behind:
                    nearest.add(seen[source].order)
                if source not in before:
                    before.add(source)
                    waiting.append((source, behind or source in seen))
        return before, nearest

    def _reaches(self, path: str, key: StepKey) -> bool:
        """Whether a parameter belongs to a step up to ``key``."""
        first = self.tensors.step_of.get(path)
        return first is None or self.order.get(first, 0) <= self.order[key]

    @cached_property
    def first_wrong(self) -> StepKey | None:
        """The first step that is not right; None where all are."""
        return next((key for key in self.keys if not self.is_right(key)), None)

    @property
    def progress(self) -> int:
        """How many steps are right before the first that is not."""
        return len(self.keys) if self.first_wrong is None else self.order[self.first_wrong]
