"""What each part of the residual stream gives a query or key of one head.

Between the stream and a score, queries and keys are affine once the scales of norms are held. So each part goes through
every step by itself, in float64. Shapes: N parts, T tokens, C d_model, D d_head.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.look.stream_parts import Parts, add_embeddings, attention_or_feed_forward, float64, send_through_block
from tinytf.parts.row import Step
from tinytf.steps.operations import (
    Clip,
    Grow,
    GrowHeads,
    HeadLinear,
    Join,
    Linear,
    MixStreams,
    Multiply,
    Norm,
    Operation,
    Rotate,
    Same,
    Shift,
    ShortConv,
)
from tinytf.steps.table import StepKey, StepTable
from tinytf.trace.site import Site
from tinytf.trace.trace import Trace

_AFFINE: tuple[type[Operation], ...] = (
    Linear, HeadLinear, Norm, Rotate, Multiply, Grow, GrowHeads, Join, Same, Shift, ShortConv, Clip,
)  # fmt: skip
_ON_THE_WAY = (Norm, MixStreams, Same, Multiply)
"""The steps between the input of a layer and what its queries and keys are computed from."""
_ROOM = 2**22
"""Numbers of all parts at one step."""


class Sources:
    """What the stream is split into: embeddings, heads, feed-forwards, experts and biases."""

    def added(self, stream: Parts, step: Step, layer: int) -> Parts:
        """The parts that attention or the feed-forward of a layer adds."""
        return attention_or_feed_forward(stream, step, layer)

    def reached(self, parts: Parts, place: StepKey) -> Parts:
        """The parts of the stream at a step, from those that reach it."""
        return parts


@dataclass(frozen=True)
class HeadParts:
    """The parts of one vector of a head: ``names``, with kind and layer of each, and ``vectors`` (N, D), float64.

    ``value`` (D,) is the vector itself in float64, to which they add up.
    """

    names: tuple[tuple[str, str, int | None], ...]
    vectors: Tensor
    value: Tensor


def head_parts(trace: Trace, place: StepKey, head: int, position: int, sources: Sources) -> HeadParts:
    """The parts of a query or key, the step ``place``, of one head at one position.

    Raises UsageError for a model in which it is not affine in one layer's stream.
    """
    root = _root(trace.steps, place)
    parts = _stream_parts(trace, position, root, sources)
    names = [(_name(*name), *name[1:3]) for name in parts.names]
    rows, whole = torch.cat(parts.rows), float64(trace.step(*root))  # (N, C), (T, C)
    others = whole.clone()
    others[position] = 0
    carried = torch.cat(
        [_carried(trace, root, place, head, position, some) for some in _batches(rows, position, whole)]
    )
    constant, of_others, value = _carried(trace, root, place, head, position, torch.stack([0 * whole, others, whole]))
    names.append((f"{trace.steps.at(*place).full_name(place[1])} bias", "bias", place[1]))
    vectors = [*(carried - constant), constant]
    if not torch.equal(of_others, constant):
        names.append(("other tokens", "convolution", place[1]))
        vectors.append(of_others - constant)
    return HeadParts(tuple(names), torch.stack(vectors), value)


def _batches(rows: Tensor, position: int, whole: Tensor) -> "list[Tensor]":
    """Streams (n, T, C) with one part each, at its position, as many at a time as there is room for."""
    batches = []
    for some in rows.split(max(1, _ROOM // whole.numel())):
        batch = some.new_zeros(len(some), *whole.shape)
        batch[:, position] = some
        batches.append(batch)
    return batches


def _name(name: str, kind: str, layer: int | None, number: int | None) -> str:
    return f"{name} of source {number}" if kind == "cross-attention" and number is not None else name


def _root(table: StepTable, place: StepKey) -> StepKey:
    """The step of the stream that a query or key is computed from: the input of a layer, or its norm."""
    to_do, roots = [place], set[StepKey]()
    while to_do:
        at = to_do.pop()
        step = table.at(*at)
        if step.role == "residual":
            roots.add(at)
            continue
        if not isinstance(step.operation, _AFFINE):
            raise UsageError(
                f"this score has no parts: {step.full_name(at[1])} ({step.title}) is not linear in the stream",
                "explain takes its arithmetic apart",
            )
        to_do += table.sources(step, at[1])
    if len(roots) != 1 or None in {layer for _, layer in roots}:
        raise UsageError("this score has no parts: it is not made of the stream alone", "explain takes it apart")
    return roots.pop()


def _stream_parts(trace: Trace, position: int, root: StepKey, sources: Sources) -> Parts:
    """The parts of the stream at a position, sent through the steps of the layer up to ``root``."""
    table, (name, layer) = trace.steps, root
    way = list[tuple[Step, int]]()
    while name != table.input:
        step = table.at(name, layer)
        if layer is None or not isinstance(step.operation, _ON_THE_WAY):
            raise UsageError(f"this score has no parts: {root[0]} is not the layer's input, normed", "explain it")
        way.append((step, layer))
        name, layer = table.sources(step, layer)[0]  # of an earlier layer, where it lends its norm
    assert layer is not None
    parts = Parts(trace, position)
    add_embeddings(parts)
    for below in range(layer):
        send_through_block(parts, below, sources.added)
    parts.replace(table.input, layer)
    parts.passed = {}
    parts.mark(table.input, layer)
    for place in ((table.output, layer - 1), (table.input, layer)) if layer else ((table.input, layer),):
        parts = sources.reached(parts, place)
    for step, at in reversed(way):
        parts.send_through(step, at)
        parts.mark(step.name, at)
        parts = sources.reached(parts, (step.name, at))
    return parts


@torch.no_grad()
def _carried(trace: Trace, root: StepKey, place: StepKey, head: int, position: int, streams: Tensor) -> Tensor:
    """What streams (n, T, C) in the place of ``root`` give a query or key at one position, (n, D)."""
    shared = trace.config.at(place[1]).heads_per_kv if "kv head" in trace.steps.at(*place).axes else 1
    return _Carrying(trace, root, streams).step(*place)[:, head // shared, position]


class _Carrying:
    """A trace of streams that are given at ``root``, with the scales of norms held as they are in another trace."""

    def __init__(self, trace: Trace, root: StepKey, streams: Tensor) -> None:
        self.trace, self.about, self.steps, self.encoding = trace, trace.about, trace.steps, trace.encoding
        self.model: Any = _Doubled(trace.model)
        self._values = {root: streams}

    @property
    def config(self) -> ModelConfig:
        return self.trace.config

    def is_exchanged(self, name: str, layer: int | None, head: int | None = None) -> bool:
        return self.trace.is_exchanged(name, layer, head)

    def step(self, name: str, layer: int | None = None, heads: tuple[int, ...] | None = None) -> Tensor:
        place = (self.steps.at(name, layer).name, layer)
        if place not in self._values:
            site = Site(self, self.steps.at(*place), layer)
            self._values[place] = self._next(site)
        return self._values[place]

    def _next(self, site: Site) -> Tensor:
        operation, held = site.operation, Site(self.trace, site.step, site.layer)
        if isinstance(operation, Norm):
            return operation.held(site.input(), float64(held.input()), site.module)
        if isinstance(operation, Clip):
            before, x = float64(held.input()), site.input()
            return torch.where(before.abs() > operation.limit, operation.forward(before), x)
        return operation.derive(site)


class _Doubled:
    """The modules of a model in float64, on the CPU, each copied when it is asked for."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def get_submodule(self, path: str) -> nn.Module:
        return copy.deepcopy(self._model.get_submodule(path)).double().cpu()
