"""A feature circuit: the strongest paths from tokens to the answer, its features, and one node with its edges."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tinytf.features.feature_circuit.report import FeatureCircuit, GraphLink, GraphNode
from tinytf.sentences import percent
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
    Line,
    Piece,
    Span,
    Table,
)
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import note, side, signed_bars, titled, verdict

_PATHS, _NODES, _EDGES, _LEFT_OUT, _READ, _DRAWN = 5, 8, 12, 5, 3, 150
"""Paths, features, edges of a node, features left out and edges beside a feature on one screen; edges in a picture."""
_FORM = "%+.2f"


@dataclass(frozen=True)
class FeatureCircuitDisplay(Display):
    """``top`` is how many paths and features are listed; ``all`` lists every one; ``node`` shows one and its edges."""

    top: int | None = None
    all: bool = False
    node: str | None = None

    def most(self, usual: int) -> int | None:
        """How many rows of a table that usually has so many."""
        return None if self.all else self.top or usual

    def drawing(self, report: FeatureCircuit) -> Drawing:
        """The circuit as a graph."""
        links = sorted(report.links, key=lambda link: -abs(link.weight))[:_DRAWN]
        ends = {end for link in links for end in (link.source, link.target)}
        nodes = [node for node in report.nodes if node.name in ends]
        layers = sorted({node.layer for node in nodes})
        last = report.targets[0].layer
        names = {-1: "in", last: "out"}
        names_of = {node.name: _named(report, node) for node in nodes}
        return Drawing(
            title=report.sentence,
            key="orange adds to the target, blue takes from it; width: the weight of an edge",
            rows=[names.get(layer, f"L{layer}") for layer in layers],
            nodes=[DrawnNode(names_of[node.name], layers.index(node.layer), node.effect) for node in nodes],
            edges=[DrawnEdge(names_of[link.source], names_of[link.target], link.weight, "") for link in links],
        )  # fmt: skip


@draws(FeatureCircuit, FeatureCircuitDisplay)
def feature_circuit(report: FeatureCircuit, terminal: Terminal, display: FeatureCircuitDisplay) -> Iterator[Block]:
    """What the answer's logit is made of, or one node and its edges; and whether the edges add up."""
    yield from banner(model_of(report), report.encoding)
    transcoders = report.transcoders
    kind = "cross-layer transcoders" if transcoders.crosses_layers else "transcoders"
    words = f" · {len(transcoders.coders)} {kind} · {plural(transcoders.n_features, 'feature')} each"
    yield titled(printable(transcoders.name, spaces=False), words)
    if display.node is not None:
        yield from _node(report, report.node(display.node), display)
    else:
        yield from _scores(report)
        yield from _paths(report, display)
        yield from _features(report, display)
        yield from _left_out(report, display)
    yield Line("")
    yield verdict(report.holds, f"{report.check.what}: off by {report.check.difference:.1e} of what is added at most")


def _named(report: FeatureCircuit, node: GraphNode) -> str:
    """The name of a node in words: a token and a logit by their text."""
    if node.kind == "token":
        return f"{report.encoding.tokens[node.position].shown}@{node.position}"
    return str(report.shown(node.number)) if node.kind == "logit" else node.name


def _promoted(report: FeatureCircuit, node: GraphNode) -> str:
    return "  ".join(str(report.shown(token)) for token, _ in node.promoted)


def _scores(report: FeatureCircuit) -> Iterator[Block]:
    targets = [f"{report.shown(node.number)} {percent(node.probability)}" for node in report.targets]
    yield Heading("feature circuit", f"of {', '.join(targets[:4])}{f', {len(targets) - 4} more' * (len(targets) > 4)}")
    counts = {kind: sum(node.kind == kind for node in report.nodes) for kind in ("feature", "error")}
    first = report.shown(report.targets[0].number)
    rows: list[tuple[str, Piece, str]] = [
        (f"logit of {first}", Figure(report.logit, _FORM, "strong"),
         f"less the mean of all; {number(report.bias, _FORM)} of it from biases"),
        ("replacement", Figure(report.replacement, "%.3f", "strong"),
         "the share of the influence that ends in tokens, not in errors"),
        ("completeness", Figure(report.completeness, "%.3f", "strong"),
         "the mean share of what a node reads that is no error's"),
    ]  # fmt: skip
    yield Table(
        [
            Column("", [name for name, *_ in rows], said=""),
            Column("", [figure for _, figure, _ in rows], "right", said=""),
            Column("", [Span(words, "dim") for *_, words in rows], shrink=24, said=""),
        ],
        header=False,
    )
    traced = "" if report.traced == report.features else f", {report.traced:,} of them traced further"
    kept = f"kept: {counts['feature']:,} of {plural(report.features, 'active feature')}{traced}, "
    yield note(f"{kept}{counts['error']:,} of {plural(report.errors, 'error')}, {len(report.links):,} of "
               f"{plural(report.all_edges, 'edge')}")  # fmt: skip


