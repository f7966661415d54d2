"""Attention flow: how much can get from an input token to a position through the maps of all layers at once.

Abnar & Zuidema 2020: the layers are a network of pipes, one from each key to each query, as wide as the weight. The
flow is the largest that they can carry, where rollout multiplies along each way and adds the ways up. Flows to one
position from several tokens are searched one by one, each with all pipes for itself: they do not sum to 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinytf.errors import TinytfError, UsageError
from tinytf.report import Progress, unheard

_UNIT = 2**44  # capacities are whole numbers, so that a largest flow is exact and found in finitely many steps
MOST_PIPES = 2_000_000  # some 2 kB each while the flow is searched

_Node = tuple[int, int]
"""How many layers are below, and the position."""


@dataclass(frozen=True)
class AttentionFlow:
    """``values[i, key]`` is the largest flow from input token ``key`` to the position ``queries[i]``, 0…1, float64.

    ``pipes`` counts the ways between two layers. Each flow was found together with a cut through the network that lets
    just as much through, so that there is no larger one.
    """

    queries: tuple[int, ...]
    values: Tensor
    pipes: int


def count_pipes(maps: Sequence[Tensor]) -> int:
    """How many ways there are between two layers, in all layers (Q, K)."""
    return sum(int((one > 0).sum()) for one in maps)


def attention_flow(maps: Sequence[Tensor], queries: Sequence[int], progress: Progress = unheard) -> AttentionFlow:
    """The largest flow from every input token to each of ``queries`` after the last of ``maps``, (Q, K) each.

    ``maps`` are those of ``rollout``. ``progress`` hears how many pairs are done. Raises UsageError for a network too
    large to be held, TinytfError where a flow and its cut differ.
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


def _largest(residual: Any, source: _Node, target: _Node) -> tuple[int, int]:
    """The largest flow, and the capacity of the cut between what it leaves in reach of the source and the rest."""
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
