"""A circuit: how much of the effect it keeps, its nodes in their layers, and the edges between them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tinytf.cause.circuit import Circuit, CircuitEdge, CircuitNode
from tinytf.cause.over_pairs.report import without_effect
from tinytf.text.printable import printable
from tinytf_cli.numbers import number, plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import (
    Block,
    Column,
    Drawing,
    DrawnEdge,
    DrawnNode,
    Figure,
    Heading,
    Heat,
    Line,
    Piece,
    Span,
    Table,
)
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import LONG_STACK, full_scale, interval, note, numbered, side, signed_bars, uneven, verdict

_EDGES, _NODES, _READ, _DRAWN = 5, 8, 4, 150
"""Edges and nodes on one screen, the edges that are named beside a node, and the most in a picture."""
_METHODS = {
    "gradient": "scored by the gradients of the clean runs",
    "integrated": "scored by integrated gradients",
    "exact": "scored by a run each",
}
_LEVELS = {"edges": "edges", "positions": "edges at single tokens", "nodes": "nodes"}
_BOTH = 13
"""Lines of the picture and nodes below it on one screen."""
_FORM, _OUTSIDE = "%+.2f", "not in the circuit"


@dataclass(frozen=True)
class CircuitDisplay(Display):
    """``top`` is how many edges and nodes are listed; ``all`` lists every one."""

    top: int | None = None
    all: bool = False

    def drawing(self, report: Circuit) -> Drawing:
        """The circuit as a graph."""
        graph, drawn = report.choice.graph, {*report.edges[:_DRAWN]}
        layer_of = {name: graph.places[node][0] for name, (node, _) in graph.named.items()}
        edges = [
            DrawnEdge(edge.source, target, edge.score, _projection(edge.input))
            for edge, target in report.choice.links
            if edge in drawn
        ]
        ends = {end for edge in edges for end in (edge.source, edge.target)}
        nodes = [node for node in report.nodes if node.name in ends]
        layers = sorted({layer_of[node.name] for node in nodes})
        names = {-1: "in", graph.places[-1][0]: "out"}
        few = len(drawn) < report.n_edges
        largest = f"the {len(drawn)} largest of {report.n_edges:,} drawn" if few else "all of them drawn"
        return Drawing(
            title=report.sentence,
            key=f"orange for the answer, blue against it; width: the score of an edge, {largest}",
            rows=[names.get(layer, f"L{layer}") for layer in layers],
            nodes=[DrawnNode(node.name, layers.index(layer_of[node.name]), node.score) for node in nodes],
            edges=edges,
        )


@draws(Circuit, CircuitDisplay)
def circuit(report: Circuit, terminal: Terminal, display: CircuitDisplay) -> Iterator[Block]:
    """The effect and what the circuit keeps of it, a picture of its nodes, the nodes most needed, the largest edges."""
    choice = report.choice
    how = f"{_LEVELS[choice.level]} {_METHODS[choice.method]}"
    source = "from" if choice.chosen_from is None else f"on {_file_name(choice.chosen_from)}; run on"
    yield from banner(model_of(report))
    yield Heading("circuit", f"{how}, {source} {plural(report.n_pairs, 'pair')} of {_file_name(report.pairs)}")
    yield from uneven(report.uneven)
    yield from _kept(report)
    picture = _by_token(report) if choice.level == "positions" else _picture(report)
    lines = min(len(picture.row_labels), LONG_STACK)
    speaks = "speaks for the answer" if report.metric.is_lead else f"raises the {report.metric.noun}"
    where, of = "nodes in their layers", "the score of each"
    if choice.level == "positions":
        where, of = "nodes at their tokens", "the scores of a layer's, summed"
    yield Heading(where, f"{of}: above 0 it {speaks}", "attention")
    yield picture
    nodes = min(_NODES, max(_NODES // 2, _BOTH - lines))  # what fits one screen below a picture of so many lines
    yield from _nodes(report, None if display.all else display.top or nodes)
    yield from _edges(report, None if display.all else display.top or _EDGES)
    yield from _compared(report)
    yield Line("")
    most = max(check.difference for check in report.checks)
    yield verdict(report.holds, f"{'; '.join(check.what for check in report.checks)}: off by {most:.1e} at most")


def _file_name(path: str) -> str:
    return printable(Path(path).name, spaces=False)


def _kept(report: Circuit) -> Iterator[Block]:
    """The mean leads of the plain runs, or another metric, faithfulness and completeness."""
    pairs, metric = plural(report.n_pairs, "pair"), report.metric
    noun, lead = ("lead", " in the lead") if metric.is_lead else (metric.noun, "")
    unit = "logits of answer − versus" if metric.is_lead else metric.in_unit.strip()
    rows = [
        ("clean − corrupt", report.effect, _FORM, f"what the texts of a pair change{lead}"),
        (f"{noun}, clean", report.clean, _FORM, f"the larger one in {report.separated:,} of {pairs}"),
        (f"{noun}, corrupt", report.corrupt, _FORM, unit),
        ("circuit", report.faithfulness, "%.3f", f"{report.n_edges:,} of {report.n_all:,} edges; 1: as clean"),
        ("all but the circuit", report.complement, "%.3f", "near 0 if it is complete"),
    ]
    rows = rows[:3] if without_effect(report.effect, report.metric) else rows
    yield Table(
        [
            Column("", [name for name, *_ in rows], said=""),
            Column("", [Figure(estimate.value, form, "strong") for _, estimate, form, _ in rows], "right", said=""),
            Column("", [interval(estimate, form) for _, estimate, form, _ in rows], said="95 % interval", drop=1),
            Column("", [Span(about, "dim") for *_, about in rows], shrink=24, drop=2, said=""),
        ],
        header=False,
    )
    if metric.is_lead and report.clean.value < report.corrupt.value:
        yield note("the clean texts lower the lead of the answer, so the circuit is of what speaks against it")
    if report.choice.stopped:
        yield note("stopped before the fewest edges or nodes were found")
    elif report.interrupted:
        yield note(f"stopped after {len(report.choice.without):,} nodes and edges had been left out")


def _picture(report: Circuit) -> Heat:
    """The score of every node of the circuit, where it stands in the model: layers down, the last one on top."""
    graph, inside = report.choice.graph, {node.name: node.score for node in report.nodes}
    layers = 1 + max(layer for layer, _ in graph.places[:-1])
    columns = 1 + max(column for _, column in graph.places)
    scores = np.full((layers, columns), math.nan, dtype=np.float32)
    for name, (layer, column) in zip(graph.nodes, graph.places, strict=True):
        if 0 <= layer < layers and name in inside:
            scores[layer, columns - 1 if name.endswith(".ffn") else column] = inside[name]
    labels, limit = [*numbered("H", columns - 1), "ffn"], full_scale(scores[~np.isnan(scores)].tolist())
    if layers > LONG_STACK:
        shown, rows, across, axes = scores.T, labels, numbered("L", layers), f"layers 0 to {layers - 1} across"
    else:
        shown, rows, across, axes = scores[::-1], numbered("L", layers)[::-1], labels, ""
    return Heat(shown, rows, across, "signed", ~np.isnan(shown), limit, most=LONG_STACK, hidden=_OUTSIDE, axes=axes)


def _by_token(report: Circuit) -> Heat:
    """The scores of the nodes of each layer at each token that has any, summed; tokens down."""
    graph, tokens = report.choice.graph, report.example.tokens
    layers = graph.places[-1][0]
    scores = np.full((graph.positions, 1 + layers), math.nan, dtype=np.float32)
    for node in report.nodes:
        number, position = graph.named[node.name]
        if node.score is not None:
            cell = position, 1 + graph.places[number][0]
            scores[cell] = node.score + np.nan_to_num(scores[cell])
    inside = ~np.isnan(scores)
    keep = np.flatnonzero(inside.any(axis=1)).tolist()
    limit = full_scale(scores[inside].tolist())
    rows, across = [f"{at} {tokens[at].shown}" for at in keep], ["embed", *numbered("L", layers)]
    axes = f"tokens of the first text down; the embeddings and layers 0 to {layers - 1} across"
    hidden = "no node of the circuit"
    return Heat(scores[keep], rows, across, "signed", inside[keep], limit, most=LONG_STACK, hidden=hidden, axes=axes)


def _nodes(report: Circuit, most: int | None) -> Iterator[Block]:
    """The nodes that the circuit needs most, the last layer first, with the largest edges that they read."""
    nodes = report.nodes[:-1]

    def need(node: CircuitNode) -> tuple[bool, float]:
        return node.without is None, -abs(node.score or 0.0) if node.without is None else node.without

    chosen = sorted(nodes, key=need)[:most]
    rows = [report.nodes[-1], *(node for node in reversed(nodes) if node in chosen)]
    reads: dict[str, list[CircuitEdge]] = {}
    for edge, target in report.choice.links:
        reads.setdefault(target, []).append(edge)
    tried, count = sum(node.without is not None for node in nodes), len(chosen)
    title = f"the {count} largest scores of {plural(len(report.nodes), 'node')}"
    if count == len(nodes):
        title = "every node"
    elif 0 < tried < count:
        title = f"{plural(tried, 'node')} left out in turn, then the largest scores"
    elif tried:
        which = plural(len(report.nodes), "node") if tried == len(nodes) else f"{tried} nodes left out in turn"
        title = f"the {count} most needed of {which}"
    yield Heading("nodes", f"{title}, the last layer first, with what they read", "attention")
    full = full_scale(node.score or 0.0 for node in rows)
    bars = signed_bars("score", [node.score or 0.0 for node in rows], _FORM, full)
    bars = Column(
        "score", [cell if node.score is not None else "" for node, cell in zip(rows, bars.cells, strict=True)]
    )
    yield Table(
        [
            Column("node", [Span(node.name, "strong") for node in rows], said=""),
            bars,
            *_left_without(rows),
            Column("in", [Figure(node.incoming, "%.0f") for node in rows], "right", drop=2),
            Column("out", [Figure(node.outgoing, "%.0f") for node in rows], "right", drop=3),
            Column(
                "reads",
                [_in_words(reads.get(node.name, []), None if most is None else _READ) for node in rows],
                shrink=12,
                drop=1,
            ),
        ]
    )
    if len(chosen) < len(nodes):
        yield note("", "--all lists every node and edge; -o FILE.svg draws them")


def _in_words(edges: Sequence[CircuitEdge], most: int | None) -> Sequence[Piece]:
    """The largest edges into a node, at most ``most``: which input, from where, with the score."""
    pieces: list[Piece] = []
    for edge in edges[:most]:
        way = f"{_projection(edge.input)} {edge.source} ".lstrip()
        pieces += [f"{', ' if pieces else ''}{way}", Span(number(edge.score, _FORM), side(edge.score))]
    if most is not None and len(edges) > most:
        pieces.append(Span(f", {len(edges) - most:,} more", "dim"))
    return pieces or [""]


def _projection(receiver: str) -> str:
    """``q``, ``k`` or ``v`` of a head's input; empty for any other."""
    head, _, projection = receiver.partition("@")[0].rpartition(".")
    return projection if "H" in head else ""


