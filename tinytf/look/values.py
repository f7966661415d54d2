"""The tensors at an address of a trace, as a report, and their statistics."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from tinytf.report import Report, plain
from tinytf.tables import Array
from tinytf.trace.address import Address
from tinytf.trace.measures import MEASURES, measure
from tinytf.trace.seen import MaskedTrace
from tinytf.trace.summary import statistics
from tinytf.trace.trace import Trace, visible


def single_addresses(trace: Trace, address: Address) -> Iterator[Address]:
    """Yield one address for each tensor at an address; the head axis stays whole if no head is named."""
    if address.cell or address.lens is not None:
        yield address
        return
    for layer in address.layers or (None,):
        steps = [step for step in address.among(trace.steps.layer_steps) if trace.steps.has(step.name, layer)]
        for step in (trace.steps.at(step.name, layer) for step in steps if step.is_tensor):
            for head in address.parts_of(step) or (None,):
                layers, heads = None if layer is None else (layer,), None if head is None else (head,)
                yield Address(step, layers, heads)


def tensor_at(trace: Trace, address: Address) -> Tensor:
    """The tensor at a single address; logits and probabilities only have the positions that the forward pass read."""
    step = address.step
    is_whole_step = step is not None and step.is_vocabulary and not address.cell and address.lens is None
    return trace.at_logit_rows(step) if step is not None and is_whole_step else trace[address]


def array_at(trace: Trace, address: Address) -> Array:
    """The tensor at a single address with its axes; over the vocabulary, it only has the recorded positions."""
    step, rows, single_head = address.step, dict[str, Sequence[int]](), None
    if step is not None and not address.cell and address.lens is None:
        if step.is_vocabulary:
            rows = {"token": trace.recording.logit_rows}
        sizes = trace.config.at(address.layers[0] if address.layers else None).sizes
        count = len(address.heads or ()) or (sizes.get(address.axes[0], 1) if address.axes else 1)
        if step.is_split and count > 1:
            single_head = (count, partial(tensor_at, trace, replace(address, heads=(0,))))
    return Array(
        str(address), address.axes, partial(tensor_at, trace, address), rows | trace.places(address), single_head
    )


@dataclass(frozen=True, eq=False)
class AddressValues(Report):
    """Every tensor at an address, with its axes."""

    KIND = "values"

    trace: Trace
    address: Address

    def stored(self) -> list[Array]:
        return self._arrays(self.trace)

    def arrays(self) -> list[Array]:
        return self._arrays(MaskedTrace(self.trace))

    def _arrays(self, trace: Trace) -> list[Array]:
        if self.address.step is not None and self.address.step.name == "ids":
            return [Array("ids", ["token"], partial(trace.__getitem__, self.address))]
        return [array_at(trace, address) for address in single_addresses(trace, self.address)]

    def fields(self) -> dict[str, Any]:
        return {"address": str(self.address), "note": self.address.note, "values": self._values()}

    def _values(self) -> dict[str, Any]:
        name = "" if self.address.step is None else self.address.step.name
        tokens = self.trace.tokens
        token_values = {"ids": [token.id for token in tokens], "tokens": [token.shown for token in tokens]}
        if name in token_values:
            return {name: {"axes": ["token"], "places": {}, "values": token_values[name]}}
        return {
            array.name: {"axes": list(array.axes), "places": array.partial, "values": plain(array.read())}
            for array in self.arrays()
        }


@dataclass(frozen=True)
class TensorFigures:
    """The statistics of one tensor, over its numbers that are finite and not masked."""

    where: Address
    values: dict[str, float]
    histogram: tuple[int, ...]


def figures(trace: Trace, where: Address) -> list[TensorFigures]:
    """The statistics of every tensor at an address; NaN and infinities are counted if there are any."""
    results = []
    for single in single_addresses(trace, where):
        step = single.step
        assert step is not None
        tensor, layer = tensor_at(trace, single), single.layers[0] if single.layers else None
        if single.cell or single.lens is not None:
            names = ("mean", "max", "min", "std", "norm")
            values = {name: MEASURES[name][0](tensor.flatten()) for name in names}
            results.append(TensorFigures(single, values, statistics(tensor).histogram))
            continue
        values = {
            name: measure(trace, name, step, layer, single.heads)
            for name in MEASURES
            if name != "entropy" or step.holds_shares
        }
        present = {name: value for name, value in values.items() if value or name not in ("nan", "inf")}
        results.append(TensorFigures(single, present, statistics(tensor, visible(trace, step, layer)).histogram))
    return results
