"""Attention at a glance: one number a head, small maps, one head large, one query, the strongest pairs."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from tinytf.analysis.heads import MEASURES, measure_heads
from tinytf.errors import UsageError
from tinytf.loading import Model
from tinytf.trace.check import Check, check
from tinytf.trace.trace import Trace
from tinytf_cli.output import SCHEMA_VERSION
from tinytf_cli.paint.terminal import Terminal
from tinytf_cli.views.banner import banner, model_data, text_data
from tinytf_cli.views.blocks import Bar, Bars, Block, Heading, Heat, Line, Span, Thumbnails, Visible
from tinytf_cli.views.predictions import check_blocks
from tinytf_cli.views.steps import as_array, labels, left_out, row_bars, shown_rows, visible_array

_BOUNDED = ("previous", "first", "self")


def thumbnails(trace: Trace, layers: range | None = None) -> Thumbnails:
    """Every head's weights, small."""
    chosen = layers or range(trace.config.n_layers)
    maps = [as_array(trace.step("weights", layer)) for layer in chosen]
    return Thumbnails(maps, visible_array(trace, trace.steps.by_name["weights"]), chosen.start)


@dataclass(frozen=True)
class AttentionChoice:
    """What of the attention to show. ``heads`` are (layer, head) pairs; none asks for the overview.

    ``window`` is (first query, end, first key, end); ``row`` a token by text or number.
    """

    by: str
    heads: tuple[tuple[int, int], ...] = ()
    row: str | None = None
    top: int | None = None
    window: tuple[int, int, int, int] | None = None
    rows: int | None = None


