"""The view of texts that are ranked by their likeness to a query."""

from collections.abc import Iterator

from tinytf.look.ranked import Ranked
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import note
from tinytf_cli.views.records import record_table


@draws(Ranked)
def ranked(report: Ranked, terminal: Terminal, display: Display) -> Iterator[Block]:
    """A line a text, the nearest first."""
    yield from banner(model_of(report), report.encoding)
    yield record_table(report.nearest)
    yield note(report.note)
