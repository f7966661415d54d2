"""The view of a model beside a printed log: the steps around the first that differs."""

from collections.abc import Iterator
from dataclasses import dataclass

from tinytf.compare.printed import PrintedDifference
from tinytf.sentences import first_of
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Heading
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import most_rows, note
from tinytf_cli.views.records import record_table

_USUAL = 16
_BEFORE = 4


@dataclass(frozen=True)
class PrintedDisplay(Display):
    """``rows`` is how many steps are shown (0: all; None: some around the first that differs)."""

    rows: int | None = None


@draws(PrintedDifference, PrintedDisplay)
def printed(report: PrintedDifference, terminal: Terminal, display: PrintedDisplay) -> Iterator[Block]:
    """The steps, from a few before the first that differs."""
    assert report.about is not None
    yield from banner(model_of(report), report.about.text)
    most = most_rows(display.rows, _USUAL) or len(report.steps)
    differing = [number for number, step in enumerate(report.steps) if step.differs]
    start = max(0, min((differing or [0])[0] - _BEFORE, len(report.steps) - most))
    shown = report.steps[start : start + most]
    yield Heading("steps", f"differences are relative to a token's largest number, up to {report.tolerance:g}")
    yield record_table(shown)
    if len(shown) < len(report.steps):
        yield note(f"… {len(report.steps) - len(shown):,} more steps", "--rows 0 shows all")
    if report.unmatched:
        yield note(f"no step of this model: {first_of(report.unmatched, 4)}")
