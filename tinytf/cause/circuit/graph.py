"""The graph of a decoder's residual stream: which nodes add to it, and which inputs read what they added.

A node is the embeddings, a head, a feed-forward, or the logits. An edge leads from a node to one input of a later one:
the queries, keys or values of a head, what a feed-forward reads, or what the logits are computed from (Conmy et al.
2023). Query heads that share keys share that input too. An edge stands for all tokens, or, where positions are told
apart, for one: it leads from what a node adds there to what an input reads there, which a head sees by its keys and
values from later tokens too. Shapes: R receivers (inputs), S senders (nodes but the logits), P positions, or 1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.parts.row import Step
from tinytf.steps.operations import Add, Linear, Multiply, Norm, Same
from tinytf.steps.table import StepTable, table_of

EMBEDDINGS, LOGITS = "embed", "logits"
_PROJECTED = ("q", "k", "v")
"""The roles of what heads compute from the stream."""


@dataclass(frozen=True)
class Reading:
    """Where some ``receivers``, which are numbered from ``first`` on, read the stream: each from the ``senders`` first
    nodes.

    ``readers`` are the steps that take the value of the stream, each with the number of that input; with a ``norm``,
    they take its output. ``owners`` are the nodes that each receiver is an input of: several heads may share keys.
    ``split``: each receiver is a head of the reader.
    """

    layer: int | None
    norm: Step | None
    readers: tuple[tuple[Step, int], ...]
    receivers: tuple[str, ...]
    owners: tuple[tuple[int, ...], ...]
    senders: int
    split: bool = False
    first: int = 0

    @property
    def rows(self) -> slice:
        return slice(self.first, self.first + len(self.receivers))

    @property
    def is_seen_later(self) -> bool:
        """Whether later tokens see what is read here: keys and values."""
        return self.split and self.readers[0][0].role != "q"


@dataclass(frozen=True)
class Adding:
    """A ``step`` whose output is added to the stream behind the steps of ``path``: by one sender, or by one a head."""

    layer: int
    step: Step
    path: tuple[Step, ...]
    heads: int


@dataclass(frozen=True)
class Graph:
    """The nodes of a model in the order of computation, the logits last, and where they read and add.

    ``places`` are the layer and the column of each node: the embeddings are in layer −1, the logits in the one after
    the last, and a feed-forward follows the heads. The heads of a ``coupled`` group depend on one another's inputs.
    Edges are told apart at ``positions`` tokens, of which the logits are ``read`` at some; at 1 an edge is of all.
    """

    nodes: tuple[str, ...]
    places: tuple[tuple[int, int], ...]
    readings: tuple[Reading, ...]
    addings: tuple[Adding, ...]
    coupled: tuple[tuple[int, ...], ...] = ()
    positions: int = 1
    read: tuple[int, ...] = (0,)

    @property
    def n_senders(self) -> int:
        return len(self.nodes) - 1

    @cached_property
    def receivers(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return tuple(name for reading in self.readings for name in reading.receivers)

    @cached_property
    def owners(self) -> tuple[tuple[int, ...], ...]:
        """The nodes that each receiver is an input of."""
        return tuple(owners for reading in self.readings for owners in reading.owners)

    @cached_property
    def owning(self) -> Tensor:
        """Which receiver is an input of which node: (R, S + 1) bool."""
        owning = torch.zeros(len(self.owners), len(self.nodes), dtype=torch.bool)
        for row, owners in enumerate(self.owners):
            owning[row, list(owners)] = True
        return owning

    @cached_property
    def allowed(self) -> Tensor:
        """Which edges exist: (R, S, P) bool."""
        senders = torch.tensor([reading.senders for reading in self.readings for _ in reading.receivers])
        allowed = (torch.arange(self.n_senders) < senders[:, None])[..., None].repeat(1, 1, self.positions)
        allowed[-1] &= self._of_logits
        return allowed

    @property
    def _of_logits(self) -> Tensor:
        """The positions at which the logits are read: (P,) bool."""
        return torch.tensor([position in self.read for position in range(self.positions)])

    @cached_property
    def _seen_later(self) -> Tensor:
        """Whether later tokens see what is read: (R, 1) bool."""
        return torch.tensor([reading.is_seen_later for reading in self.readings for _ in reading.receivers])[:, None]

    @cached_property
    def _inputs(self) -> list[list[int]]:
        """The receivers that are inputs of each node."""
        return [self.owning[:, node].nonzero().flatten().tolist() for node in range(len(self.nodes))]

    def name(self, node: int, position: int) -> str:
        """The name of a node, such as ``L1H0``, or ``L1H0@3`` where positions are told apart."""
        return self.nodes[node] if self.positions == 1 else f"{self.nodes[node]}@{position}"

    def input(self, receiver: int, position: int) -> str:
        """The name of an input, such as ``L1H0.q`` or ``L1H0.q@3``."""
        return self.receivers[receiver] if self.positions == 1 else f"{self.receivers[receiver]}@{position}"

    @cached_property
    def named(self) -> dict[str, tuple[int, int]]:
        """Each node by its name, with its position."""
        return {self.name(node, at): (node, at) for node in range(len(self.nodes)) for at in range(self.positions)}

    @cached_property
    def inputs_named(self) -> dict[str, tuple[int, int]]:
        """Each input by its name, with its position."""
        return {self.input(row, at): (row, at) for row in range(len(self.receivers)) for at in range(self.positions)}

    def reading(self, name: str) -> Iterator[str]:
        """The names of the nodes that an input, by its name, is one of: also at later positions for keys and values."""
        row, first = self.inputs_named[name]
        last = self.positions if bool(self._seen_later[row]) else first + 1
        return (self.name(node, position) for node in self.owners[row] for position in range(first, last))

    def _seen(self, rows: list[int], read: Tensor) -> Tensor:
        """The positions (P,) of a node that anything reaches by inputs (rows, P)."""
        return torch.where(self._seen_later[rows], read.cumsum(dim=1) > 0, read).any(dim=0)

    def _looks(self, rows: list[int], nodes: Tensor) -> Tensor:
        """The positions (rows, P) of inputs that nodes (rows, P) or (P,) read."""
        return torch.where(self._seen_later[rows], nodes.flip(-1).cumsum(dim=-1).flip(-1) > 0, nodes)

    def nodes_of(self, kept: Tensor) -> Tensor:
        """The nodes on a path of kept edges (R, S, P) from the embeddings to the logits: (S + 1, P) bool.

        A node that nothing reaches has the values of the corrupt run, and one without a way to the logits changes
        nothing there, even where it shares an input with a head that does.
        """
        reached, needed, ends = torch.zeros(3, len(self.nodes), self.positions, dtype=torch.bool)
        reached[0], needed[-1] = True, self._of_logits
        group_of = {node: list(group) for group in self.coupled for node in group}
        for node in range(1, len(self.nodes)):
            group, rows = group_of.get(node, [node]), self._inputs[node]
            reached[group] |= self._seen(rows, (kept[rows] & reached[:-1]).any(dim=1))
            ends[node] = self._seen(rows, kept[rows].any(dim=1))
        wanted = torch.zeros(len(self.owners), self.positions, dtype=torch.bool)
        for node in reversed(range(len(self.nodes))):
            group = group_of.get(node, [node])
            if node < self.n_senders:
                needed[group] |= (kept[:, node] & wanted).any(dim=0)
            for member in group:
                wanted[self._inputs[member]] |= self._looks(self._inputs[member], needed[member])
        ends[:-1] |= kept.any(dim=0)
        return reached & needed & ends

    def alive(self, kept: Tensor) -> Tensor:
        """The kept edges (R, S, P) on a path from the embeddings to the logits; the others carry nothing."""
        kept = kept & self.allowed
        return kept & self.among(self.nodes_of(kept))

    def among(self, nodes: Tensor) -> Tensor:
        """All edges (R, S, P) between some of the nodes, (S + 1, P) bool."""
        every = list(range(len(self.owners)))
        reading = self._looks(every, self.owning.float() @ nodes.float() > 0)
        return self.allowed & nodes[:-1] & reading[:, None]


def graph_of(model: Transformer) -> Graph:
    """The graph of a model. Raises UsageError for one whose stream is not a plain sum that known inputs read."""
    table, config = table_of(model.config), model.config
    if not config.causal:
        raise _refusal("this model is an encoder, and circuits are found in decoders")
    model.require_vocabulary("there is no next token to find a circuit for")
    if config.extra_streams:
        raise _refusal("this model has several residual streams")
    if table.carried or table.reads_text:
        raise _refusal(f"layers of this model take {next(iter(table.carried), 'the ids')} beside the residual stream")
    if table.final == table.output:
        raise _refusal("this model norms the residual stream itself, so it is not a sum of what its parts add")
    if any(config.at(layer).index_keys for layer in range(config.n_layers)):
        raise _refusal("an indexer reads the residual stream too, to choose the keys that heads see")
    nodes, places = [EMBEDDINGS], [(-1, 0)]
    readings, addings, coupled = list[Reading](), list[Adding](), list[tuple[int, ...]]()
    for layer in range(config.n_layers):
        branches, own, before = _Branches(table, layer), config.at(layer), len(nodes)
        heads = range(before, before + own.n_heads if branches.attention is not None else before)
        for read in branches.reads:
            for reader in (reader for reader in read.readers if reader[0].role in _PROJECTED):
                sharing = own.heads_per_kv if "kv head" in reader[0].axes else 1
                owners = tuple(tuple(heads[first : first + sharing]) for first in range(0, len(heads), sharing))
                names = tuple(f"L{layer}H{_range(group, before)}.{reader[0].role}" for group in owners)
                readings.append(Reading(layer, read.norm, (reader,), names, owners, before, split=True))
            if readers := tuple(reader for reader in read.readers if reader[0].role == "ffn"):
                norm = read.norm
                if norm is not None and readers == read.readers:  # the norm of the feed-forward alone is what reads
                    readers, norm = ((norm, 0),), None
                # in a parallel block, the feed-forward reads the stream without its own layer's heads
                senders = before if read.stream == table.stream(layer)[-1] else heads.stop
                readings.append(Reading(layer, norm, readers, (f"L{layer}.ffn",), ((heads.stop,),), senders))
        if (step := branches.attention) is not None:
            nodes += [f"L{layer}H{head}" for head in range(own.n_heads)]
            places += [(layer, head) for head in range(own.n_heads)]
            addings.append(Adding(layer, step, branches.paths[step.name], own.n_heads))
            if branches.couples_heads:
                coupled.append(tuple(heads))
        if (step := branches.feed_forward) is not None:
            nodes.append(f"L{layer}.ffn")
            places.append((layer, own.n_heads))
            addings.append(Adding(layer, step, branches.paths[step.name], 0))
    last = ((table.at(table.final, None), 0),)
    readings.append(Reading(None, None, last, (LOGITS,), ((len(nodes),),), len(nodes)))
    places.append((config.n_layers, 0))
    firsts = accumulate((len(reading.receivers) for reading in readings), initial=0)
    numbered = tuple(replace(reading, first=first) for reading, first in zip(readings, firsts, strict=False))
    return Graph((*nodes, LOGITS), tuple(places), numbered, tuple(addings), tuple(coupled))


class _Read(NamedTuple):
    """A step of the ``stream`` or its ``norm``, and the steps that read it, each with the number of that input."""

    stream: str
    norm: Step | None
    readers: tuple[tuple[Step, int], ...]


class _Branches:
    """The branches of one layer: what reads the stream, and what is added to it. Raises UsageError for any other."""

    def __init__(self, table: StepTable, layer: int) -> None:
        self.table, self.layer = table, layer
        self.stream = table.stream(layer)[::-1]
        self.paths = {step.name: table.to_stream(step, layer)[:-1] for step in table.added_in(layer)}
        self._require_sum()
        added = [table.at(name, layer) for name in self.paths]
        self.attention, self.feed_forward = (
            next((step for step in added if step.role == role), None) for role in ("attention", "ffn")
        )
        if self.attention is not None:
            heads = table.head_output(layer)
            joined = table.at(self.attention.inputs[0], layer)
            if heads is None or joined.inputs != (heads.name,) or type(self.attention.operation) is not Linear:
                raise _refusal(f"L{layer}.{self.attention.name} is no sum over heads: {self.attention.formula}")
        self.reads = [read for name in self.stream for read in self._reads(name)]

    def _require_sum(self) -> None:
        """Refuse a stream that is no sum of the branches, each of them normed or scaled at most."""
        ends = {path[-1].name if path else name for name, path in self.paths.items()}
        for name, below in zip(self.stream, ("", *self.stream), strict=False):
            step = self.table.at(name, self.layer)
            sources = {source for source, _ in self.table.sources(step, self.layer)} - {below}
            is_sum = isinstance(step.operation, Add) and below in (*step.inputs, "")
            if not (isinstance(step.operation, Same) or is_sum) or (below and not sources <= ends):
                raise _refusal(f"the stream of this model is no plain sum: L{self.layer}.{name} is {step.formula}")
        for step in (step for path in self.paths.values() for step in path):
            if not isinstance(step.operation, Norm | Multiply):
                raise _refusal(f"L{self.layer}.{step.name} stands between a branch and the stream: {step.title}")

    @property
    def couples_heads(self) -> bool:
        """Whether what one head adds depends on the inputs of others: by a norm of their sum, or by steps that mix."""
        normed = any(isinstance(step.operation, Norm) for path in self.paths.values() for step in path)
        return normed or self.table.mixes_heads(self.layer)

    def _reads(self, name: str) -> Iterator[_Read]:
        """Yield what reads a step of the stream, through each norm and directly."""
        readers = [reader for reader in self._readers(name) if reader[0].name not in self.stream]
        norms = [step for step, _ in readers if isinstance(step.operation, Norm)]
        direct = tuple(reader for reader in readers if reader[0] not in norms)
        for read in (*(_Read(name, norm, self._readers(norm.name)) for norm in norms), _Read(name, None, direct)):
            for step, _ in read.readers:
                is_projection = step.role in _PROJECTED and step.has_heads and type(step.operation) is Linear
                if not is_projection and step.role != "ffn":
                    raise _refusal(f"L{self.layer}.{step.name} reads the stream too: {step.title}")
            yield read

    def _readers(self, name: str) -> tuple[tuple[Step, int], ...]:
        consumers = self.table.consumers((name, self.layer))
        return tuple((step, number) for step, at, number in consumers if at == self.layer and not step.from_stream)


def _range(nodes: Sequence[int], before: int) -> str:
    """The heads of a layer, from the numbers of their nodes."""
    first, last = nodes[0] - before, nodes[-1] - before
    return f"{first}-{last}" if last > first else f"{first}"


def _refusal(why: str) -> UsageError:
    return UsageError(
        why, "circuits need a decoder whose residual stream is a plain sum, such as GPT-2, Llama or Gemma"
    )
