"""A student's module beside a reference: the verdict, the first wrong step and its cause, names, invariances."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tinytf.check.checked import Checked, WrongStep
from tinytf.check.explained import ConfirmedMistake
from tinytf.check.invariances import Invariance
from tinytf.check.opened import Line as Code
from tinytf.report import Data
from tinytf.sentences import sign_of
from tinytf.text.printable import printable
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import model_words
from tinytf_cli.views.blocks import Block, Column, Line, Piece, Span, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import apart, folded, next_lines, note

_MOST_NAMES = 24
_MOST_LINES = 4


def _safe(value: Any) -> Any:
    """A part of a report without terminal control characters, which the checked code may have written."""
    if isinstance(value, str):
        return printable(value, spaces=False)
    if isinstance(value, tuple):
        return tuple(map(_safe, value))
    if isinstance(value, Data | Checked):
        return type(value)(**{name: _safe(member) for name, member in vars(value).items()})
    return value


@dataclass(frozen=True)
class CheckDisplay(Display):
    """``full`` shows every step, every parameter and every line that was printed."""

    full: bool = False


@draws(Checked, CheckDisplay)
def check(report: Checked, terminal: Terminal, display: CheckDisplay) -> Iterator[Block]:
    """The cause of what is wrong, the invariances, the parameters, with ``full`` every step, and what was run."""
    printed = [_safe(line) for line in report.printed.splitlines()]
    report = _safe(report)
    total = len(report.steps)
    if report.first_wrong is not None:
        yield from _wrong(report, report.first_wrong)
    for invariance in report.invariances:
        yield _invariance(invariance, display.full)
    yield Line("")
    yield from _names(report, display)
    if display.full:
        yield from _steps(report)
    yield Line("")
    yield from _about(report, printed, display)
    if not display.full:
        yield from next_lines(terminal, ("--full", f"all {total:,} steps with your lines, and every parameter"))


def _wrong(report: Checked, wrong: WrongStep) -> Iterator[Block]:
    if (bad := report.not_finite) is not None:
        yield Line([Span("✗ ", "bad"), Span(f"not finite from here on: {bad.what}", "strong")], indent=2)
        yield from _code(bad.line, 4)
    for index, mistake in enumerate(report.mistakes):
        yield from _confirmed(mistake, index > 0)
    for trouble in report.troubles:
        yield Line([Span("✗ ", "bad"), Span(trouble.what, "strong")], indent=2)
        yield from _code(trouble.line, 4)
    if not report.mistakes:
        if report.not_finite is None or report.not_finite.line != wrong.line:
            yield from _code(wrong.line)
        yield note(f"no known mistake gives these numbers; {len(report.tried)} were tried")
        if wrong.yours:
            yield note(f"yours begins {_numbers(wrong.yours)}, the reference {_numbers(wrong.reference)}")
    elif report.unexplained:
        yield note(
            f"then {report.unexplained} differs by something else: none of {len(report.tried)} mistakes explains it"
        )
    elif report.not_finite is None:
        these = "this mistake" if len(report.mistakes) == 1 else "these mistakes"
        yield note(f"with {these} the reference returns what your code returns; {len(report.tried)} were tried")
    before = report.steps[: [step.step for step in report.steps].index(wrong.step)]
    n_right = sum(step.state != "wrong" for step in before)
    if n_right:
        yield note(f"{plural(n_right, 'step')} before it {'is' if n_right == 1 else 'are'} right")
    if report.unheld:
        yield Line(
            [Span("✗ ", "bad"), "no parameter of yours holds ", Span(", ".join(report.unheld), "strong")], indent=2
        )
    if wrong.lesson is not None:
        yield Line([f"tinytf learn {wrong.lesson}", Span(f"   {wrong.lesson_title}", "dim")], indent=2)
    yield Line("")


def _names(report: Checked, display: CheckDisplay) -> Iterator[Block]:
    rows = report.names
    names = Table(
        [
            Column("your parameter", [row.theirs for row in rows], shrink=24),
            Column("shape", [" × ".join(map(str, row.shape)) for row in rows], "right", drop=1),
            Column("holds", [Span(row.ours) if row.ours else Span("nothing of it", "bad") for row in rows]),
            Column("", [Span(row.way, "dim") for row in rows], drop=2),
        ]
    )
    most = None if display.full else _MOST_NAMES
    yield from folded(names, [row.theirs for row in rows], most, "parameters", "--full")


def _steps(report: Checked) -> Iterator[Block]:
    steps = report.steps
    marks = {"right": Span("✓", "good"), "unseen": Span("·", "dim"), "wrong": Span("✗", "bad")}
    yield Line("")
    yield Table(
        [
            Column("", [marks[step.state] for step in steps]),
            Column("step", [step.step for step in steps]),
            Column("formula", [step.formula for step in steps], shrink=20),
            Column("your line", [str(step.line or "") for step in steps], "right"),
            Column(
                "differs by",
                ["" if step.difference is None else apart(step.difference) for step in steps],
                "right",
            ),
        ]
    )
    yield note("· is computed inside another function; it counts as right, because what is computed from it is")


def _about(report: Checked, printed: Sequence[str], display: CheckDisplay) -> Iterator[Block]:
    yield note(f"the code of {report.file} was run: {report.call}")
    yield Line([Span("like ", "dim"), *model_words(model_of(report), computed=False)], indent=2)
    yield note(f"on the text {_safe(report.encoding.text)}")
    for argument in report.given:
        yield note(f"forward was handed {argument}")
    if printed:
        yield note("up to the end of its first run, it printed")
        most = len(printed) if display.full else _MOST_LINES
        yield from (Line(line, 4) for line in printed[:most])
        if len(printed) > most:
            yield Line(Span(f"… and {plural(len(printed) - most, 'more line')}", "dim"), 4)


def _invariance(invariance: Invariance, full: bool) -> Line:
    what, holds, difference = invariance.what, invariance.holds, invariance.difference
    if difference is None:
        return Line([Span("– ", "dim"), Span(what, "dim")])
    outcome = Span("   differs by at most ", "dim") if holds else Span("   no: they differ by ", "bad")
    figure: list[Piece] = [outcome, apart(difference)] if full or not holds else []
    return Line([Span("✓ ", "good") if holds else Span("✗ ", "bad"), what, *figure])


def _code(line: Code | None, indent: int = 2, before: str = "") -> Iterator[Block]:
    if line is not None:
        yield Line([Span(f"{before}{line.file}:{line.number}   ", "dim"), Span(line.text)], indent)


def _confirmed(mistake: ConfirmedMistake, later: bool) -> Iterator[Block]:
    """A mistake, and the line that makes it."""
    where = f"{mistake.step}: " if later else ""
    words = f"   confirmed by {plural(mistake.explained, 'tensor')} of yours"
    yield Line([Span("✗ ", "bad"), where, Span(mistake.mistake, "strong"), Span(words, "dim")], indent=2)
    yield from _code(mistake.line, 4, "in its place   " if mistake.is_left_out else "")


def _numbers(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.4g}" if math.isfinite(value) else sign_of(value) for value in values)
