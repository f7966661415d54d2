"""Circuits against a model written by hand, finite differences, patching, and paths looked for one by one."""

import itertools
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import KINDS, asked, config_of, lively
from circuits_by_hand import ByHand, Edge, only
from torch import Tensor

from tinytf.api import Model
from tinytf.cause.circuit import Choice, Circuit, CircuitEdge, graph_of
from tinytf.cause.circuit.choice import overlap
from tinytf.cause.circuit.edges import edge_scores, node_scores
from tinytf.cause.circuit.file import read_circuit
from tinytf.cause.circuit.graph import Graph, Reading
from tinytf.cause.circuit.running import Added, Runs, split
from tinytf.errors import TinytfError, UsageError
from tinytf.estimate import Estimate
from tinytf.loading import load
from tinytf.model.transformer import Transformer
from tinytf.pairs.pair import EncodedPair, PairSet, one_pair
from tinytf.report import ignore_progress
from tinytf.steps.table import table_of

BY_HAND: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {}),
    "llama": ("llama, grouped", {}),
    "norms around each part": ("llama, grouped", {"norm_order": "both", "o_bias": True}),
}
NEAR = {"gpt2": 1e-11, "llama": 1e-6, "norms around each part": 1e-6}
"""How near leads in float64 are: the angles of rotary positions are float32 in the model."""
AT_LEVELS = pytest.mark.parametrize("level", ["edges", "positions"])
TOLD = pytest.mark.parametrize("by_position", [False, True], ids=["edges", "positions"])
THINGS = ("ball", "hat", "cup", "box", "apple", "boat")


def number_pairs(model: Model, *, equally_long: bool = False) -> tuple[EncodedPair, ...]:
    """Pairs of two lengths, of which the shorter one is padded in a batch; or of one."""
    more = " 6 5" if equally_long else ""
    rows = [
        {"clean": f"3 14 15 9 2{more}", "corrupt": f"3 14 7 9 2{more}", "answer": "#5", "versus": "#8"},
        {"clean": "3 1 4 1 5 9 2", "corrupt": "8 2 4 1 5 9 2", "answer": "#6", "versus": "#1"},
    ]
    return PairSet.of(rows).encoded(model)


def story_pairs(*who: str) -> PairSet:
    text = "The {who} lost the {thing}. The {who} lost the"
    rows = [
        {
            "clean": text.format(who=name, thing=thing),
            "corrupt": text.format(who=name, thing=other),
            "answer": f" {thing}",
            "versus": f" {other}",
        }
        for name in who
        for thing, other in zip(THINGS, (*THINGS[2:], *THINGS[:2]), strict=True)
    ]
    return PairSet.of(rows, "stories.jsonl")


@cache
def tiny() -> Model:
    return load("tiny")


@cache
def found(level: str = "edges") -> Circuit:
    return tiny().circuit(story_pairs("cat", "dog"), level=level)


@cache
def small(name: str, by_position: bool = False) -> tuple[Runs, list[tuple[ByHand, EncodedPair, dict[str, Tensor]]]]:
    """Runs of a small model in float64; and by hand, with what its nodes add in each corrupt run."""
    kind, changes = BY_HAND[name]
    transformer = lively(config_of(kind, **changes)).double()
    pairs = number_pairs(asked(transformer), equally_long=by_position)
    by_hand = []
    for pair in pairs:
        model = ByHand(transformer)
        model.lead(model.embedded(pair.corrupt.ids), pair.answer, pair.versus)
        by_hand.append((model, pair, model.outputs))
    return Runs(transformer, graph_of(transformer), pairs, by_position=by_position), by_hand


def edges_of(graph: Graph, kept: Tensor) -> set[Edge]:
    return {(graph.name(column, at), graph.input(row, at)) for row, column, at in kept.nonzero().tolist()}


