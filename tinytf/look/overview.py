"""A pass at a glance: what layers and heads add to the stream and to the predicted logit, and the lens's readings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tinytf.look.attribute import head_contributions
from tinytf.look.flow import Flow, flow
from tinytf.look.lens import most_probable_by_layer
from tinytf.look.prediction import Prediction
from tinytf.look.stream_parts import positions_read
from tinytf.parts.row import Step
from tinytf.report import Data, derived
from tinytf.steps.table import StepKey
from tinytf.trace.site import Site, heads_added
from tinytf.trace.trace import Trace


@dataclass(frozen=True)
class Added(Data):
    """The L2 norms of what ``step`` adds to the stream, and of the stream before that, over the positions read."""

    ALSO: ClassVar = ("share",)

    step: str
    norm: float
    stream: float

    @property
    def share(self) -> float:
        return self.norm / self.stream if self.stream else 0.0


@dataclass(frozen=True)
class LensReading:
    """The most probable token of the logit lens after a layer; ``token`` is its printable form."""

    token: str
    id: int
    probability: float


@dataclass(frozen=True)
class Layer(Data):
    """One layer. ``heads`` is how much each head adds, as a share of the stream; ``read`` is the lens's reading.

    ``direct`` is what each head adds directly to the logit of the predicted token, None without a prediction.
    """

    layer: int
    added: tuple[Added, ...]
    heads: tuple[float, ...]
    direct: tuple[float, ...] | None
    read: LensReading | None

    @property
    def strongest(self) -> int:
        return max(range(len(self.heads)), key=self.heads.__getitem__)


@dataclass(frozen=True, eq=False)
class Closeup:
    """Part of a head's ``weights``: some ``queries`` up to the last one read, and the ``keys`` seen most from it."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    weights: Tensor


@dataclass(frozen=True, eq=False)
class Overview:
    """Layers and heads of a trace at ``positions``: those of its predictions, or all if it predicts nothing.

    ``reading`` is the position of the lens and of the logits, None without a prediction, or if the head does not
    choose. ``predicted`` is the printable form of its most probable token or class.
    """

    trace: Trace
    positions: tuple[int, ...]
    reading: int | None
    predicted: str | None
    layers: tuple[Layer, ...]

    @derived
    def ranked(self) -> list[tuple[int, int, float]]:
        """(layer, head, amount) of every head, by the amount that it adds to the logit of the predicted token.

        Without a prediction, the amount is what it adds to the stream, as a share of it.
        """
        heads = [
            (layer.layer, head, value)
            for layer in self.layers
            for head, value in enumerate(layer.heads if layer.direct is None else layer.direct)
        ]
        return sorted(heads, key=lambda head: -head[2])

    def telling(self, most: int) -> list[int]:
        """The layers that tell most, in order: that of the first head in ``ranked``, and the last.

        Then where the lens comes to the prediction and the layer before, and where its reading changed last before
        that; without a lens, the layers that add most to the stream.
        """
        count = len(self.layers)
        wanted, read = [self.ranked[0][0], count - 1], [layer.read and layer.read.id for layer in self.layers]
        if self.reading is not None:
            turns = [layer for layer in range(count - 1, 0, -1) if read[layer] != read[layer - 1]]
            wanted += [layer for turn in turns for layer in (turn, turn - 1)]
        added = {layer.layer: sum(one.share for one in layer.added) for layer in self.layers}
        wanted += sorted(range(count), key=lambda layer: -added[layer])
        return sorted(list(dict.fromkeys(wanted))[:most])

    @derived
    def flow(self) -> Flow:
        """The flow of the block of the first head in ``ranked``."""
        return flow(self.trace, self.ranked[0][0])

    def weights(self, layer: int, head: int) -> Tensor:
        """The map of a head of a layer that has one, (Q, K)."""
        step = self.trace.steps.map_of(layer)
        assert step is not None, "a layer without a map is not drawn"
        return self.trace.step(step.name, layer, (head,))[0]

    def most_seen_at(self, layer: int, head: int) -> int | None:
        """The position that a head attends to most from the positions; None for a layer without a map."""
        if self.trace.steps.map_of(layer) is None:
            return None
        return int(self.weights(layer, head)[list(self.positions)].abs().sum(dim=0).argmax())

    def most_seen(self, layer: int, head: int) -> str:
        """An arrow, and the token that a head attends to most from the positions; empty for a layer without a map."""
        position = self.most_seen_at(layer, head)
        return "" if position is None else f"→ {self.trace.tokens[position].shown}"

    def closeup(self, layer: int, head: int, keys: int, queries: int) -> Closeup:
        """The part of a head's weights that fits beside a drawing: at most ``keys`` and ``queries``."""
        weights = self.weights(layer, head)
        stop = max(self.positions[-1] + 1, min(queries, len(weights)))
        rows = weights[max(0, stop - queries) : stop]
        best = sorted(weights[list(self.positions)].abs().sum(dim=0).topk(min(keys, len(weights))).indices.tolist())
        return Closeup(tuple(range(stop - len(rows), stop)), tuple(best), rows[:, best])


