"""The view of a rollout: the text coloured by what one position holds of it, bars, and the map of all positions."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tinytf.analysis.rollout import ALLOWED, Rollout
from tinytf.loading import Model
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Column, Heading, Heat, Line, Scale, Span, Table
from tinytf_cli.views.parts import bar_column, note, row_limit, verdict
from tinytf_cli.views.steps import as_array, left_out, shown_rows

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
        flow = self.found.flow
        yield from banner(self.model, self.found.encoding)
        yield from self._one(terminal)
        yield Heading("rollout to every position", "shares of the tokens, across", "attention")
        yield self._heat(self.found.shares)
        if flow is not None and len(flow.queries) == len(self.names):
            yield Heading("flow to every position", "the most that each token, across, can send", "v")
            yield self._heat(flow.values)
        yield Line("")
        yield self._check()

    def _heat(self, values: "torch.Tensor") -> Heat:
        size = len(self.names)
        seen = np.tril(np.ones((size, size), dtype=bool)) if not self.model.config.looks_ahead else None
        return Heat(as_array(values), self.names, self.names, "unit", seen)

    def _one(self, terminal: Terminal) -> Iterator[Block]:
        """What one position holds: the text in colours, then a bar per token."""
        found, names, n_heads = self.found, self.names, self.model.config.n_heads
        layers = f"layers 0 to {found.layer}" if found.layer else "layer 0"
        how = f"{found.heads} of {n_heads} heads" if n_heads > 1 else "1 head"
        yield Heading(f"what {names[found.query]} holds (token {found.query})", f"{layers}, {how}", "attention")
        shares = found.shares[found.query].tolist()
        most = max(shares)
        coloured: list[Span] = []
        for name, share in zip(names, shares, strict=True):
            coloured += [Span(name, f"unit:{round(255 * share / most)}"), Span(" ")]
        yield Line(coloured, indent=2)
        yield Scale("unit", most)
        yield note(f"rollout, at most {most:.3f}; each layer is ½·attention + ½·itself")
        yield Line("")
        keep = shown_rows(len(names), row_limit(terminal, self.rows, _ROWS_ON_A_SCREEN))
        columns = [
            Column("#", [str(place) for place in keep], "right", said="token"),
            Column("piece", [names[place] for place in keep], shrink=6, said=""),
            _bars("rollout", [shares[place] for place in keep], "attention"),
        ]
        if (flow := found.own_flow) is not None:
            columns.append(_bars("flow", flow[keep].tolist(), "v"))
        yield Table(columns)
        yield from left_out(len(names), keep)
        if most > _ALL and shares.index(most) != found.query:
            said = "nearly all is of one token: over many layers rollout ends where every position looks a little"
            yield note(f"{said}; --layer stops earlier")
        if found.skipped:
            pipes = f"{found.skipped:,} pipes for {len(names)} tokens"
            yield note(f"no flow: {pipes} would take long; --flow query computes it anyway")

    def _check(self) -> Line:
        found, flow = self.found, self.found.flow
        off = f"off by {found.deviation:.1e}" if found.deviation else "exactly"
        said = f"the shares in each position sum to 1, {off}"
        if not found.holds:
            said = f"the shares in a position do not sum to 1, {off} (allowed {ALLOWED:.0e})"
        if flow is not None:
            count = flow.values.numel()
            each = "the flow" if count == 1 else f"each of {count} flows"
            said += f"; {each} equals a cut through the network, so none is larger"
        return verdict(found.holds, said)


def _bars(title: str, shares: Sequence[float], role: str) -> Column:
    """Shares with three digits after the point, or their size where that would be 0.000."""
    texts = [f"{share:.3f}" if share >= 5e-4 or share == 0 else f"{share:.0e}" for share in shares]
    return bar_column(title, shares, texts, role)
