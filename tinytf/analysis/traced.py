"""A trace as a report: every step in figures, the chosen ones in full, what is predicted, and whether it adds up."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.analysis.prediction import Prediction, predictions
from tinytf.gradients.faults import first_fault
from tinytf.report import About, Report, plain
from tinytf.text_model import TextModel
from tinytf.trace.address import Address
from tinytf.trace.check import Check, check
from tinytf.trace.faults import Fault
from tinytf.trace.summary import Row, row_of
from tinytf.trace.trace import Text, Trace


@dataclass(frozen=True, eq=False)
class Traced(Report):
    """A trace with what of it is given in full: ``addresses``, or without them the block of ``layers`` and ``head``.

    ``fault`` is the first of the kinds of ``fail_on``, where they were looked for.
    """

    KIND = "trace"
    EVENTS: ClassVar = {
        "tokens": "token",
        "steps": "step",
        "values": "values",
        "predictions": "prediction",
        "check": "check",
        "fault": "fault",
    }

    trace: Trace
    layers: tuple[int, ...]
    head: int
    addresses: tuple[Address, ...]
    predictions: tuple[Prediction, ...]
    fail_on: tuple[str, ...] = ()
    fault: Fault | None = None

    @cached_property
    def rows(self) -> list[Row]:
        """Every step in figures, or those that the addresses name."""
        named = {(one.step, layer) for one in self.addresses if one.step for layer in one.layers or (None,)}
        steps = enumerate(self.trace.steps.rows, start=1)
        chosen = [(number, *place) for number, place in steps if not self.addresses or place in named]
        return [row_of(self.trace, *one) for one in chosen]

    @cached_property
    def check(self) -> Check:
        return check(self.trace)

    @property
    def holds(self) -> bool:
        """Whether the trace adds up, and nothing was found that was looked for."""
        return self.check.holds and self.fault is None

    def fields(self) -> dict[str, Any]:
        return {
            "steps": plain(self.rows),
            "values": {str(one): {"axes": one.axes, "values": self.trace[one].tolist()} for one in self._in_full()},
            **self.members("predictions", "check", *(("fault",) if self.fail_on else ())),
        }

    def _in_full(self) -> list[Address]:
        """The steps whose tensors are given."""
        if not self.addresses:
            return [one for layer in self.layers for one in self._block(layer, self.head)]
        found: list[Address] = []
        for where in self.addresses:
            if where.step is None:
                for layer in where.layers or ():
                    for head in where.heads or (self.head,):
                        found += self._block(layer, head)
            elif where.step.is_tensor:
                found.append(where)
        return found

    def _block(self, layer: int, head: int) -> list[Address]:
        steps = self.trace.steps.layer_steps
        return [Address(step, (layer,), (head,) if step.has_heads else None) for step in steps]

    def itemised(self) -> dict[str, Any]:
        data = self.to_dict()
        return {**data, "values": [{"address": address, **one} for address, one in data["values"].items()]}

    def tensors(self) -> dict[str, Tensor]:
        """The recorded tensors under their step names, with the ids."""
        return {"ids": torch.tensor(self.trace.encoding.ids), **self.trace.recording.tensors}


def traced(
    model: TextModel,
    text: Text,
    *,
    layers: Sequence[int] = (0,),
    head: int = 0,
    at: Sequence[str | Address] = (),
    top: int = 10,
    fail_on: Sequence[str] = (),
    truncate: bool = False,
    force: bool = False,
) -> Traced:
    """A text, or its trace, as a report: the addresses of ``at`` in full, or the blocks of ``layers`` and ``head``.

    ``top`` predictions, and the first fault of the kinds of ``fail_on``. Raises AddressError for a cell that is not
    there, and as ``record`` and ``first_fault`` do.
    """
    trace = model.trace(text, truncate=truncate, force=force)
    addresses = trace.addresses(at)
    for where in addresses:
        if where.cell:
            trace[where]
    predicted, about = predictions(trace, model.tokenizer, top), About(model, trace.encoding)
    fault = first_fault(trace, fail_on) if fail_on else None
    return Traced(trace, tuple(layers), head, addresses, predicted, tuple(fail_on), fault, about=about)
