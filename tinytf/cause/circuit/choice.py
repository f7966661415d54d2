"""The choice of a circuit's edges: those with the largest scores, as many as it takes; and two choices compared.

Shapes: R receivers, S senders, P positions that are told apart (1: none).
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from tinytf.cause.circuit.edges import edge_scores, node_scores
from tinytf.cause.circuit.graph import Graph
from tinytf.cause.circuit.running import Runs
from tinytf.estimate import Estimate, rank_correlation
from tinytf.report import Data, Progress

LEVELS = ("edges", "positions", "nodes")


@dataclass(frozen=True)
class CircuitNode(Data):
    """A node of a circuit: its score, and how many edges of the circuit lead to it and from it.

    The score is that of the node as a sender, the sum over its edges in the circuit unless nodes were scored
    themselves; None for the logits. ``without`` is the faithfulness of the circuit without this node, None if not
    measured.
    """

    name: str
    score: float | None
    incoming: int
    outgoing: int
    without: float | None = None


@dataclass(frozen=True)
class CircuitEdge(Data):
    """An edge from the node ``source`` to the ``input`` of a later node, such as ``L3H5.q``.

    ``without`` is the faithfulness of the circuit without this edge, None if not measured.
    """

    source: str
    input: str
    score: float
    without: float | None = None

    @property
    def name(self) -> str:
        return f"{self.source} → {self.input}"


@dataclass(frozen=True)
class Choice:
    """Edges of a ``graph`` (R, S, P), their scores, and how they were chosen; at the level of nodes, ``of_nodes``
    (S, 1) are scores of the nodes.

    ``chosen_from`` names the pairs that chose the edges, where they are not those that it is measured on. ``without``
    is the faithfulness without each node and edge that was left out, by name.
    """

    graph: Graph
    kept: Tensor
    scores: Tensor
    of_nodes: Tensor | None
    level: str
    method: str
    steps: int
    keep: float | None = None
    chosen_from: str | None = None
    stopped: bool = False
    without: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def node_scores(self) -> Tensor:
        """The score of every sender (S, P): its own, or the sum over its edges in the circuit."""
        return self.of_nodes if self.of_nodes is not None else (self.scores * self.kept).sum(dim=0)

    @cached_property
    def edges(self) -> tuple[CircuitEdge, ...]:
        """The edges, the largest score first, whatever its sign."""
        places = self.kept.nonzero(as_tuple=True)
        values, graph = self.scores[places], self.graph
        order = values.abs().argsort(descending=True, stable=True)
        edges = (
            CircuitEdge(graph.name(column, position), graph.input(row, position), value)
            for row, column, position, value in zip(*(of[order].tolist() for of in (*places, values)), strict=True)
        )
        return tuple(replace(edge, without=self.without.get(edge.name)) for edge in edges)

    @cached_property
    def nodes(self) -> tuple[CircuitNode, ...]:
        """The nodes in the order of computation, each at its positions, the logits last."""
        graph, incoming = self.graph, Counter(name for _, name in self.links)
        outgoing: list[list[int]] = [*self.kept.sum(dim=0).tolist(), [0] * graph.positions]
        scores: list[list[float | None]] = [*self.node_scores.tolist(), [None] * graph.positions]
        return tuple(
            CircuitNode(name, scores[node][position], incoming[name], outgoing[node][position], self.without.get(name))
            for name, (node, position) in graph.named.items()
            if name in self.names
        )

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of the nodes."""
        return frozenset(self.graph.name(*place) for place in self.graph.nodes_of(self.kept).nonzero().tolist())

    @property
    def links(self) -> Iterator[tuple[CircuitEdge, str]]:
        """Every edge with the node that it leads to; an input of several heads leads to each that is in the circuit,
        and keys and values to each later position at which the head is.
        """
        for edge in self.edges:
            for name in self.graph.reading(edge.input):
                if name in self.names:
                    yield edge, name

    @property
    def complement(self) -> Tensor:
        """All other edges; at the level of nodes, those from all other nodes and the embeddings."""
        if self.level != "nodes":
            return self.graph.allowed & ~self.kept
        others = ~self.kept.any(dim=0)  # (S, 1)
        others[0] = True
        return self.graph.allowed & others


def choose(runs: Runs, keep: float, method: str, level: str, steps: int, on_progress: Progress) -> Choice:
    """Score all edges, then find by bisection a number of edges or nodes that keeps the share, where one fewer does
    not. An interrupt ends the bisection with the number so far.
    """
    exact, graph = method == "exact", runs.graph
    # where nodes are measured, their edges still have estimates
    scores = edge_scores(runs, "integrated" if exact and level == "nodes" else method, steps, on_progress)
    of_nodes = None if level != "nodes" else node_scores(runs, on_progress) if exact else scores.sum(dim=0)
    if of_nodes is None:
        places = graph.allowed.nonzero()[scores[graph.allowed].abs().argsort(descending=True, stable=True)]
    else:
        places = 1 + of_nodes[1:, 0].abs().argsort(descending=True, stable=True)

    def first(count: int) -> Tensor:
        """The edges of the first ``count`` edges or nodes, dead ones included."""
        if of_nodes is None:
            chosen = torch.zeros_like(graph.allowed)
            chosen[places[:count].unbind(dim=1)] = True
            return chosen
        nodes = torch.zeros(len(graph.nodes), 1, dtype=torch.bool)
        nodes[[0, -1]] = nodes[places[:count]] = True
        return graph.among(nodes)

    few, enough, rounds, stopped = -1, len(places), 0, False
    try:
        while enough - few > 1:
            middle = (few + enough) // 2
            if runs.faithfulness(graph.alive(first(middle))) >= keep:
                enough = middle
            else:
                few = middle
            rounds += 1
            on_progress(rounds, rounds + (enough - few - 1).bit_length())
    except KeyboardInterrupt:
        stopped = True
    steps = steps if method == "integrated" else 1
    return Choice(graph, first(enough), scores, of_nodes, level, method, steps, keep, stopped=stopped)


@dataclass(frozen=True)
class Overlap(Data):
    """Two circuits of one model: the first and the ``other``, whose faithfulness is that on the same pairs.

    ``nodes`` and ``edges`` count those of the other one. A Jaccard index is the number of shared ones divided by that
    of all in either. ``rank_correlation`` is Spearman's, of the scores of shared edges; None for fewer than three.
    """

    ALSO: ClassVar = ("nodes_jaccard", "edges_jaccard")

    other: str
    nodes: int
    edges: int
    shared_nodes: int
    shared_edges: int
    all_nodes: int
    all_edges: int
    rank_correlation: float | None
    faithfulness: Estimate

    @property
    def nodes_jaccard(self) -> float:
        return self.shared_nodes / self.all_nodes

    @property
    def edges_jaccard(self) -> float:
        return self.shared_edges / self.all_edges


def overlap(name: str, ours: Choice, theirs: Choice, faithfulness: Estimate) -> Overlap:
    """Compare a circuit with another, whose name and faithfulness are given."""
    shared = ours.kept & theirs.kept
    nodes = [choice.graph.nodes_of(choice.kept) for choice in (ours, theirs)]
    return Overlap(
        other=name,
        nodes=int(nodes[1].sum()),
        edges=int(theirs.kept.sum()),
        shared_nodes=int((nodes[0] & nodes[1]).sum()),
        shared_edges=int(shared.sum()),
        all_nodes=int((nodes[0] | nodes[1]).sum()),
        all_edges=int((ours.kept | theirs.kept).sum()),
        rank_correlation=rank_correlation(*(choice.scores[shared].tolist() for choice in (ours, theirs))),
        faithfulness=faithfulness,
    )
