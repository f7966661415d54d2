"""Attention at a glance: one number per head, small maps, one head large, one query, the strongest pairs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tinytf.look.attention import Attended
from tinytf.look.heads.measures import MEASURES, MeasuredHeads
from tinytf.look.links import links
from tinytf.look.overview import Overview
from tinytf.trace.trace import Trace
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import (
    Array,
    Bar,
    Bars,
    Block,
    Heading,
    Heat,
    Line,
    Links,
    Miniature,
    Span,
    Thumbnails,
    Visible,
)
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.flow import multi_head_blocks
from tinytf_cli.views.overview import head_maps, where_read
from tinytf_cli.views.parts import LONG_STACK, fold_note, head_map, middle_out, most_rows, note, row_limit, shortened
from tinytf_cli.views.predictions import check_blocks
from tinytf_cli.views.steps import as_array, labels, meaning, query_blocks, visible_array

_FEW_LAYERS, _LINES = 4, 24
"""How many layers are drawn with every head, and the lines that the strongest heads of more layers take."""
_EVERY = 12
"""The most tokens whose weak lines are drawn too."""
_BOUNDED = ("previous", "first", "self")


def thumbnails(trace: Trace, of: str | None = None) -> Thumbnails:
    """Every head's weights, or the maps of the step ``of`` each layer, small."""
    name, layers = of or trace.steps.weights, trace.steps.attention_layers
    maps = [as_array(trace.step(name, layer)) for layer in layers]
    seen = [visible_array(trace, trace.steps.at(name, layer), layer) for layer in layers]
    readers = () if trace.config.causal else range(len(trace.tokens))
    return Thumbnails(maps, seen, layers, labels(trace), readers)


def _full(values: Array, by: str) -> float:
    """The end of the scale of a measure."""
    return 1.0 if by in _BOUNDED else float(np.nanmax(values, initial=0.0)) or 1.0


def _measured(values: Array, by: str, layers: Sequence[int], whole: bool = True) -> Iterator[Block]:
    """A measure of every head: layers down, heads across; of a deep model, unless ``whole``, a small map."""
    yield Heading(f"heads by {by}", MEASURES[by][1], "attention")
    if not whole and len(layers) > LONG_STACK:
        yield from head_map(values, "unit", _full(values, by))
        return
    rows, columns = [f"L{layer}" for layer in layers], [f"H{head}" for head in range(values.shape[1])]
    yield Heat(values, rows, columns, "unit", None, _full(values, by), asked=True, digits=2)


def measured_blocks(heads: MeasuredHeads, top: int) -> Iterator[Block]:
    """A measure of every head of some layers, and the ``top`` largest."""
    values = as_array(heads.values)
    yield from _measured(values, heads.by, heads.layers)
    best = [Bar(f"L{layer}H{head}", value, f"{value:.2f}", "attention") for layer, head, value in heads.ranked[:top]]
    yield Heading("the largest", f"{len(best)} of {values.size}", "attention")
    yield Bars(best, _full(values, heads.by))


@dataclass(frozen=True)
class AttentionDisplay(Display):
    """``by`` is the measure of the overview; ``rows`` the most queries of a large head: 0 for all, None for what suits
    the terminal. ``all`` draws every head of a deep model."""

    by: str = "entropy"
    rows: int | None = None
    all: bool = False


@draws(Attended, AttentionDisplay)
def attention(report: Attended, terminal: Terminal, display: AttentionDisplay) -> Iterator[Block]:
    """The heads of one layer, each chosen head, or an overview of all; then the check."""
    yield from banner(model_of(report), report.encoding)
    if report.multi_head is not None:
        yield from _multi_head(report, report.multi_head, terminal)
        yield Heading("the mean of its heads", "from each token to those that they look at", "attention")
        yield from _links(report, report.multi_head.layers[0].layer, None, display.rows)
    elif not report.heads:
        layers = list(report.trace.steps.attention_layers)
        yield from _measured(as_array(report.measured(display.by))[layers], display.by, layers, display.all)
        if report.across:
            yield Heading("weights of every head", "target down, source across", "cross", "larger: --head L0H0")
            yield thumbnails(report.trace, report.step.name)
        elif display.all or report.glance is None or len(layers) <= _FEW_LAYERS:
            larger = f"larger: --head L{layers[0]}H0, --layer {layers[0]}"
            yield Heading("weights of every head", "query down, key across", "attention", larger)
            yield thumbnails(report.trace)
        else:
            yield from head_maps(report.glance, terminal.width, _LINES, where_read(report.glance))
    for layer, head in report.heads:
        yield from _head(report, layer, head, display.rows, row_limit(terminal, display.rows, 24))
    yield from check_blocks(report.check)


