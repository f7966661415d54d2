"""A student's module beside a reference: the verdict, the first wrong step and why, the names, the invariances."""

from collections.abc import Iterator

from tinytf.student.checked import Checked, Confirmed, Wrong
from tinytf.student.opened import Place
from tinytf.text.printable import printable
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Column, Figure, Line, Span, Table
from tinytf_cli.views.parts import next_lines, note

_MOST_NAMES = 24


def _safe(text: str) -> str:
    return printable(text, spaces=False)


class CheckView:
    """The verdict first; with ``full`` every step and parameter."""

    def __init__(self, found: Checked, full: bool = False) -> None:
        self.found, self.full = found, full

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """What is wrong and why, then what it rests on."""
        found = self.found
        assert found.about is not None
        name = Span(_safe(f"{found.file}:{found.target}"), "strong")
        like = _safe(found.about.model.to_dict()["name"])
        total = len(found.steps)
        if found.first_wrong is None:
            yield Line([name, Span(" is right: ", "good"), f"all {total:,} steps are those of {like}"])
        else:
            yield from self._wrong(found.first_wrong, [name, Span(" is wrong", "bad"), f", beside {like}, at "])
        for one in found.invariances:
            if not one.holds:
                yield Line([Span("✗ ", "bad"), one.what, ": they differ by ", Figure(one.difference or 0.0, "%.1e")])
        yield Line("")
        yield from self._names()
        if self.full:
            yield from self._steps()
        yield Line("")
        yield from self._invariances()
        yield note(f"this ran the code of {_safe(found.file)}: {_safe(found.call)}")
        for said in found.given:
            yield note(f"handed to forward: {_safe(said)}")
        if not self.full:
            yield from next_lines(terminal, ("--full", f"every parameter, and all {total:,} steps with your lines"))

    def _wrong(self, wrong: Wrong, head: list[Span | str]) -> Iterator[Block]:
        found = self.found
        yield Line([*head, Span(wrong.step, "strong"), f"   {wrong.formula}"])
        if found.mistakes:
            for one in found.mistakes:
                yield from _confirmed(one)
            these = "it" if len(found.mistakes) == 1 else "these"
            rest = "" if found.explained else ", and then something that none of the known mistakes explains"
            yield Line([f"With {these} the reference computes what your code does{rest}."])
        else:
            if wrong.line is not None:
                yield _code(wrong.line)
            yield Line(f"None of the {found.tried} mistakes that were tried gives your numbers.", indent=2)
            if wrong.yours:
                yield Line(f"yours begins {_numbers(wrong.yours)}, the reference {_numbers(wrong.reference)}", indent=2)
        before = next(i for i, step in enumerate(found.steps) if step.state == "wrong")
        yield Line(
            [f"{plural(before, 'step')} before it ", Span("right", "good"), "; everything after it rests on it."],
            indent=2,
        )
        if wrong.lesson is not None:
            yield Line([f"tinytf learn {wrong.lesson}", Span(f"   {wrong.lesson_title}", "dim")], indent=2)

    def _names(self) -> Iterator[Block]:
        found = self.found
        rows = found.names if self.full else found.names[:_MOST_NAMES]
        yield Table(
            [
                Column("your parameter", [_safe(one.theirs) for one in rows], shrink=24),
                Column("shape", [" × ".join(map(str, one.shape)) for one in rows], "right", drop=1),
                Column("holds", [Span(one.ours) if one.ours else Span("nothing of it", "bad") for one in rows]),
                Column("", [Span(one.way, "dim") for one in rows], drop=2),
            ]
        )
        if len(rows) < len(found.names):
            yield note(f"folded: {len(found.names) - len(rows)} of {len(found.names)} parameters")
        if found.unheld:
            yield Line([Span("no parameter holds ", "bad"), ", ".join(found.unheld)], indent=2)

    def _steps(self) -> Iterator[Block]:
        steps = self.found.steps
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

    def _invariances(self) -> Iterator[Block]:
        for one in self.found.invariances:
            if one.difference is None:
                yield Line([Span("– ", "dim"), Span(_safe(one.what), "dim")])
            else:
                mark = Span("✓ ", "good") if one.holds else Span("✗ ", "bad")
                yield Line(
                    [mark, _safe(one.what), Span("   largest difference ", "dim"), Figure(one.difference, "%.1e")]
                )


def _code(line: Place) -> Line:
    return Line([Span(f"{_safe(line.file)}:{line.line}  ", "dim"), Span(_safe(line.text))], indent=2)


def _confirmed(one: Confirmed) -> Iterator[Block]:
    where = f" ({plural(one.places, 'step')})" if one.places > 1 else ""
    yield Line([Span("confirmed: ", "bad"), Span(one.mistake, "strong"), f"   {one.step}{where}"], indent=2)
    if one.line is not None:
        yield Line([Span(f"{_safe(one.line.file)}:{one.line.line}  ", "dim"), Span(_safe(one.line.text))], indent=4)


def _numbers(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.4g}" for value in values)
