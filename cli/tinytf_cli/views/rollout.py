"""The view of a rollout: the text coloured by what one position holds of it, bars, and the map of all positions."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tinytf.loading import Model
from tinytf.look.rollout import ALLOWED, Rollout
from tinytf_cli.numbers import SHARE
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Column, Figure, Heading, Heat, Line, Piece, Scale, Table
from tinytf_cli.views.parts import coloured_text, folded, most_rows, note, share_column, verdict
from tinytf_cli.views.steps import as_array

if TYPE_CHECKING:
    import torch

_ROWS, _MAP = 10, 12
"""The most rows of the table and of a map, unless more are asked for."""
_ALL = 0.95


class RolloutView:
    """The rollout of one text, drawn; the query is shown in full."""

    def __init__(self, model: Model, found: Rollout, rows: int | None = None) -> None:
        self.model, self.found, self.rows = model, found, rows
        self.names = [token.shown for token in found.encoding.tokens]

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """What the query holds, then every query."""
        yield from banner(self.model, self.found.encoding)
        yield from self._one()
        yield Heading("rollout to every position", "shares of the tokens, across", "attention")
        yield self._heat(self.found.shares)
        yield Line("")
        yield self._check()

    def _heat(self, values: "torch.Tensor") -> Heat:
        size = len(self.names)
        seen = np.tril(np.ones((size, size), dtype=bool)) if not self.model.config.looks_ahead else None
        return Heat(as_array(values), self.names, self.names, "unit", seen, most=0 if self.rows == 0 else _MAP)

    def _one(self) -> Iterator[Block]:
        """What one position holds: the text in colours, then a bar per token."""
        found, names, n_heads = self.found, self.names, self.model.config.n_heads
        layers = f"layers 0 to {found.layer}" if found.layer else "layer 0"
        how = f"{found.heads} of {n_heads} heads" if n_heads > 1 else "1 head"
        yield Heading(f"what {names[found.query]} holds (token {found.query})", f"{layers}, {how}", "attention")
        shares = found.shares[found.query].tolist()
        most = max(shares)
        roles = [f"unit:{round(255 * share / most)}" for share in shares]
        yield coloured_text(names, roles, None if self.rows == 0 else 48, " ")
        yield Scale("unit", most)
        first = shares.index(most)
        yield note(
            [
                f"rollout: most from {first} {names[first]}, ",
                Figure(most, SHARE),
                "; each layer is ½·attention + ½·itself",
            ]
        )
        yield Line("")
        places = [str(place) for place in range(len(names))]
        columns = [
            Column("#", places, "right", said="token"),
            Column("piece", names, shrink=6, said=""),
            share_column("rollout", shares, "attention"),
        ]
        yield from folded(Table(columns), places, most_rows(self.rows, _ROWS), "tokens")
        if most > _ALL and shares.index(most) != found.query:
            said = "nearly all is of one token: over many layers rollout ends where every position looks a little"
            yield note(f"{said}; --layer stops earlier")

    def _check(self) -> Line:
        found = self.found
        off: list[Piece] = ["off by ", Figure(found.deviation, "%.1e")] if found.deviation else ["exactly"]
        said: list[Piece] = ["the shares in each position sum to 1, ", *off]
        if not found.holds:
            said = ["the shares in a position do not sum to 1, ", *off, f" (allowed {ALLOWED:.0e})"]
        return verdict(found.holds, said)