def random_edges(graph: Graph, share: float, seed: int) -> Tensor:
    drawn = torch.rand(graph.allowed.shape, generator=torch.Generator().manual_seed(seed))
    return graph.allowed & (drawn < share)


@TOLD
@pytest.mark.parametrize("name", BY_HAND)
def test_a_circuit_runs_like_a_model_whose_inputs_sum_their_own_edges(name: str, by_position: bool) -> None:
    runs, by_hand = small(name, by_position)
    for share, seed in itertools.product((0.1, 0.5, 0.9), range(3)):
        kept = random_edges(runs.graph, share, seed)
        edges = edges_of(runs.graph, kept)
        expected = [
            model.lead(model.embedded(pair.clean.ids), pair.answer, pair.versus, only(edges, corrupt))
            for model, pair, corrupt in by_hand
        ]
        assert runs.leads(kept).tolist() == pytest.approx([float(lead) for lead in expected], abs=NEAR[name])


def by_differences(name: str, edge: Edge, steps: int, position: int | None) -> float:
    """The score of an edge by central differences, the mean over pairs and inputs."""
    total, size = 0.0, 1e-5
    for model, pair, corrupt in small(name, position is not None)[1]:
        clean, ends = model.embedded(pair.clean.ids), (pair.answer, pair.versus)
        model.lead(clean, *ends)
        toward = model.outputs[edge[0]] - corrupt[edge[0]]
        if position is not None:
            toward = toward * (torch.arange(len(toward)) == position)[:, None]
        for step in range(1, steps + 1):
            start = corrupt["embed"] + step / steps * (clean - corrupt["embed"])

            def moved(by: float, start: Tensor = start, toward: Tensor = toward, model: ByHand = model) -> Tensor:
                return model.lead(start, *ends, lambda at, now: now + by * toward if at == edge else now)  # noqa: B023

            total += float(moved(size) - moved(-size)) / (2 * size) / steps

    return total / 2


@TOLD
@pytest.mark.parametrize(("name", "steps"), [("gpt2", 1), ("llama", 3), ("norms around each part", 1)])
def test_estimated_scores_are_those_of_finite_differences(name: str, steps: int, by_position: bool) -> None:
    runs, _ = small(name, by_position)
    scores = edge_scores(runs, "integrated", steps, ignore_progress)
    assert not scores[~runs.graph.allowed].any()
    places = runs.graph.allowed.nonzero().tolist()
    for row, column, at in places[:: (13 if by_position else 1) if name == "gpt2" else (41 if by_position else 3)]:
        edge = (runs.graph.nodes[column], runs.graph.receivers[row])
        expected = by_differences(name, edge, steps, at if by_position else None)
        assert float(scores[row, column, at]) == pytest.approx(expected, abs=1e-7)


def test_scores_of_positions_sum_to_those_of_edges() -> None:
    told, _ = small("llama", True)
    pairs = number_pairs(asked(told.model), equally_long=True)
    whole = Runs(told.model, graph_of(told.model), pairs)
    scores = [edge_scores(runs, "integrated", 3, ignore_progress) for runs in (told, whole)]
    torch.testing.assert_close(scores[0].sum(dim=2), scores[1][..., 0], rtol=0, atol=1e-12)
    every = told.graph.allowed.any(dim=2, keepdim=True)
    kept = random_edges(whole.graph, 0.4, 0)
    torch.testing.assert_close(told.leads(kept & told.graph.allowed), whole.leads(kept & every), rtol=0, atol=1e-12)


@TOLD
def test_measured_scores_are_the_lead_lost_with_the_edge(by_position: bool) -> None:
    runs, by_hand = small("llama", by_position)
    scores = edge_scores(runs, "exact", 1, ignore_progress)
    every = edges_of(runs.graph, runs.graph.allowed)
    for row, column, at in runs.graph.allowed.nonzero().tolist()[:: 31 if by_position else 1]:
        edge = (runs.graph.name(column, at), runs.graph.input(row, at))
        lost = [
            model.lead(model.embedded(pair.clean.ids), pair.answer, pair.versus)
            - model.lead(model.embedded(pair.clean.ids), pair.answer, pair.versus, only(every - {edge}, corrupt))
            for model, pair, corrupt in by_hand
        ]
        assert float(scores[row, column, at]) == pytest.approx(float(sum(lost)) / 2, abs=NEAR["llama"])