def _multi_head(report: Attended, overview: Overview, terminal: Terminal) -> Iterator[Block]:
    """The heads of one layer, and how they make up what the layer adds to the stream."""
    (layer,), trace = overview.layers, report.trace
    where = "over all tokens" if len(overview.positions) > 1 else f"at {labels(trace)[overview.positions[0]]}"
    adds = "what a head adds is a share of the stream, → what it sees most"
    yield Heading(f"attention L{layer.layer}", f"of {trace.config.n_layers}; {adds}, {where}")
    seen = visible_array(trace, report.step, layer.layer)
    maps = []
    for _, head, _ in overview.ranked:
        most_seen = shortened(overview.most_seen(layer.layer, head), 10)
        weights = as_array(overview.weights(layer.layer, head))
        small = Miniature(f"H{head}", most_seen, weights, seen, labels(trace), overview.positions)
        maps.append((head, small, layer.heads[head]))
    which, remedy = "those that add most", f"--head L{layer.layer}H* draws the others"
    branch = overview.flow.branch(trace.steps.weights)
    yield from multi_head_blocks(overview.flow.steps[0], branch, maps, which, remedy, rails=not terminal.plain)


def _head(report: Attended, layer: int, head: int, rows: int | None, most: int | None) -> Iterator[Block]:
    """One head: a query, the strongest pairs, or lines from token to token and a map.

    Below the map of a whole head are at most ``most`` queries; ``rows`` is how many were asked for.
    """
    step, names = report.step, labels(report.trace)
    reads = labels(report.trace, step.axes[-1])
    weights = as_array(report.trace.step(step.name, layer, (head,)))[0]
    words = meaning(report.trace, step, (layer,), (head,)).removeprefix(" = ").removeprefix(", ")
    yield Heading(f"L{layer}H{head}.{step.name}", words, step.role)
    if report.query is not None:
        yield from _one_query(weights, report.query, names, reads, visible_array(report.trace, step, layer))
    elif report.top is not None:
        numbered, other = ([f"{position} {name}" for position, name in enumerate(one)] for one in (names, reads))
        pairs = report.strongest(layer, head)
        yield Bars([Bar(f"{numbered[q]} → {other[k]}", w, f"{w:.3f}", "attention") for q, k, w in pairs])
    else:
        (queries, keys), whole = report.ranges, visible_array(report.trace, step, layer)
        yield from _links(report, layer, head, rows)
        seen, asked = None if whole is None else whole[queries, keys], report.window is not None
        yield Heat(weights[queries, keys], names[queries], reads[keys], "unit", seen, asked=asked)
        if not asked:
            yield from query_blocks(weights, names, whole, most, keys=reads)


def _links(report: Attended, layer: int, head: int | None, rows: int | None) -> Iterator[Block]:
    """Lines from ``rows`` tokens (0: all) to those that they look at; in a long text, to those with strong lines."""
    queries, keys = (range(part.start, part.stop) for part in report.ranges)
    names, most = labels(report.trace), most_rows(rows, _LINES)
    reads = labels(report.trace, report.step.axes[-1])
    left = [queries[index] for index in middle_out(len(queries), most)]
    strong = len(left) > _EVERY
    lines = links(report.weights(layer, head)[:, : keys.stop], left, most, strong=strong)
    lines = [link for link in lines if link[1] in keys]
    right = list(keys) if most is None or len(keys) <= most + 1 else sorted({key for _, key, _ in lines})
    ends = [(left.index(query), right.index(key), weight) for query, key, weight in lines]
    yield Links([names[query] for query in left], [reads[key] for key in right], ends, strong)
    yield from fold_note(queries, left, "tokens")
    if len(right) < len(keys):
        yield note(f"on the right the {len(right)} of {len(keys):,} tokens that the strongest lines lead to")


def _one_query(weights: Array, query: int, names: Sequence[str], keys: Sequence[str], seen: Visible) -> Iterator[Block]:
    """The weights of the keys that one query may look at, as bars."""
    yield Line([Span("  "), Span(names[query], "strong"), Span(f" (token {query}) looks at", "dim")])
    shares = [(k, float(weights[query, k])) for k in range(len(keys)) if seen is None or seen[query, k]]
    yield Bars([Bar(f"{k} {keys[k]}", share, f"{share:.3f}", "attention") for k, share in shares])
