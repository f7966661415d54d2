"""The state of a head after a token: who wrote it, how it grew, and its numbers."""

from collections.abc import Iterator
from dataclasses import dataclass

from tinytf.look.state import State
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Column, Figure, Heading, Heat, Line, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import folded, most_rows, note, numbered, signed_bars, size_column, verdict
from tinytf_cli.views.steps import as_array

_TOKENS, _MAP = 12, 16
"""The most rows of the table and of the map, unless more are asked for."""


@dataclass(frozen=True)
class StateDisplay(Display):
    """``rows`` limits the tokens of the table; with 0 every token and every row of the state is drawn."""

    rows: int | None = None


@draws(State, StateDisplay)
def state(report: State, terminal: Terminal, display: StateDisplay) -> Iterator[Block]:
    """A row a token up to the one that was asked for, then the state itself."""
    yield from banner(model_of(report), report.encoding)
    count = report.position + 1
    names = [token.shown for token in report.encoding.tokens[:count]]
    rows, columns = report.state.shape
    yield Heading(f"state of {report.name}", f"after {names[-1]} (token {report.position})", "attention")
    positions = [str(position) for position in range(count)]
    kept = [Figure(share, "%.3f") if position else "" for position, share in enumerate(report.kept[:count].tolist())]
    table = Table(
        [
            Column("#", positions, "right", said="token"),
            Column("piece", names, shrink=6, said=""),
            signed_bars("wrote", report.shares.tolist(), full=1.0),
            Column("kept", kept, "right"),
            size_column("length after it", report.sizes[:count].tolist(), "residual"),
        ]
    )
    yield from folded(table, positions, most_rows(display.rows, _TOKENS), "tokens")
    yield note("wrote: the share of the state that a token wrote; kept: the share of what was there that it left")
    yield Heading(f"{rows} × {columns} numbers", "", "attention")
    numbers, largest = as_array(report.state), float(report.state.abs().max()) or 1.0
    most = 0 if display.rows == 0 else _MAP
    yield Heat(numbers, numbered("", rows), numbered("", columns), "signed", None, largest, most=most)
    yield Line("")
    differs = "it is" if report.holds else "it is not"
    words = f"{differs} the state in the cache of generation after these tokens, off by "
    yield verdict(report.holds, [words, Figure(report.deviation, "%.1e")])
