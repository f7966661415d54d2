"""Circuits in the graph files of circuit-tracer (Ameisen et al. 2025), read and written.

Its viewers take ``metadata``, ``qParams``, ``nodes`` and ``links``. A circuit has no positions: its nodes stand at the
last token of the first clean text. Beside those members a node has its ``name``, and a link the name that it comes
``from`` and the ``input`` that it feeds.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tinytf.cause.circuits.choice import LEVELS, Choice, CircuitNode
from tinytf.cause.circuits.edges import METHODS
from tinytf.cause.circuits.graph import EMBEDDINGS, LOGITS, Graph
from tinytf.errors import UsageError
from tinytf.files import TOKENIZER, read_json
from tinytf.text.tokenizer import Encoding

_TYPES = {EMBEDDINGS: "embedding", LOGITS: "logit"}
_WRITES = "tinytf circuit --pairs FILE -o circuit.json writes one"


def written(
    choice: Choice, nodes: tuple[CircuitNode, ...], example: Encoding, model: str, pairs: str
) -> dict[str, Any]:
    """The members of a graph file. An input of several heads has a link to each of them that is in the circuit."""
    graph, position = choice.graph, len(example.ids) - 1
    places = dict(zip(graph.nodes, graph.places, strict=True))
    layers = {node.name: "E" if places[node.name][0] < 0 else str(places[node.name][0]) for node in nodes}
    ids = {name: f"{layer}_{places[name][1]}_{position}" for name, layer in layers.items()}
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
                "layer": layers[node.name],
                "ctx_idx": position,
                "feature_type": _TYPES.get(node.name, "feed-forward" if node.name.endswith(".ffn") else "head"),
                "clerp": node.name,
                "is_target_logit": node.name == LOGITS,
                "influence": node.score,
                **node.to_dict(),
            }
            for node in nodes
        ],
        "links": [
            {
                "source": ids[edge.source],
                "target": ids[target],
                "weight": edge.score,
                "from": edge.source,
                "input": edge.input,
            }
            for edge, target in choice.links
        ],
    }


def read_circuit(path: str | Path, graph: Graph) -> Choice:
    """The circuit of a graph file that tinytf wrote, for a model with this ``graph``; edges on no path are dropped.

    Raises CheckpointError for a file that is not JSON, and UsageError, with the node or link, for one that holds no
    circuit of this model.
    """
    path = Path(path)
    data = read_json(path, TOKENIZER)
    nodes, links = (data.get(name) for name in ("nodes", "links"))
    if not isinstance(nodes, list) or not isinstance(links, list):
        raise UsageError(f"{path} is no circuit: it has no nodes and links", _WRITES)
    level, method, steps, pairs = (data.get(name) for name in ("level", "method", "steps", "chosen_from"))
    if level not in LEVELS or method not in METHODS or not isinstance(steps, int):
        raise UsageError(f"{path} does not say how its circuit was chosen: by level, method and steps", _WRITES)
    of_nodes, scores = (torch.zeros(size, dtype=torch.float64) for size in (graph.n_senders, graph.allowed.shape))
    kept = torch.zeros_like(graph.allowed)
    names: dict[str, str] = {}
    for number, node in enumerate(nodes, 1):
        name = _named(node, f"node {number:,} of {path}", graph)
        names[str(node.get("node_id"))] = name
        if name != LOGITS:
            of_nodes[graph.nodes.index(name)] = _finite(node.get("score"), f"node {number:,} of {path} has", "score")
    for number, link in enumerate(links, 1):
        what, link = f"link {number:,} of {path}", link if isinstance(link, Mapping) else {}
        weight = _finite(link.get("weight"), f"{what} has", "weight")
        source, target = names.get(str(link.get("source"))), link.get("input")
        if source not in graph.nodes[:-1] or target not in graph.receivers:
            raise UsageError(f"{what} joins no node to an input of this model", _WRITES)
        row, column = graph.receivers.index(str(target)), graph.nodes.index(str(source))
        if not graph.allowed[row, column]:
            raise UsageError(f"{what} leads back, from {source} to {target}", _WRITES)
        kept[row, column], scores[row, column] = True, weight
    kept = graph.alive(kept)
    if not kept.any():
        raise UsageError(f"{path} holds no circuit: no path leads from the embeddings to the logits", _WRITES)
    name = pairs if isinstance(pairs, str) else str(data.get("pairs"))
    return Choice(graph, kept, scores, of_nodes if level == "nodes" else None, level, method, steps, pairs=name)


def _named(node: Any, what: str, graph: Graph) -> str:
    """The name of a node."""
    name, kind = (node.get(key) if isinstance(node, Mapping) else None for key in ("name", "feature_type"))
    if not isinstance(name, str):
        about = f": it is a {kind!r}, and a circuit is of heads and feed-forwards" if isinstance(kind, str) else ""
        raise UsageError(f"{what} has no name{about}", _WRITES)
    if name not in graph.nodes:
        raise UsageError(f"{what} is {name!r}, which this model does not have", _WRITES)
    return name


def _finite(value: Any, what: str, noun: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) <= sys.float_info.max:  # so for NaN, and whole numbers beyond any float
        raise UsageError(f"{what} no finite {noun}", _WRITES)
    return float(value)