@pytest.mark.slow
def test_in_every_kind_of_decoder_all_edges_are_the_clean_run_none_the_corrupt_one_and_dead_ones_nothing() -> None:
    refused = dropped = 0
    for kind in KINDS:
        transformer = lively(config_of(kind)).double()
        try:
            graph = graph_of(transformer)
        except UsageError:
            refused += 1
            continue
        runs = Runs(transformer, graph, number_pairs(asked(transformer)))
        for kept, plain in ((graph.allowed, runs.clean), (torch.zeros_like(graph.allowed), runs.corrupt)):
            assert runs.leads(kept).tolist() == pytest.approx(plain.tolist(), abs=1e-12), kind
        for seed in range(3):  # heads may depend on one another, as where a norm follows their sum
            kept = random_edges(graph, 0.2, seed)
            dead_left_out = runs.leads(graph.alive(kept)).tolist()
            assert runs.leads(kept).tolist() == pytest.approx(dead_left_out, abs=1e-12), kind
            dropped += int(kept.sum() - graph.alive(kept).sum())
    assert dropped > 100
    assert 0 < refused < len(KINDS) - 20


def by_shifting(runs: Runs, row: int, column: int) -> float:
    """The score of an edge by central differences: its receiver reads a little more of what the sender adds."""
    total, size = 0.0, 1e-5
    for batch, sign in itertools.product(runs.batches, (1, -1)):
        moved = (runs.senders(batch, batch.clean) - runs.reference(batch))[column]

        def shift(reading: Reading, moved: Tensor = moved, sign: int = sign) -> Tensor:
            here = torch.arange(len(reading.receivers)) == row - reading.first
            return here[:, None, None, None] * sign * size * moved

        with torch.no_grad(), split(runs.model, runs.graph, Added(runs.empty(batch)), shift):
            total += sign * float(runs.lead(batch, batch.clean).sum())
    return total / (2 * size) / runs.n_pairs


def edges_are_differences(transformer: Transformer) -> set[tuple[bool, int]]:
    """Try one edge of every receiver's reading; return whether each has a norm, and how many steps read."""
    graph = graph_of(transformer)
    runs = Runs(transformer, graph, number_pairs(asked(transformer))[:1])
    scores = edge_scores(runs, "gradient", 1, ignore_progress)
    for reading in graph.readings:
        row, column = reading.first, reading.senders // 2
        assert float(scores[row, column]) == pytest.approx(by_shifting(runs, row, column), rel=1e-4, abs=1e-8), reading
    return {(reading.norm is not None, len(reading.readers)) for reading in graph.readings}


@pytest.mark.parametrize("kind", KINDS)
def test_estimates_are_the_differences_in_every_kind(kind: str) -> None:
    try:
        edges_are_differences(lively(config_of(kind)).double())
    except UsageError as refusal:
        pytest.skip(str(refusal))


@pytest.mark.parametrize("behind_a_norm", [False, True])
def test_what_two_steps_read_counts_for_both(behind_a_norm: bool) -> None:
    one_norm = {"positions": "rotary", "residual": "parallel", "shared_norm": True}
    changes = {"activation": "silu", "gated": True} | (one_norm if behind_a_norm else {"norm_order": "output"})
    assert (behind_a_norm, 2) in edges_are_differences(lively(config_of("gpt2", **changes)).double())


