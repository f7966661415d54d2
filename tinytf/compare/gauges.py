"""Gauges: how another program may write a model's numbers differently and predict the same.

Each is known: centred streams, gains and value biases folded into the matrices that follow, logits up to a constant,
heads or neurons in another order, queries and keys turned by one rotation. One is taken only where the numbers show it:
a step that differs is the model's once it is undone, and a step after it that it leaves alone is the model's already.
Shapes: T tokens, H heads, D head width, C columns, V vocabulary.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tinytf.compare.causes import Evidence, compared_with
from tinytf.compare.dumps.dumped import DumpSide, Undo
from tinytf.compare.dumps.fit import distance
from tinytf.report import Data
from tinytf.steps.operations import Concat, Linear, Mix, Norm, Rotate
from tinytf.steps.operations.norm import gain_of
from tinytf.steps.table import StepKey
from tinytf.trace.site import Site
from tinytf.trace.trace import Trace

_BETTER = 10.0
"""Times that a step is nearer once a gauge is undone: one that only fits to rounding is none."""


@dataclass(frozen=True)
class Gauge(Data):
    """A way of writing in ``words``, and the ``steps`` that are the model's once it is undone."""

    words: str
    steps: tuple[str, ...]


def undo_gauges(
    trace: Trace, dumped: DumpSide, places: Sequence[StepKey], tolerance: float
) -> tuple[DumpSide, tuple[Gauge, ...]]:
    """The dump read as the model writes it, and the gauges that were undone for that."""
    search = _Search(trace, dumped, places, tolerance)
    for look in (_logits, _gains, _streams, _heads, _values, _turned, _neurons):
        with suppress(RuntimeError, IndexError):  # a step of other axes, in a part that has no such gauge
            look(search)
    return search.dumped, tuple(search.found)


class _Search:
    """The steps of a dump beside a run, and the gauges found so far."""

    def __init__(self, trace: Trace, dumped: DumpSide, places: Sequence[StepKey], tolerance: float) -> None:
        self.trace, self.dumped, self.tolerance = trace, dumped, tolerance
        self.places, self.found = [place for place in places if dumped.has(*place)], list[Gauge]()
        self.consumers: dict[StepKey, list[StepKey]] = defaultdict(list)
        for step, layer in trace.steps.rows:
            for source in trace.steps.sources(step, layer) if step.is_tensor else ():
                self.consumers[source].append((step.name, layer))

    def theirs(self, place: StepKey) -> Tensor | None:
        """The dump's numbers, with what was found undone."""
        return Evidence(self.dumped, self.tolerance, ()).theirs(place, self.trace) if place in self.places else None

    def alike(self, place: StepKey, numbers: Tensor | None) -> bool:
        return numbers is not None and not compared_with(self.trace, place, numbers).differs(self.tolerance)

    def site(self, place: StepKey) -> Site:
        return Site(self.trace, self.trace.steps.at(*place), place[1])

    def module(self, place: StepKey) -> Any:
        """The module of a step; None if it has no parameters."""
        return self.site(place).module if self.trace.steps.at(*place).module else None

    def of(self, *kinds: type) -> list[StepKey]:
        """The places of operations of some types."""
        return [place for place in self.places if type(self.trace.steps.at(*place).operation) in kinds]

    def logits_alike(self) -> bool:
        if self.dumped.logits is None or self.trace.config.head.kind != "lm":
            return False
        rows = self.dumped.logits[1]
        ours = self.trace.model.over_vocabulary(self.trace.last_hidden[list(rows)])["logits"]
        theirs = self.dumped.outcomes(None, rows)["logits"].to(ours)
        return bool(((theirs - ours).abs().amax(-1) <= self.tolerance * ours.abs().amax(-1)).all())

    def follows(self, place: StepKey, own: Mapping[StepKey, Undo]) -> bool:
        """Whether a step is the model's that depends on ``place``, the next in the dump that the gauge leaves alone."""
        waiting, seen = [place], {place}
        while waiting:
            for after in self.consumers[waiting.pop(0)]:
                if after in seen:
                    continue
                seen.add(after)
                if after[0] == "logits":
                    if self.logits_alike():
                        return True
                elif after in own or after not in self.places:
                    waiting.append(after)
                elif self.alike(after, self.theirs(after)):
                    return True
        return False

    def take(self, words: str, undone: Mapping[StepKey, Undo], *, sure: bool = False) -> None:
        """Undo a gauge if that mends a step, and a step after it is the model's, or it is ``sure`` to be."""
        mended = []
        for place, undo in undone.items():
            theirs = self.theirs(place)
            differs = theirs is not None and not self.alike(place, theirs)
            if theirs is None or not differs:
                continue
            ours = self.trace.step(*place)
            back = undo(theirs, ours)
            if self.alike(place, back) and distance(back, ours) * _BETTER <= distance(theirs, ours):
                mended.append(place)
        if not mended or not (sure or any(self.follows(place, undone) for place in mended[:8])):
            return
        self.dumped = replace(
            self.dumped,
            undone={
                **self.dumped.undone,
                **{place: _after(self.dumped.undone.get(place), undo) for place, undo in undone.items()},
            },
        )
        names = tuple(self.trace.steps.at(*place).full_name(place[1]) for place in mended)
        self.found.append(Gauge(words, names))


