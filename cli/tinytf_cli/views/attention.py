"""Attention at a glance: one number per head, small maps, one head large, one query, the strongest pairs."""

from collections.abc import Iterator, Sequence

import numpy as np

from tinytf.loading import Model
from tinytf.look.attended import Attended
from tinytf.look.heads import MEASURES, MeasuredHeads
from tinytf.look.overview import Overview
from tinytf.trace.trace import Trace
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Array, Bar, Bars, Block, Heading, Heat, Line, Miniature, Span, Thumbnails, Visible
from tinytf_cli.views.flow import multi_head_blocks
from tinytf_cli.views.parts import row_limit, shortened
from tinytf_cli.views.predictions import check_blocks
from tinytf_cli.views.steps import as_array, labels, query_blocks, visible_array

_BOUNDED = ("previous", "first", "self")


def thumbnails(trace: Trace) -> Thumbnails:
    """Every head's weights, small."""
    name, layers = trace.steps.weights, trace.steps.attending
    maps = [as_array(trace.step(name, layer)) for layer in layers]
    return Thumbnails(maps, [visible_array(trace, trace.steps.at(name, layer), layer) for layer in layers], layers)


def _full(values: Array, by: str) -> float:
    """The end of the scale of a measure."""
    return 1.0 if by in _BOUNDED else float(np.nanmax(values, initial=0.0)) or 1.0


def _measured(values: Array, by: str, layers: Sequence[int]) -> Iterator[Block]:
    """A measure of every head: layers down, heads across."""
    yield Heading(f"heads by {by}", MEASURES[by][1], "attention")
    rows, columns = [f"L{layer}" for layer in layers], [f"H{head}" for head in range(values.shape[1])]
    yield Heat(values, rows, columns, "unit", None, _full(values, by), asked=True, digits=2)


def measured_blocks(found: MeasuredHeads, top: int) -> Iterator[Block]:
    """A measure of every head of some layers, and the ``top`` largest."""
    values = as_array(found.values)
    yield from _measured(values, found.by, found.layers)
    best = [Bar(f"L{layer}H{head}", value, f"{value:.2f}", "attention") for layer, head, value in found.ranked[:top]]
    yield Heading("the largest", f"{len(best)} of {values.size}", "attention")
    yield Bars(best, _full(values, found.by))


class AttentionView:
    """The attention of one trace, drawn; without chosen heads an overview ``by`` a measure."""

    def __init__(self, model: Model, found: Attended, by: str, rows: int | None = None) -> None:
        self.model, self.found, self.trace, self.by, self.rows = model, found, found.trace, by, rows
        self.names = labels(found.trace)

    def _seen(self, layer: int) -> Visible:
        """Which keys each query of a layer may look at."""
        return visible_array(self.trace, self.found.step, layer)

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The overview, or each chosen head."""
        yield from banner(self.model, self.trace.encoding)
        if self.found.multi_head is not None:
            yield from self._multi_head(self.found.multi_head, terminal)
        elif not self.found.heads:
            layers = list(self.trace.steps.attending)
            yield from _measured(as_array(self.found.measured(self.by))[layers], self.by, layers)
            yield Heading(
                "weights of every head",
                "query down, key across; larger: --head L0H0, --layer 0",
                "attention",
            )
            yield thumbnails(self.trace)
        for layer, head in self.found.heads:
            yield from self._head(layer, head, terminal)
        yield from check_blocks(self.found.check)

    def _multi_head(self, drawn: Overview, terminal: Terminal) -> Iterator[Block]:
        (one,), table = drawn.layers, self.trace.steps
        where = "over all tokens" if len(drawn.positions) > 1 else f"at {self.names[drawn.positions[0]]}"
        adds = "what a head adds is a share of the stream, → what it sees most"
        said = f"of {self.trace.config.n_layers}; {adds}, {where}"
        yield Heading(f"attention L{one.layer}", said)
        heads = [head for _, head, _ in drawn.ranked]
        step = self.found.step
        seen = visible_array(self.trace, step, one.layer)
        maps = [
            (
                head,
                Miniature(
                    f"H{head}",
                    shortened(drawn.most_seen(one.layer, head), 10),
                    as_array(drawn.weights(one.layer, head)),
                    seen,
                ),
                one.heads[head],
            )
            for head in heads
        ]
        left_out = f"those that add most; --head L{one.layer}H* draws the others"
        yield from multi_head_blocks(
            drawn.flow.steps[0], drawn.flow.branch(table.weights), maps, left_out, rails=not terminal.plain
        )

    def _head(self, layer: int, head: int, terminal: Terminal) -> Iterator[Block]:
        step = self.found.step
        weights = as_array(self.trace.step(step.name, layer, (head,)))[0]
        yield Heading(f"L{layer}H{head}.{step.name}", step.formula, "attention")
        if self.found.query is not None:
            yield from self._one_query(weights, self.found.query, layer)
        elif self.found.top is not None:
            names = [f"{place} {name}" for place, name in enumerate(self.names)]
            pairs = self.found.strongest(layer, head)
            yield Bars([Bar(f"{names[q]} → {names[k]}", w, f"{w:.3f}", "attention") for q, k, w in pairs])
        else:
            queries, keys = self.found.ranges
            whole = self._seen(layer)
            seen = None if whole is None else whole[queries, keys]
            rows, columns = self.names[queries], self.names[keys]
            asked = self.found.window is not None
            yield Heat(weights[queries, keys], rows, columns, "unit", seen, asked=asked)
            if self.found.window is None:
                yield from query_blocks(weights, self.names, whole, row_limit(terminal, self.rows, 24))

    def _one_query(self, weights: Array, query: int, layer: int) -> Iterator[Block]:
        seen = self._seen(layer)
        yield Line([Span("  "), Span(self.names[query], "strong"), Span(f" (token {query}) looks at", "dim")])
        shares = [(k, float(weights[query, k])) for k in range(len(self.names)) if seen is None or seen[query, k]]
        yield Bars([Bar(f"{k} {self.names[k]}", share, f"{share:.3f}", "attention") for k, share in shares])
