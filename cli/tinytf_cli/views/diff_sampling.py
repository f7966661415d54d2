"""The view of two programs' settings of sampling: which differ, where that first shows, and why."""

from collections.abc import Iterator
from dataclasses import dataclass

from tinytf.compare.sampling import CHOICE, DISTANCE, END, SET, SamplingDifference, Token
from tinytf.sentences import listed
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Column, Figure, Heading, Line, Span, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import note, row_limit, titled

_WAYS = {CHOICE: "most probable token", END: "end of the text", SET: "tokens that are drawn", DISTANCE: "probabilities"}


@dataclass(frozen=True)
class SamplingDisplay(Display):
    """``rows`` is how many tokens are shown (0: all)."""

    rows: int | None = None


@draws(SamplingDifference, SamplingDisplay)
def sampling(report: SamplingDifference, terminal: Terminal, display: SamplingDisplay) -> Iterator[Block]:
    """The settings, the first differences, and the tokens of the first program's text."""
    if report.about is not None:
        yield from banner(model_of(report), report.about.text)
    if report.settings:
        yield Heading("settings that differ", f"of {_titles(report)}")
        columns = [
            Column(title, [one.said[side] for one in report.settings]) for side, title in enumerate(report.names)
        ]
        yield Table([Column("setting", [Span(one.name, "strong") for one in report.settings]), *columns])
    for words in report.unknown:
        yield note(words)
    if not report.steps:
        if report.settings and report.about is None:
            yield note("", "a TEXT after the settings, and -m MODEL, say which of them matter")
        return
    yield Heading("first difference in", "and the settings that remove it there, taken from the second program")
    found = {parting.way: parting for parting in report.partings}
    for way, title in _WAYS.items():
        if way in found:
            parting = found[way]
            yield titled(title, f": at new token {parting.number:,} {report.what(parting)}")
            ways = (listed(names) + " together" * (len(names) > 1) for names in parting.causes)
            yield Line(Span(", or ".join(ways), "bad"), indent=2)
        elif way in report.ways:
            yield titled(title, f": none in {plural(len(report.steps), 'new token')}", "dim")
    yield from _token_rows(report, row_limit(terminal, display.rows))


def _titles(report: SamplingDifference) -> str:
    programs = report.first.program, report.second.program
    return " and ".join(programs) if programs[0] != programs[1] else f"two runs of {programs[0]}, A and B"


def _token_rows(report: SamplingDifference, most: int | None) -> Iterator[Block]:
    a, b = report.names
    yield Heading("tokens", f"of {a}; may be drawn, most probable, and ½ Σ |p − q| of the probabilities")
    tokens = report.steps[:most]
    yield Table(
        [
            Column("#", [str(one.number) for one in tokens], "right"),
            Column("token", [_shown(report, one.id) for one in tokens]),
            Column(f"{a} draws", [f"{one.counts[0]:,}" for one in tokens], "right"),
            Column(f"{b} draws", [f"{one.counts[1]:,}" for one in tokens], "right"),
            Column("distance", [Figure(one.distance, "%.4f") for one in tokens], "right"),
            Column(f"best of {a}", [_shown(report, one.first) for one in tokens], drop=1),
            Column(f"best of {b}", [_other(report, one) for one in tokens]),
        ]
    )
    if len(tokens) < len(report.steps):
        yield note(f"… {len(report.steps) - len(tokens):,} more", "--rows 0 shows all")


def _shown(report: SamplingDifference, token: int) -> str:
    return report.shown(token) or f"#{token}"


def _other(report: SamplingDifference, one: Token) -> Span | str:
    shown = _shown(report, one.second)
    return Span(shown, "bad") if one.first != one.second else Span(shown, "dim")