def test_what_cannot_be_asked_is_refused_by_name() -> None:
    said = {
        "bert with a masked head": "encoder",
        "deepseek, latent keys and values": "L0.q_a reads the stream too",
        "zamba2, attention beside the stream, with shared weights and adapters": "beside the residual stream",
        "residuals of normed inputs": "no plain sum",
        "bitnet, norms before the last matrices": "no sum over heads",
    }
    for kind, words in said.items():
        with pytest.raises(UsageError, match=re.escape(words)):
            graph_of(lively(config_of(kind)))


def test_measured_nodes_lose_what_patching_the_corrupt_head_takes() -> None:
    model, pairs = tiny(), story_pairs("cat")
    graph = graph_of(model.transformer)
    encoded = pairs.encoded(model)[:2]
    scores = node_scores(Runs(model.transformer, graph, encoded), ignore_progress)
    for head in ("L1H0", "L2H3", "L1.ffn"):
        lost = []
        for pair in encoded:
            swapped = model.patch(
                pair.pair.corrupt, pair.pair.clean, [head], answer=pair.answer, versus=pair.versus, top=1
            )
            lost.append(swapped.contrast.corrupt - swapped.value)
        assert float(scores[graph.nodes.index(head)]) == pytest.approx(sum(lost) / 2, abs=2e-5)


def paths(graph: Graph, edges: set[Edge]) -> Iterator[list[Edge]]:
    """Every path from the embeddings to the logits of the last token, one by one; keys and values are seen later."""
    owners = dict(zip(graph.receivers, ([graph.nodes[owner] for owner in of] for of in graph.owners), strict=True))
    last = graph.positions - 1
    waiting: list[tuple[str, list[Edge]]] = [(graph.name(0, at), []) for at in range(graph.positions)]
    while waiting:
        node, path = waiting.pop()
        if node == graph.name(len(graph.nodes) - 1, last):
            yield path
        for edge in edges:
            if edge[0] == node:
                name, _, at = edge[1].partition("@")
                places = range(int(at), last + 1) if at and name[-2:] in (".k", ".v") else [at]
                ends = [f"{owner}@{place}" if at else owner for owner in owners[name] for place in places]
                waiting += [(end, [*path, edge]) for end in ends]


@pytest.mark.parametrize(("positions", "share"), [(1, 0.15), (3, 0.13)])
def test_edges_are_alive_on_a_path_from_the_embeddings_to_the_logits_alone(positions: int, share: float) -> None:
    graph = replace(graph_of(lively(config_of("llama, grouped"))), positions=positions, read=(positions - 1,))
    some = 0
    for seed in range(20):
        kept = random_edges(graph, share, seed)
        edges = edges_of(graph, kept)
        expected = {edge for path in paths(graph, edges) for edge in path}
        assert edges_of(graph, graph.alive(kept)) == expected
        logits = graph.name(len(graph.nodes) - 1, positions - 1)
        on_paths = {source for source, _ in expected} | ({logits} if expected else set())
        assert {graph.name(*place) for place in graph.nodes_of(kept).nonzero().tolist()} == on_paths
        some += bool(expected) and expected != edges
    assert some > 10


def test_a_head_that_only_shares_keys_or_values_is_no_node_unless_a_norm_joins_the_heads() -> None:
    edges = {("embed", "L0H0-1.v"), ("L0H0", "logits")}
    for norm_order, names in (("pre", ["embed", "L0H0", "logits"]), ("both", ["embed", "L0H0", "L0H1", "logits"])):
        model = asked(lively(config_of("llama, grouped", norm_order=norm_order)))
        graph = graph_of(model.transformer)
        kept = torch.zeros_like(graph.allowed)
        for source, receiver in edges:
            kept[graph.receivers.index(receiver), graph.nodes.index(source)] = True
        choice = Choice(graph, kept, torch.ones(kept.shape), None, "edges", "exact", 1)
        assert [node.name for node in choice.nodes] == names
        assert [(node.incoming, node.outgoing) for node in choice.nodes[:2]] == [(0, 1), (1, 1)]
        assert len([*choice.links]) == len(names) - 1
        assert overlap("itself", choice, choice, Estimate(1.0)).all_nodes == len(names)