def _after(first: Undo | None, second: Undo) -> Undo:
    return second if first is None else lambda theirs, ours: second(first(theirs, ours), ours)


def _nearest(ours: Tensor, *readings: Tensor) -> Tensor:
    return min(readings, key=lambda one: distance(one, ours))


def _logits(search: _Search) -> None:
    """A softmax gives the same for logits that are all larger by a number."""
    stored = search.dumped.logits
    if stored is None or search.trace.config.head.kind != "lm" or search.logits_alike():
        return
    theirs, rows = stored
    ours = search.trace.model.over_vocabulary(search.trace.last_hidden[list(rows)])["logits"].to(theirs)
    shifted = replace(search.dumped, shift=(ours - theirs).mean(-1, keepdim=True))
    scale = search.tolerance * theirs.abs().amax(-1)
    centred = bool((theirs.mean(-1).abs() <= scale).all()) and not bool((ours.mean(-1).abs() <= scale).all())
    before, search.dumped = search.dumped, shifted
    alike = search.logits_alike()
    if not (alike or centred):
        search.dumped = before
        return
    undone: dict[StepKey, Undo] = {
        ("logits", None): lambda theirs, ours: theirs + (ours - theirs).mean(-1, keepdim=True)
    }
    search.dumped = replace(shifted, undone={**shifted.undone, **undone})
    words = "logits without their mean" if centred else "logits larger by one number for each token"
    search.found.append(Gauge(words, ("logits",)))


def _gains(search: _Search) -> None:
    """A norm's gain and bias, in the matrices that read it."""
    undone: dict[StepKey, Undo] = {}
    for place in search.of(Norm):
        module = search.module(place)
        if getattr(module, "weight", None) is not None:
            undone[place] = partial(_with_gain, gain_of(module), getattr(module, "bias", None))
    search.take("gains and biases of norms in the matrices after them", undone)


def _with_gain(gain: Tensor, bias: Tensor | None, theirs: Tensor, ours: Tensor) -> Tensor:
    return _nearest(ours, theirs, theirs * gain + (0 if bias is None else bias))


def _streams(search: _Search) -> None:
    """The mean of the stream, which every LayerNorm that reads it subtracts."""
    config = search.trace.config
    if config.norm != "layernorm" or config.norm_order != "pre" or not config.final_norm or config.embed_norm:
        return
    steps = search.trace.steps
    written = [
        place
        for place in search.places
        if steps.at(*place).axes == ("token", "d_model") and type(steps.at(*place).operation) is not Norm
    ]
    theirs = [numbers for place in written if (numbers := search.theirs(place)) is not None]
    centred = all(bool((one.mean(-1).abs() <= search.tolerance * one.abs().amax(-1)).all()) for one in theirs)
    words = "centred streams" if centred else "streams that differ in their mean, which the norms subtract"
    search.take(words, dict.fromkeys(written, _with_mean), sure=True)


def _with_mean(theirs: Tensor, ours: Tensor) -> Tensor:
    return theirs - theirs.mean(-1, keepdim=True) + ours.mean(-1, keepdim=True)


def _by_layer(search: _Search, chosen: Callable[[StepKey], bool]) -> dict[int, list[StepKey]]:
    layers: dict[int, list[StepKey]] = defaultdict(list)
    for place in search.places:
        if place[1] is not None and chosen(place):
            layers[place[1]].append(place)
    return layers


def _heads(search: _Search) -> None:
    """Heads in another order: those of queries, and those of keys and values with them."""
    steps, undone = search.trace.steps, dict[StepKey, Undo]()
    orders = dict[int, tuple[int, ...]]()
    for layer, places in _by_layer(search, lambda place: steps.at(*place).has_heads).items():
        for axis in ("head", "kv head"):
            own = [place for place in places if steps.at(*place).axes[0] == axis]
            order = next((one for place in own if (one := _order(search, place)) is not None), None)
            if order is not None:
                undone |= dict.fromkeys(own, partial(_in_order, order))
                orders[layer] = tuple(order.argsort().tolist())
                if axis == "head":
                    joint = [p for p in search.of(Concat) if p[1] == layer]
                    undone |= dict.fromkeys(joint, partial(_blocks_in_order, order))
    said = next((f": {' '.join(map(str, order))} in layer {layer}" for layer, order in orders.items()), "")
    search.take(f"heads in another order{said}", undone)


