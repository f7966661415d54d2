"""The feature circuit of a prompt: an attribution graph from its tokens, over features, to the answer.

Shapes: S sources, R targets, n features that are left out.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.cause.circuit.graph import graph_of
from tinytf.errors import AddressError, UsageError
from tinytf.estimate import rank_correlation
from tinytf.features.feature_circuit.edges import Attribution, Edges
from tinytf.features.feature_circuit.influence import Pruned, prune, scores, strongest_paths
from tinytf.features.place import own_positions
from tinytf.features.transcoders import TranscoderSet, open_transcoders
from tinytf.look.readout import Ends, Readout, ends_data, in_stream
from tinytf.parts.row import Step
from tinytf.report import About, Data, Progress, Report, Verified, ignore_progress
from tinytf.sentences import percent
from tinytf.steps.operations import Add, Concat, Linear, Mix, Multiply, Norm, Same
from tinytf.steps.table import StepTable, table_of
from tinytf.tables import Array
from tinytf.text.words import AxisNames, find_index
from tinytf.text_model import TextModel
from tinytf.tolerance import RUN, allowed
from tinytf.trace.trace import Text

NODES, EDGES = 0.8, 0.98
"""The default shares of the influence that the kept nodes and edges have, as in circuit-tracer."""
MOST = 256
"""The default number of features of a layer whose sources are computed."""
LEFT_OUT = 24
_LOGITS, _COVERED = 10, 0.95
"""The most probable tokens are explained: at most so many, or those that cover that probability."""
_LINEAR = (Linear, Concat, Mix, Same, Add, Multiply)
_TYPES = {"feature": "cross layer transcoder", "error": "mlp reconstruction error", "token": "embedding",
          "logit": "logit"}  # fmt: skip
"""The kinds of nodes, by the words of circuit-tracer's files."""
_NAME = re.compile(r"L(\d+)(?:F(\d+)|\.error)@(.+)|embed@(.+)", re.DOTALL)


@dataclass(frozen=True)
class GraphNode:
    """A node of a feature circuit.

    Its ``kind`` is feature, error, token or logit; ``number`` is the feature, −1 for an error, or the id of the token.
    ``influence`` is the share of all influence that it and all nodes with more have; ``effect`` is how much of the
    first logit it makes, directly and through other features. ``promoted`` are the tokens that a feature speaks for.
    """

    name: str
    kind: str
    layer: int
    position: int
    number: int
    activation: float | None = None
    influence: float | None = None
    effect: float | None = None
    probability: float = 0.0
    promoted: Ends = ()
    suppressed: Ends = ()


@dataclass(frozen=True)
class GraphLink(Data):
    """An edge: how much the node ``source`` adds to the activation or logit of the node ``target``."""

    source: str
    target: str
    weight: float


@dataclass(frozen=True)
class GraphPath(Data):
    """A path of ``nodes`` from a token or an error to the first logit, and how much of the logit comes along it."""

    nodes: tuple[str, ...]
    weight: float


@dataclass(frozen=True)
class LeftOut(Data):
    """A feature taken out at its position: how the first logit changes, as the graph says and in the model itself.

    ``held`` is the change with attention patterns and the scales of norms as they were, as the graph has them, and
    ``measured`` with all computed again. ``control`` is that when a random direction of the same length is taken out.
    """

    node: str
    predicted: float
    held: float
    measured: float
    control: float