def test_the_circuit_keeps_its_share_and_one_edge_fewer_does_not() -> None:
    report, choice = found(), found().choice
    runs = Runs(tiny().transformer, choice.graph, story_pairs("cat", "dog").encoded(tiny()))
    order = choice.scores.abs().where(choice.graph.allowed, torch.tensor(-1.0)).flatten().argsort(descending=True)

    def share(kept: Tensor) -> float:
        return float((runs.leads(kept) - runs.corrupt).sum() / (runs.clean - runs.corrupt).sum())

    def largest(count: int) -> Tensor:
        chosen = torch.zeros(choice.kept.numel(), dtype=torch.bool)
        chosen[order[:count]] = True
        return choice.graph.alive(chosen.view_as(choice.kept))

    assert report.faithfulness.value == pytest.approx(share(choice.kept), abs=1e-6)
    assert report.faithfulness.value >= 0.9
    assert report.faithfulness.low is not None
    assert report.faithfulness.low < report.faithfulness.value
    assert report.complement.value == pytest.approx(share(choice.graph.allowed & ~choice.kept), abs=1e-6)
    fewest = next(count for count in range(1, 60) if torch.equal(largest(count), choice.kept))
    assert share(largest(fewest - 1)) < 0.9


@AT_LEVELS
def test_what_is_left_without_a_node_or_an_edge_is_the_run_without_it(level: str) -> None:
    report, choice = found(level), found(level).choice
    encoded = story_pairs("cat", "dog").encoded(tiny())
    runs = Runs(tiny().transformer, graph_of(tiny().transformer), encoded, by_position=level == "positions")
    assert all(part.without is not None for part in (*report.nodes[:-1], *report.edges))
    for part in (*report.nodes[:-1], *report.edges):
        kept, rows = choice.kept.clone(), slice(None)
        source, _, at = getattr(part, "source", part.name).partition("@")
        if isinstance(part, CircuitEdge):
            assert part.input.partition("@")[2] == at
            rows = choice.graph.receivers.index(part.input.partition("@")[0])
        kept[rows, choice.graph.nodes.index(source), int(at or 0)] = False
        left = float((runs.leads(kept) - runs.corrupt).sum() / (runs.clean - runs.corrupt).sum())
        assert part.without == pytest.approx(left, abs=1e-5)


@AT_LEVELS
def test_the_sentence_says_the_share_and_the_most_needed_node(level: str) -> None:
    report = found(level)
    needed = {node.name: node.without or 0.0 for node in report.nodes[1:-1]}
    what = "479 edges" if level == "edges" else "4,601 edges at single tokens"
    name = min(needed, key=lambda head: needed[head])
    share, left = (round(100 * value) for value in (report.faithfulness.value, needed[name]))
    assert report.sentence == (
        f"{int(report.choice.kept.sum())} of {what} keep {share} % of the effect that the pairs have on the answer, "
        f"and {name} matters most: without it, {left} % is left."
    )
    assert report.holds


def test_at_single_tokens_what_is_lost_goes_by_values_to_the_end() -> None:
    """Pairs that differ at token 4 alone: what is lost is moved by L1H0's values of it, as docs/circuits.md says."""
    edges = [edge.name for edge in found("positions").edges]
    assert edges[:2] == ["embed@4 → L1H0.v@4", "L1H0@9 → logits@9"]
    assert {node.name.partition("@")[2] for node in found("positions").nodes} == {"4", "9"}
    in_all = {(edge.source, edge.input) for edge in found().edges}
    assert {tuple(re.sub("@[0-9]+", "", edge).split(" → ")) for edge in edges} == in_all