def _order(search: _Search, place: StepKey) -> Tensor | None:
    """For each of our heads, the dump's that is nearest; None if these are no other order."""
    theirs = search.theirs(place)
    if theirs is None or search.alike(place, theirs):
        return None
    a, b = (x.double().flatten(1).nan_to_num(0.0, 0.0, 0.0) for x in (search.trace.step(*place), theirs))
    order = torch.cdist(a, b).argmin(1)
    alone = len(order.unique()) == len(order)
    return order if alone and order.tolist() != sorted(order.tolist()) else None


def _in_order(order: Tensor, theirs: Tensor, ours: Tensor) -> Tensor:
    return theirs[order]


def _blocks_in_order(order: Tensor, theirs: Tensor, ours: Tensor) -> Tensor:
    return theirs.unflatten(-1, (len(order), -1))[:, order].flatten(-2)


def _values(search: _Search) -> None:
    """A bias of values, in the bias after them: the weights of a query sum to 1, so that it is added whole.

    It includes what the bias of the norm before adds to each value, where that is folded too.
    """
    undone: dict[StepKey, Undo] = {}
    steps = search.trace.steps
    for step, layer in steps.rows:
        if step.role != "v" or type(step.operation) is not Linear or layer is None:
            continue
        site, config = search.site((step.name, layer)), search.trace.config.at(layer)
        bias = getattr(search.module((step.name, layer)), "bias", None)
        before = next((search.module(source) for source in steps.sources(step, layer)), None)
        shift = getattr(before, "bias", None)
        whole = None if shift is None else site.weight @ shift + (0 if bias is None else bias)
        by_head = [one.unflatten(0, (config.n_kv_heads, -1)) for one in (bias, whole) if one is not None]  # (G, D)
        every = [one.repeat_interleave(config.heads_per_kv, 0) for one in by_head]
        undone[step.name, layer] = partial(_plus, [one[:, None] for one in by_head])
        near = {Mix: [one[:, None] for one in every], Concat: [one.flatten() for one in every]}
        for kind, biases in near.items():
            undone |= {place: partial(_plus, biases) for place in search.of(kind) if place[1] == layer}
    search.take("value biases in the bias of the output", undone)


def _plus(biases: Sequence[Tensor], theirs: Tensor, ours: Tensor) -> Tensor:
    return _nearest(ours, theirs, *(theirs + bias for bias in biases))


def _turned(search: _Search) -> None:
    """Queries and keys turned by one rotation in each head, which leaves their products."""
    steps, undone = search.trace.steps, dict[StepKey, Undo]()
    pairs = _by_layer(search, lambda place: steps.at(*place).role in ("q", "k") and steps.at(*place).has_heads)
    for places in pairs.values():
        queries, keys = ([p for p in places if steps.at(*p).role == role] for role in "qk")
        for query, key in zip(queries, keys, strict=False):
            read = [(search.trace.step(*place), search.theirs(place)) for place in (query, key)]
            if any(theirs is None for _, theirs in read):
                continue
            first = (query, key) == (queries[0], keys[0])
            if first and (search.alike(query, read[0][1]) or type(steps.at(*query).operation) is Rotate):
                break  # turned by RoPE alone: from another position
            groups = search.trace.config.at(query[1]).n_kv_heads
            ours, theirs = (
                torch.cat([x.double().unflatten(0, (groups, -1)).flatten(1, 2) for x in side if x is not None], 1)
                for side in zip(*read, strict=True)
            )  # (G, tokens of queries and keys, D)
            left, _, right = torch.linalg.svd(theirs.mT @ ours)
            for place in (query, key):
                undone[place] = partial(_turned_back, left @ right)
    search.take("queries and keys turned by the same rotation", undone)


def _turned_back(rotation: Tensor, theirs: Tensor, ours: Tensor) -> Tensor:
    by_group = theirs.double().unflatten(0, (len(rotation), -1))
    return (by_group @ rotation[:, None]).flatten(0, 1).to(theirs.dtype)


def _neurons(search: _Search) -> None:
    """The hidden units of a feed-forward in another order."""
    steps, undone = search.trace.steps, dict[StepKey, Undo]()
    for places in _by_layer(search, lambda place: steps.at(*place).axes == ("token", "d_ff")).values():
        theirs = search.theirs(places[0])
        if theirs is None or search.alike(places[0], theirs) or len(theirs) < 2:
            continue
        probe = torch.linspace(1, 2, len(theirs), dtype=torch.float64).sin() + 1.5
        order = torch.empty(theirs.shape[1], dtype=torch.long)
        order[(probe @ search.trace.step(*places[0]).double()).argsort()] = (probe @ theirs.double()).argsort()
        undone |= dict.fromkeys(places, partial(_columns_in_order, order))
    search.take("hidden units in another order", undone)


def _columns_in_order(order: Tensor, theirs: Tensor, ours: Tensor) -> Tensor:
    return theirs[:, order]
