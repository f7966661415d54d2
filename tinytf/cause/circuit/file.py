"""Circuits in the graph files of circuit-tracer (Ameisen et al. 2025), read and written.

Its viewers take ``metadata``, ``qParams``, ``nodes`` and ``links``. Where a circuit tells no positions apart, its nodes
stand at the last token of the first clean text. Beside those members a node has its ``name``, and a link the name that
it comes ``from`` and the ``input`` that it feeds.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from tinytf.cause.circuit.choice import LEVELS, Choice
from tinytf.cause.circuit.edges import METHODS
from tinytf.cause.circuit.graph import EMBEDDINGS, LOGITS, Graph
from tinytf.errors import UsageError
from tinytf.fields import Fields
from tinytf.files import TOKENIZER, read_json
from tinytf.text.tokenizer import Encoding

_TYPES = {EMBEDDINGS: "embedding", LOGITS: "logit"}
_WRITES = "tinytf circuit --pairs FILE -o circuit.json writes one"


def written(choice: Choice, example: Encoding, model: str, pairs: str) -> dict[str, Any]:
    """The members of a graph file. An input of several heads has a link to each of them that is in the circuit."""
    graph, nodes = choice.graph, choice.nodes
    places = {node.name: graph.places[graph.named[node.name][0]] for node in nodes}
    last = len(example.ids) - 1
    positions = {name: last if graph.positions == 1 else graph.named[name][1] for name in places}
    layers = {name: "E" if layer < 0 else str(layer) for name, (layer, _) in places.items()}
    ids = {name: f"{layer}_{places[name][1]}_{positions[name]}" for name, layer in layers.items()}
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
                "ctx_idx": positions[node.name],
                "feature_type": _type(graph.nodes[graph.named[node.name][0]]),
                "clerp": node.name,
                "is_target_logit": graph.nodes[graph.named[node.name][0]] == LOGITS,
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
                "without": edge.without,
            }
            for edge, target in choice.links
        ],
    }


def tells(positions: int) -> str:
    """What a circuit tells apart, in words."""
    return "tells no positions apart" if positions == 1 else f"tells {positions:,} positions apart"


def level_of(path: str | Path) -> str:
    """The level of the circuit in a file. Raises CheckpointError and UsageError like ``read_circuit``."""
    level = read_json(Path(path), TOKENIZER).get("level")
    if level not in LEVELS:
        raise UsageError(f"{path} is no circuit: it has no level, method and steps", _WRITES)
    return str(level)


def _type(node: str) -> str:
    return _TYPES.get(node, "feed-forward" if node.endswith(".ffn") else "head")


def read_circuit(path: str | Path, graph: Graph) -> Choice:
    """The circuit of a graph file that tinytf wrote, for a model with this ``graph``; edges on no path are dropped.

    Raises CheckpointError for a file that is not JSON, and UsageError, with the node or link, for one that holds no
    circuit of this model, or tells other positions apart than the graph.
    """
    path = Path(path)
    data = read_json(path, TOKENIZER)
    level, method, steps = (data.get(name) for name in ("level", "method", "steps"))
    if level not in LEVELS or method not in METHODS or not isinstance(steps, int):
        raise UsageError(f"{path} is no circuit: it has no level, method and steps", _WRITES)
    tokens = (Fields(data, path).object("metadata") or Fields({}, path)).data.get("prompt_tokens")
    positions = len(tokens) if level == "positions" and isinstance(tokens, list) else 1
    if positions != graph.positions:
        raise UsageError(
            f"{path} {tells(positions)}, and the circuit of these pairs {tells(graph.positions)}",
            "circuits are compared at one --level, and at the level positions over texts of as many tokens",
        )
    scores = torch.zeros(graph.allowed.shape, dtype=torch.float64)
    of_nodes = torch.zeros(graph.n_senders, 1, dtype=torch.float64)
    kept = torch.zeros_like(graph.allowed)
    for where, link in _records(data, "link", path):
        source, target = str(link.get("from")), str(link.get("input"))
        if source not in graph.named or target not in graph.inputs_named:
            raise UsageError(f"{where} leads from no node to an input of this model", _WRITES)
        (row, position), (sender, at) = graph.inputs_named[target], graph.named[source]
        if sender == graph.n_senders or position != at:
            raise UsageError(f"{where} leads from no node to an input of this model", _WRITES)
        place = row, sender, position
        if not graph.allowed[place]:
            raise UsageError(f"{where} leads back, from {source} to {target}", _WRITES)
        kept[place], scores[place] = True, _finite(link, "weight", where)
    for where, node in _records(data, "node", path) if level == "nodes" else ():
        if (name := str(node.get("name"))) not in graph.named:
            raise UsageError(f"{where} is no node of this model", _WRITES)
        if name != LOGITS:
            of_nodes[graph.named[name]] = _finite(node, "score", where)
    kept = graph.alive(kept)
    if not kept.any():
        raise UsageError(f"{path} is no circuit: no path leads from the embeddings to the logits", _WRITES)
    pairs = data.get("chosen_from") or data.get("pairs")
    return Choice(
        graph, kept, scores, of_nodes if level == "nodes" else None, level, method, steps, chosen_from=str(pairs)
    )


def _records(data: Mapping[str, Any], noun: str, path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the nodes or links of a file, each with where it is."""
    records = data.get(f"{noun}s")
    for number, record in enumerate(records if isinstance(records, list) else (), 1):
        yield f"{noun} {number:,} of {path}", record if isinstance(record, Mapping) else {}


def _finite(record: Mapping[str, Any], name: str, where: str) -> float:
    value: Any = record.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) <= sys.float_info.max:  # so for NaN, and whole numbers beyond any float
        raise UsageError(f"{where} has no finite {name}", _WRITES)
    return float(value)
