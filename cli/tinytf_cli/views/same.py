"""One text in several ways: a row a way, then why those that differ do."""

from collections.abc import Iterator

from tinytf.through.same import Same
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Line
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import note, titled
from tinytf_cli.views.records import record_table


@draws(Same)
def same(report: Same, terminal: Terminal, display: Display) -> Iterator[Block]:
    """The table, then each reason once, with the ways that it is of."""
    yield from banner(model_of(report), report.encoding)
    yield Line("")
    yield record_table(report.ways)
    differing: dict[str, list[str]] = {}
    untried: dict[str, list[str]] = {}
    for way in report.ways:
        if not way.holds:
            (untried if way.holds is None else differing).setdefault(way.why, []).append(way.way)
    if differing or untried:
        yield Line("")
    for why, ways in differing.items():
        yield titled("; ".join(ways), f": {why or 'nothing that was tried explains it'}", "bad")
    for why, ways in untried.items():
        yield note(f"{'; '.join(ways)}: not tried, {why}")