def _edges(report: Circuit, most: int | None) -> Iterator[Block]:
    edges, choice = report.edges[:most], report.choice
    title = "every edge" if len(edges) == report.n_edges else f"the {len(edges)} largest of {report.n_edges:,}"
    how = "measured" if choice.method == "exact" and choice.level != "nodes" else "estimated"
    where = "" if choice.chosen_from is None else f" on {_file_name(choice.chosen_from)}"
    lost = "lead" if report.metric.is_lead else report.metric.noun
    yield Heading("edges", f"{title}: the {lost} that is lost without one, as {how}{where}", "residual")
    yield Table(
        [
            Column("from", [Span(edge.source, "strong") for edge in edges]),
            Column("to", [Span(edge.input, "strong") for edge in edges]),
            signed_bars("score", [edge.score for edge in edges], _FORM),
            *_left_without(edges),
        ]
    )


def _left_without(parts: Sequence[CircuitNode | CircuitEdge]) -> Iterator[Column]:
    """What the circuit keeps without each of some nodes or edges, if any was left out."""
    if any(part.without is not None for part in parts):
        cells = ["" if part.without is None else Figure(part.without, "%.2f") for part in parts]
        yield Column("left without it", cells, "right")


def _compared(report: Circuit) -> Iterator[Block]:
    """The other circuit, and what both share."""
    other = report.versus
    if other is None:
        return
    yield Heading("versus", f"{_file_name(other.other)}, on the same pairs")
    correlation = other.rank_correlation
    ranks = "no rank correlation" if correlation is None else f"rank correlation of their scores {correlation:+.2f}"

    def counts(title: str, numbers: Sequence[int], jaccard: float) -> Column:
        return Column(title, [*(Figure(count, "%.0f") for count in numbers), Figure(jaccard, "%.2f")], "right")

    shares = [Figure(mean.value, "%.3f") for mean in (report.faithfulness, other.faithfulness)]
    yield Table(
        [
            Column("", ["this circuit", "the other", "shared", "Jaccard"], said=""),
            counts("nodes", (len(report.nodes), other.nodes, other.shared_nodes), other.nodes_jaccard),
            counts("edges", (report.n_edges, other.edges, other.shared_edges), other.edges_jaccard),
            Column("faithfulness", [*shares, "", ""], "right"),
            Column("", ["", "", Span(ranks, "dim"), ""], drop=1, said=""),
        ]
    )
