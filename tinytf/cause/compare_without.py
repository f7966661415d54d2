"""A text through a model with parts of its attention left out, beside the model's own run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tinytf.cause.interventions import without
from tinytf.cause.order import Order, order
from tinytf.cause.sharpness import Sharpness, sharpness
from tinytf.compare.difference import Difference, diff
from tinytf.config import LEFT_OUT
from tinytf.errors import UsageError
from tinytf.nearest import did_you_mean
from tinytf.report import About, Data, Report, plain
from tinytf.text_model import TextModel
from tinytf.trace.check import Check, check
from tinytf.trace.record import record
from tinytf.trace.trace import Text, Trace


@dataclass(frozen=True)
class LayerChange(Data):
    """What changes in one layer: its ``head`` whose weights move most, and by how much; the stream after the layer.

    ``moved`` is half the sum of a query's absolute differences, the mean over the queries: 0 to 1. ``ahead`` is the
    mean weight that a query now gives to later tokens, over all heads; None where the mask is in place.
    """

    layer: int
    head: int
    moved: float
    stream: float
    cosine: float
    ahead: float | None


@dataclass(frozen=True, eq=False)
class LeftOut(Report):
    """The model without ``parts`` (second) beside the whole one (first).

    ``steps`` are the rows of its table that it lacks. ``sharpness`` is there where the scaling is left out, ``order``
    where positions are. ``checks`` are those of both ``traces``.
    """

    KIND = "without"
    EVENTS: ClassVar = {"layers": "layer", "steps": "step", "positions": "position", "predictions": "prediction"}

    parts: tuple[str, ...]
    gone: tuple[str, ...]
    layers: tuple[LayerChange, ...]
    difference: Difference
    sharpness: Sharpness | None
    order: Order | None
    checks: tuple[Check, Check]
    traces: tuple[Trace, Trace]

    def fields(self) -> dict[str, Any]:
        found = self.difference.fields()
        del found["check"], found["weights"]  # which are shared
        return {"parts": list(self.parts), "gone": list(self.gone), "layers": plain(self.layers), **found,
                **self.members("sharpness", "order", "checks")}  # fmt: skip


def compare_without(
    model: TextModel, text: Text, parts: str | Sequence[str], *, head: str | None = None, top: int = 5,
    truncate: bool = False, force: bool = False,
) -> LeftOut:  # fmt: skip
    """What changes in a text, or its trace, where ``parts`` are left out: scaling, mask, positions.

    ``head``, as ``L3H5``, is the one whose maps are kept; by default the one whose weights move most. Raises UsageError
    for a part that the model does not have, and as ``diff`` does.
    """
    for part in [parts] if isinstance(parts, str) else parts:
        if part not in LEFT_OUT:
            raise UsageError(f"{part!r} is no part that can be left out", did_you_mean(part, LEFT_OUT))
    trace = model.trace(text, truncate=truncate, force=force)
    encoding, mask_id = trace.encoding, model.tokenizer.mask_id
    other = without(model, parts)
    again = record(other.transformer, encoding, mask_id, force=force)
    found = diff(model, trace, (other, again), head=head, top=top)
    assert found.attention is not None, "both runs have the same heads"
    gone = trace.steps.by_name.keys() - again.steps.by_name.keys()
    shown = found.attention.layer, found.attention.head
    return LeftOut(
        other.lacks[len(model.lacks) :],
        tuple(name for name in trace.steps.by_name if name in gone),
        tuple(_layers(again, found, "mask" in parts)),
        found,
        sharpness(trace, *shown) if "scaling" in parts else None,
        order(model.transformer, encoding, mask_id) if "positions" in parts else None,
        (check(trace), check(again)),
        (trace, again),
        about=About(model, encoding),
    )


def _layers(trace: Trace, found: Difference, ahead: bool) -> "list[LayerChange]":
    assert found.attention is not None
    table, changes = trace.steps, []
    streams = {one.layer: one for one in found.steps if one.step.name == table.output}
    for layer, apart in enumerate(found.attention.apart):
        if apart is None:  # a layer without attention
            continue
        head = max(range(len(apart)), key=apart.__getitem__)
        later = float(trace.step(table.weights, layer).triu(1).sum(dim=-1).mean()) if ahead else None
        stream = streams[layer]
        changes.append(LayerChange(layer, head, apart[head], stream.relative, stream.cosine, later))
    return changes