def test_positions_of_texts_of_several_lengths_are_refused(tmp_path: Path) -> None:
    pairs = story_pairs("cat", "old cat")
    with pytest.raises(UsageError, match="positions are those of equally long texts, and these have 10 to 12 tokens"):
        tiny().circuit(pairs, level="positions")
    longer = story_pairs("old cat")
    with pytest.raises(UsageError, match="it tells 10 positions apart, and that of these pairs tells 12 positions"):
        found("positions").run(longer)
    for level, other, words in (
        ("positions", "edges", "circuit.json tells no positions apart, and the circuit of these pairs tells 10"),
        ("edges", "positions", "circuit.json tells 10 positions apart, and the circuit of these pairs tells no"),
    ):
        path = tmp_path / "circuit.json"
        path.write_text(json.dumps(found(other).to_dict()), "utf-8")
        with pytest.raises(UsageError, match=words):
            tiny().circuit(story_pairs("cat"), level=level, versus=path)


def test_what_matters_most_is_said_of_the_nodes_that_were_left_out_and_of_all_that_matter_as_much() -> None:
    few = tiny().circuit(story_pairs("cat"), method="gradient", left_out=3)
    assert re.search(r", and of [23] nodes left out in turn, L1H0 matters most: without it, ", few.sentence)

    def said(*, faithfulness: float = 0.9, **without: float) -> str:
        choice = replace(few.choice, without=without)
        return replace(few, choice=choice, faithfulness=Estimate(faithfulness)).sentence

    assert "L1H0, L1H3 matter most: without any one of them, nothing of it is left" in said(L1H0=0, embed=0, L1H3=0)
    assert "answer, and without L1H0, 5.0 % is left." in said(L1H0=0.05)
    assert said(L1H0=0.9).endswith("on the answer.")
    assert " keep none of the effect that the pairs have on the answer." in said(faithfulness=-0.1, L1H0=-0.2)


def test_at_the_level_of_nodes_all_edges_between_them_are_kept() -> None:
    report = tiny().circuit(story_pairs("cat"), level="nodes", method="exact", keep=0.8)
    inside = {node.name for node in report.nodes}
    graph, owners = (
        report.choice.graph,
        dict(zip(report.choice.graph.receivers, report.choice.graph.owners, strict=True)),
    )
    for name, receiver in edges_of(graph, graph.allowed):
        ends = name in inside and any(graph.nodes[owner] in inside for owner in owners[receiver])
        assert ends == ((name, receiver) in edges_of(graph, report.choice.kept))
    assert report.sentence.startswith(f"{len(inside) - 2} of 20 heads and feed-forwards keep ")
    scored = {node.name: node.score for node in report.nodes}
    assert report.choice.of_nodes is not None
    assert scored["L1H0"] == float(report.choice.of_nodes[graph.nodes.index("L1H0")])


@AT_LEVELS
def test_a_circuit_is_run_on_pairs_that_did_not_choose_it(level: str) -> None:
    other = found(level).run(story_pairs("fox"))
    assert (other.n_pairs, other.n_edges) == (6, found(level).n_edges)
    assert 0.5 < other.faithfulness.value < 1.5
    assert found(level).run(story_pairs("cat", "dog")).faithfulness == found(level).faithfulness


