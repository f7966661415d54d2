"""A circuit: the few edges that keep most of the effect of pairs of prompts, measured by running them alone.

Shapes: R receivers, S senders, P positions that are told apart (1: none), N pairs.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.cause.circuit.choice import LEVELS, Choice, CircuitEdge, CircuitNode, Overlap, choose, overlap
from tinytf.cause.circuit.edges import METHODS, STEPS
from tinytf.cause.circuit.file import level_of, read_circuit, tells, written
from tinytf.cause.circuit.graph import EMBEDDINGS, LOGITS, graph_of
from tinytf.cause.circuit.running import Runs
from tinytf.cause.over_pairs.report import of_pairs, without_effect
from tinytf.errors import TinytfError, UsageError
from tinytf.estimate import Estimate, estimates, mean_of
from tinytf.metric import Answer, Asked, Measure, MetricFunction
from tinytf.nearest import did_you_mean
from tinytf.pairs.pair import Pairs, PairSet, pair_set
from tinytf.report import About, Progress, Report, Verified, ignore_progress
from tinytf.sentences import first_of, percent
from tinytf.tables import Array
from tinytf.text.tokenizer import Encoding
from tinytf.text_model import TextModel
from tinytf.tolerance import RUN, allowed

KEEP = 0.9
"""The default share of the effect that a circuit keeps."""
LEFT_OUT = 24
"""The default number of nodes, and of edges, that are left out of a circuit alone: each takes a run of all pairs."""
_SAME = 1e-5
"""Mean leads of the clean and the corrupt texts count as equal within this share of the larger."""


@dataclass(frozen=True)
class Circuit(Report):
    """The edges of a model that keep a share of the lead of answers over versus, in ``n_pairs`` pairs of ``pairs``.

    ``uneven`` are the lines of pairs that were left out, as their texts have different numbers of tokens, or the same.
    ``clean`` and ``corrupt`` are the mean leads, or another ``metric``, in the plain runs, ``effect`` their difference,
    and ``separated`` counts the pairs whose lead is larger in the clean one. ``faithfulness`` is (lead of the circuit −
    corrupt) / (clean − corrupt), a ratio of means; ``complement`` that of the run of all other edges (Marks et al.
    2024: the circuit is complete where it is near 0). ``choice`` is what was chosen, and how, with what is left without
    some of its nodes and edges."""

    KIND = "circuit"
    EVENTS: ClassVar = {"nodes": "node", "links": "link", "checks": "check"}
    TABLE: ClassVar = ("links",)

    pairs: str
    n_pairs: int
    clean: Estimate
    corrupt: Estimate
    effect: Estimate
    metric: Measure
    separated: int
    faithfulness: Estimate
    complement: Estimate
    checks: tuple[Verified, ...]
    choice: Choice = field(repr=False, compare=False)
    wanted: Asked = field(repr=False, compare=False)
    example: Encoding = field(repr=False, compare=False)
    versus: Overlap | None = None
    uneven: tuple[int, ...] = ()
    stopped: bool = False

    @property
    def n_edges(self) -> int:
        """The edges of the circuit."""
        return int(self.choice.kept.sum())

    @property
    def n_all(self) -> int:
        """The edges of the whole model."""
        return int(self.choice.graph.allowed.sum())

    @property
    def edges(self) -> tuple[CircuitEdge, ...]:
        """The edges of the circuit, the largest score first, whatever its sign."""
        return self.choice.edges

    @property
    def nodes(self) -> tuple[CircuitNode, ...]:
        """The nodes of the circuit in the order of computation, the logits last."""
        return self.choice.nodes

    def in_a_sentence(self) -> str:
        """How many edges or nodes keep how much of the effect, and the head or feed-forward that is needed most."""
        if no_effect := without_effect(self.effect, self.metric):
            return f"Over {of_pairs(self.n_pairs, self.uneven)}, {no_effect}."
        number, of, what = self.n_edges, self.n_all, "edges"
        if self.choice.level == "positions":
            what = "edges at single tokens"
        if self.choice.level == "nodes":
            number = sum(node.name not in (EMBEDDINGS, LOGITS) for node in self.nodes)
            of, what = self.choice.graph.n_senders - 1, "heads and feed-forwards"
        share = self.faithfulness.value
        kept = f"{number:,} of {of:,} {what} keep{'s' * (number == 1)} {percent(share) if share > 0 else 'none'}"
        kept = (
            f"{kept} of the effect that {of_pairs(self.n_pairs, self.uneven) if self.uneven else 'the pairs'} have on "
        )
        kept = f"{kept}{'the answer' if self.metric.is_lead else self.metric.words}"
        senders = self.nodes[:-1]
        parts = [node for node in senders if node.name.partition("@")[0] != EMBEDDINGS]
        left = {node.name: node.without for node in parts if node.without is not None}
        least = min(left.values(), default=share)
        if self.interrupted or share <= max(0, least):
            return f"{kept}."
        rest = f"{percent(least) if least > 0 else 'nothing of it'} is left"
        names = [name for name in left if left[name] == least]
        if len(left) == 1:
            return f"{kept}, and without {names[0]}, {rest}."
        tried = (
            "" if all(node.without is not None for node in senders) else f"of {len(left):,} nodes left out in turn, "
        )
        if len(names) > 1:
            return f"{kept}, and {tried}{first_of(names, 3)} matter most: without any one of them, {rest}."
        return f"{kept}, and {tried}{names[0]} matters most: without it, {rest}."

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
        choice = replace(self.choice, chosen_from=self.choice.chosen_from or self.pairs, stopped=False)
        measuring = _Measuring(model, pair_set(pairs), self.wanted, choice.level, left_out, seed, on_progress)
        graph = measuring.runs.graph
        if graph.positions != choice.graph.positions:
            raise UsageError(f"it {tells(choice.graph.positions)}, and that of these pairs {tells(graph.positions)}")
        return measuring.measure(replace(choice, graph=graph))

    def stored(self) -> list[Array]:
        """Scores and kept edges, (receivers, senders)."""
        tensors = {"scores": self.choice.scores, "kept": self.choice.kept.to(torch.uint8)}
        if self.choice.level != "positions":
            return [Array.of(name, ["receiver", "sender"], tensor[..., 0]) for name, tensor in tensors.items()]
        return [Array.of(name, ["receiver", "sender", "position"], tensor) for name, tensor in tensors.items()]

    def label(self, axis: str, index: int) -> str:
        names = {"receiver": self.choice.graph.receivers, "sender": self.choice.graph.nodes}
        return names[axis][index] if axis in names else super().label(axis, index)

    def fields(self) -> dict[str, Any]:
        """The circuit in the members of circuit-tracer's graphs, and how it was found and measured beside them."""
        choice, model = self.choice, "" if self.about is None else self.about.model.name
        return {
            **self.members("pairs", "n_pairs", "uneven"),
            **{name: getattr(choice, name) for name in ("level", "method", "steps", "keep", "chosen_from")},
            **self.members("metric", "clean", "corrupt", "effect", "separated"),
            "edges": self.n_edges,
            "of": self.n_all,
            **self.members("faithfulness", "complement", "interrupted"),
            **written(choice, self.example, model, self.pairs),
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
    metric: str | MetricFunction | None = None,
    answer: Answer = None,
    stored: str | Path | None = None,
    versus: str | Path | None = None,
    left_out: int | None = LEFT_OUT,
    seed: int = 0,
    on_progress: Progress = ignore_progress,
) -> Circuit:
    """Find the few edges of a decoder that keep a share of the effect of ``pairs``, and run them alone.

    Edges (or, by ``level``, nodes, or edges at single ``positions`` of equally long texts) are sorted by the size of
    their score. Bisection finds a number of them that keeps the share ``keep`` of the lead, where one fewer does not;
    edges on no path from the embeddings to the logits are dropped. ``method``: ``gradient`` and ``integrated`` estimate
    all scores (Syed et al. 2023; Hanna et al. 2024, with ``steps`` inputs), ``exact`` measures each. With ``stored``,
    the circuit of that file is measured instead, and one in the file ``versus`` is measured and compared. The
    ``left_out`` nodes and edges with the largest scores (None: all) are each left out of the circuit alone, to see what
    it keeps without them. ``seed`` draws the bootstrap intervals over the pairs. ``metric`` and ``answer`` are as in
    ``patch_over``: the share is then of that. Ctrl-C after the scores ends with the circuit so far.

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
    wanted = Asked.of(model, metric, answer)
    level = level if stored is None else level_of(stored)
    if stored is None and (method, level) != ("exact", "edges"):
        wanted.require_gradient()
    measuring = _Measuring(model, pair_set(pairs), wanted, level, left_out, seed, on_progress)
    runs = measuring.runs
    other = None if versus is None else (Path(versus).name, read_circuit(versus, runs.graph))
    if stored is not None:
        return measuring.measure(read_circuit(stored, runs.graph), other)
    return measuring.measure(choose(runs, keep, method, level, steps, on_progress), other)


class _Measuring:
    """Runs of a model on pairs, and what circuits keep of the effect there."""

    def __init__(
        self, model: TextModel, pairs: PairSet, wanted: Asked, level: str, left_out: int | None, seed: int,
        on_progress: Progress,
    ) -> None:  # fmt: skip
        if left_out is not None and left_out < 0:
            raise UsageError(f"{left_out} nodes cannot be left out", "give 0 or more, or None for all")
        self.model, self.pairs, self.left_out, self.seed, self.on_progress = model, pairs, left_out, seed, on_progress
        graph = graph_of(model.transformer)
        encoded = pairs.encoded(model, metric=wanted.metric, answer=wanted.answer)
        self.wanted = wanted
        self.example, self.uneven = encoded[0].clean, pairs.left_out_of(encoded)
        self.runs = Runs(model.transformer, graph, encoded, by_position=level == "positions")
        clean, corrupt = self.runs.clean, self.runs.corrupt
        if not bool(clean.isfinite().all() and corrupt.isfinite().all()):
            raise TinytfError(
                "the logits are not finite", "the weights hold NaN or infinity, or overflow in this dtype"
            )
        means = float(clean.mean()), float(corrupt.mean())
        name = "the mean lead of answer over versus"
        name = name if wanted.measure().is_lead else f"the mean of {wanted.measure().words}"
        if abs(means[0] - means[1]) <= _SAME * max(1.0, *map(abs, means)):
            raise UsageError(
                f"{name} is {means[0]:.4g} in the clean and in the corrupt texts",
                "give pairs on which the model changes its answer",
            )

    def measure(self, choice: Choice, other: tuple[str, Choice] | None = None) -> Circuit:
        """Run a circuit, its complement, and the circuit without some nodes and edges; and the ``other`` circuit."""
        runs, with_dead, stopped = self.runs, choice.kept, choice.stopped
        choice = replace(choice, kept=choice.graph.alive(choice.kept))

        def required() -> dict[str, Any]:
            leads = runs.leads(choice.kept)
            return {
                "faithfulness": self._share(leads),
                "complement": self._share(runs.leads(choice.complement)),
                "checks": self._checks(choice, leads, with_dead),
                "versus": other and overlap(other[0], choice, other[1], self._share(runs.leads(other[1].kept))),
            }

        try:
            measured = required()
        except KeyboardInterrupt:  # the scores took longest, and are worth these runs
            stopped, measured = True, required()
        graph, sizes = choice.graph, choice.node_scores.abs()
        senders = sorted(choice.kept.any(dim=0).nonzero().tolist(), key=lambda place: -float(sizes[tuple(place)]))
        places: dict[str, tuple[slice | int, int, int]] = {
            graph.name(node, position): (slice(None), node, position) for node, position in senders[: self.left_out]
        }
        for edge in choice.edges[: self.left_out]:
            row, position = graph.inputs_named[edge.input]
            places[edge.name] = row, graph.named[edge.source][0], position
        without: dict[str, float] = {}
        try:
            for name, place in () if stopped else places.items():
                rest = choice.kept.clone()
                rest[place] = False
                without[name] = runs.faithfulness(choice.graph.alive(rest))
                self.on_progress(len(without), len(places))
        except KeyboardInterrupt:
            stopped = True
        return Circuit(
            pairs=self.pairs.name,
            n_pairs=runs.n_pairs,
            uneven=self.uneven,
            clean=mean_of(runs.clean, self.seed),
            corrupt=mean_of(runs.corrupt, self.seed),
            effect=mean_of(runs.clean - runs.corrupt, self.seed),
            separated=int((runs.clean > runs.corrupt).sum()),
            metric=self.wanted.measure(),
            wanted=self.wanted,
            choice=replace(choice, without=without),
            example=self.example,
            stopped=stopped,
            about=About(self.model),
            **measured,
        )

    def _share(self, leads: Tensor) -> Estimate:
        clean, corrupt = self.runs.clean, self.runs.corrupt
        return estimates((leads - corrupt)[:, None], clean - corrupt, self.seed)[0]

    def _checks(self, choice: Choice, leads: Tensor, with_dead: Tensor) -> tuple[Verified, ...]:
        """Verify the ends of the scale, and that edges on no path, where some were dropped, change nothing."""
        runs, every = self.runs, self.runs.graph.allowed
        scale = max(1.0, float(torch.cat((runs.clean, runs.corrupt)).abs().max()))
        limit = allowed(RUN, next(self.model.transformer.parameters()).dtype) * scale
        ways = [
            ("with all edges it is the clean run", every, runs.clean),
            ("with none the corrupt run", torch.zeros_like(every), runs.corrupt),
        ]
        if not torch.equal(with_dead, choice.kept):
            ways.append(("edges on no path change nothing", with_dead, leads))
        return tuple(
            Verified(what, float((runs.leads(edges) - expected).abs().max()), limit) for what, edges, expected in ways
        )