@torch.no_grad()
def overview(trace: Trace, predictions: tuple[Prediction, ...], shown: Callable[[int], str | None]) -> Overview:
    """The sizes of what each layer and head adds, and the logit lens at the first prediction.

    ``shown`` gives the printable form of a token.
    """
    positions = _positions(trace, predictions)
    layers = range(trace.config.n_layers)
    if not predictions:
        layers_data = tuple(_layer(trace, layer, positions, _heads(trace, layer, positions)) for layer in layers)
        return Overview(trace, positions, None, None, layers_data)
    heads_of_layers = [_heads(trace, layer, positions) for layer in layers]
    best = predictions[0]
    if trace.model.averaged is None:
        of_best = [heads[:, :1] for heads in heads_of_layers]
    else:
        of_best = [_heads(trace, layer, positions_read(trace, best.position)) for layer in layers]
    direct = head_contributions(trace, best.position, best.column, of_best)
    lens_readings: list[LensReading | None] = [None for _ in layers]
    if trace.steps.chooses:
        best_tokens = most_probable_by_layer(trace, best.position)
        lens_readings = [LensReading(shown(token) or f"#{token}", token, share) for token, share in best_tokens]
    layers_data = tuple(
        _layer(trace, layer, positions, heads_of_layers[layer], direct[layer], lens_readings[layer]) for layer in layers
    )
    return Overview(trace, positions, best.position if trace.steps.chooses else None, best.best, layers_data)


@torch.no_grad()
def layer_overview(trace: Trace, predictions: tuple[Prediction, ...], layer: int) -> Overview:
    """The overview of a single layer, without the lens and without additions to logits."""
    positions = _positions(trace, predictions)
    return Overview(trace, positions, None, None, (_layer(trace, layer, positions, _heads(trace, layer, positions)),))


def _positions(trace: Trace, predictions: tuple[Prediction, ...]) -> tuple[int, ...]:
    return tuple(prediction.position for prediction in predictions) or tuple(range(len(trace.tokens)))


def _layer(
    trace: Trace,
    layer: int,
    positions: Sequence[int],
    heads: Tensor,
    direct: Sequence[float] | None = None,
    read: LensReading | None = None,
) -> Layer:
    """One layer, from what its ``heads`` add at the positions, (H, R, C)."""
    rows = list(positions)
    added = tuple(_added(trace, step, layer, rows) for step in trace.steps.added_in(layer))
    if not added:
        return Layer(layer, (), (), None if direct is None else (), read)
    # After a norm of what attention adds, a head's part is as large against the whole as before it.
    attention = next((one for one in added if trace.steps.at(one.step, layer).role == "attention"), added[0])
    attention_norm = _norm(trace, (attention.step, layer), rows)
    scale = attention.share / attention_norm if attention_norm else 0.0
    sizes = (torch.linalg.vector_norm(heads.float(), dim=(1, 2)) * scale).tolist()
    return Layer(layer, added, tuple(sizes), None if direct is None else tuple(direct), read)


def _norm(trace: Trace, place: StepKey, rows: list[int]) -> float:
    return float(torch.linalg.vector_norm(trace.step(*place)[rows].float()))


def _added(trace: Trace, step: Step, layer: int, rows: list[int]) -> Added:
    """The size of what a step adds, after any norm and scale, and of the stream to which it is added."""
    table = trace.steps
    *_, last, total = step, *table.to_stream(step, layer)
    stream = next(place for place in table.sources(total, layer) if table.at(*place).role == "residual")
    return Added(step.name, _norm(trace, (last.name, layer), rows), _norm(trace, stream, rows))


def _heads(trace: Trace, layer: int, positions: Sequence[int]) -> Tensor:
    """The vectors that each head adds at the positions: its part of W_O's product, (H, R, C)."""
    if not (trace.config.at(layer).n_heads and trace.steps.added_in(layer)):
        return torch.empty(0, len(positions), trace.config.d_model)
    attention = next(step for step in trace.steps.added if step.role == "attention")
    return heads_added(Site(trace, trace.steps.at(attention.name, layer), layer), positions)
