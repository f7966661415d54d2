"""A circuit: the few edges that keep most of the effect of pairs of prompts, measured by running them alone.

Shapes: R receivers, S senders, N pairs.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.cause.circuits.edges import METHODS, STEPS, edge_scores, node_scores
from tinytf.cause.circuits.file import Overlap, Stored, overlap, read_circuit, written
from tinytf.cause.circuits.graph import EMBEDDINGS, LOGITS, CircuitEdge, CircuitNode, Graph, graph_of
from tinytf.cause.circuits.running import Runs
from tinytf.errors import TinytfError, UsageError
from tinytf.estimate import Estimate, estimates, mean_of
from tinytf.nearest import did_you_mean
from tinytf.pairs.pair import Pairs, PairSet, pair_set
from tinytf.report import About, Progress, Report, Verified, ignore_progress
from tinytf.sentences import percent
from tinytf.tables import Array
from tinytf.text.tokenizer import Encoding
from tinytf.text_model import TextModel
from tinytf.tolerance import RUN, allowed

LEVELS = ("edges", "nodes")
KEEP = 0.9
"""The default share of the effect that a circuit keeps."""
LEFT_OUT = 24
"""The default number of nodes that are left out of a circuit, one at a time: each takes a run of all pairs."""
_SAME = 1e-5
"""Mean leads of the clean and the corrupt texts count as equal within this share of the larger."""


@dataclass(frozen=True)
class Circuit(Report):
    """The edges of a model that keep a share of the lead of answers over versus, in ``n_pairs`` pairs of ``pairs``.

    ``clean`` and ``corrupt`` are the mean leads in the plain runs, and ``separated`` counts the pairs whose lead is
    larger in the clean one. ``faithfulness`` is (lead of the circuit − corrupt) / (clean − corrupt), a ratio of means;
    ``complement`` the same for the run of all other edges (Marks et al. 2024: the circuit is complete where it is near
    0). ``without`` is the faithfulness without each sender of the circuit, by name, if measured. ``kept`` and
    ``scores`` are (R, S); ``of_nodes`` (S,) are the scores of the nodes at the level of nodes, else None.
    """

    KIND = "circuit"
    EVENTS: ClassVar = {"nodes": "node", "links": "link", "checks": "check"}
    TABLE: ClassVar = ("links",)

    pairs: str
    n_pairs: int
    level: str
    method: str
    steps: int
    keep: float | None
    clean: Estimate
    corrupt: Estimate
    separated: int
    faithfulness: Estimate
    complement: Estimate
    without: dict[str, float]
    checks: tuple[Verified, ...]
    graph: Graph = field(repr=False, compare=False)
    kept: Tensor = field(repr=False, compare=False)
    scores: Tensor = field(repr=False, compare=False)
    of_nodes: Tensor | None = field(repr=False, compare=False)
    example: Encoding = field(repr=False, compare=False)
    versus: Overlap | None = None
    stopped: bool = False

    @property
    def n_edges(self) -> int:
        """The edges of the circuit."""
        return int(self.kept.sum())

    @property
    def n_all(self) -> int:
        """The edges of the whole model."""
        return int(self.graph.allowed.sum())

    @cached_property
    def edges(self) -> tuple[CircuitEdge, ...]:
        """The edges of the circuit, the largest score first, whatever its sign."""
        rows, columns = self.kept.nonzero(as_tuple=True)
        values = self.scores[rows, columns]
        order = values.abs().argsort(descending=True, stable=True).tolist()
        places = list(zip(rows.tolist(), columns.tolist(), values.tolist(), strict=True))
        names = self.graph.nodes, self.graph.receivers
        return tuple(CircuitEdge(names[0][places[i][1]], names[1][places[i][0]], places[i][2]) for i in order)

    @cached_property
    def nodes(self) -> tuple[CircuitNode, ...]:
        """The nodes of the circuit in the order of computation, the logits last."""
        incoming = [int(self.kept[list(rows)].sum()) for rows in self.graph.inputs]
        outgoing = [*self.kept.sum(dim=0).tolist(), 0]
        scores = self.of_nodes if self.of_nodes is not None else (self.scores * self.kept).sum(dim=0)
        return tuple(
            CircuitNode(
                name, float(scores[node]) if name != LOGITS else None, incoming[node], outgoing[node],
                self.without.get(name),
            )
            for node, name in enumerate(self.graph.nodes)
            if incoming[node] or outgoing[node]
        )  # fmt: skip

    def in_a_sentence(self) -> str:
        """How many edges or nodes keep how much of the effect, and the head or feed-forward that is needed most."""
        kept = f"{percent(self.faithfulness.value)} of the effect that the pairs have on the answer"
        if not self.n_edges:
            return f"No edge is needed to keep {kept}."
        count = f"{self.n_edges:,} of {self.n_all:,} edges"
        if self.level == "nodes":
            nodes = sum(node.name not in (EMBEDDINGS, LOGITS) for node in self.nodes)
            count = f"{nodes:,} of {self.graph.n_senders - 1:,} heads and feed-forwards"
        needed = {name: left for name, left in self.without.items() if name != EMBEDDINGS}
        if not needed or self.interrupted:
            return f"{count} keep {kept}."
        name = min(needed, key=needed.__getitem__)
        left = f"{percent(needed[name])} is left" if needed[name] > 0 else "nothing of it is left"
        return f"{count} keep {kept}, and {name} matters most: without it, {left}."

    def run(
        self,
        pairs: Pairs,
        *,
        left_out: int | None = LEFT_OUT,
        seed: int = 0,
        on_progress: Progress = ignore_progress,
    ) -> "Circuit":
        """Measure this circuit on other pairs, without choosing its edges again. Raises like ``circuit``."""
        assert self.about is not None
        model: Any = self.about.model
        return _Measured(model, pair_set(pairs), seed).report(self, left_out, on_progress)

    def stored(self) -> list[Array]:
        """Scores and kept edges, (receivers, senders)."""
        return [
            Array.of(name, ["receiver", "sender"], tensor)
            for name, tensor in (("scores", self.scores), ("kept", self.kept.to(torch.uint8)))
        ]

    def label(self, axis: str, index: int) -> str:
        names = {"receiver": self.graph.receivers, "sender": self.graph.nodes}
        return names[axis][index] if axis in names else super().label(axis, index)

    def fields(self) -> dict[str, Any]:
        """The circuit in the members of circuit-tracer's graphs, and how it was found and measured beside them."""
        model = None if self.about is None else self.about.model.name
        return {
            **self.members("pairs", "n_pairs", "level", "method", "steps", "keep", "clean", "corrupt", "separated"),
            "edges": self.n_edges,
            "of": self.n_all,
            **self.members("faithfulness", "complement", "interrupted"),
            **written(self.nodes, self.edges, self.graph, self.example, model or "", self.pairs),
            **({} if self.versus is None else self.members("versus")),
            **self.members("checks"),
        }