def _paths(report: FeatureCircuit, display: FeatureCircuitDisplay) -> Iterator[Block]:
    paths = report.paths[: display.most(_PATHS)]
    first = report.shown(report.targets[0].number)
    yield Heading("paths", f"how much of the logit of {first} comes along each, the largest first", "residual")
    if not paths:
        yield note("no path is kept")
        return
    words = [" → ".join(_named(report, report.node(name)) for name in path.nodes) for path in paths]
    yield Table([signed_bars("logit", [path.weight for path in paths], _FORM), Column("path", words, shrink=30)])


def _features(report: FeatureCircuit, display: FeatureCircuitDisplay) -> Iterator[Block]:
    features = sorted(
        (node for node in report.nodes if node.kind == "feature"), key=lambda node: -abs(node.effect or 0)
    )
    chosen = features[: display.most(_NODES)]
    if not chosen:
        return
    few = "every feature" if len(chosen) == len(features) else f"the {len(chosen)} with the largest effects"
    yield Heading("features", f"{few}: how much of the logit each makes, also through others", "ffn")
    yield Table(
        [
            Column("feature", [Span(node.name, "ffn") for node in chosen], said=""),
            Column("token", [report.encoding.tokens[node.position].shown for node in chosen], shrink=6),
            Column("active", [Figure(node.activation or 0.0, "%.1f") for node in chosen], "right", drop=3),
            signed_bars("effect", [node.effect or 0.0 for node in chosen], _FORM),
            Column("promotes", [_promoted(report, node) for node in chosen], shrink=10, drop=2),
            Column("reads", [_sources(report, report.into(node.name)) for node in chosen], shrink=12, drop=1),
        ]
    )  # fmt: skip
    yield note("", f"--node {chosen[0].name} shows one and its edges; --all lists all; -o FILE.svg draws them")


def _sources(report: FeatureCircuit, links: Sequence[GraphLink]) -> Sequence[Piece]:
    pieces: list[Piece] = []
    for link in links[:_READ]:
        name = _named(report, report.node(link.source))
        pieces += [f"{', ' if pieces else ''}{name} ", Span(number(link.weight, _FORM), side(link.weight))]
    return pieces or [""]


def _left_out(report: FeatureCircuit, display: FeatureCircuitDisplay) -> Iterator[Block]:
    if not report.left_out:
        return
    chosen = report.left_out[: display.most(_LEFT_OUT)]
    first = report.shown(report.targets[0].number)
    how = f"the change of the logit of {first} without a feature, as the graph says and in the model itself"
    yield Heading("taken out", how, "attention")
    full = (
        max(abs(value) for each in chosen for value in (each.predicted, each.held, each.measured, each.control)) or 1.0
    )
    yield Table(
        [
            Column("feature", [Span(each.node, "ffn") for each in chosen], said=""),
            signed_bars("graph", [each.predicted for each in chosen], _FORM, full),
            signed_bars("held", [each.held for each in chosen], _FORM, full),
            signed_bars("model", [each.measured for each in chosen], _FORM, full),
            signed_bars("random", [each.control for each in chosen], _FORM, full),
        ]
    )
    yield note("held: with attention patterns and norm scales as they were; random: a direction of the same length")
    both = report.rank_correlation_held, report.rank_correlation
    if both[0] is not None and both[1] is not None:
        words = f"rank correlation of the graph with held {both[0]:+.2f}, with the model {both[1]:+.2f}"
        yield note(f"{words}, over {plural(len(report.left_out), 'feature')}")


def _node(report: FeatureCircuit, node: GraphNode, display: FeatureCircuitDisplay) -> Iterator[Block]:
    """One node: what it is, what adds to it, and what it adds to."""
    at = "" if node.kind == "logit" else f"at {report.encoding.tokens[node.position].shown}"
    facts = [at] if at else []
    if node.activation is not None:
        facts.append(f"active with {number(node.activation, '%.2f')}")
    if node.effect is not None:
        first = report.shown(report.targets[0].number)
        facts.append(f"makes {number(node.effect, _FORM)} of the logit of {first}")
    yield Heading(_named(report, node), ", ".join(facts), "ffn")
    for what, ends in (("promotes", node.promoted), ("suppresses", node.suppressed)):
        if ends:
            yield note(f"{what} {'  '.join(str(report.shown(token)) for token, _ in ends)}")
    for title, links, end in (
        ("adds to it", report.into(node.name), "source"),
        ("it adds to", report.out_of(node.name), "target"),
    ):
        chosen = links[: display.most(_EDGES)]
        if not links:
            continue
        yield Heading(title, f"{len(chosen)} of {plural(len(links), 'kept edge')}, the largest first", "residual")
        others = [report.node(getattr(link, end)) for link in chosen]
        yield Table(
            [
                Column("node", [Span(_named(report, other), "strong") for other in others], said=""),
                Column("token", [report.encoding.tokens[other.position].shown for other in others], shrink=6),
                signed_bars("weight", [link.weight for link in chosen], _FORM),
                Column("promotes", [_promoted(report, other) for other in others], shrink=10, drop=1),
            ]
        )  # fmt: skip