@dataclass(frozen=True)
class FeatureCircuit(Report):
    """The features that make the answer to a prompt, the errors and tokens beside them, and the edges between all.

    Logits are less the mean of all logits. ``logit`` is the first target's, of which ``bias`` is made by biases.
    ``features``, ``errors`` and ``all_edges`` count what there is before pruning, ``traced`` the features whose sources
    were computed. ``replacement`` and ``completeness`` are circuit-tracer's scores of the whole graph.
    ``rank_correlation`` compares the predicted and the measured changes of what was ``left_out``, and
    ``rank_correlation_held`` those with patterns and scales held.
    """

    KIND = "feature_circuit"
    EVENTS: ClassVar = {"paths": "path", "nodes": "node", "links": "link", "left_out": "left_out"}
    TABLE: ClassVar = ("links",)

    transcoders: TranscoderSet
    node_share: float
    edge_share: float
    targets: tuple[GraphNode, ...]
    logit: float
    bias: float
    features: int
    traced: int
    errors: int
    all_edges: int
    replacement: float
    completeness: float
    nodes: tuple[GraphNode, ...]
    links: tuple[GraphLink, ...]
    paths: tuple[GraphPath, ...]
    left_out: tuple[LeftOut, ...]
    check: Verified
    edges: Edges = field(repr=False, compare=False)

    @property
    def rank_correlation(self) -> float | None:
        return rank_correlation(
            *([getattr(each, name) for each in self.left_out] for name in ("predicted", "measured"))
        )

    @property
    def rank_correlation_held(self) -> float | None:
        return rank_correlation([each.predicted for each in self.left_out], [each.held for each in self.left_out])

    def in_a_sentence(self) -> str:
        """Where most of the answer comes from, and how much of the graph is features rather than errors."""
        answer = f"{self.shown(self.targets[0].number)} ({percent(self.targets[0].probability)})"
        of_errors = f"{percent(1 - self.replacement)} of the influence ends in errors of the transcoders"
        features = [node for node in self.nodes if node.kind == "feature" and node.effect is not None]
        if not features:
            return f"No feature of these transcoders makes {answer}: {of_errors}."
        most = max(features, key=lambda node: node.effect or 0.0)
        at = self.encoding.tokens[most.position].shown
        words = f"Of the logit of {answer}, {self.logit:.3g}, the graph gives most to {most.name}, at {at}"
        words += f": {most.effect:+.3g}"
        measured = next((each.measured for each in self.left_out if each.node == most.name), None)
        without = "" if measured is None else f"; without it the model's changes by {measured:+.3g}"
        return f"{words}{without}; {of_errors}."

    def node(self, name: str) -> GraphNode:
        """The node of that name; a position may be a token, as in ``L2F85@cat``, and a logit is named by its token.

        Raises AddressError for one that is not there.
        """
        nodes = {node.name: node for node in self.nodes}
        if name in nodes:
            return nodes[name]
        match = _NAME.fullmatch(name)
        if match is not None:
            word, tokens = match[3] or match[4], [token.shown for token in self.encoding.tokens]
            name = f"{name[: -len(word)]}{find_index(word, 'token', len(tokens), AxisNames(tokens))}"
            if name in nodes:
                return nodes[name]
        for target in self.targets:
            if name.strip() == str(self.shown(target.number)).strip("·"):
                return target
        raise AddressError(f"there is no node {name} in this circuit", "--all lists them; --keep 1 leaves none out")

    def into(self, name: str) -> list[GraphLink]:
        """The edges to a node, the largest first, whatever their signs."""
        return sorted((link for link in self.links if link.target == name), key=lambda link: -abs(link.weight))

    def out_of(self, name: str) -> list[GraphLink]:
        """The edges from a node, the largest first."""
        return sorted((link for link in self.links if link.source == name), key=lambda link: -abs(link.weight))

    def fields(self) -> dict[str, Any]:
        """The circuit in the members of circuit-tracer's graphs, and how it was made and measured beside them."""
        ids = {node.name: self._id(node) for node in self.nodes}
        return {
            "transcoders": self.transcoders.to_dict(),
            **self.members("node_share", "edge_share", "logit", "bias", "features", "traced", "errors", "all_edges",
                           "replacement", "completeness", "rank_correlation", "rank_correlation_held",
                           "left_out", "paths", "check"),
            "metadata": {
                "slug": "prompt",
                "scan": self.transcoders.name,
                "transcoder_list": [],
                "prompt_tokens": [token.shown for token in self.encoding.tokens],
                "prompt": self.encoding.text,
                "node_threshold": self.node_share,
                "schema_version": 1,
            },
            "qParams": {"pinnedIds": [], "supernodes": [], "linkType": "both", "clickedId": "", "sg_pos": ""},
            "nodes": [self._written(node) for node in self.nodes],
            "links": [
                {
                    "source": ids[link.source],
                    "target": ids[link.target],
                    "weight": link.weight,
                    "from": link.source,
                    "to": link.target,
                }
                for link in self.links
            ],
        }  # fmt: skip

    def _id(self, node: GraphNode) -> str:
        return f"{self._layer(node)}_{node.number}_{node.position}"

    def _layer(self, node: GraphNode) -> str:
        return "E" if node.kind == "token" else str(node.layer)

    def _written(self, node: GraphNode) -> dict[str, Any]:
        """A node as circuit-tracer writes it: a feature's number is paired with its layer (Cantor)."""
        total = node.layer + node.number
        paired = {"feature": total * (total + 1) // 2 + node.number, "token": node.position}
        last = 0 if node.kind == "feature" else node.position
        words = f'Output "{self.shown(node.number)}" (p={node.probability:.3f})'
        return {
            "node_id": self._id(node),
            "jsNodeId": f"{'L' if node.kind == 'logit' else self._layer(node)}_{node.number}-{last}",
            "feature": paired.get(node.kind, node.number),
            "layer": self._layer(node),
            "ctx_idx": node.position,
            "feature_type": _TYPES[node.kind],
            "token_prob": node.probability,
            "is_target_logit": node.name == self.targets[0].name,
            "run_idx": 0,
            "reverse_ctx_idx": 0,
            "clerp": words if node.kind == "logit" else "",
            "influence": node.influence,
            "activation": node.activation,
            "name": node.name,
            "kind": node.kind,
            "number": node.number,
            "effect": node.effect,
            **ends_data(self, node.promoted, node.suppressed),
        }

    def stored(self) -> list[Array]:
        """All edges before pruning (target, source), and which source, if any, a target is."""
        return [
            Array.of("weights", ["target", "source"], self.edges.weights),
            Array.of("own", ["target"], self.edges.own),
            Array.of("activations", ["target"], self.edges.values),
        ]


def feature_circuit(
    model: TextModel,
    text: Text,
    transcoders: TranscoderSet | str | Path,
    *,
    answer: str | int | None = None,
    node_share: float = NODES,
    edge_share: float = EDGES,
    most: int | None = MOST,
    left_out: int = LEFT_OUT,
    paths: int = 5,
    tokens: int = 3,
    seed: int = 0,
    on_progress: Progress = ignore_progress,
) -> FeatureCircuit:
    """Trace the answer to a text back to its tokens, over the features of ``transcoders`` that are active.

    With attention patterns and the scales of norms held as they are, and each feed-forward as its transcoder's features
    and an error, every logit and every feature before its activation function is a sum of what earlier nodes add, and
    a bias (Ameisen et al. 2025). Explained is the ``answer``, or the most probable tokens: up to 10, or those
    that cover 95 %. Sources are computed for the ``most`` features of each layer with the largest influence (None: for
    all). Pruning keeps the nodes with ``node_share`` of the influence and the edges with ``edge_share``. The
    ``left_out`` features with the largest effects are then taken out of the model itself, one by one.

    Raises UsageError for transcoders that do not fit, for a model whose stream is no plain sum or in which more than
    patterns, norms and feed-forwards is not linear, for weights of 16 bits, and for shares out of range;
    CheckpointError like ``open_transcoders``.
    """
    for name, share in (("nodes", node_share), ("edges", edge_share)):
        if not 0 < share <= 1:
            raise UsageError(f"{name} cannot keep {share:g} of the influence", "give a share above 0, at most 1")
    followed = model.optional_outcome(answer)
    graph_of(model.transformer)  # refuses other streams
    _require_linear(table_of(model.config))
    dtype = next(model.transformer.parameters()).dtype
    if dtype.itemsize < 4:
        raise UsageError(f"edges do not add up in {str(dtype).removeprefix('torch.')}", "use --dtype float32")
    trace = model.trace(text)
    if not isinstance(transcoders, TranscoderSet):
        transcoders = open_transcoders(transcoders)
    transcoders = transcoders.to(trace.last_hidden.device)
    attribution = Attribution(model.transformer, trace.encoding.ids, own_positions(trace.encoding), transcoders)
    probabilities = attribution.frozen.logits.detach().double().softmax(-1).cpu()
    if followed is None:
        best = probabilities.topk(min(_LOGITS, len(probabilities)))
        count = int((best.values.cumsum(0) < _COVERED).sum()) + 1
        targets = best.indices[:count].tolist()
    else:
        targets = [followed]
    edges = attribution.edges(targets, probabilities[targets], most, on_progress)
    return _Report(model, trace, attribution, edges, prune(edges, node_share, edge_share), tokens).made(
        node_share, edge_share, paths, left_out, seed
    )


def _require_linear(table: StepTable) -> None:
    """Raise UsageError for a model in which a step between a norm and what attention adds is not linear."""
    for layer in range(table.config.n_layers):
        waiting: list[Step] = [step for step in table.added_in(layer) if step.role == "attention"]
        seen: set[str] = set()
        while waiting:
            step = waiting.pop()
            if not (isinstance(step.operation, _LINEAR) or type(step.operation) is Norm):
                name = f"L{layer}.{step.name}"
                raise UsageError(
                    f"{name} is not linear with attention patterns held as they are: {step.title}",
                    "feature circuits need values that are a matrix times a norm, as in GPT-2, Llama or Gemma",
                )
            for source, at in table.sources(step, layer):
                before = table.at(source, at)
                if at == layer and not before.is_map and before.role != "residual" and source not in seen:
                    seen.add(source)
                    waiting.append(before)


class _Report:
    """Makes the report of edges: names, directions of features, and what happens without them."""

    def __init__(
        self, model: TextModel, trace: Any, attribution: Attribution, edges: Edges, pruned: Pruned, tokens: int
    ) -> None:
        self.model, self.trace, self.attribution, self.edges, self.pruned = model, trace, attribution, edges, pruned
        self.tokens, self.effects = tokens, edges.effects

    def made(self, node_share: float, edge_share: float, paths: int, left_out: int, seed: int) -> FeatureCircuit:
        edges, pruned, transcoders = self.edges, self.pruned, self.attribution.set
        kept = pruned.sources.nonzero().flatten().tolist()
        last = len(self.trace.tokens) - 1
        targets = tuple(
            GraphNode(f"logit #{token}", "logit", self.model.config.n_layers + 1, last, token, probability=p)
            for token, p in zip(edges.targets, edges.probabilities.tolist(), strict=True)
        )
        nodes = {number: self._node(number) for number in kept}
        rows: dict[int, GraphNode] = dict(enumerate(targets)) | {
            row: nodes[own] for row, own in enumerate(edges.own.tolist()) if own >= 0 and own in nodes
        }
        places, columns = pruned.edges.nonzero(as_tuple=True)
        weights = edges.weights[places, columns].tolist()
        links = tuple(
            GraphLink(nodes[column].name, rows[row].name, weight)
            for row, column, weight in zip(places.tolist(), columns.tolist(), weights, strict=True)
        )
        replacement, completeness = scores(edges)
        directed = self._with_directions([node for node in nodes.values() if node.kind == "feature"])
        dtype = edges.weights.dtype
        return FeatureCircuit(
            transcoders=transcoders,
            node_share=node_share,
            edge_share=edge_share,
            targets=targets,
            logit=float(edges.values[0]),
            bias=float(edges.biases[0]),
            features=edges.sources.n_features,
            traced=len(edges.own) - len(targets),
            errors=edges.sources.errors.stop - edges.sources.errors.start,
            all_edges=int((edges.weights != 0).sum()),
            replacement=replacement,
            completeness=completeness,
            nodes=(*(directed.get(node.name, node) for node in nodes.values()), *targets),
            links=links,
            paths=tuple(
                GraphPath((*(nodes[number].name for number in path), targets[0].name), weight)
                for weight, path in strongest_paths(edges, pruned, paths)
            ),
            left_out=tuple(self._left_out(left_out, seed)),
            check=Verified("the edges into each feature and logit, and its bias, add up to it", edges.difference,
                           allowed(RUN, dtype)),
            edges=edges,
            about=About(self.model, self.trace.encoding),
        )  # fmt: skip

    def _node(self, number: int) -> GraphNode:
        sources = self.edges.sources
        influence, effect = float(self.pruned.cumulative[number]), float(self.effects[number])
        if number < sources.n_features:
            layer, position, feature = (int(of[number]) for of in (sources.layer, sources.position, sources.number))
            name, activation = f"L{layer}F{feature}@{position}", float(sources.activation[number])
            return GraphNode(name, "feature", layer, position, feature, activation, influence, effect)
        if number < sources.errors.stop:
            place, position = divmod(number - sources.errors.start, sources.positions)
            layer = sources.layers[place]
            return GraphNode(f"L{layer}.error@{position}", "error", layer, position, -1, None, influence, effect)
        position = number - sources.tokens.start
        return GraphNode(f"embed@{position}", "token", -1, position, self.trace.encoding.ids[position], None, influence,
                         effect)  # fmt: skip

    @torch.no_grad()
    def _with_directions(self, features: Sequence[GraphNode]) -> dict[str, GraphNode]:
        """The features by name, with the tokens that what they write speaks for, in all layers together."""
        if not features or not self.tokens:
            return {}
        attribution, found = self.attribution, dict[str, GraphNode]()
        for layer, number in attribution.numbers.items():
            of_layer = [node for node in features if node.layer == layer]
            directions = attribution.set.directions(number)[[node.number for node in of_layer]].sum(1)
            write = next(at.write for at in attribution.replaced if at.layer == layer)
            rows, is_added = in_stream(self.model.transformer, write.name, layer, directions)
            readout = Readout(self.model.transformer, "rows of W_dec", "feature", is_added)
            if rows is None or not readout.has_directions or not of_layer:
                continue
            for node, ends in zip(of_layer, readout.ends(rows, self.tokens), strict=True):
                members = {**vars(node), "promoted": ends[0], "suppressed": ends[1]}
                found[node.name] = GraphNode(**members)
        return found

    def _left_out(self, count: int, seed: int) -> Iterator[LeftOut]:
        """Take out the features with the largest effects, and random directions of the same lengths."""
        effects = self.effects[: self.edges.sources.n_features]
        chosen = effects.abs().topk(min(count, int((effects != 0).sum()))).indices.tolist()
        if not chosen:
            return
        generator, position = torch.Generator().manual_seed(seed), self.edges.sources.position
        changes: list[list[tuple[int, int, Tensor]]] = [[]]
        for number in chosen:
            vectors = self.attribution.vectors(number)
            changes.append([(layer, int(position[number]), -vector) for layer, vector in vectors])
        for number in chosen:
            random = []
            for layer, vector in self.attribution.vectors(number):
                drawn = torch.randn(vector.shape, generator=generator).to(vector)
                random.append((layer, int(position[number]), drawn * (vector.norm() / drawn.norm())))
            changes.append(random)
        target = self.edges.targets[0]
        plain_logit, *logits = self.attribution.measured(changes, target).tolist()
        plain_held, *held = self.attribution.measured(changes[: len(chosen) + 1], target, held=True).tolist()
        for index, number in enumerate(chosen):
            measured, control = (logits[index + offset] - plain_logit for offset in (0, len(chosen)))
            name, predicted = self._node(number).name, -float(effects[number])
            yield LeftOut(name, predicted, held[index] - plain_held, measured, control)
