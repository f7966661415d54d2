"""The claims of a paper: which hold, which fail, and which are not measured, each with what was measured."""

from collections.abc import Iterator
from dataclasses import dataclass

from tinytf.verify.measures import MEASURES
from tinytf.verify.paper import FAILED, HELD, NOT_MEASURED, CheckedClaim, PaperCheck
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Figure, Line, Piece, Span
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.worked_cells import MARKS, safe

_SIGNS = {HELD: (MARKS[0], "good"), FAILED: (MARKS[2], "bad"), NOT_MEASURED: ("–", "dim")}


@dataclass(frozen=True)
class PaperDisplay(Display):
    """``full`` also shows the definition of each measure, its settings, and what the paper is about."""

    full: bool = False


@draws(PaperCheck, PaperDisplay)
def paper(report: PaperCheck, terminal: Terminal, display: PaperDisplay) -> Iterator[Block]:
    """A claim in words, and below it what was measured, what is expected, and where the paper says so."""
    source = f", {safe(report.paper.source)}" if report.paper.source else ""
    yield Line([Span(safe(report.paper.title)), Span(source, "dim")], hanging=2)
    if display.full and report.paper.about:
        yield Line(Span(safe(report.paper.about), "dim"))
    if report.about is not None:
        yield from banner(model_of(report))
    yield Line("")
    for checked in report.claims:
        sign, role = _SIGNS[checked.state]
        yield Line([Span(f"{sign} ", role), safe(checked.claim.words)], hanging=2)
        yield Line(_measured(checked), indent=2, hanging=0)
        if display.full and checked.claim.measure:
            settings = ", ".join(f"{name} {_listed(value)}" for name, value in checked.claim.settings.items())
            words = f"{checked.claim.measure}: {MEASURES[checked.claim.measure].words}"
            yield Line(Span(safe(f"{words}{f'; {settings}' if settings else ''}"), "dim"), indent=2, hanging=0)


def _measured(checked: CheckedClaim) -> list[Piece]:
    """``2.71 (95 % 2.50 … 2.93), expected 3.56 ± 0.75 · section 2``."""
    claim, number = checked.claim, checked.measured
    if number is None:
        words: list[Piece] = [Span(safe(f"{checked.state}: {checked.why}"), "dim")]
    else:
        words = [Figure(number.value, "%.4g", "strong")]
        if number.low is not None and number.high is not None:
            words += [" (95 % ", Figure(number.low, "%.3g"), " … ", Figure(number.high, "%.3g"), ")"]
        words.append(f", expected {claim.expected}")
    where = f" · {safe(claim.section)}" if claim.section else ""
    why = f" · {safe(checked.why)}" if number is not None and checked.why else ""
    return [*words, Span(f"{where}{why}", "dim")]


def _listed(value: object) -> str:
    return " ".join(value) if isinstance(value, list) else str(value)
