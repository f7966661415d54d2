"""A student's module beside a reference: the verdict, the first wrong step and why, the names, the invariances."""

from collections.abc import Iterator
from typing import Any

from tinytf.loading import Model
from tinytf.report import Data
from tinytf.student.checked import Checked, Wrong
from tinytf.student.explained import Confirmed
from tinytf.student.invariances import Invariance
from tinytf.student.opened import Line as Code
from tinytf.text.printable import printable
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import model_words
from tinytf_cli.views.blocks import Block, Column, Figure, Line, Piece, Span, Table
from tinytf_cli.views.parts import folded, next_lines, note

_MOST_NAMES = 24
_MOST_LINES = 4


def _safe(value: Any) -> Any:
    """A part of an answer without characters that a terminal acts on: the code that is checked may have written it."""
    if isinstance(value, str):
        return printable(value, spaces=False)
    if isinstance(value, tuple):
        return tuple(map(_safe, value))
    if isinstance(value, Data | Checked):
        return type(value)(**{name: _safe(member) for name, member in vars(value).items()})
    return value


class CheckView:
    """The verdict first; with ``full`` every step and parameter."""

    def __init__(self, found: Checked, full: bool = False) -> None:
        self.found, self.shown, self.full = found, _safe(found), full
        self.printed = [_safe(line) for line in found.printed.splitlines()]

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """What is wrong and why, then what that rests on."""
        found = self.shown
        name, total = Span(f"{found.file}:{found.target}", "strong"), len(found.steps)
        if found.first_wrong is None:
            yield Line([name, " is ", Span("right", "good"), f": all {total:,} steps are the reference's"])
        else:
            yield from self._wrong(found.first_wrong, name)
        for one in found.invariances:
            yield _invariance(one, self.full)
        yield Line("")
        yield from self._names(terminal)
        if self.full:
            yield from self._steps()
        yield Line("")
        yield from self._about()
        if not self.full:
            yield from next_lines(terminal, ("--full", f"all {total:,} steps with your lines, and every parameter"))

    def _wrong(self, wrong: Wrong, name: Span) -> Iterator[Block]:
        found = self.shown
        yield Line(
            [
                name,
                " is ",
                Span("wrong", "bad"),
                " at ",
                Span(wrong.step, "strong"),
                f", {wrong.title}: {wrong.formula}",
            ]
        )
        for place, one in enumerate(found.mistakes):
            yield from _confirmed(one, place > 0)
        for trouble in found.troubles:
            yield Line([Span("✗ ", "bad"), Span(trouble.what, "strong")], indent=2)
            yield from _code(trouble.line, 4)
        if not found.mistakes:
            yield from _code(wrong.line)
            yield note(f"none of the {len(found.tried)} mistakes that were tried gives these numbers")
            if wrong.yours:
                yield note(f"yours begins {_numbers(wrong.yours)}, the reference {_numbers(wrong.reference)}")
        elif found.unexplained:
            yield note(
                f"then {found.unexplained} differs by something else: none of {len(found.tried)} mistakes explains it"
            )
        else:
            these = "this mistake" if len(found.mistakes) == 1 else "these mistakes"
            yield note(f"with {these} the reference returns what your code returns; {len(found.tried)} were tried")
        before = found.steps[: [step.step for step in found.steps].index(wrong.step)]
        right = sum(step.state != "wrong" for step in before)
        if right:
            yield note(f"{plural(right, 'step')} before it {'is' if right == 1 else 'are'} right")
        if found.unheld:
            yield Line(
                [Span("✗ ", "bad"), "no parameter of yours holds ", Span(", ".join(found.unheld), "strong")], indent=2
            )
        if wrong.lesson is not None:
            yield Line([f"tinytf learn {wrong.lesson}", Span(f"   {wrong.lesson_title}", "dim")], indent=2)
        yield Line("")

    def _names(self, terminal: Terminal) -> Iterator[Block]:
        found = self.shown
        rows = found.names
        names = Table(
            [
                Column("your parameter", [one.theirs for one in rows], shrink=24),
                Column("shape", [" × ".join(map(str, one.shape)) for one in rows], "right", drop=1),
                Column("holds", [Span(one.ours) if one.ours else Span("nothing of it", "bad") for one in rows]),
                Column("", [Span(one.way, "dim") for one in rows], drop=2),
            ]
        )
        most = None if self.full else _MOST_NAMES
        yield from folded(names, [one.theirs for one in rows], most, "parameters", "--full")

    def _steps(self) -> Iterator[Block]:
        steps = self.shown.steps
        marks = {"right": Span("✓", "good"), "unseen": Span("·", "dim"), "wrong": Span("✗", "bad")}
        yield Line("")
        yield Table(
            [
                Column("", [marks[one.state] for one in steps]),
                Column("step", [one.step for one in steps]),
                Column("formula", [one.formula for one in steps], shrink=20),
                Column("your line", [str(one.line or "") for one in steps], "right"),
                Column(
                    "differs by",
                    ["" if one.difference is None else Figure(one.difference, "%.1e") for one in steps],
                    "right",
                ),
            ]
        )
        yield note("· is computed inside another function, and right: what comes of it is")

    def _about(self) -> Iterator[Block]:
        found = self.shown
        assert found.about is not None
        model = found.about.model
        assert isinstance(model, Model)
        yield note(f"the code of {found.file} was run: {found.call}")
        yield Line([Span("like ", "dim"), *model_words(model, computed=False)], indent=2)
        yield note(f"on the text {_safe(found.encoding.text)}")
        for said in found.given:
            yield note(f"forward was handed {said}")
        lines = self.printed
        if lines:
            yield note("until it had run once, it printed")
            most = len(lines) if self.full else _MOST_LINES
            yield from (Line(line, 4) for line in lines[:most])
            if len(lines) > most:
                yield Line(Span(f"… and {plural(len(lines) - most, 'more line')}", "dim"), 4)


def _invariance(one: Invariance, full: bool) -> Line:
    if one.difference is None:
        return Line([Span("– ", "dim"), Span(one.what, "dim")])
    apart = Span("   no: they differ by ", "bad") if not one.holds else Span("   differs by at most ", "dim")
    figure: list[Piece] = [apart, Figure(one.difference, "%.1e")] if full or not one.holds else []
    return Line([Span("✓ ", "good") if one.holds else Span("✗ ", "bad"), one.what, *figure])


def _code(line: Code | None, indent: int = 2) -> Iterator[Block]:
    if line is not None:
        yield Line([Span(f"{line.file}:{line.number}   ", "dim"), Span(line.text)], indent)


def _confirmed(one: Confirmed, later: bool) -> Iterator[Block]:
    """A mistake, and the line where it is made."""
    where = f"{one.step}: " if later else ""
    tensors = plural(one.explained, "tensor")
    said = f"   confirmed by {tensors} of yours" if one.certain else f"   gives {tensors} of yours, and nothing after"
    where += "" if one.certain else "perhaps "
    yield Line([Span("✗ ", "bad"), where, Span(one.mistake, "strong"), Span(said, "dim")], indent=2)
    yield from _code(one.line, 4)


def _numbers(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.4g}" for value in values)
