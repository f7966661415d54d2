"""The steps of a reference among the tensors of a student's forward pass, and the first that is not there."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tinytf.compare.mistakes.mistake import Wrong
from tinytf.compare.mistakes.wrong_trace import Mistaken
from tinytf.parts.row import Step
from tinytf.steps.operations import Add
from tinytf.steps.table import Place
from tinytf.student.seen import Made
from tinytf.trace.lens_names import in_pairs
from tinytf.trace.trace import Trace

_MASKED = -1e4
"""What is lower than this was masked: files use −∞, −1e9, or the lowest number of the format."""


@dataclass(frozen=True, eq=False)
class Signed:
    """A tensor without axes of size 1, and the sum of its magnitudes, which no order of the numbers changes."""

    tensor: Tensor
    total: float

    @classmethod
    def of(cls, tensor: Tensor) -> "Signed":
        kept = tensor.detach().float().squeeze()
        kept = kept.masked_fill(kept < _MASKED, 0.0) if bool((kept < _MASKED).any()) else kept
        return cls(kept, _total(kept))


def _total(tensor: Tensor) -> float:
    return float(tensor.nan_to_num().abs().sum(dtype=torch.float64))


class Tensors:
    """All that a forward pass made, by size, and what it ``returned``; the first with a NaN is ``nan``."""

    def __init__(self, made: Sequence[Made], returned: Made) -> None:
        self.made = tuple(made)
        self.returned = returned
        self.by_size: dict[int, list[tuple[Made, Signed]]] = {}
        self.nan = next((one for one in made if bool(one.tensor.isnan().any())), None)
        for one in made:
            self.by_size.setdefault(one.tensor.numel(), []).append((one, Signed.of(one.tensor)))


@dataclass(frozen=True, eq=False)
class Match:
    """A tensor of the student's that is a step: the largest difference in units of the step's largest number."""

    made: Made
    difference: float


def difference(found: Tensor, wanted: Tensor) -> float:
    """The largest difference, in units of the largest magnitude wanted; infinite where one alone is not a number."""
    missing = wanted.isnan()
    if not torch.equal(found.isnan(), missing):
        return math.inf
    found, wanted = found.masked_fill(missing, 0.0), wanted.masked_fill(missing, 0.0)
    return float((found - wanted).abs().max()) / (float(wanted.abs().max()) or 1.0)


def _alike(found: Tensor, wanted: Tensor, tolerance: float) -> float | None:
    """The difference, in the first order of the axes in which it is within the tolerance."""
    if found.dim() != wanted.dim() or sorted(found.shape) != sorted(wanted.shape):
        return None
    for order in itertools.permutations(range(found.dim())):
        if tuple(found.shape[place] for place in order) == tuple(wanted.shape):
            apart = difference(found.permute(order), wanted)
            if apart <= tolerance:
                return apart
    return None


class Compared:
    """A reference's steps among a student's tensors.

    ``tolerance``, relative to the largest number of a step, is that of the first layer.
    """

    def __init__(self, trace: Trace, tensors: Tensors, tolerance: float) -> None:
        self.trace, self.tensors, self.tolerance = trace, tensors, tolerance
        table = trace.steps
        self.places: list[Place] = [
            (step.name, layer) for step, layer in table.rows if step.operation is not None and step.to_loss
        ]
        self.order: Mapping[Place, int] = {place: number for number, place in enumerate(self.places)}
        self._after = {step.name for step in table.after}
        self.coarse = len(tensors.made) < len(self.places)
        self._matches: dict[Place, Match | None] = {}
        self._fine: dict[Place, bool] = {}

    def mistaken(self, wrong: Mapping[Place, Wrong]) -> "Compared":
        """A comparison with a reference that makes mistakes; what is before them is compared already."""
        made = Compared(Mistaken(self.trace, wrong), self.tensors, self.tolerance)
        first = min((self.order[place] for place in wrong), default=0)
        made._matches = {place: match for place, match in self._matches.items() if self.order[place] < first}
        return made

    def step(self, place: Place) -> Step:
        return self.trace.steps.at(*place)

    def limit(self, place: Place) -> float:
        """How far a step may be off: rounding errors of the layers before it add up as their root."""
        name, layer = place
        before = self.trace.config.n_layers if layer is None and name in self._after else layer or 0
        return self.tolerance * math.sqrt(1 + before)

    def value(self, place: Place) -> Tensor:
        return self.trace.step(*place)

    def match(self, place: Place) -> Match | None:
        """The student's tensor that is a step, the first of several; None where there is none."""
        if place not in self._matches:
            self._matches[place] = self._find(place)
        return self._matches[place]

    def _find(self, place: Place) -> Match | None:
        step = self.step(place)
        value, limit = Signed.of(self.value(place)).tensor, self.limit(place)
        if place == self.places[-1]:
            return self._returned(value, limit)
        found = [one for form in self._forms(step, value) if (one := self._among(form, limit))]
        if found:
            return min(found, key=lambda one: one.made.order)
        if not step.has_heads or value.dim() != 3:
            return None
        heads = [self._among(head, limit) for head in value]
        if any(one is None for one in heads):
            return None
        return Match(heads[-1].made, max(one.difference for one in heads if one))  # type: ignore[union-attr]

    def _forms(self, step: Step, value: Tensor) -> Iterator[Tensor]:
        """The layouts that a step may have: heads or not, key heads repeated, rotary pairs side by side."""
        yield value
        if step.has_heads and value.dim() == 3 and not step.is_map:
            rotary = self.trace.config.positions == "rotary" and step.role in ("q", "k")
            for one in (value, in_pairs(value, self.trace.config)) if rotary else (value,):
                yield one
                yield one.transpose(0, 1).flatten(1)  # (H, T, D) -> (T, H·D)
                if "kv head" in step.axes:
                    yield one.repeat_interleave(self.trace.config.heads_per_kv, 0)

    def _among(self, value: Tensor, limit: float) -> Match | None:
        total = _total(value)
        most = limit * value.numel() * float(value.nan_to_num().abs().max())  # the sums are no further apart
        for made, signed in self.tensors.by_size.get(value.numel(), ()):
            if abs(signed.total - total) <= most:
                apart = _alike(signed.tensor, value, limit)
                if apart is not None:
                    return Match(made, apart)
        return None

    def _returned(self, value: Tensor, limit: float) -> Match | None:
        """The last step against what was returned: at every position, or at the last one alone."""
        returned = self.tensors.returned
        found = returned.tensor.float().squeeze()
        if found.shape not in (value.shape, value[-1].shape):
            return None
        apart = difference(found, value if found.shape == value.shape else value[-1])
        return Match(returned, apart) if apart <= limit else None

    def factors(self, place: Place) -> list[float]:
        """The numbers by which a step becomes tensors of the student's of its size, or what is returned."""
        value, found = (
            self.value(place),
            [signed for _, signed in self.tensors.by_size.get(self.value(place).numel(), ())],
        )
        if place == self.places[-1]:
            found = [Signed.of(self.tensors.returned.tensor)]
            value = value if found[0].tensor.shape == value.shape else value[-1]
        value = Signed.of(value).tensor
        made = {one.total / _total(value): one.tensor for one in found if _total(value)}
        return [factor for factor, tensor in made.items() if 1e-4 < factor < 1e4 and abs(factor - 1) > 1e-3
                and _alike(tensor, value * factor, self.limit(place)) is not None]  # fmt: skip

    @property
    def seen(self) -> int:
        """How many steps before the first wrong one are there, not passed over."""
        return sum(self.match(place) is not None for place in self.places[: self.progress])

    def fine(self, place: Place) -> bool:
        """Whether a step is there, or was passed over by a function that does several at once, with the right result.

        A sum of the residual stream is passed over only by functions that do a block or more.
        """
        if place not in self._fine:
            found = self.match(place) is not None or (self.coarse and self.match(self.places[-1]) is not None)
            if not found and not isinstance(self.step(place).operation, Add):
                after = [(later.name, layer) for later, layer, _ in self.trace.steps.consumers(place)]
                found = bool(after) and all(self.fine(one) for one in after)
            self._fine[place] = found
        return self._fine[place]

    def instead(self) -> tuple[Place, Made | None]:
        """The first wrong step that the student's code shows, and what it made there: of its size, and of new numbers.

        A function that does several steps shows only the last of them.
        """
        assert self.first_wrong is not None
        right = [found.made for place in self.places[: self.progress] if (found := self.match(place))]
        last = max((one.order for one in right), default=-1)
        known = {(one.tensor.numel(), round(_total(one.tensor), 3)) for one in right}
        if self.first_wrong == self.places[-1]:
            return self.first_wrong, self.tensors.returned
        layer = [one for one in self.places if one[1] == self.first_wrong[1] and not self.fine(one)]
        for place in layer:
            for made in self.tensors.made:
                size = made.tensor.numel()
                new = made.order > last and (size, round(_total(made.tensor), 3)) not in known
                if new and size == self.value(place).numel():
                    return place, made
        return self.first_wrong, None

    @cached_property
    def first_wrong(self) -> Place | None:
        """The first step that is not fine; None where all are."""
        return next((place for place in self.places if not self.fine(place)), None)

    @property
    def progress(self) -> int:
        """How many steps are fine before the first that is not."""
        return len(self.places) if self.first_wrong is None else self.order[self.first_wrong]
