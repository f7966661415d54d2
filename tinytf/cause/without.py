"""A text through a model with parts of its attention left out, beside the model's own run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tinytf.cause.interventions import without
from tinytf.cause.order import Order, order
from tinytf.cause.sharpness import Sharpness, sharpness
from tinytf.compare.diff import Difference, diff
from tinytf.config import LEFT_OUT
from tinytf.errors import UsageError
from tinytf.nearest import did_you_mean
from tinytf.report import About, Data, Report, plain
from tinytf.sentences import listed, percent
from tinytf.text_model import TextModel
from tinytf.trace.check import Check, check
from tinytf.trace.record import record
from tinytf.trace.trace import Text, Trace


@dataclass(frozen=True)
class LayerChange(Data):
    """The changes in one layer: the ``head`` whose weights move most, and the stream after the layer.

    ``moved`` is half the sum of a query's absolute differences, averaged over the queries: 0 to 1. ``ahead`` is the
    mean weight that a query now gives to later tokens, over all heads; None if the mask is in place.
    """

    layer: int
    head: int
    moved: float
    stream: float
    cosine: float
    ahead: float | None


@dataclass(frozen=True, eq=False)
class LeftOut(Report):
    """The model without ``parts`` (second) beside the full model (first).

    ``gone`` are the steps that it lacks. ``sharpness`` is present if the scaling is left out, ``order`` if positions
    are. ``checks`` belong to both ``traces``.
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

    def in_a_sentence(self) -> str:
        """What becomes of the token that the whole model expects; without predictions, of the head that moves most."""
        parts = f"Without {listed(self.parts)}"
        if not self.difference.predictions:
            most = max(self.layers, key=lambda layer: layer.moved)
            return f"{parts}, L{most.layer}H{most.head} moves most: {percent(most.moved)} of its weights go elsewhere."
        return f"{parts}, {self.difference.predictions[-1].in_words(self.shown)}."

    def fields(self) -> dict[str, Any]:
        data = self.difference.fields()
        del data["check"], data["weights"]  # a report has its own checks, and both models the same weights
        return {"parts": list(self.parts), "gone": list(self.gone), "layers": plain(self.layers), **data,
                **self.members("sharpness", "order", "checks")}  # fmt: skip


def compare_without(
    model: TextModel, text: Text, parts: str | Sequence[str], *, head: str | None = None, top: int = 5,
    truncate: bool = False, force: bool = False,
) -> LeftOut:  # fmt: skip
    """Compare a text, or its trace, with a run that leaves out ``parts``: scaling, mask, positions.

    ``head``, such as ``L3H5``, is the head whose maps are kept; by default the one whose weights move most. Raises
    UsageError for a part that the model does not have, and the errors of ``diff``.
    """
    for part in [parts] if isinstance(parts, str) else parts:
        if part not in LEFT_OUT:
            raise UsageError(f"{part!r} is not a part that can be left out", did_you_mean(part, LEFT_OUT))
    trace = model.trace(text, truncate=truncate, force=force)
    encoding, mask_id = trace.encoding, model.tokenizer.mask_id
    reduced = without(model, parts)
    reduced_trace = record(reduced.transformer, encoding, mask_id, force=force)
    difference = diff(model, trace, (reduced, reduced_trace), head=head, top=top)
    assert difference.attention is not None, "both runs have the same heads"
    gone = trace.steps.by_name.keys() - reduced_trace.steps.by_name.keys()
    shown_head = difference.attention.layer, difference.attention.head
    return LeftOut(
        reduced.lacks[len(model.lacks) :],
        tuple(name for name in trace.steps.by_name if name in gone),
        tuple(_layers(reduced_trace, difference, "mask" in parts)),
        difference,
        sharpness(trace, *shown_head) if "scaling" in parts else None,
        order(model.transformer, encoding, mask_id) if "positions" in parts else None,
        (check(trace), check(reduced_trace)),
        (trace, reduced_trace),
        about=About(model, encoding),
    )


def _layers(trace: Trace, difference: Difference, ahead: bool) -> "list[LayerChange]":
    assert difference.attention is not None
    table, changes = trace.steps, []
    streams = {step.layer: step for step in difference.steps if step.step.name == table.output}
    for layer, distances in enumerate(difference.attention.apart):
        if distances is None:  # a layer without attention
            continue
        head = max(range(len(distances)), key=distances.__getitem__)
        ahead_weight = float(trace.step(table.weights, layer).triu(1).sum(dim=-1).mean()) if ahead else None
        stream = streams[layer]
        changes.append(LayerChange(layer, head, distances[head], stream.relative, stream.cosine, ahead_weight))
    return changes
