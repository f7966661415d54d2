"""Attention rollout: the text coloured by what one position holds of it, bars, and the map of all positions."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tinytf.look.rollout import ALLOWED, Rollout
from tinytf_cli.numbers import SHARE
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Column, Figure, Heading, Heat, Line, Piece, Scale, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import coloured_text, folded, most_rows, note, share_column, verdict
from tinytf_cli.views.steps import as_array

_TOKENS, _MAP = 10, 12
"""The most rows of the table and of the map, unless more are asked for."""
_ALL = 0.95
"""A share above this is nearly all."""


@dataclass(frozen=True)
class RolloutDisplay(Display):
    """``rows`` limits the tokens of the table; with 0 every token is drawn, in the text and in the map too."""

    rows: int | None = None


@draws(Rollout, RolloutDisplay)
def rollout(report: Rollout, terminal: Terminal, display: RolloutDisplay) -> Iterator[Block]:
    """What the query holds, as a coloured text and as a table, then the map of all positions."""
    model, names = model_of(report), [token.shown for token in report.encoding.tokens]
    yield from banner(model, report.encoding)
    layers = f"layers 0 to {report.layer}" if report.layer else "layer 0"
    heads = f"{report.heads} of {model.config.n_heads} heads" if model.config.n_heads > 1 else "1 head"
    yield Heading(f"what {names[report.query]} holds (token {report.query})", f"{layers}, {heads}", "attention")
    yield from _query(report, names, display.rows)
    yield Heading("rollout to every position", "shares of the tokens, across", "attention")
    seen = None if model.config.looks_ahead else np.tril(np.ones((len(names), len(names)), dtype=bool))
    yield Heat(as_array(report.shares), names, names, "unit", seen, most=0 if display.rows == 0 else _MAP)
    yield Line("")
    off: list[Piece] = ["off by ", Figure(report.deviation, "%.1e")] if report.deviation else ["exactly"]
    words: list[Piece] = ["the shares in each position sum to 1, ", *off]
    if not report.holds:
        words = ["the shares in a position do not sum to 1, ", *off, f" (allowed {ALLOWED:.0e})"]
    yield verdict(report.holds, words)


def _query(report: Rollout, names: list[str], rows: int | None) -> Iterator[Block]:
    """The share of each token in the query: the text in colours, then a bar per token."""
    shares = report.shares[report.query].tolist()
    most = max(shares)
    first = shares.index(most)
    roles = [f"unit:{round(255 * share / most)}" for share in shares]
    yield coloured_text(names, roles, None if rows == 0 else 48, " ")
    yield Scale("unit", most)
    words = f"rollout: most from {first} {names[first]}, "
    yield note([words, Figure(most, SHARE), "; each layer is ½·attention + ½·itself"])
    yield Line("")
    positions = [str(position) for position in range(len(names))]
    columns = [
        Column("#", positions, "right", said="token"),
        Column("piece", names, shrink=6, said=""),
        share_column("rollout", shares, "attention"),
    ]
    yield from folded(Table(columns), positions, most_rows(rows, _TOKENS), "tokens")
    if most > _ALL and first != report.query:
        words = "nearly all is of one token: over many layers rollout gathers where every position looks a little"
        yield note(words, "--layer stops earlier")