class AttentionView:
    """The attention of one trace in every form."""

    def __init__(self, model: Model, trace: Trace, choice: AttentionChoice) -> None:
        self.model, self.trace, self.choice = model, trace, choice
        self.names = labels(trace)
        self.query = trace.index(choice.row, "query", len(self.names)) if choice.row is not None else None
        if choice.window is not None:
            self._require_inside(choice.window)

    def _seen(self, layer: int | None = None) -> Visible:
        """Which keys each query of a layer may look at; without one, of any."""
        return visible_array(self.trace, self.trace.steps.by_name["weights"], layer)

    def _require_inside(self, window: tuple[int, int, int, int]) -> None:
        count = len(self.names)
        for start, end, what in ((*window[:2], "queries"), (*window[2:], "keys")):
            if not 0 <= start < end <= count:
                raise UsageError(
                    f"--window {what} {start}:{end} do not lie in the text of {count} tokens",
                    f"a range is first:end, with 0 ≤ first < end ≤ {count}",
                )

    @cached_property
    def outcome(self) -> Check:
        return check(self.trace)

    @property
    def holds(self) -> bool:
        return self.outcome.holds

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The overview, or each chosen head."""
        yield from banner(self.model, self.trace.encoding)
        if not self.choice.heads:
            yield from self._overview()
        for layer, head in self.choice.heads:
            yield from self._head(layer, head, terminal)
        yield from check_blocks(self.outcome)

    def _overview(self) -> Iterator[Block]:
        yield Heading(f"heads by {self.choice.by}", MEASURES[self.choice.by][1], "attention")
        values = as_array(measure_heads(self.trace, self.choice.by))
        n_layers, n_heads = values.shape
        bounded = self.choice.by in _BOUNDED
        limit = 1.0 if bounded else float(np.nanmax(values, initial=0.0)) or 1.0
        rows, columns = [f"L{i}" for i in range(n_layers)], [f"H{i}" for i in range(n_heads)]
        yield Heat(values, rows, columns, "unit", None, limit, asked=True, digits=2)
        yield Heading("weights of every head", "query down, key across; --head L0H0 draws one large", "attention")
        yield thumbnails(self.trace)

    def _window(self) -> tuple[slice, slice]:
        q0, q1, k0, k1 = self.choice.window or (0, len(self.names), 0, len(self.names))
        return slice(q0, q1), slice(k0, k1)

    def _head(self, layer: int, head: int, terminal: Terminal) -> Iterator[Block]:
        weights = as_array(self.trace.step("weights", layer, (head,)))[0]
        formula = self.trace.steps.by_name["weights"].formula
        yield Heading(f"L{layer}H{head}.weights", formula, "attention")
        if self.query is not None:
            yield from self._one_query(weights, self.query, layer)
        elif self.choice.top is not None:
            yield Bars([Bar(f"{a} → {b}", w, f"{w:.3f}", "attention") for a, b, w in self._pairs(weights, layer)])
        else:
            queries, keys = self._window()
            whole = self._seen(layer)
            seen = None if whole is None else whole[queries, keys]
            rows, columns = self.names[queries], self.names[keys]
            asked = self.choice.window is not None
            yield Heat(weights[queries, keys], rows, columns, "unit", seen, asked=asked)
            limit = self.choice.rows if self.choice.rows is not None else (24 if terminal.cuts else 0)
            keep = shown_rows(len(self.names), limit or None)
            if self.choice.window is None:
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

    def _pairs(self, weights: np.ndarray, layer: int) -> list[tuple[str, str, float]]:
        """The strongest (query, key) pairs, by text and number."""
        queries, keys = self._window()
        mask = np.zeros(weights.shape, dtype=bool)
        mask[queries, keys] = True
        seen = self._seen(layer)
        if seen is not None:
            mask &= seen
        flat = np.where(mask, weights, -1.0).ravel()
        order = np.argsort(-flat, kind="stable")[: min(self.choice.top or 0, int(mask.sum()))]
        places = [divmod(int(i), weights.shape[1]) for i in order]
        return [(f"{q} {self.names[q]}", f"{k} {self.names[k]}", float(weights[q, k])) for q, k in places]

    def data(self) -> dict[str, Any]:
        """Measures of every head, and the weights of the chosen ones (masked cells null)."""
        measures = {by: measure_heads(self.trace, by).tolist() for by in MEASURES}
        queries, keys = self._window()
        heads = []
        for layer, head in self.choice.heads:
            weights = as_array(self.trace.step("weights", layer, (head,)))[0]
            seen = self._seen(layer)
            shown = weights if seen is None else np.where(seen, weights, -np.inf)
            one: dict[str, Any] = {
                "layer": layer,
                "head": head,
                "queries": [queries.start, queries.stop],
                "keys": [keys.start, keys.stop],
                "weights": shown[queries, keys].tolist(),
            }
            if self.query is not None:
                one = {"layer": layer, "head": head, "query": self.query, "weights": shown[self.query].tolist()}
            elif self.choice.top is not None:
                one = {"layer": layer, "head": head, "top": [list(pair) for pair in self._pairs(weights, layer)]}
            heads.append(one)
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "attention",
            "model": model_data(self.model),
            **text_data(self.trace.encoding),
            "measures": measures,
            "heads": heads,
            "check": self.outcome.to_dict(),
        }

    def events(self) -> Iterator[dict[str, Any]]:
        """The same data, one event a line."""
        data = self.data()
        yield {"type": "attention", "schema_version": SCHEMA_VERSION, "model": data["model"], "text": data["text"],
               "added": data["added"]}  # fmt: skip
        for token in data["tokens"]:
            yield {"type": "token", **token}
        for layer in range(self.trace.config.n_layers):
            for head in range(self.trace.config.n_heads):
                measures = {by: values[layer][head] for by, values in data["measures"].items()}
                yield {"type": "measures", "layer": layer, "head": head, **measures}
        for one in data["heads"]:
            yield {"type": "head", **one}
        yield {"type": "check", **data["check"]}

    def tensors(self) -> dict[str, torch.Tensor]:
        """The weights of the chosen heads, or of every layer."""
        if self.choice.heads:
            return {
                f"L{layer}H{head}.weights": self.trace.step("weights", layer, (head,))[0]
                for layer, head in self.choice.heads
            }
        return {f"L{layer}.weights": self.trace.step("weights", layer) for layer in range(self.trace.config.n_layers)}
