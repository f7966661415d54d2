"""A trace as a report: statistics of every step, the chosen tensors in full, the predictions, and the check."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from tinytf.gradients.faults import first_fault
from tinytf.look.overview import Overview, overview
from tinytf.look.parameters import Parameters, parameters
from tinytf.look.prediction import Prediction, predictions
from tinytf.look.values import array_at
from tinytf.report import About, Report, derived, plain
from tinytf.sentences import from_where_on, percent
from tinytf.tables import Array, partial_places
from tinytf.text_model import TextModel
from tinytf.trace.address import Address
from tinytf.trace.check import Check, check
from tinytf.trace.faults import Fault
from tinytf.trace.parameters import ParameterAddress, parse_any
from tinytf.trace.seen import MaskedTrace
from tinytf.trace.summary import StepSummary
from tinytf.trace.trace import Text, Trace, row_of


@dataclass(frozen=True, eq=False)
class Traced(Report):
    """A trace that gives some steps in full: those of ``addresses``, or without any of ``blocks``, (layer, head) pairs.

    ``by_name`` says that the blocks were requested; by default they are the first. ``head`` is used for an address
    without one. ``glance`` is its ``overview``; None with addresses. ``parameters`` were requested beside steps.
    ``fault`` is the first fault of the kinds ``fail_on``.
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
    check: Check
    glance: Overview | None = None
    fail_on: tuple[str, ...] = ()
    fault: Fault | None = None
    parameters: Parameters | None = None
    by_name: bool = False

    @property
    def overview(self) -> Overview:
        """The pass at a glance, of a report without addresses."""
        assert self.glance is not None
        return self.glance

    def in_a_sentence(self) -> str:
        """The first prediction, from which layer on the lens reads it, and the head that adds most to its logit."""
        if self.glance is None or not self.predictions:
            return ""
        best, seen = self.predictions[0], self.glance
        share = best.top[0].probability
        if not best.of_tokens or share is None:
            return ""
        where = f"after {best.shown}" if best.what == "next" else f"for {best.title}"
        words = [f"The model expects {best.best} {where} ({percent(share)})"]
        read = [layer.read is not None and layer.read.id == best.top[0].id for layer in seen.layers]
        if (first := from_where_on(read)) is not None:
            words.append(f"it is the best guess from L{first} on")
        if seen.layers[0].direct is not None and seen.ranked[0][2] > 0:
            words.append(self._adds_most(seen))
        return f"{'; '.join((words[0], ', and '.join(words[1:]))) if words[1:] else words[0]}."

    @staticmethod
    def _adds_most(seen: Overview) -> str:
        """The head that adds most and where it looks; if at the first token, the first that looks past that token."""
        tokens, adding = seen.trace.tokens, [(layer, head) for layer, head, added in seen.ranked if added > 0]
        first, position = adding[0], seen.most_seen_at(*adding[0])
        if position == 0:  # many heads rest there when they find nothing
            first = next((head for head in adding if seen.most_seen_at(*head)), first)
            position = seen.most_seen_at(*first) or None
        looking = "" if position is None else f", which looks at {tokens[position].shown},"
        among = " among the heads that do not rest on the first token" if first != adding[0] else ""
        return f"L{first[0]}H{first[1]}{looking} adds most to it{among}"

    @derived
    def rows(self) -> list[StepSummary]:
        """The summaries of every step, or of the steps that the addresses name."""
        requested = {
            (address.step, layer) for address in self.addresses if address.step for layer in address.layers or (None,)
        }
        steps = enumerate(self.trace.steps.rows, start=1)
        chosen = [(number, *place) for number, place in steps if not self.addresses or place in requested]
        return [row_of(self.trace, *row) for row in chosen]

    @property
    def holds(self) -> bool:
        """Whether the trace adds up, and has no fault of ``fail_on``."""
        return self.check.holds and self.fault is None

    def fields(self) -> dict[str, Any]:
        seen = MaskedTrace(self.trace)
        return {
            "steps": plain(self.rows),
            "values": {
                str(address): {
                    "axes": address.axes,
                    "places": partial_places(seen.places(address)),
                    "values": plain(seen[address]),
                }
                for address in self._full_addresses()
            },
            **self._context_fields(),
            **self.members("predictions", "check", *(("fault",) if self.fail_on else ())),
        }

    def _context_fields(self) -> dict[str, Any]:
        """The requested parameters; without any request, the flow and the layers of the overview."""
        if self.parameters is not None:
            return self.parameters.fields()
        if self.glance is None:
            return {}
        return {"flow": plain(self.overview.flow), "layers": plain(self.overview.layers)}

    def _full_addresses(self) -> list[Address]:
        """The addresses of the steps given in full."""
        if not self.addresses:
            return [address for place in self.blocks for address in self._block(*place)]
        addresses: list[Address] = []
        for address in self.addresses:
            if address.step is None:
                for layer in address.layers or ():
                    if address.letter == "E":
                        steps = address.among(self.trace.steps.layer_steps)
                        addresses += [Address(step, (layer,), address.heads) for step in steps]
                        continue
                    for head in address.heads or (self.head,):
                        addresses += self._block(layer, head)
            elif address.step.is_tensor:
                addresses.append(address)
        return addresses

    def _block(self, layer: int, head: int) -> list[Address]:
        addresses = []
        for step in (step for step, step_layer in self.trace.steps.rows if step_layer == layer):
            head_index = self.trace.shown_part(step, layer, head)
            addresses.append(Address(step, (layer,), None if head_index is None else (head_index,)))
        return addresses

    def itemised(self) -> dict[str, Any]:
        data = self.to_dict()
        return {**data, "values": [{"address": address, **entry} for address, entry in data["values"].items()]}

    def stored(self) -> list[Array]:
        """The ids, and every recorded tensor by its step name, or the requested ones by address."""
        ids = Array.of("ids", ["token"], torch.tensor(self.trace.encoding.ids))
        if self.addresses or self.by_name:
            return [ids, *self._arrays(self.trace)]
        axes = {step.full_name(layer): step.axes for step, layer in self.trace.steps.rows}
        recorded = self.trace.recording.tensors.items()
        return [ids, *(Array.of(name, axes.get(name, ()), tensor) for name, tensor in recorded)]

    def arrays(self) -> list[Array]:
        """A tensor a layer for each chosen step, and the parameters."""
        return self._arrays(MaskedTrace(self.trace))

    def _arrays(self, trace: Trace) -> list[Array]:
        arrays = [array_at(trace, address) for address in self._by_layer()]
        return arrays + ([] if self.parameters is None else self.parameters.arrays())

    def _by_layer(self) -> list[Address]:
        """The addresses of the steps given in full, one for each layer."""
        return [
            replace(address, layers=layer)
            for address in self._full_addresses()
            for layer in _singletons(address.layers)
        ]

    def metadata(self) -> dict[str, Any]:
        """The metadata of the report, with the positions of the recorded logits."""
        return {**super().metadata(), "logit_rows": list(self.trace.recording.logit_rows)}


