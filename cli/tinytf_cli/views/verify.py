"""A worked example beside the truth: the verdict and the faults, or every cell; and the scores of several examples."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from tinytf.sentences import first_of
from tinytf.verify import CheckedStep, ExampleScores, Verification
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Column, Figure, Heading, Line, Span, Table
from tinytf_cli.views.draw import Display, draws
from tinytf_cli.views.parts import next_lines, note, titled, verdict
from tinytf_cli.views.worked_cells import (
    MARKS,
    answer_cells,
    claimed_cells,
    faulty_cells,
    given_cells,
    most_moved,
    safe,
)

_MOST_STEPS, _EDITS = 16, 4
"""The most faulty or moved steps in the digest, and the most edits that are named."""


@dataclass(frozen=True)
class VerificationDisplay(Display):
    """``full`` shows every number of every step, ``wrong`` every number of the steps that do not hold.

    A ``sheet`` is for students: the ``homework`` with blanks for the numbers to work out, or its ``solution``, for
    the ``steps``, or for all of them.
    """

    full: bool = False
    wrong: bool = False
    sheet: str = ""
    steps: tuple[str, ...] = ()

    @property
    def conceals(self) -> bool:
        return bool(self.sheet)


@draws(Verification, VerificationDisplay)
def verification(report: Verification, terminal: Terminal, display: VerificationDisplay) -> Iterator[Block]:
    """The example's score and title, then a line for each step that does not hold, or the numbers of the steps."""
    example = report.example
    if display.sheet:
        yield from _sheet(report, display.sheet == "homework", display.steps, terminal)
        return
    yield Line(_score(report))
    source = f", after {safe(example.source)}" if example.source else ""
    yield Line([Span(safe(example.title)), Span(source, "dim")])
    yield _checked(report)
    if report.edits:
        yield from _edits(report)
    if display.full or display.wrong:
        if example.about:
            yield Line("")
            yield Line(safe(" ".join(example.about.split())))
        for checked in report.steps:
            if display.full or not _is_sound(checked):
                yield from _step(checked, terminal)
        return
    yield from _moved(report, terminal) if report.edits else _digest(report, terminal)


@draws(ExampleScores)
def example_scores(report: ExampleScores, terminal: Terminal, display: Display) -> Iterator[Block]:
    """A table of the scores of several examples, a line each."""
    usage = Span("   tinytf verify NAME shows one; FILE.toml checks your own", "advice")
    yield Line([Span("worked examples", "strong"), usage])
    scores = report.examples
    yield Table(
        [
            Column("name", [Span(safe(score.example.name), "strong") for score in scores]),
            Column("hold", [f"{score.holding:,}" for score in scores], "right"),
            Column("carried", [f"{score.carrying:,}" for score in scores], "right"),
            Column("wrong", [f"{score.wrong:,}" for score in scores], "right"),
            Column("of claims", [f"{score.claims:,}" for score in scores], "right"),
            Column("not checked", [f"{score.skipped:,}" if score.skipped else "" for score in scores], "right", drop=1),
        ]
    )
    yield Line("")
    for score in scores:
        yield Line([Span(f"{safe(score.example.name)}  ", "dim"), safe(score.example.title)], indent=2)
    yield Line("")
    yield Line(Span("carried: right given the author's own earlier numbers, but wrong in the end", "dim"))
    if any(score.skipped for score in scores):
        yield Line(Span("not checked: token ids; give a --tokenizer", "dim"))
    if report.papers:
        names = [part for name in report.papers for part in (Span(" "), Span(f"paper:{name}", "strong"))]
        yield Line(["papers, whose claims are measured on a model:", *names], hanging=2)