@AT_LEVELS
def test_a_file_has_the_members_of_circuit_tracer_and_reads_back(level: str, tmp_path: Path) -> None:
    found_here = found(level)
    data, path = found_here.to_dict(), tmp_path / "circuit.json"
    path.write_text(json.dumps(data), "utf-8")
    # circuit_tracer/frontend/graph_models.py, version 0.1
    metadata = {"slug": str, "scan": str, "transcoder_list": list, "prompt_tokens": list, "prompt": str}
    node = {"node_id": str, "feature": int, "layer": str, "ctx_idx": int, "feature_type": str, "jsNodeId": str}
    for name, kind in metadata.items():
        assert isinstance(data["metadata"][name], kind)
    assert {*data["qParams"]} == {"pinnedIds", "supernodes", "linkType", "clickedId", "sg_pos"}
    for each, (name, kind) in itertools.product(data["nodes"], {**node, "clerp": str}.items()):
        assert isinstance(each[name], kind)
    ids = {each["node_id"] for each in data["nodes"]}
    assert len(ids) == len(data["nodes"])
    assert all({link["source"], link["target"]} <= ids and math.isfinite(link["weight"]) for link in data["links"])
    if level == "positions":
        assert all(each["name"].endswith(f"@{each['ctx_idx']}") for each in data["nodes"])
    again = read_circuit(path, found_here.choice.graph)
    assert bool((again.kept == found_here.choice.kept).all())
    assert again.scores[again.kept].tolist() == pytest.approx(found_here.choice.scores[again.kept].tolist())
    by_nodes = tiny().circuit(story_pairs("cat", "dog"), level="nodes", left_out=0)
    (tmp_path / "nodes.json").write_text(json.dumps(by_nodes.to_dict()), "utf-8")
    same = tiny().circuit(story_pairs("cat", "dog"), stored=tmp_path / "nodes.json", left_out=0)
    assert (same.sentence, same.nodes, same.complement) == (by_nodes.sentence, by_nodes.nodes, by_nodes.complement)
    assert same.choice.chosen_from == same.to_dict()["chosen_from"] == "stories.jsonl"
    measured = tiny().circuit(story_pairs("cat", "dog"), stored=path, versus=path)
    assert measured.faithfulness == found_here.faithfulness
    assert measured.versus is not None
    assert (measured.versus.edges_jaccard, measured.versus.nodes_jaccard) == (1.0, 1.0)
    assert measured.versus.rank_correlation == pytest.approx(1.0)


def test_two_circuits_are_compared_edge_by_edge(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    other = tiny().circuit(story_pairs("cat", "dog"), keep=0.6, method="gradient", left_out=0)
    path.write_text(json.dumps(other.to_dict()), "utf-8")
    versus = tiny().circuit(story_pairs("cat", "dog"), versus=path).versus
    assert versus is not None
    ours, theirs = ({(edge.source, edge.input) for edge in report.edges} for report in (found(), other))
    assert (versus.edges, versus.shared_edges, versus.all_edges) == (
        len(theirs),
        len(ours & theirs),
        len(ours | theirs),
    )
    names = [{node.name for node in report.nodes} for report in (found(), other)]
    assert (versus.nodes, versus.shared_nodes) == (len(names[1]), len(names[0] & names[1]))
    assert versus.faithfulness.value == pytest.approx(other.faithfulness.value, abs=1e-6)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data.pop("links"), "no path leads from the embeddings to the logits"),
        (lambda data: data.pop("level"), "no circuit: it has no level, method and steps"),
        (lambda data: data["nodes"][1].pop("name"), "node 2 of .* is no node of this model"),
        (lambda data: data["nodes"][2].update(score=10**400), "node 3 of .* has no finite score"),
        (lambda data: data["links"][0].update(weight=math.nan), "link 1 of .* has no finite weight"),
        (lambda data: data["links"][1].update(input=["L1H0.q"]), "link 2 of .* leads from no node to an input"),
        (lambda data: data["links"].insert(1, None), "link 2 of .* leads from no node to an input"),
        (lambda data: data["links"][2].update(input="L1H0.w"), "link 3 of .* leads from no node to an input"),
        (lambda data: data["links"][2].update(**{"from": "L3.ffn"}, input="L1H0.q"), "link 3 of .* leads back"),
    ],
)
def test_a_file_that_is_no_circuit_of_the_model_is_refused_by_node_or_link(
    change: Any, words: str, tmp_path: Path
) -> None:
    report = replace(found(), choice=replace(found().choice, level="nodes", of_nodes=found().choice.node_scores))
    data, path = report.to_dict(), tmp_path / "circuit.json"
    change(data)
    path.write_text(json.dumps(data), "utf-8")
    with pytest.raises(UsageError, match=words):
        read_circuit(path, found().choice.graph)


