"""Rollout and attention flow: how much of each input token is in a position after several layers, by attention alone.

Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers". Rollout multiplies the weights along each path and
adds the paths up. In a flow the layers are a network of pipes, one from each key to each query, as wide as the weight;
the flow is the largest that they can carry. Flows to one position from several tokens are searched one by one, each
with all pipes for itself: they do not sum to 1. Shapes: H heads, T tokens (Q and K where query and key differ).
Everything is float64: a product of many maps is asked for its small numbers too.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.errors import AddressError, TinytfError, UsageError
from tinytf.memory import require_free
from tinytf.nearest import did_you_mean
from tinytf.report import About, Progress, Report, plain, unheard
from tinytf.sheet import Array
from tinytf.text_model import TextModel
from tinytf.trace.address import span
from tinytf.trace.faults import require_finite
from tinytf.trace.trace import Text, Trace

COMBINED: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda weights: weights.mean(dim=0),
    "max": lambda weights: weights.amax(dim=0),
    "min": lambda weights: weights.amin(dim=0),
}
"""How the heads of a layer become one map, (H, Q, K) -> (Q, K)."""

FLOWS = ("auto", "query", "all", "none")
_QUICK = 400_000
"""Pipes times tokens above which a flow is searched only on request: it takes a few seconds."""

_UNIT = 2**44  # capacities are whole numbers, so that a largest flow is exact and found in finitely many steps
MOST_PIPES = 2_000_000  # some 2 kB each while the flow is searched

ALLOWED = 1e-9
"""How far from 1 a row of a rollout may sum."""


@dataclass(frozen=True)
class AttentionFlow:
    """``values[i, key]`` is the largest flow from input token ``key`` to the position ``queries[i]``, 0…1, float64.

    ``pipes`` counts the edges between layers. Each flow equals the capacity of a cut through the network, so there is
    no larger flow.
    """

    queries: tuple[int, ...]
    values: Tensor
    pipes: int


@dataclass(frozen=True)
class Rollout(Report):
    """``shares[query, key]`` is the share of input token ``key`` in position ``query`` after ``layer``: rows sum to 1.

    ``heads`` says how those of a layer were combined. ``maps`` are the layers that were multiplied, each ½·A + ½·I.
    ``query`` is the position that is read. ``flow`` is the attention flow through the same maps, where it was searched;
    ``skipped`` counts the pipes of one that was not, since it would have taken long.
    """

    KIND = "rollout"
    EVENTS: ClassVar = {"tokens": "token", "rollouts": "position", "flows": "flow", "check": "check"}

    heads: str
    layer: int
    shares: Tensor
    maps: tuple[Tensor, ...]
    query: int
    flow: AttentionFlow | None = None
    skipped: int = 0

    def fields(self) -> dict[str, Any]:
        """Plain JSON data; flows that were not searched are null."""
        flow = self.flow
        return {
            **self.members("heads", "layer", "query"),
            "rollout": self.shares[self.query].tolist(),
            "flow": plain(self.own_flow),
            "rollouts": self.shares.tolist(),
            "flows": flow and _numbered(zip(flow.queries, flow.values.tolist(), strict=True)),
            "check": {"holds": self.holds, "largest_difference": self.deviation, "allowed": ALLOWED},
        }

    @property
    def own_flow(self) -> Tensor | None:
        """The flows to the query."""
        flow = self.flow
        return flow.values[flow.queries.index(self.query)] if flow and self.query in flow.queries else None

    def itemised(self) -> dict[str, Any]:
        data = self.to_dict()
        return {**data, "rollouts": _numbered(enumerate(data["rollouts"]))}

    def stored(self) -> list[Array]:
        """The rollout (T, T), the flows (queries, T), and the maps of the layers that they were made of."""
        return self.arrays() + [Array.of(f"L{n}.map", ["query", "key"], one) for n, one in enumerate(self.maps)]

    def arrays(self) -> list[Array]:
        """The rollout and the flows."""
        found, flow = [Array("rollout", ["query", "key"], lambda: self.shares)], self.flow
        if flow is not None:
            found.append(Array("flow", ["query", "key"], lambda: flow.values, {"query": flow.queries}))
        return found

    @property
    def deviation(self) -> float:
        """How far the sum of a row is from 1, at most."""
        return float((self.shares.sum(dim=-1) - 1).abs().max())

    @property
    def holds(self) -> bool:
        return self.deviation <= ALLOWED and bool((self.shares >= 0).all())


def _numbered(rows: Iterable[tuple[int, list[float]]]) -> list[dict[str, Any]]:
    return [{"query": query, "values": values} for query, values in rows]


def rollout(
    model: TextModel,
    text: Text,
    *,
    heads: str = "mean",
    layer: int | None = None,
    query: str | None = None,
    flow: Sequence[int] | str = (),
    force: bool = False,
    progress: Progress = unheard,
) -> Rollout:
    """How much of each token of a text, or of its trace, attention brings to every position, up to ``layer``.

    ``heads`` is one of COMBINED; ``query`` is the position that is read, by text or number, ``default_query`` without.
    ``flow`` are the positions whose attention flow is searched, counted by ``progress``; or ``query`` for that one,
    ``all``, ``none``, or ``auto``: the query, where that takes at most a few seconds.
    Raises UsageError for another word, AddressError for a layer that is not there or was not recorded, and TinytfError
    where weights are not finite: nothing is put in the place of what is missing. MemoryShortage where the maps would
    not fit into the free memory, unless ``force`` is true. Raises as ``attention_flow`` does, too.
    """
    trace = model.trace(text, force=force)
    size = len(trace.tokens)
    place = default_query(trace, model.tokenizer.mask_id) if query is None else trace.index(query, "query", size)
    if heads not in COMBINED:
        raise UsageError(f"heads cannot be combined by {heads!r}", did_you_mean(heads, COMBINED))
    last = trace.config.n_layers - 1
    stop = last if layer is None else layer
    if not 0 <= stop <= last:
        raise AddressError(f"there is no layer {stop}", f"layers are 0 to {last}")
    if none := sorted(set(range(stop + 1)) - set(trace.steps.attending)):
        raise UsageError(
            f"layers {span(none)} have no attention weights, so what flows through them is not known",
            "tinytf trace shows what each layer reads",
        )
    if not force:
        # The maps are kept; of one layer's heads there are scores and weights, four times, and the weights in float64.
        layers = stop + 1
        require_free(
            f"the maps of {size:,} tokens in {layers} layers take",
            size**2 * (8 * (layers + 3) + trace.config.n_heads * (4 * 4 + 8)),
            torch.device("cpu"),
            "take a shorter text, or stop at a --layer; --force continues",
        )
    maps = tuple(_maps(trace, heads, stop))
    shares = torch.eye(size, dtype=torch.float64)
    for mixed in maps:
        shares = mixed @ shares
    pipes = count_pipes(maps) if flow == "auto" else 0
    skipped = pipes if pipes * size > _QUICK else 0
    if isinstance(flow, str):
        if flow not in FLOWS:
            raise UsageError(f"there is no flow {flow!r}", did_you_mean(flow, FLOWS))
        flow = range(size) if flow == "all" else () if flow == "none" or skipped else (place,)
    found = attention_flow(maps, flow, progress) if flow else None
    about = About(model, trace.encoding)
    return Rollout(heads, stop, shares, maps, place, found, skipped, about=about)


def _maps(trace: Trace, heads: str, stop: int) -> Iterator[Tensor]:
    """Of each layer ½·A + ½·I (Q, K): half of what leaves a layer came in through the residual connection.

    The largest, or smallest, weights of several heads do not sum to 1, nor do those beside a sink: each row is divided
    by its sum.
    """
    for layer in range(stop + 1):
        name = trace.steps.weights
        weights = trace.step(name, layer).cpu().double()  # (H, Q, K)
        require_finite(trace, weights)
        combined = COMBINED[heads](weights)
        mixed = (combined + torch.eye(len(combined), dtype=torch.float64)) / 2
        yield mixed / mixed.sum(dim=-1, keepdim=True)


def default_query(trace: Trace, mask_id: int | None) -> int:
    """The position that a text is read for: the last token of a decoder; of an encoder the first mask.

    Without a mask it is the last token that is not special, or the last one where all are.
    """
    last = len(trace.tokens) - 1
    if trace.config.causal:
        return last
    masks = (place for place, token in enumerate(trace.tokens) if token.id == mask_id)
    plain = (place for place in range(last, -1, -1) if not trace.tokens[place].special)
    return next(masks, next(plain, last))


def count_pipes(maps: Sequence[Tensor]) -> int:
    """How many edges all layers have, (Q, K) each."""
    return sum(int((one > 0).sum()) for one in maps)


def attention_flow(maps: Sequence[Tensor], queries: Sequence[int], progress: Progress = unheard) -> AttentionFlow:
    """The largest flow from every input token to each of ``queries`` after the last of ``maps``, (Q, K) each.

    ``maps`` are those of ``rollout``. ``progress`` counts the pairs. Raises UsageError for a network that is too large,
    TinytfError where a flow and its cut differ.
    """
    pipes = count_pipes(maps)
    if pipes > MOST_PIPES:
        raise UsageError(
            f"the flow through {pipes:,} pipes cannot be searched: {MOST_PIPES:,} are the most",
            "take a shorter text, or stop at a --layer",
        )
    from networkx import DiGraph
    from networkx.algorithms.flow.utils import build_residual_network

    network = DiGraph()
    size = len(maps[0])
    network.add_nodes_from((layer, place) for layer in (0, len(maps)) for place in range(size))
    for layer, one in enumerate(maps):
        capacities = (one * _UNIT).round().long()
        for query, key in capacities.nonzero().tolist():
            network.add_edge((layer, key), (layer + 1, query), capacity=int(capacities[query, key]))
    residual = build_residual_network(network, "capacity")
    values = torch.zeros(len(queries), size, dtype=torch.float64)
    for place, query in enumerate(queries):
        for key in range(size):
            whole, cut = _largest(residual, (0, key), (len(maps), query))
            if whole != cut:
                raise TinytfError(
                    f"the flow from {key} to {query} is not the largest: {whole} and its cut {cut} differ"
                )
            values[place, key] = whole / _UNIT
            progress(place * size + key + 1, len(queries) * size)
    return AttentionFlow(tuple(queries), values, pipes)


def _largest(residual: Any, source: tuple[int, int], target: tuple[int, int]) -> tuple[int, int]:
    """The largest flow between two nodes, (layers below, position), and the capacity of a cut between them.

    The cut is between what the flow leaves in reach of the source and the rest.
    """
    from networkx.algorithms.flow import shortest_augmenting_path

    found = shortest_augmenting_path(residual, source, target, residual=residual)
    reached, waiting = {source}, [source]
    while waiting:
        for node, pipe in found[waiting.pop()].items():
            if node not in reached and pipe["flow"] < pipe["capacity"]:
                reached.add(node)
                waiting.append(node)
    # A reverse edge is in the residual network with a capacity of 0.
    cut = sum(pipe["capacity"] for node in reached for to, pipe in found[node].items() if to not in reached)
    return int(found.graph["flow_value"]), cut