def circuit(
    model: TextModel,
    pairs: Pairs,
    *,
    keep: float = KEEP,
    method: str = "integrated",
    level: str = "edges",
    steps: int = STEPS,
    stored: str | Path | None = None,
    versus: str | Path | None = None,
    left_out: int | None = LEFT_OUT,
    seed: int = 0,
    on_progress: Progress = ignore_progress,
) -> Circuit:
    """Find the few edges of a decoder that keep a share of the effect of ``pairs``, and run them alone.

    Edges (or, by ``level``, nodes) are sorted by the size of their score. Bisection finds a number of them that keeps
    the share ``keep`` of the lead, where one fewer does not; edges on no path from the embeddings to the logits are
    dropped. ``method``: ``gradient`` and ``integrated`` estimate all scores (Syed et al. 2023; Hanna et al. 2024, with
    ``steps`` inputs), ``exact`` measures each. With ``stored``, the circuit of that file is measured instead, and one
    in the file ``versus`` is measured and compared. The ``left_out`` nodes with the largest scores (None: all) are each
    left out of the circuit alone, to see what it keeps without them. ``seed`` draws the bootstrap intervals over the
    pairs. Ctrl-C after the scores ends with the circuit so far.

    Raises UsageError for pairs that cannot be used or have no effect, for a model whose stream is no plain sum, and for
    settings out of range; TinytfError for logits that are not finite.
    """
    for name, value, known in (("method", method, METHODS), ("level", level, LEVELS)):
        if value not in known:
            raise UsageError(f"there is no {name} {value!r}", did_you_mean(value, known))
    if not 0 < keep <= 1:
        raise UsageError(f"a circuit cannot keep {keep:g} of the effect", "give a share above 0, at most 1")
    if steps < 1:
        raise UsageError(f"{steps} steps average over nothing", "give 1 or more")
    measured = _Measured(model, pair_set(pairs), seed)
    other = None if versus is None else read_circuit(versus, measured.graph)
    if stored is None:
        found = measured.find(keep, method, level, steps, on_progress)
    else:
        one = read_circuit(stored, measured.graph)
        found = _Found(one.kept, one.kept, one.scores, None, "edges", "", 0, None, False)
    report = measured.report(found, left_out, on_progress)
    if other is None:
        return report
    return replace(report, versus=measured.compared(report, other, Path(versus or "").name))