def _singletons(layers: tuple[int, ...] | None) -> list[tuple[int, ...] | None]:
    """Each layer as a tuple of its own; [None] for None."""
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
    """Report the trace of a text: the addresses of ``at`` in full, or the blocks of ``layers`` and ``head``.

    ``text`` may be a trace. ``blocks`` names blocks by address instead, such as ``L1H2``. Parameters in ``at`` are
    shown in a ``way`` of ``parameters``. The report has ``top`` predictions, and the first fault of the kinds
    ``fail_on``. Raises AddressError for a cell that does not exist, and the errors of ``record``, ``first_fault`` and
    ``parameters``.
    """
    trace = model.trace(text, truncate=truncate, force=force)
    targets = [parse_any(target, trace.steps) if isinstance(target, str) else target for target in at]
    weights = [target for target in targets if isinstance(target, ParameterAddress)]
    addresses = tuple(target for target in targets if isinstance(target, Address))
    for address in addresses:
        if address.cell:
            trace[address]
    predicted, about = predictions(trace, model, top), About(model, trace.encoding)
    fault = first_fault(trace, fail_on) if fail_on else None
    requested_parameters = parameters(model, weights, way=way) if weights else None
    block_sets: list[tuple[tuple[int, ...], tuple[int, ...]]] = [(tuple(layers), (head,))]
    if blocks:
        block_sets = [(address.layers or (), address.heads or (head,)) for address in trace.addresses(blocks)]
    chosen = tuple(block for target in block_sets for block in itertools.product(*target))
    return Traced(
        trace,
        chosen,
        head,
        addresses,
        predicted,
        check(trace),
        None if addresses else overview(trace, predicted, model.shown),
        tuple(fail_on),
        fault,
        requested_parameters,
        bool(blocks),
        about=about,
    )