def _sheet(report: Verification, blank: bool, asked: Sequence[str], terminal: Terminal) -> Iterator[Block]:
    """The title, what is given, and each step with its formula and a matrix of blanks or of the true numbers.

    Of the steps that are not ``asked``, those that the formulas read are given.
    """
    example = report.example
    steps = [checked for checked in report.steps if checked.true is not None and checked.true.size]
    asked = asked or [checked.step.name for checked in steps]
    read = example.read_by(asked)
    yield Line(Span(safe(example.title), "strong"))
    if blank:
        yield Line("Work out what goes into each blank, numbers to four significant digits.")
    given = {name: value for name, value in example.given.items() if name in read}
    if given:
        yield Heading("given", "what you start from")
    for name, value in given.items():
        yield from given_cells(name, value, terminal)
    for checked in steps:
        step = checked.step
        if step.name in asked or step.name in read:
            words = (step.title, step.formula.text) if step.name in asked else ("given", step.title)
            yield Heading(safe(step.name), safe(": ".join(filter(None, words))))
            yield from answer_cells(checked, blank and step.name in asked, terminal)


def _score(report: Verification) -> list[Span]:
    """``cat-sat: 131 hold · 5 carried · 33 wrong``."""
    words = [Span(safe(report.example.name), "strong"), Span(": ")]
    states = (report.holding, "hold", "good"), (report.carrying, "carried", "k"), (report.wrong, "wrong", "bad")
    for index, (count, word, role) in enumerate(states):
        words += [Span(" · " if index else ""), Span(f"{count:,} {word}", role if count else "dim")]
    if report.skipped:
        words.append(Span(f" · {report.skipped:,} not checked without a --tokenizer", "dim"))
    return words


def _checked(report: Verification) -> Line:
    worst = report.worst
    outcome = "agree on every step" if worst.agrees else "disagree"
    words, size = f"tinytf and float64 numpy {outcome}, largest difference ", Figure(worst.apart, "%.1e")
    return verdict(worst.agrees, [words, size, f" at {worst.step.name}"])


def _edits(report: Verification) -> Iterator[Block]:
    """The numbers that are edited, and how many others move with them."""
    moved = report.moved
    count = sum(int(checked.moved.sum()) for checked in moved)
    moves = f": {plural(count, 'number')} in {plural(len(moved), 'step')} of {len(report.steps)} move"
    yield titled("edited", f" {first_of([safe(str(edit)) for edit in report.edits], _EDITS)}{moves if count else ''}")
    if not count:
        yield note("no number of a step moves")


def _moved(report: Verification, terminal: Terminal) -> Iterator[Block]:
    """For each step that moves, the cell that moves most: as it is claimed, as it is, and after the edit."""
    steps = report.moved[:_MOST_STEPS]
    cells = [most_moved(checked, terminal) for checked in steps]
    if steps:
        yield Line("")
        yield Table(
            [
                Column("step", [Span(safe(checked.step.name), "strong") for checked in steps]),
                Column(
                    "move", [f"{int(checked.moved.sum()):,} of {checked.moved.size:,}" for checked in steps], "right"
                ),
                Column("most", [Span(cell.place, "dim") for cell in cells], said="the one that moves most"),
                Column("claimed", [cell.claimed for cell in cells], "right"),
                Column("true", [cell.true for cell in cells], "right"),
                Column("after", [[Span(cell.after, "strong")] for cell in cells], "right", said="after the edit"),
                Column("", [safe(checked.step.title) for checked in steps], shrink=20, drop=2),
            ]
        )
    if len(report.moved) > len(steps):
        yield note(f"{plural(len(report.moved) - len(steps), 'more step')} with numbers that move")
    yield Line("")
    yield from next_lines(terminal, ("--full", f"every number of all {plural(len(report.steps), 'step')}"))


def _is_sound(checked: CheckedStep) -> bool:
    """Whether a step holds, and tinytf and numpy agree on it."""
    return checked.right and checked.agrees


