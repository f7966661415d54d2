"""The view of a rollout: the text coloured by what one position holds of it, bars, and the map of all positions."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tinytf.analysis.rollout import ALLOWED, Rollout
from tinytf.loading import Model
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Array, Block, Cell, Column, Heading, Heat, Line, Meter, Scale, Span, Table
from tinytf_cli.views.steps import left_out, shown_rows

if TYPE_CHECKING:
    import torch

_ROWS_ON_A_SCREEN = 24
_ALL = 0.95


class RolloutView:
    """Rollout and flow of one text, drawn; the query is shown in full."""

    def __init__(self, model: Model, found: Rollout, rows: int | None = None) -> None:
        self.model, self.found, self.rows = model, found, rows
        self.names = [token.shown for token in found.encoding.tokens]

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """What the query holds, then every query."""
        yield from banner(self.model, self.found.encoding)
        yield from self._one(terminal)
        yield Heading("rollout to every position", "shares of the tokens, across", "attention")
        yield self._heat(self.found.shares)
        if self.found.flow is not None and len(self.found.flow.queries) == len(self.names):
            yield Heading("flow to every position", "the most that each token, across, can send", "v")
            yield self._heat(self.found.flow.values)
        yield Line("")
        yield from self._check()

    def _heat(self, values: "torch.Tensor") -> Heat:
        size = len(self.names)
        seen = np.tril(np.ones((size, size), dtype=bool)) if self.model.config.causal else None
        shown: Array = values.numpy().astype(np.float32)
        return Heat(shown, self.names, self.names, "unit", seen)

    def _one(self, terminal: Terminal) -> Iterator[Block]:
        found, n_heads = self.found, self.model.config.n_heads
        layers = f"layers 0 to {found.layer}" if found.layer else "layer 0"
        how = f"{found.heads} of {n_heads} heads" if n_heads > 1 else "1 head"
        yield Heading(
            f"what {self.names[self.found.query]} holds (token {self.found.query})", f"{layers}, {how}", "attention"
        )
        shares = found.shares[self.found.query].tolist()
        most = max(shares)
        coloured: list[Span] = []
        for name, share in zip(self.names, shares, strict=True):
            coloured += [Span(name, f"unit:{round(255 * share / most)}"), Span(" ")]
        yield Line(coloured, indent=2)
        yield Scale("unit", most)
        yield Line(Span(f"rollout, at most {most:.3f}; each layer is ½·attention + ½·itself", "dim"), indent=2)
        yield Line("")
        limit = self.rows if self.rows is not None else (_ROWS_ON_A_SCREEN if terminal.cuts else 0)
        keep = shown_rows(len(self.names), limit or None)
        columns = [
            Column("#", [str(place) for place in keep], "right", said="token"),
            Column("piece", [self.names[place] for place in keep], shrink=6, said=""),
            Column("rollout", self._meters(shares, keep, "attention")),
        ]
        flow = self.found.own_flow
        if flow is not None:
            columns.append(Column("flow", self._meters(flow.tolist(), keep, "v")))
        yield Table(columns)
        yield from left_out(len(self.names), keep)
        if most > _ALL and shares.index(most) != self.found.query:
            said = "nearly all is of one token: over many layers rollout runs into where every position looks a little"
            yield Line(Span(f"{said}; --layer stops earlier", "dim"), indent=2)
        if self.found.skipped:
            pipes = f"{self.found.skipped:,} pipes for {len(self.names)} tokens"
            said = f"no flow: {pipes} would take long; --flow query searches it all the same"
            yield Line(Span(said, "dim"), indent=2)

    def _meters(self, values: Sequence[float], keep: Sequence[int], role: str) -> list[Cell]:
        return [Meter(values[place], _share(values[place]), role) for place in keep]

    def _check(self) -> Iterator[Block]:
        found, flow = self.found, self.found.flow
        if found.holds:
            figure = f"off by {found.deviation:.1e}" if found.deviation else "exactly"
            said = f": the shares in each position sum to 1, {figure}"
        else:
            said = f": the shares in a position do not sum to 1, off by {found.deviation:.1e} (allowed {ALLOWED:.0e})"
        if flow is not None:
            count = flow.values.numel()
            each = "the flow" if count == 1 else f"each of {count} flows"
            said += f"; {each} equals a cut through the network, so none is larger"
        yield Line([Span(*("checked", "good") if found.holds else ("check failed", "bad")), Span(said)])


def _share(value: float) -> str:
    """Three digits after the point, or its size where that would be 0.000; five columns or six."""
    return f"{value:.3f}" if value >= 5e-4 or value == 0 else f"{value:.0e}"
