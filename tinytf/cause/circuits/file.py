"""Circuits in the graph files of circuit-tracer (Ameisen et al. 2025), read, written and compared.

Its viewers take ``metadata``, ``qParams``, ``nodes`` and ``links``. A circuit has no positions: its nodes stand at the
last token of the first clean text. Beside those members a node has its ``name``, and a link the name that it comes
``from`` and the ``input`` that it feeds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.cause.circuits.graph import EMBEDDINGS, LOGITS, CircuitEdge, CircuitNode, Graph
from tinytf.errors import UsageError
from tinytf.estimate import Estimate, rank_correlation
from tinytf.files import TOKENIZER, read_json
from tinytf.report import Data
from tinytf.text.tokenizer import Encoding


@dataclass(frozen=True)
class Stored:
    """A circuit of a file: its edges, and their scores; (R, S) each."""

    kept: Tensor
    scores: Tensor


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
        return self.shared_nodes / self.all_nodes if self.all_nodes else 1.0

    @property
    def edges_jaccard(self) -> float:
        return self.shared_edges / self.all_edges if self.all_edges else 1.0


def overlap(
    name: str, ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor], graph: Graph, faithfulness: Estimate
) -> Overlap:
    """Compare two circuits, each as its edges and their scores, (R, S)."""
    kept = ours[0], theirs[0]
    both, either = kept[0] & kept[1], kept[0] | kept[1]
    nodes = [_nodes_of(edges, graph) for edges in kept]
    scores = [values[both].tolist() for _, values in (ours, theirs)]
    return Overlap(
        other=name,
        nodes=len(nodes[1]),
        edges=int(kept[1].sum()),
        shared_nodes=len(nodes[0] & nodes[1]),
        shared_edges=int(both.sum()),
        all_nodes=len(nodes[0] | nodes[1]),
        all_edges=int(either.sum()),
        rank_correlation=rank_correlation(*scores),
        faithfulness=faithfulness,
    )


def _nodes_of(kept: Tensor, graph: Graph) -> set[int]:
    """The nodes at either end of an edge."""
    ends = kept.any(dim=0).nonzero().flatten().tolist()
    return {*ends, *(owner for row in kept.any(dim=1).nonzero().flatten().tolist() for owner in graph.owners[row])}


def written(
    nodes: Sequence[CircuitNode],
    edges: Sequence[CircuitEdge],
    graph: Graph,
    example: Encoding,
    model: str,
    pairs: str,
) -> dict[str, Any]:
    """The members of a graph file. An input of several heads has a link to each of them that is in the circuit."""
    position = len(example.ids) - 1
    places = dict(zip(graph.nodes, graph.places, strict=True))
    ids = {node.name: f"{_layer(places[node.name][0])}_{places[node.name][1]}_{position}" for node in nodes}
    owners = dict(zip(graph.receivers, graph.owners, strict=True))
    links = [
        {
            "source": ids[edge.source],
            "target": ids[graph.nodes[owner]],
            "weight": edge.score,
            "from": edge.source,
            "input": edge.input,
        }
        for edge in edges
        for owner in owners[edge.input]
        if graph.nodes[owner] in ids
    ]
    return {
        "metadata": {
            "slug": Path(pairs).stem,
            "scan": model,
            "transcoder_list": [],
            "prompt_tokens": [token.shown for token in example.tokens],
            "prompt": example.text,
            "node_threshold": None,
            "schema_version": 1,
        },
        "qParams": {"pinnedIds": [*ids.values()], "supernodes": [], "linkType": "both", "clickedId": "", "sg_pos": ""},
        "nodes": [
            {
                "node_id": ids[node.name],
                "jsNodeId": ids[node.name],
                "feature": places[node.name][1],
                "layer": _layer(places[node.name][0]),
                "ctx_idx": position,
                "feature_type": _TYPES.get(node.name, "feed-forward" if node.name.endswith(".ffn") else "head"),
                "clerp": node.name,
                "is_target_logit": node.name == LOGITS,
                "influence": node.score,
                **node.to_dict(),
            }
            for node in nodes
        ],
        "links": links,
    }


def _layer(layer: int) -> str:
    return "E" if layer < 0 else str(layer)


_TYPES = {EMBEDDINGS: "embedding", LOGITS: "logit"}


def read_circuit(path: str | Path, graph: Graph) -> Stored:
    """The circuit of a graph file that tinytf wrote, for a model with this ``graph``.

    Raises CheckpointError for a file that is not JSON, and UsageError, with the node or link, for one that holds no
    circuit of this model.
    """
    path = Path(path)
    data = read_json(path, TOKENIZER)
    nodes, links = (data.get(name) for name in ("nodes", "links"))
    if not isinstance(nodes, list) or not isinstance(links, list):
        raise UsageError(f"{path} is no circuit: it has no nodes and links", _WRITES)
    names: dict[str, str] = {}
    for number, node in enumerate(nodes, 1):
        name = node.get("name") if isinstance(node, dict) else None
        if not isinstance(name, str):
            kind = node.get("feature_type") if isinstance(node, dict) else None
            what = f": it is a {kind!r}, and a circuit is of heads and feed-forwards" if isinstance(kind, str) else ""
            raise UsageError(f"node {number:,} of {path} has no name{what}", _WRITES)
        if name not in graph.nodes:
            raise UsageError(f"node {number:,} of {path} is {name!r}, which this model does not have", _WRITES)
        names[str(node.get("node_id"))] = name
    kept = torch.zeros_like(graph.allowed)
    scores = torch.zeros(graph.allowed.shape, dtype=torch.float64)
    for number, link in enumerate(links, 1):
        ends = (names.get(str(link.get("source"))), link.get("input")) if isinstance(link, dict) else (None, None)
        weight = link.get("weight") if isinstance(link, dict) else None
        if not isinstance(weight, int | float) or isinstance(weight, bool) or not math.isfinite(weight):
            raise UsageError(f"link {number:,} of {path} has no finite weight", _WRITES)
        if ends[0] not in graph.nodes[:-1] or ends[1] not in graph.receivers:
            raise UsageError(f"link {number:,} of {path} joins no node to an input of this model", _WRITES)
        row, column = graph.receivers.index(str(ends[1])), graph.nodes.index(str(ends[0]))
        if not graph.allowed[row, column]:
            raise UsageError(f"link {number:,} of {path} leads back, from {ends[0]} to {ends[1]}", _WRITES)
        kept[row, column], scores[row, column] = True, float(weight)
    return Stored(kept, scores)


_WRITES = "tinytf circuit --pairs FILE -o circuit.json writes one"