def _digest(report: Verification, terminal: Terminal) -> Iterator[Block]:
    """For each step that does not hold, a line with as many of its wrong and carried cells as fit."""
    faulty = [checked for checked in report.steps if not _is_sound(checked)]
    results = [checked for checked in report.steps if checked.step.shown and _is_sound(checked)]
    if faulty:
        yield Line("")
    for checked in faulty[:_MOST_STEPS]:
        head = _head(checked)
        yield Line(head + list(_fitting_cells(checked, terminal, sum(cell_len(span.text) for span in head))))
        yield from _remarks(checked)
    if results:
        yield Line("")
    for checked in results:
        yield Line([*_head(checked), Span(f"  {safe(checked.step.title)}")])
        yield from claimed_cells(checked, terminal)
        yield from _remarks(checked)
    yield Line("")
    if len(faulty) > _MOST_STEPS:
        yield Line(Span(f"{plural(len(faulty) - _MOST_STEPS, 'more step')} with claims that do not hold", "bad"))
    faults = f"{plural(len(faulty), 'step')} that {'does' if len(faulty) == 1 else 'do'} not hold"
    wrong = [("--wrong", f"every number of the {faults}")] if faulty else []
    yield from next_lines(terminal, *wrong, ("--full", f"every number of all {plural(len(report.steps), 'step')}"))


def _fitting_cells(checked: CheckedStep, terminal: Terminal, used: int) -> Iterator[Span]:
    """As many faulty cells as fit the line, at least one, and how many more there are."""
    cells = faulty_cells(checked, terminal)
    for index, cell in enumerate(cells):
        used += 2 + sum(cell_len(span.text) for span in cell)
        more = f"  and {len(cells) - index} more"
        if index and used + len(more) * (index + 1 < len(cells)) > terminal.width:
            yield Span(more, "dim")
            return
        yield Span("  ")
        yield from cell


def _verdict(checked: CheckedStep) -> tuple[str, str, str]:
    """The mark of a step, the summary of its claims, and the role of both."""
    claims, wrong, carried = checked.claims, checked.wrong, checked.carrying
    if checked.skipped:
        return "–", f"not checked: {checked.skipped}", "dim"
    if not claims:
        return "=", "not claimed", "dim"
    if checked.right:
        return MARKS[0], "holds" if claims == 1 else f"all {claims:,} hold", "good"
    mark, role = (MARKS[1], "k") if carried and not wrong else (MARKS[2], "bad")
    if claims == 1 and checked.of_one_shape:
        return mark, "wrong" if wrong else "carried", role
    counted = ((wrong, "wrong"), (carried, "carried"))
    words = " · ".join(f"{count:,} {word}" for count, word in counted if count)
    return mark, f"{words} of {claims:,}" if words else "incomplete", role


def _head(checked: CheckedStep) -> list[Span]:
    """``✗ weights   5 wrong of 9``."""
    sign, words, role = _verdict(checked)
    return [Span(f"{sign} ", role), Span(safe(checked.step.name), "strong"), Span(f"   {words}", role)]


def _step(checked: CheckedStep, terminal: Terminal) -> Iterator[Block]:
    step = checked.step
    title, formula = f"   {safe(step.title)}" if step.title else "", f"   {safe(step.formula.text)}"
    yield Line("")
    yield Line([*_head(checked), Span(title), Span(formula, "dim")])
    if not checked.skipped:
        yield from claimed_cells(checked, terminal)
        yield from _remarks(checked)


def _remarks(checked: CheckedStep) -> Iterator[Block]:
    """Remarks on a step, below its cells."""
    if checked.holds is not None and checked.true is not None and not checked.of_one_shape:
        claimed, true = (" × ".join(map(str, cells.shape)) or "one number" for cells in (checked.holds, checked.true))
        yield Line(Span(f"wrong shape: {claimed} claimed, {true} true", "bad"), indent=2)
    if checked.step.note:
        yield Line(Span(safe(checked.step.note), "dim"), indent=2, hanging=0)
    if not checked.agrees:
        yield Line(Span(f"tinytf and numpy differ here by {checked.apart:.1e}", "bad"), indent=2)
