"""The pipeline in numbers: one row a step, with shape, mean, standard deviation, range and a small histogram."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinytf.model.attention import Sight
from tinytf.trace.derive import probabilities
from tinytf.trace.steps import Step
from tinytf.trace.trace import Trace

BINS = 8


@dataclass(frozen=True)
class Statistics:
    """Over the finite values: ``count`` of them, population ``std``, ``histogram`` in equal bins from min to max."""

    count: int
    not_finite: int
    mean: float
    std: float
    min: float
    max: float
    histogram: tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """One step of the pipeline; ``shape`` pairs each axis with its size, ``statistics`` is None for no tensor."""

    number: int
    step: Step
    layer: int | None
    shape: tuple[tuple[str, int], ...]
    statistics: Statistics | None
    note: str = ""

    @property
    def name(self) -> str:
        return self.step.full_name(self.layer)

    def to_dict(self) -> dict[str, Any]:
        s = self.statistics
        return {
            "number": self.number,
            "name": self.name,
            "title": self.step.title,
            "formula": self.step.formula,
            "inputs": list(self.step.inputs),
            "axes": [axis for axis, _ in self.shape],
            "shape": [size for _, size in self.shape],
            "recorded": self.step.recorded,
            "statistics": None
            if s is None
            else {
                "mean": s.mean, "std": s.std, "min": s.min, "max": s.max, "count": s.count,
                "not_finite": s.not_finite, "histogram": list(s.histogram),
            },
            "note": self.note,
        }  # fmt: skip


def statistics(tensor: Tensor, allowed: Tensor | None = None) -> Statistics:
    """Statistics of a tensor's finite values; ``allowed`` (broadcastable) leaves masked cells out altogether."""
    values = tensor.detach().float()
    values = values[allowed.expand_as(values)] if allowed is not None else values.flatten()
    finite = values[torch.isfinite(values)]
    if not finite.numel():
        nan = float("nan")
        return Statistics(0, values.numel(), nan, nan, nan, nan, (0,) * BINS)
    std, mean = torch.std_mean(finite, correction=0)
    low, high = torch.aminmax(finite)
    if low == high:
        counts = (finite.numel(),) + (0,) * (BINS - 1)
    else:
        counts = tuple(int(c) for c in torch.histc(finite, BINS, float(low), float(high)))
    return Statistics(
        finite.numel(), values.numel() - finite.numel(), float(mean), float(std), float(low), float(high), counts
    )


def visible(trace: Trace, step: Step) -> Tensor | None:
    """Which cells (Q, K) of an attention step are not masked; None for any other step, or where all are visible."""
    if step.name not in ("masked", "weights"):
        return None
    return Sight.of(trace.config).allowed(len(trace.tokens), None, trace.model_input.device)


def row_of(trace: Trace, number: int, step: Step, layer: int | None) -> Row:
    """One row of the pipeline. Logits and probabilities are those of the positions that the forward pass read."""
    if not step.is_tensor:
        shape: tuple[tuple[str, int], ...] = () if step.name == "next" else (("token", len(trace.tokens)),)
        return Row(number, step, layer, shape, None)
    note = ""
    if step.name in ("logits", "probs"):
        rows = trace.recording.logit_rows
        tensor = trace.recorded_logits if step.name == "logits" else probabilities(trace.recorded_logits)
        if len(rows) < len(trace.tokens):
            note = "last token" if trace.config.causal else f"masked token{'s' if len(rows) > 1 else ''}"
    else:
        tensor = trace.step(step.name, layer)
    shape = tuple(zip(step.axes, tensor.shape, strict=True))
    return Row(number, step, layer, shape, statistics(tensor, visible(trace, step)), note)


def pipeline(trace: Trace) -> list[Row]:
    """All steps in order, of the layers that were recorded."""
    rows = enumerate(trace.steps.rows, start=1)
    recorded = (None, *trace.recording.layers)
    return [row_of(trace, number, step, layer) for number, (step, layer) in rows if layer in recorded]
