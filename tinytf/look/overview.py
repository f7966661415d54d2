"""A pass at a glance: what layers and heads add to the stream and to the predicted logit, and what the lens reads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from tinytf.look.attribution import directly
from tinytf.look.flow import Flow, flow
from tinytf.look.lens import most_probable
from tinytf.look.prediction import Prediction
from tinytf.parts.row import Step
from tinytf.report import Data
from tinytf.steps.table import Place
from tinytf.trace.site import Site
from tinytf.trace.trace import Trace


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
    """One layer. ``heads`` is how much each head adds, as a share of the stream; ``read`` what the lens reads there.

    ``direct`` is what each head adds directly to the logit of the predicted token, None where nothing is predicted.
    """

    layer: int
    added: tuple[Added, ...]
    heads: tuple[float, ...]
    direct: tuple[float, ...] | None
    read: Read | None

    @property
    def strongest(self) -> int:
        return max(range(len(self.heads)), key=self.heads.__getitem__)


@dataclass(frozen=True, eq=False)
class Closeup:
    """Part of a head's ``weights``: some ``queries``, the last one read, and the ``keys`` seen most from there."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    weights: Tensor


@dataclass(frozen=True, eq=False)
class Overview:
    """Layers and heads of a trace at ``positions``: those of its predictions, or all where it predicts nothing.

    ``reading`` is the one that the lens reads and logits are taken of, None without a prediction, and where the head
    does not choose. ``predicted`` is how its most probable token or class is shown.
    """

    trace: Trace
    positions: tuple[int, ...]
    reading: int | None
    predicted: str | None
    layers: tuple[Layer, ...]

    @cached_property
    def ranked(self) -> list[tuple[int, int, float]]:
        """Layer and head of every head: first what adds most to the logit of the predicted token, with how much.

        Without a prediction: to the stream, as a share of it.
        """
        found = [
            (one.layer, head, value)
            for one in self.layers
            for head, value in enumerate(one.heads if one.direct is None else one.direct)
        ]
        return sorted(found, key=lambda one: -one[2])

    @cached_property
    def flow(self) -> Flow:
        """The block of the first of them."""
        return flow(self.trace, self.ranked[0][0])

    def weights(self, layer: int, head: int) -> Tensor:
        """Where a head of a layer with a map looks, (Q, K)."""
        step = self.trace.steps.map_of(layer)
        assert step is not None, "a layer without a map is not drawn"
        return self.trace.step(step.name, layer, (head,))[0]

    def most_seen(self, layer: int, head: int) -> str:
        """The token that a head looks at most from the positions, after an arrow; empty for a layer without a map."""
        if self.trace.steps.map_of(layer) is None:
            return ""
        seen = self.weights(layer, head)[list(self.positions)].abs().sum(dim=0)
        return f"→ {self.trace.tokens[int(seen.argmax())].shown}"

    def closeup(self, layer: int, head: int, keys: int, queries: int) -> Closeup:
        """The part of a head's weights that fits beside a drawing: so many ``keys`` and ``queries`` at most."""
        whole = self.weights(layer, head)
        stop = max(self.positions[-1] + 1, min(queries, len(whole)))
        rows = whole[max(0, stop - queries) : stop]
        seen = sorted(whole[list(self.positions)].abs().sum(dim=0).topk(min(keys, len(whole))).indices.tolist())
        return Closeup(tuple(range(stop - len(rows), stop)), tuple(seen), rows[:, seen])


@torch.no_grad()
def overview(trace: Trace, predictions: tuple[Prediction, ...], shown: Callable[[int], str | None]) -> Overview:
    """Sizes of what each layer adds, by heads too, and the logit lens at the first prediction.

    ``shown`` is how a token of the vocabulary is shown.
    """
    positions = _positions(trace, predictions)
    layers = range(trace.config.n_layers)
    if not predictions:
        found = tuple(_layer(trace, layer, positions, _heads(trace, layer, positions)) for layer in layers)
        return Overview(trace, positions, None, None, found)
    each = [_heads(trace, layer, positions) for layer in layers]
    best = predictions[0]
    direct = directly(trace, best.position, best.column, [heads[:, 0] for heads in each])
    read: list[Read | None] = [None for _ in layers]
    if trace.steps.chooses:
        found_there = most_probable(trace, best.position)
        read = [Read(shown(token) or f"#{token}", token, share) for token, share in found_there]
    found = tuple(_layer(trace, layer, positions, each[layer], direct[layer], read[layer]) for layer in layers)
    return Overview(trace, positions, best.position if trace.steps.chooses else None, best.best, found)


@torch.no_grad()
def of_layer(trace: Trace, predictions: tuple[Prediction, ...], layer: int) -> Overview:
    """The overview of a single layer, without what the lens reads and what is added to logits."""
    positions = _positions(trace, predictions)
    return Overview(trace, positions, None, None, (_layer(trace, layer, positions, _heads(trace, layer, positions)),))


def _positions(trace: Trace, predictions: tuple[Prediction, ...]) -> tuple[int, ...]:
    return tuple(one.position for one in predictions) or tuple(range(len(trace.tokens)))


def _layer(
    trace: Trace,
    layer: int,
    positions: Sequence[int],
    heads: Tensor,
    direct: Sequence[float] | None = None,
    read: Read | None = None,
) -> Layer:
    """One layer, of what its ``heads`` give at the positions, (H, R, C)."""
    rows = list(positions)
    added = tuple(_added(trace, step, layer, rows) for step in trace.steps.added)
    # After a norm of what attention adds, a head's part is as large against the whole as before it.
    whole = _norm(trace, (added[0].step, layer), rows)
    scale = added[0].share / whole if whole else 0.0
    sizes = (torch.linalg.vector_norm(heads.float(), dim=(1, 2)) * scale).tolist()
    return Layer(layer, added, tuple(sizes), None if direct is None else tuple(direct), read)


def _norm(trace: Trace, place: Place, rows: list[int]) -> float:
    return float(torch.linalg.vector_norm(trace.step(*place)[rows].float()))


def _added(trace: Trace, step: Step, layer: int, rows: list[int]) -> Added:
    """What a step adds, after any norm and scale that it goes through, against the summand that is the stream."""
    table = trace.steps
    *_, last, total = step, *table.to_stream(step)
    stream = next(place for place in table.sources(total, layer) if table.at(*place).role == "residual")
    return Added(step.name, _norm(trace, (last.name, layer), rows), _norm(trace, stream, rows))


def _heads(trace: Trace, layer: int, positions: Sequence[int]) -> Tensor:
    """What each head adds at the positions: its part of W_O's product, (H, R, C)."""
    site = Site(trace, trace.steps.at(trace.steps.added[0].name, layer), layer)
    each = site.input()[list(positions)].unflatten(-1, (site.config.n_heads, -1))  # (R, H·D) -> (R, H, D)
    weight = site.weight.unflatten(1, each.shape[1:])  # (C, H·D) -> (C, H, D)
    return torch.einsum("rhd,chd->hrc", each, weight)