def test_pairs_without_an_effect_and_settings_out_of_range_are_refused() -> None:
    text = "The cat lost the {}. The dog"
    same = {"clean": text.format("ball"), "corrupt": text.format("hat"), "answer": " ran", "versus": " sat"}
    swapped = {**same, "clean": same["corrupt"], "corrupt": same["clean"]}
    with pytest.raises(UsageError, match="the mean lead of answer over versus is"):
        tiny().circuit(PairSet.of([same, swapped]))
    for settings, words in (({"keep": 0.0}, "cannot keep 0"), ({"method": "magic"}, "no method 'magic'"),
                            ({"level": "edge"}, "no level 'edge'"), ({"steps": 0}, "0 steps"),
                            ({"left_out": -1}, "-1 nodes cannot be left out")):  # fmt: skip
        with pytest.raises(UsageError, match=words):
            tiny().circuit(story_pairs("cat"), **settings)  # type: ignore[arg-type]
    broken = lively(config_of("gpt2"))
    broken.final_norm.weight.data.fill_(math.nan)
    rows = [{"clean": "3 14 15", "corrupt": "3 14 7", "answer": "#5", "versus": "#8"}]
    with pytest.raises(TinytfError, match="not finite"):
        asked(broken).circuit(PairSet.of(rows))


def test_ctrl_c_keeps_the_circuit_that_was_measured() -> None:
    phases: list[int] = []

    def stop(done: int, of: int) -> None:
        phases.append(done)
        if phases.count(1) == 3 and done == 2:  # scores, bisection, nodes left out: the second node
            raise KeyboardInterrupt

    report = tiny().circuit(story_pairs("cat", "dog"), on_progress=stop)
    assert report.interrupted
    assert len(report.choice.without) == 2
    assert report.choice.kept.sum() > 0
    assert "matters most" not in report.sentence
    assert [event["type"] for event in report.events()][-1] == "interrupted"


def test_ctrl_c_between_the_scores_and_the_end_keeps_the_circuit(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, calls = Runs.leads, itertools.count()
    bisected = 9  # runs of the bisection of 479 edges

    def stopping(runs: Runs, kept: Tensor) -> Tensor:
        if next(calls) == bisected + 2:  # in the checks
            raise KeyboardInterrupt
        return plain(runs, kept)

    monkeypatch.setattr(Runs, "leads", stopping)
    report = tiny().circuit(story_pairs("cat"), method="gradient")
    assert report.interrupted
    assert not report.choice.stopped
    assert not report.choice.without
    assert report.holds
    assert report.faithfulness.value >= 0.9


def test_the_graph_of_a_grouped_model_names_the_heads_that_share_keys() -> None:
    graph = graph_of(lively(config_of("llama, grouped")))
    table = table_of(config_of("llama, grouped"))
    assert table.config.n_kv_heads == 2
    assert graph.receivers[:9] == (
        "L0H0.q", "L0H1.q", "L0H2.q", "L0H3.q", "L0H0-1.k", "L0H2-3.k", "L0H0-1.v", "L0H2-3.v", "L0.ffn",
    )  # fmt: skip
    assert graph.owners[4:6] == ((1, 2), (3, 4))


def test_a_model_whose_numbers_are_not_finite_is_named_by_its_first_step_and_not_by_an_answer() -> None:
    model = asked(lively(config_of("gpt2")))
    with torch.no_grad():
        model.transformer.blocks[1].get_submodule("ffn.up").get_parameter("weight")[0, 0] = math.nan
    with pytest.raises(TinytfError, match=r"not every number is finite, first at L1\.ffn\.hidden"):
        one_pair(model, "3 1 4", "3 1 5")