@dataclass(frozen=True)
class _Found:
    """A circuit that is not measured yet; ``chosen`` are its edges before dead ones are dropped."""

    kept: Tensor
    chosen: Tensor
    scores: Tensor
    of_nodes: Tensor | None
    level: str
    method: str
    steps: int
    keep: float | None
    stopped: bool


class _Measured:
    """Runs of a model on pairs, and the faithfulness of circuits in them."""

    def __init__(self, model: TextModel, pairs: PairSet, seed: int) -> None:
        self.model, self.pairs, self.seed = model, pairs, seed
        self.graph = graph_of(model.transformer)
        self.encoded = pairs.encoded(model)
        self.runs = Runs(model.transformer, self.graph, self.encoded)
        clean, corrupt = self.runs.clean, self.runs.corrupt
        if not bool(clean.isfinite().all() and corrupt.isfinite().all()):
            raise TinytfError(
                "the logits are not finite", "the weights hold NaN or infinity, or overflow in this dtype"
            )
        means = float(clean.mean()), float(corrupt.mean())
        if abs(means[0] - means[1]) <= _SAME * max(1.0, *map(abs, means)):
            raise UsageError(
                f"the mean lead of answer over versus is {means[0]:.4g} in the clean and in the corrupt texts",
                "give pairs on which the model changes its answer",
            )

    def share(self, leads: Tensor) -> float:
        """Leads (N,) as a share of the effect: 1 for those of the clean runs, 0 for those of the corrupt."""
        clean, corrupt = self.runs.clean, self.runs.corrupt
        return float((leads - corrupt).sum() / (clean - corrupt).sum())

    def estimate(self, leads: Tensor) -> Estimate:
        clean, corrupt = self.runs.clean, self.runs.corrupt
        return estimates((leads - corrupt)[:, None], clean - corrupt, self.seed)[0]

    def faithfulness(self, kept: Tensor) -> float:
        return self.share(self.runs.leads(kept)) if bool(kept.any()) else 0.0

    def find(self, keep: float, method: str, level: str, steps: int, on_progress: Progress) -> _Found:
        """Score, then choose by bisection."""
        exact, graph = method == "exact", self.graph
        # where nodes are measured, their edges still have estimates
        scores = edge_scores(self.runs, "integrated" if exact and level == "nodes" else method, steps, on_progress)
        of_nodes = None if level == "edges" else scores.sum(dim=0)
        if of_nodes is not None and exact:
            of_nodes = node_scores(self.runs, on_progress)
        if of_nodes is None:
            order = scores[graph.allowed].abs().argsort(descending=True, stable=True)
            places = graph.allowed.nonzero()[order]
        else:
            places = 1 + of_nodes[1:].abs().argsort(descending=True, stable=True)

        def of(count: int) -> Tensor:
            """The edges of the first ``count`` units, dead ones included."""
            if of_nodes is None:
                chosen = torch.zeros_like(graph.allowed)
                chosen[places[:count, 0], places[:count, 1]] = True
                return chosen
            nodes = torch.zeros(len(graph.nodes), dtype=torch.bool)
            nodes[[0, len(nodes) - 1]] = nodes[places[:count]] = True
            return graph.among(nodes)

        few, enough, rounds, stopped = -1, len(places), 0, False
        try:
            while enough - few > 1:
                middle = (few + enough) // 2
                if self.faithfulness(graph.alive(of(middle))) >= keep:
                    enough = middle
                else:
                    few = middle
                rounds += 1
                on_progress(rounds, rounds + (enough - few - 1).bit_length())
        except KeyboardInterrupt:
            stopped = True
        chosen = of(enough)
        steps = steps if method == "integrated" else 1
        return _Found(graph.alive(chosen), chosen, scores, of_nodes, level, method, steps, keep, stopped)

    def report(self, found: "_Found | Circuit", left_out: int | None, on_progress: Progress) -> Circuit:
        """Measure a circuit: its faithfulness, its complement, and what is left without some of its nodes."""
        kept, stopped, without = found.kept, found.stopped, dict[str, float]()
        leads = self.runs.leads(kept)
        complement = self.runs.leads(self._complement(kept, found.level))
        chosen = found.chosen if isinstance(found, _Found) else kept
        checks = self._checks(leads, chosen)
        sizes = ((found.scores * kept).sum(dim=0) if found.of_nodes is None else found.of_nodes).abs().tolist()
        senders = sorted(kept.any(dim=0).nonzero().flatten().tolist(), key=lambda node: -sizes[node])[:left_out]
        try:
            for done, node in enumerate(() if stopped else senders):
                rest = kept.clone()
                rest[:, node] = False
                without[self.graph.nodes[node]] = self.faithfulness(self.graph.alive(rest))
                on_progress(done + 1, len(senders))
        except KeyboardInterrupt:
            stopped = True
        runs = self.runs
        return Circuit(
            pairs=self.pairs.name,
            n_pairs=runs.n_pairs,
            level=found.level,
            method=found.method,
            steps=found.steps,
            keep=found.keep,
            clean=mean_of(runs.clean, self.seed),
            corrupt=mean_of(runs.corrupt, self.seed),
            separated=int((runs.clean > runs.corrupt).sum()),
            faithfulness=self.estimate(leads),
            complement=self.estimate(complement),
            without=without,
            checks=checks,
            graph=self.graph,
            kept=kept,
            scores=found.scores,
            of_nodes=found.of_nodes,
            example=self.encoded[0].clean,
            stopped=stopped,
            about=About(self.model),
        )

    def compared(self, report: Circuit, other: Stored, name: str) -> Overlap:
        """The overlap of a measured circuit with a stored one, which is run on the same pairs."""
        faithfulness = self.estimate(self.runs.leads(other.kept))
        return overlap(name, (report.kept, report.scores), (other.kept, other.scores), self.graph, faithfulness)

    def _complement(self, kept: Tensor, level: str) -> Tensor:
        """All other edges; at the level of nodes, those from all other nodes and the embeddings."""
        if level == "edges":
            return self.graph.allowed & ~kept
        others = ~kept.any(dim=0)
        others[0] = True
        return self.graph.allowed & others

    def _checks(self, leads: Tensor, chosen: Tensor) -> tuple[Verified, ...]:
        """Verify the ends of the scale, and that dead edges change nothing."""
        runs, every = self.runs, self.graph.allowed
        scale = max(1.0, float(torch.cat((runs.clean, runs.corrupt)).abs().max()))
        limit = allowed(RUN, next(self.model.transformer.parameters()).dtype) * scale
        ways: list[tuple[str, Callable[[], Tensor], Tensor]] = [
            ("all edges are the clean run", lambda: runs.leads(every), runs.clean),
            ("none the corrupt one", lambda: runs.leads(torch.zeros_like(every)), runs.corrupt),
            ("dead edges change nothing", lambda: runs.leads(chosen), leads),
        ]
        return tuple(Verified(what, float((way() - expected).abs().max()), limit) for what, way, expected in ways)
