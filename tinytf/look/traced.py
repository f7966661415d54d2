"""A trace as a report: every step in figures, the chosen ones in full, what is predicted, and whether it adds up."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch

from tinytf.gradients.faults import first_fault
from tinytf.look.overview import Overview, overview
from tinytf.look.parameters import Parameters, parameters
from tinytf.look.prediction import Prediction, predictions
from tinytf.look.values import array_at
from tinytf.report import About, Report, plain
from tinytf.tables import Array
from tinytf.text_model import TextModel
from tinytf.trace.address import Address
from tinytf.trace.check import Check, check
from tinytf.trace.faults import Fault
from tinytf.trace.parameters import ParameterAddress, parse_any
from tinytf.trace.seen import Seen
from tinytf.trace.summary import StepSummary
from tinytf.trace.trace import Text, Trace, row_of


@dataclass(frozen=True, eq=False)
class Traced(Report):
    """A trace with what of it is given in full: ``addresses``, or without them ``blocks``, (layer, head) pairs.

    The blocks were asked for ``by_name``, or are the first. ``head`` is that of an address without one, ``parameters``
    are those that were asked for beside steps, ``fault`` is the first of the kinds of ``fail_on``, where they were
    looked for.
    """

    KIND = "trace"
    EVENTS: ClassVar = {
        "tokens": "token",
        "steps": "step",
        "values": "values",
        "parameters": "parameter",
        "predictions": "prediction",
        "flow": "flow",
        "layers": "layer",
        "check": "check",
        "fault": "fault",
    }

    trace: Trace
    blocks: tuple[tuple[int, int], ...]
    head: int
    addresses: tuple[Address, ...]
    predictions: tuple[Prediction, ...]
    fail_on: tuple[str, ...] = ()
    fault: Fault | None = None
    parameters: Parameters | None = None
    by_name: bool = False

    @cached_property
    def rows(self) -> list[StepSummary]:
        """Every step in figures, or those that the addresses name."""
        named = {(one.step, layer) for one in self.addresses if one.step for layer in one.layers or (None,)}
        steps = enumerate(self.trace.steps.rows, start=1)
        chosen = [(number, *place) for number, place in steps if not self.addresses or place in named]
        return [row_of(self.trace, *one) for one in chosen]

    @cached_property
    def overview(self) -> Overview:
        """The pass at a glance; all its layers must have been recorded."""
        return overview(self.trace, self.predictions, self.shown)

    @cached_property
    def check(self) -> Check:
        return check(self.trace)

    @property
    def holds(self) -> bool:
        """Whether the trace adds up, and nothing was found that was looked for."""
        return self.check.holds and self.fault is None

    def fields(self) -> dict[str, Any]:
        seen = Seen(self.trace)
        return {
            "steps": plain(self.rows),
            "values": {str(one): {"axes": one.axes, "values": plain(seen[one])} for one in self._in_full()},
            **self._beside(),
            **self.members("predictions", "check", *(("fault",) if self.fail_on else ())),
        }

    def _beside(self) -> dict[str, Any]:
        """The parameters that were asked for; the block and the layers at a glance where nothing was."""
        if self.parameters is not None:
            return self.parameters.fields()
        return {} if self.addresses else {"flow": plain(self.overview.flow), "layers": plain(self.overview.layers)}

    def _in_full(self) -> list[Address]:
        """The steps whose tensors are given."""
        if not self.addresses:
            return [one for place in self.blocks for one in self._block(*place)]
        found: list[Address] = []
        for where in self.addresses:
            if where.step is None:
                for layer in where.layers or ():
                    if where.letter == "E":
                        steps = where.among(self.trace.steps.layer_steps)
                        found += [Address(step, (layer,), where.heads) for step in steps]
                        continue
                    for head in where.heads or (self.head,):
                        found += self._block(layer, head)
            elif where.step.is_tensor:
                found.append(where)
        return found

    def _block(self, layer: int, head: int) -> list[Address]:
        found = []
        for step in (step for step, within in self.trace.steps.rows if within == layer):
            part = self.trace.shown_part(step, layer, head)
            found.append(Address(step, (layer,), None if part is None else (part,)))
        return found

    def itemised(self) -> dict[str, Any]:
        data = self.to_dict()
        return {**data, "values": [{"address": address, **one} for address, one in data["values"].items()]}

    def stored(self) -> list[Array]:
        """The ids, and every recorded tensor under its step name, or what was asked for, by address."""
        ids = Array.of("ids", ["token"], torch.tensor(self.trace.encoding.ids))
        if self.addresses or self.by_name:
            return [ids, *self._arrays(self.trace)]
        axes = {step.full_name(layer): step.axes for step, layer in self.trace.steps.rows}
        recorded = self.trace.recording.tensors.items()
        return [ids, *(Array.of(name, axes.get(name, ()), tensor) for name, tensor in recorded)]

    def arrays(self) -> list[Array]:
        """Of the chosen steps, a tensor a layer, and the parameters; without any, the steps are the table."""
        return self._arrays(Seen(self.trace))

    def _arrays(self, trace: Trace) -> list[Array]:
        own = [array_at(trace, one) for one in self._by_layer()]
        return own + ([] if self.parameters is None else self.parameters.arrays())

    def _by_layer(self) -> list[Address]:
        """The steps whose tensors are given, each layer by itself."""
        return [replace(one, layers=at) for one in self._in_full() for at in _each(one.layers)]

    def metadata(self) -> dict[str, Any]:
        """What describes the trace, with the positions of the logits, which are recorded where the model predicts."""
        return {**super().metadata(), "logit_rows": list(self.trace.recording.logit_rows)}


def _each(layers: tuple[int, ...] | None) -> list[tuple[int, ...] | None]:
    """Every layer by itself."""
    return [None] if layers is None else [(layer,) for layer in layers]


def traced(
    model: TextModel,
    text: Text,
    *,
    layers: Sequence[int] = (0,),
    head: int = 0,
    blocks: Sequence[str | Address] = (),
    at: Sequence[str | Address | ParameterAddress] = (),
    way: str | None = None,
    top: int = 10,
    fail_on: Sequence[str] = (),
    truncate: bool = False,
    force: bool = False,
) -> Traced:
    """A text, or its trace, as a report: the addresses of ``at`` in full, or the blocks of ``layers`` and ``head``.

    ``blocks`` names blocks by address instead, such as ``L1H2``. Parameters in ``at`` are shown in a ``way``, as by
    ``parameters``. ``top`` predictions, and the first fault of the kinds of ``fail_on``. Raises AddressError for a cell
    that is not there, and as ``record``, ``first_fault`` and ``parameters`` do.
    """
    trace = model.trace(text, truncate=truncate, force=force)
    named = [parse_any(one, trace.steps) if isinstance(one, str) else one for one in at]
    weights = [one for one in named if isinstance(one, ParameterAddress)]
    addresses = tuple(one for one in named if isinstance(one, Address))
    for where in addresses:
        if where.cell:
            trace[where]
    predicted, about = predictions(trace, model, top), About(model, trace.encoding)
    fault = first_fault(trace, fail_on) if fail_on else None
    beside = parameters(model, weights, way=way) if weights else None
    places: list[tuple[tuple[int, ...], tuple[int, ...]]] = [(tuple(layers), (head,))]
    if blocks:
        places = [(where.layers or (), where.heads or (head,)) for where in trace.addresses(blocks)]
    chosen = tuple(place for one in places for place in itertools.product(*one))
    return Traced(trace, chosen, head, addresses, predicted, tuple(fail_on), fault, beside, bool(blocks), about=about)
