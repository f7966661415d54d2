"""The graph of a decoder's residual stream: which nodes add to it, and which inputs read what they added.

A node is the embeddings, a head, a feed-forward, or the logits. An edge leads from a node to one input of a later one:
the queries, keys or values of a head, what a feed-forward reads, or what the logits are computed from (Conmy et al.
2023). Query heads that share keys share that input too. Shapes: R receivers (inputs), S senders (nodes but the logits).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.parts.row import Step
from tinytf.report import Data
from tinytf.steps.operations import Add, Difference, HeadNorm, Linear, MixHeads, Multiply, Norm, PairNorm, Same
from tinytf.steps.table import StepTable, table_of

EMBEDDINGS, LOGITS = "embed", "logits"
_PROJECTED = ("q", "k", "v")
"""The roles of what heads compute from the stream."""


@dataclass(frozen=True)
class Reading:
    """Where the receivers from ``first`` on, ``count`` of them, read the stream: each has an edge from ``senders``.

    ``readers`` are the steps that take the value of the ``stream`` step, each with the number of that input; with a
    ``norm``, they take its output. ``split``: each receiver is a head of the reader.
    """

    layer: int | None
    stream: str
    norm: Step | None
    readers: tuple[tuple[Step, int], ...]
    first: int
    count: int
    senders: int
    split: bool

    @property
    def rows(self) -> slice:
        return slice(self.first, self.first + self.count)


@dataclass(frozen=True)
class Adding:
    """A ``step`` whose output is added to the stream behind the steps of ``path``: by one sender, or by one a head."""

    layer: int
    step: Step
    path: tuple[Step, ...]
    heads: int


@dataclass(frozen=True)
class Graph:
    """The nodes of a model in the order of computation, the logits last, and the receivers with the nodes they feed.

    ``places`` are the layer and the column of each node: the embeddings are in layer −1, the logits in the one after
    the last, and a feed-forward follows the heads. ``owners[r]`` are the indices of the nodes that receiver r is an
    input of: several heads may share keys. The heads of a ``coupled`` group depend on one another's inputs.
    """

    nodes: tuple[str, ...]
    places: tuple[tuple[int, int], ...]
    receivers: tuple[str, ...]
    owners: tuple[tuple[int, ...], ...]
    readings: tuple[Reading, ...]
    addings: tuple[Adding, ...]
    coupled: tuple[tuple[int, ...], ...] = ()

    @property
    def n_senders(self) -> int:
        return len(self.nodes) - 1

    @cached_property
    def allowed(self) -> Tensor:
        """Which edges exist: (R, S) bool."""
        senders = torch.tensor([reading.senders for reading in self.readings for _ in range(reading.count)])
        return torch.arange(self.n_senders) < senders[:, None]

    @cached_property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """The receivers of each node; none for the embeddings."""
        return tuple(
            tuple(row for row, owners in enumerate(self.owners) if node in owners) for node in range(len(self.nodes))
        )

    @cached_property
    def owning(self) -> Tensor:
        """Which receiver is an input of which node: (R, S + 1) bool."""
        owning = torch.zeros(len(self.receivers), len(self.nodes), dtype=torch.bool)
        for row, owners in enumerate(self.owners):
            owning[row, list(owners)] = True
        return owning

    def alive(self, kept: Tensor) -> Tensor:
        """The kept edges (R, S) on a path from the embeddings to the logits; the others carry nothing.

        A node that nothing reaches has the values of the corrupt run, and what only leads to a node without a way to
        the logits changes nothing there.
        """
        kept = kept & self.allowed
        reached, needed = (torch.zeros(len(self.nodes), dtype=torch.bool) for _ in range(2))
        reached[0] = needed[-1] = True
        group_of = {node: list(group) for group in self.coupled for node in group}
        for node in range(1, len(self.nodes)):
            if bool((kept[list(self.inputs[node])] & reached[:-1]).any()):
                reached[group_of.get(node, node)] = True
        for node in reversed(range(self.n_senders)):
            if bool((self.owning[kept[:, node]] & needed).any()):
                needed[group_of.get(node, node)] = True
        return kept & reached[:-1] & (self.owning & needed).any(dim=1)[:, None]

    def among(self, nodes: Tensor) -> Tensor:
        """All edges (R, S) between some of the nodes, (S + 1) bool."""
        return self.allowed & nodes[:-1] & (self.owning & nodes).any(dim=1)[:, None]


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
    """An edge from the node ``source`` to the ``input`` of a later node, such as ``L3H5.q``."""

    source: str
    input: str
    score: float


def graph_of(model: Transformer) -> Graph:
    """The graph of a model. Raises UsageError for one whose stream is not a plain sum that known inputs read."""
    table, config = table_of(model.config), model.config
    if not config.causal:
        raise _refusal("this model is an encoder, and circuits are found in decoders")
    model.require_vocabulary("there is no next token to find a circuit for")
    if table.carried:
        name = next(iter(table.carried))
        raise _refusal(f"layers of this model take {name} beside the residual stream")
    if table.final == table.output:
        raise _refusal("this model norms the residual stream itself, so it is not a sum of what its parts add")
    nodes, places = [EMBEDDINGS], [(-1, 0)]
    receivers, owners = list[str](), list[tuple[int, ...]]()
    readings, addings, coupled = list[Reading](), list[Adding](), list[tuple[int, ...]]()

    def read(layer: int | None, names: list[str], feeding: list[tuple[int, ...]], *where: object) -> None:
        stream, norm, readers, senders, split = where
        first = len(receivers)
        readings.append(Reading(layer, stream, norm, readers, first, len(names), senders, split))  # type: ignore[arg-type]
        receivers.extend(names)
        owners.extend(feeding)

    for layer in range(config.n_layers):
        branches = _Branches(table, layer)
        own, before = config.at(layer), len(nodes)
        heads = own.n_heads
        for step, stream, norm in branches.projections():
            sharing = own.heads_per_kv if "kv head" in step.axes else 1
            groups = [range(first, first + sharing) for first in range(0, heads, sharing)]
            names = [f"L{layer}H{_range(group)}.{step.role}" for group in groups]
            feeding = [tuple(before + head for head in group) for group in groups]
            read(layer, names, feeding, stream, norm, ((step, 0),), before, True)
        adding = branches.attention
        if adding is not None:
            nodes += [f"L{layer}H{head}" for head in range(heads)]
            places += [(layer, head) for head in range(heads)]
            addings.append(Adding(layer, adding, branches.paths[adding.name], heads))
            if branches.couples_heads:
                coupled.append(tuple(range(before, before + heads)))
        if branches.feed_forward is not None:
            stream, norm, readers = branches.feed_forward_input()
            # of a parallel block, the feed-forward reads the stream without its own layer's heads
            senders = before if stream == table.stream(layer)[-1] else len(nodes)
            read(layer, [f"L{layer}.ffn"], [(len(nodes),)], stream, norm, readers, senders, False)
            nodes.append(f"L{layer}.ffn")
            places.append((layer, heads))
            step = branches.feed_forward
            addings.append(Adding(layer, step, branches.paths[step.name], 0))
    final = table.at(table.final, None)
    read(None, [LOGITS], [(len(nodes),)], table.output, None, ((final, 0),), len(nodes), False)
    ends = (*places, (config.n_layers, 0))
    wiring = tuple(owners), tuple(readings), tuple(addings), tuple(coupled)
    return Graph((*nodes, LOGITS), ends, tuple(receivers), *wiring)


class _Branches:
    """The branches of one layer: what reads the stream, and what is added to it. Raises UsageError for any other."""

    def __init__(self, table: StepTable, layer: int) -> None:
        self.table, self.layer = table, layer
        self.stream = table.stream(layer)[::-1]
        self.paths = {step.name: table.to_stream(step, layer)[:-1] for step in table.added_in(layer)}
        ends = {name: (path[-1].name if path else name) for name, path in self.paths.items()}
        for name, below in zip(self.stream, ("", *self.stream), strict=False):
            step = table.at(name, layer)
            sources = {source for source, _ in table.sources(step, layer)} - {below}
            plain = isinstance(step.operation, Same) or (
                isinstance(step.operation, Add) and below in (*step.inputs, "")
            )
            if not plain or (below and not sources <= {*ends.values()}):
                raise _refusal(f"the stream of this model is no plain sum: L{layer}.{name} is {step.formula}")
        for step in (step for path in self.paths.values() for step in path):
            if not isinstance(step.operation, Norm | Multiply):
                raise _refusal(f"L{layer}.{step.name} stands between a branch and the stream: {step.title}")
        added = [table.at(name, layer) for name in self.paths]
        self.attention = next((step for step in added if step.role == "attention"), None)
        self.feed_forward = next((step for step in added if step.role == "ffn"), None)
        if self.attention is not None:
            heads = table.head_output(layer)
            joined = table.at(self.attention.inputs[0], layer)
            if heads is None or joined.inputs != (heads.name,) or type(self.attention.operation) is not Linear:
                raise _refusal(f"L{layer}.{self.attention.name} is no sum over heads: {self.attention.formula}")
        self.reads = list(self._reads())

    @property
    def couples_heads(self) -> bool:
        """Whether what one head adds depends on the inputs of others: by a norm of their sum, or by steps that mix."""
        normed = any(isinstance(step.operation, Norm) for name in self.paths for step in self.paths[name])
        mixing = (MixHeads, Difference, PairNorm, HeadNorm)
        return normed or any(isinstance(step.operation, mixing) for step in self.table.in_layer(self.layer))

    def _reads(self) -> Iterator[tuple[Step, int, str, Step | None]]:
        """Yield every step that reads the stream, directly or through a norm: step, input, stream step, norm."""
        for name in self.stream:
            for reader, number in self._readers(name):
                if reader.name in self.stream:
                    continue
                through_norm = isinstance(reader.operation, Norm)
                found = self._readers(reader.name) if through_norm else [(reader, number)]
                for step, at in found:
                    is_projection = step.role in _PROJECTED and step.has_heads and type(step.operation) is Linear
                    if not is_projection and step.role != "ffn":
                        raise _refusal(f"L{self.layer}.{step.name} reads the stream too: {step.title}")
                    yield step, at, name, reader if through_norm else None

    def _readers(self, name: str) -> list[tuple[Step, int]]:
        consumers = self.table.consumers((name, self.layer))
        return [(step, number) for step, at, number in consumers if at == self.layer and not step.from_stream]

    def projections(self) -> Iterator[tuple[Step, str, Step | None]]:
        """Yield the projections of the heads, each with the stream step and the norm that it reads."""
        for step, _, stream, norm in self.reads:
            if step.role in _PROJECTED:
                yield step, stream, norm

    def feed_forward_input(self) -> tuple[str, Step | None, tuple[tuple[Step, int], ...]]:
        """The stream step, norm and readers of the feed-forward; a norm of its own alone counts as its reader."""
        reads = [(step, number, stream, norm) for step, number, stream, norm in self.reads if step.role == "ffn"]
        _, _, stream, norm = reads[0]
        if norm is not None and all(step.role == "ffn" for step, _ in self._readers(norm.name)):
            return stream, None, ((norm, 0),)
        return stream, norm, tuple((step, number) for step, number, _, _ in reads)


def _range(heads: range) -> str:
    return str(heads[0]) if len(heads) == 1 else f"{heads[0]}-{heads[-1]}"


def _refusal(why: str) -> UsageError:
    return UsageError(
        why, "circuits need a decoder whose residual stream is a plain sum, such as GPT-2, Llama or Gemma"
    )
