"""A pass at a glance: what every layer adds to the residual stream, which heads move it most, what the lens reads."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from tinytf.analysis.flow import Flow, flow
from tinytf.analysis.heads import LABELS, MEASURES, choosing, entropy_share
from tinytf.analysis.lens import most_probable
from tinytf.analysis.prediction import Prediction
from tinytf.report import Data
from tinytf.steps.operations import Add, Sight
from tinytf.steps.table import Place, Step, StepTable
from tinytf.trace.site import Site
from tinytf.trace.trace import Trace

_QUERIES = 8


@dataclass(frozen=True)
class Added(Data):
    """What ``step`` adds to the stream, and the stream before that: L2 norms over the positions that are read."""

    ALSO: ClassVar = ("share",)

    step: str
    norm: float
    stream: float

    @property
    def share(self) -> float:
        return self.norm / self.stream if self.stream else 0.0


@dataclass(frozen=True)
class Read:
    """The most probable token of the logit lens at one place; ``token`` is how it is shown."""

    token: str
    id: int
    probability: float


@dataclass(frozen=True)
class Layer(Data):
    """One layer. ``heads`` is how much each head adds, as a share of the stream; ``read`` what the lens reads there."""

    layer: int
    added: tuple[Added, ...]
    heads: tuple[float, ...]
    read: Read | None

    @property
    def strongest(self) -> int:
        return max(range(len(self.heads)), key=self.heads.__getitem__)


@dataclass(frozen=True, eq=False)
class Closeup:
    """Part of a head's ``weights``: up to 8 ``queries``, the last one read, and the ``keys`` that they see most."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    weights: Tensor


@dataclass(frozen=True, eq=False)
class Overview:
    """Layers and heads of a trace at ``positions``: those of its predictions, or all where it predicts nothing.

    ``reading`` is the one that the lens reads, None without a prediction.
    """

    trace: Trace
    positions: tuple[int, ...]
    reading: int | None
    layers: tuple[Layer, ...]

    @cached_property
    def ranked(self) -> list[tuple[int, int]]:
        """Layer and head of every head, first what adds most to the stream at the positions."""
        found = [(one.layer, head) for one in self.layers for head in range(len(one.heads))]
        return sorted(found, key=lambda place: -self.layers[place[0]].heads[place[1]])

    @cached_property
    def flow(self) -> Flow:
        """The block of the strongest head."""
        return flow(self.trace, self.ranked[0][0])

    def weights(self, layer: int, head: int) -> Tensor:
        """Where a head looks, (Q, K)."""
        return self.trace.step(self.trace.steps.weights, layer, (head,))[0]

    def label(self, layer: int, head: int) -> str:
        """What a head does in this text: the name of the first of LABELS that it reaches here, or –."""
        weights = self.weights(layer, head).float()
        seen = choosing(Sight.of(self.trace.config.at(layer)), len(weights)).to(weights.device)
        scores = {"entropy_share": float(entropy_share(weights, seen))}
        scores |= {name: float(measure(weights)) for name, (measure, _) in MEASURES.items()}
        return next((one.name for one in LABELS if scores.get(one.score, 0.0) >= one.least), "–")

    def closeup(self, layer: int, head: int, keys: int) -> Closeup:
        """The part of a head's weights that fits beside a drawing, with so many ``keys`` if there are as many."""
        whole = self.weights(layer, head)
        stop = max(self.positions[-1] + 1, min(_QUERIES, len(whole)))
        rows = whole[max(0, stop - _QUERIES) : stop]
        seen = sorted(rows.sum(dim=0).topk(min(keys, len(whole))).indices.tolist())
        return Closeup(tuple(range(stop - len(rows), stop)), tuple(seen), rows[:, seen])


@torch.no_grad()
def overview(trace: Trace, predictions: tuple[Prediction, ...], shown: Callable[[int], str | None]) -> Overview:
    """Sizes of what each layer adds, by heads too, and the logit lens at the first prediction.

    ``shown`` is how a token of the vocabulary is shown.
    """
    positions = tuple(one.position for one in predictions) or tuple(range(len(trace.tokens)))
    reading = predictions[0].position if predictions else None
    best = [] if reading is None else most_probable(trace, reading)
    read = [Read(shown(token) or f"#{token}", token, share) for token, share in best]
    found = tuple(
        _layer(trace, layer, list(positions), read[layer] if read else None) for layer in range(trace.config.n_layers)
    )
    return Overview(trace, positions, reading, found)


def _layer(trace: Trace, layer: int, rows: list[int], read: Read | None) -> Layer:
    added = tuple(_added(trace, step, layer, rows) for step in trace.steps.added)
    return Layer(layer, added, _heads(trace, layer, rows, added[0].share), read)


def _norm(trace: Trace, place: Place, rows: list[int]) -> float:
    return float(torch.linalg.vector_norm(trace.step(*place)[rows].float()))


def _added(trace: Trace, step: Step, layer: int, rows: list[int]) -> Added:
    """What a step adds, after any norm that it goes through, against the other summand that is the stream."""
    table, last = trace.steps, step
    total = _next(table, step, layer)
    while not isinstance(total.operation, Add):
        last, total = total, _next(table, total, layer)
    stream = next(place for place in table.sources(total, layer) if table.at(*place).role == "residual")
    return Added(step.name, _norm(trace, (last.name, layer), rows), _norm(trace, stream, rows))


def _next(table: StepTable, step: Step, layer: int) -> Step:
    return next(later for later, within, _ in table.consumers((step.name, layer)) if within == layer)


def _heads(trace: Trace, layer: int, rows: list[int], share: float) -> tuple[float, ...]:
    """How much each head adds: its part of W_O's product, as large against the whole as ``share`` is to the stream."""
    site = Site(trace, trace.steps.added[0], layer)
    each = trace.step(trace.steps.head_out, layer)[:, rows]  # (H, R, D)
    weight = site.weight.unflatten(1, (len(each), -1))  # (C, H·D) -> (C, H, D)
    parts = torch.einsum("hrd,chd->hrc", each, weight).float()
    whole = float(torch.linalg.vector_norm(site.value[rows].float()))
    return tuple((torch.linalg.vector_norm(parts, dim=(1, 2)) * (share / whole if whole else 0.0)).tolist())
