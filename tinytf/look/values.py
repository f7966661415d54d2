"""The tensors that an address of a trace names, as a report, and their figures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from tinytf.report import Report, plain
from tinytf.tables import Array
from tinytf.trace.address import Address
from tinytf.trace.measures import MEASURES, measure
from tinytf.trace.seen import Seen
from tinytf.trace.summary import statistics
from tinytf.trace.trace import Trace, visible


def single_addresses(trace: Trace, where: Address) -> Iterator[Address]:
    """One address for every tensor at an address; a head axis stays whole where no head is named."""
    if where.cell or where.lens is not None:
        yield where
        return
    for layer in where.layers or (None,):
        steps = [one for one in where.among(trace.steps.layer_steps) if trace.steps.has(one.name, layer)]
        for step in (trace.steps.at(one.name, layer) for one in steps if one.is_tensor):
            for head in where.parts_of(step) or (None,):
                layers, heads = None if layer is None else (layer,), None if head is None else (head,)
                yield Address(step, layers, heads)


def tensor_at(trace: Trace, where: Address) -> Tensor:
    """The tensor at a single address; logits and probabilities are of the positions that the forward pass read."""
    step = where.step
    whole = step is not None and step.is_vocabulary and not where.cell and where.lens is None
    return trace.at_logit_rows(step) if step is not None and whole else trace[where]


def array_at(trace: Trace, where: Address) -> Array:
    """The tensor at a single address with its axes; of a vocabulary, at the positions that it is recorded at."""
    step, rows, one = where.step, dict[str, Sequence[int]](), None
    if step is not None and not where.cell and where.lens is None:
        if step.is_vocabulary:
            rows = {"token": trace.recording.logit_rows}
        sizes = trace.config.at(where.layers[0] if where.layers else None).sizes
        count = len(where.heads or ()) or (sizes.get(where.axes[0], 1) if where.axes else 1)
        if step.is_split and count > 1:
            one = (count, partial(tensor_at, trace, replace(where, heads=(0,))))
    return Array(str(where), where.axes, partial(tensor_at, trace, where), rows | trace.places(where), one)


@dataclass(frozen=True, eq=False)
class AddressValues(Report):
    """Every tensor at an address, with its axes."""

    KIND = "values"

    trace: Trace
    address: Address

    def stored(self) -> list[Array]:
        return self._arrays(self.trace)

    def arrays(self) -> list[Array]:
        return self._arrays(Seen(self.trace))

    def _arrays(self, trace: Trace) -> list[Array]:
        if self.address.step is not None and self.address.step.name == "ids":
            return [Array("ids", ["token"], partial(trace.__getitem__, self.address))]
        return [array_at(trace, one) for one in single_addresses(trace, self.address)]

    def fields(self) -> dict[str, Any]:
        return {"address": str(self.address), "note": self.address.note, "values": self._values()}

    def _values(self) -> dict[str, Any]:
        name = "" if self.address.step is None else self.address.step.name
        tokens = self.trace.tokens
        named = {"ids": [token.id for token in tokens], "tokens": [token.shown for token in tokens]}
        if name in named:
            return {name: {"axes": ["token"], "values": named[name]}}
        return {one.name: {"axes": list(one.axes), "values": plain(one.read())} for one in self.arrays()}


@dataclass(frozen=True)
class TensorFigures:
    """The figures of one tensor, over its numbers that are finite and not masked."""

    where: Address
    values: dict[str, float]
    histogram: tuple[int, ...]


def figures(trace: Trace, where: Address) -> list[TensorFigures]:
    """The figures of every tensor at an address; NaN and infinities are counted where there are any."""
    found = []
    for one in single_addresses(trace, where):
        step = one.step
        assert step is not None
        tensor, layer = tensor_at(trace, one), one.layers[0] if one.layers else None
        if one.cell or one.lens is not None:
            names = ("mean", "max", "min", "std", "norm")
            values = {name: MEASURES[name][0](tensor.flatten()) for name in names}
            found.append(TensorFigures(one, values, statistics(tensor).histogram))
            continue
        values = {
            name: measure(trace, name, step, layer, one.heads)
            for name in MEASURES
            if name != "entropy" or step.is_distribution
        }
        shown = {name: value for name, value in values.items() if value or name not in ("nan", "inf")}
        found.append(TensorFigures(one, shown, statistics(tensor, visible(trace, step, layer)).histogram))
    return found
