"""Two runs side by side: how far the residual stream of each layer differs, and what comes next."""

import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from tinytf.loading import Model
from tinytf.text.printable import printable
from tinytf.trace.derive import probabilities
from tinytf.trace.trace import Trace
from tinytf_cli.numbers import number, share_format
from tinytf_cli.paint.terminal import Terminal
from tinytf_cli.views.blocks import Block, Cell, Column, Heading, Line, Meter, Span, Table
from tinytf_cli.views.place import counted, text_words

Side = tuple[Model, Trace]


class RunDifference:
    """The runs ``a`` and ``b``; of texts of one length every token is compared, else the last one of each."""

    def __init__(self, a: Side, b: Side, top: int) -> None:
        self.a, self.b, self.top = a, b, top
        (_, first), (_, second) = a, b
        self.whole = len(first.tokens) == len(second.tokens)
        self.rows = list(self._rows(first, second))

    def _rows(self, a: Trace, b: Trace) -> Iterator[dict[str, Any]]:
        """Each residual step that both have in one width: norm of the difference over the norm of ``a``, and cosine."""
        for step, layer in a.steps.rows:
            if step.axes != ("token", "d_model") or step.name in _PASSED_OVER:
                continue
            if step.name not in b.steps.by_name or (layer is not None and layer >= b.config.n_layers):
                continue
            if a.config.d_model != b.config.d_model:
                continue
            before, after = a.step(step.name, layer), b.step(step.name, layer)
            if not self.whole:
                before, after = before[-1:], after[-1:]
            yield {"step": step.full_name(layer), "role": step.role, **_compared(before.double(), after.double())}

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        for name, (model, trace) in (("a", self.a), ("b", self.b)):
            said = f" · {counted(len(trace.tokens), 'token')} · {printable(model.name, spaces=False)}"
            yield Line([Span(f"{name}  ", "strong"), Span(text_words(trace)), Span(said, "dim")])
        of = "of every token" if self.whole else "of the last token of each: their lengths differ"
        yield Heading("difference", of)
        if self.rows:
            yield self._table()
        else:
            yield Line("the two models differ in width: no step of one compares with one of the other", indent=2)
        yield from self._predicted()

    def _table(self) -> Table:
        largest = max((row["relative"] for row in self.rows if math.isfinite(row["relative"])), default=0.0) or 1.0
        meters: list[Cell] = [
            Meter(min(1.0, row["relative"] / largest) if math.isfinite(row["relative"]) else 1.0,
                  number(row["relative"], share_format()), row["role"])
            for row in self.rows
        ]  # fmt: skip
        return Table(
            [
                Column("step", [Span(row["step"], row["role"]) for row in self.rows], said=""),
                Column("‖b−a‖", [number(row["difference"], share_format()) for row in self.rows], "right", drop=1,
                       said="norm of the difference"),
                Column("÷ ‖a‖", meters, narrow=[number(row["relative"], share_format()) for row in self.rows]),
                Column("cosine", [number(row["cosine"], share_format()) for row in self.rows], "right"),
            ]
        )  # fmt: skip

    def _next(self) -> list[dict[str, Any]]:
        """The tokens that either run finds most probable at its last position, with both probabilities."""
        (model, a), (_, b) = self.a, self.b
        if a.model.head is None or b.model.head is None or a.config.vocab_size != b.config.vocab_size:
            return []
        if not a.config.causal or not b.config.causal:
            return []
        before = probabilities(a.logits_at(len(a.tokens) - 1)).cpu()
        after = probabilities(b.logits_at(len(b.tokens) - 1)).cpu()
        best = before.maximum(after).topk(min(self.top, len(before))).indices.tolist()
        return [
            {"token": model.tokenizer.shown(token), "id": token, "a": float(before[token]), "b": float(after[token])}
            for token in best
        ]

    def _predicted(self) -> Iterator[Block]:
        found = self._next()
        if not found:
            return
        yield Heading("next", "probability behind the last token", "output")
        yield Table(
            [
                Column("token", [Span(one["token"], "output") for one in found], shrink=8),
                Column("a", [Meter(one["a"], number(one["a"], share_format()), "q") for one in found],
                       narrow=[number(one["a"], share_format()) for one in found]),
                Column("b", [Meter(one["b"], number(one["b"], share_format()), "k") for one in found],
                       narrow=[number(one["b"], share_format()) for one in found]),
                Column("b − a", [number(one["b"] - one["a"], "%+" + share_format()[1:]) for one in found], "right"),
            ]
        )  # fmt: skip

    def data(self) -> dict[str, Any]:
        sides = {
            name: {"model": model.name, "text": trace.encoding.text, "tokens": len(trace.tokens)}
            for name, (model, trace) in (("a", self.a), ("b", self.b))
        }
        steps = [{key: value for key, value in row.items() if key != "role"} for row in self.rows]
        return {**sides, "of": "every token" if self.whole else "the last token", "steps": steps, "next": self._next()}


_PASSED_OVER = ("in", "embed.tokens", "embed.positions", "embed.types", "embed.sum", "norm1", "mid", "sum")
"""Steps that say nothing beside those that are compared."""


def _compared(a: Tensor, b: Tensor) -> dict[str, float]:
    difference, size = float((b - a).norm()), float(a.norm())
    other = float(b.norm())
    both = size * other
    return {
        "difference": difference,
        "relative": difference / size if size else (0.0 if not difference else math.inf),
        "cosine": float((a * b).sum()) / both if both else math.nan,
    }
