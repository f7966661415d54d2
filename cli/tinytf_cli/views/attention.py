"""Attention at a glance: one number a head, small maps, one head large, one query, the strongest pairs."""

from collections.abc import Iterator

import numpy as np

from tinytf.analysis.attended import Attended
from tinytf.analysis.heads import MEASURES, measure_heads
from tinytf.loading import Model
from tinytf.trace.trace import Trace
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Bar, Bars, Block, Heading, Heat, Line, Span, Thumbnails, Visible
from tinytf_cli.views.predictions import check_blocks
from tinytf_cli.views.steps import as_array, labels, left_out, row_bars, shown_rows, visible_array

_BOUNDED = ("previous", "first", "self")


def thumbnails(trace: Trace, layers: range | None = None) -> Thumbnails:
    """Every head's weights, small."""
    chosen = layers or range(trace.config.n_layers)
    maps = [as_array(trace.step("weights", layer)) for layer in chosen]
    return Thumbnails(maps, visible_array(trace, trace.steps.by_name["weights"]), chosen.start)


class AttentionView:
    """The attention of one trace, drawn; without chosen heads an overview ``by`` a measure."""

    def __init__(self, model: Model, found: Attended, by: str, rows: int | None = None) -> None:
        self.model, self.found, self.trace, self.by, self.rows = model, found, found.trace, by, rows
        self.names = labels(found.trace)

    def _seen(self, layer: int) -> Visible:
        """Which keys each query of a layer may look at."""
        return visible_array(self.trace, self.trace.steps.by_name["weights"], layer)

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The overview, or each chosen head."""
        yield from banner(self.model, self.trace.encoding)
        if not self.found.heads:
            yield from self._overview()
        for layer, head in self.found.heads:
            yield from self._head(layer, head, terminal)
        yield from check_blocks(self.found.check)

    def _overview(self) -> Iterator[Block]:
        yield Heading(f"heads by {self.by}", MEASURES[self.by][1], "attention")
        values = as_array(measure_heads(self.trace, self.by))
        n_layers, n_heads = values.shape
        bounded = self.by in _BOUNDED
        limit = 1.0 if bounded else float(np.nanmax(values, initial=0.0)) or 1.0
        rows, columns = [f"L{i}" for i in range(n_layers)], [f"H{i}" for i in range(n_heads)]
        yield Heat(values, rows, columns, "unit", None, limit, asked=True, digits=2)
        yield Heading("weights of every head", "query down, key across; --head L0H0 draws one large", "attention")
        yield thumbnails(self.trace)

    def _head(self, layer: int, head: int, terminal: Terminal) -> Iterator[Block]:
        weights = as_array(self.trace.step("weights", layer, (head,)))[0]
        formula = self.trace.steps.by_name["weights"].formula
        yield Heading(f"L{layer}H{head}.weights", formula, "attention")
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
            limit = self.rows if self.rows is not None else (24 if terminal.cuts else 0)
            keep = shown_rows(len(self.names), limit or None)
            if self.found.window is None:
                yield row_bars(weights, self.names, keep, whole)
                yield from left_out(len(self.names), keep)

    def _one_query(self, weights: np.ndarray, query: int, layer: int) -> Iterator[Block]:
        seen = self._seen(layer)
        yield Line([Span("  "), Span(self.names[query], "strong"), Span(f" (token {query}) looks at", "dim")])
        visible = [k for k in range(len(self.names)) if seen is None or seen[query, k]]
        yield Bars(
            [
                Bar(f"{k} {self.names[k]}", float(weights[query, k]), f"{weights[query, k]:.3f}", "attention")
                for k in visible
            ]
        )
