"""A worked example beside the truth: the verdict and what does not hold, or every cell; and the scores of several."""

from collections.abc import Iterator

from rich.cells import cell_len

from tinytf.worked import CheckedStep, ExampleScores, Verification
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Column, Line, Span, Table
from tinytf_cli.views.parts import next_lines, verdict
from tinytf_cli.views.worked_cells import MARKS, claimed_cells, faulty_cells, safe

_MOST_STEPS = 16
"""Steps that do not hold of which the digest tells."""


class VerifyView:
    """The verdict on an example, and a line for each step that does not hold.

    With ``wrong`` all numbers of these steps are shown instead, with ``full`` those of every step.
    """

    def __init__(self, found: Verification, *, full: bool = False, wrong: bool = False) -> None:
        self.found, self.full, self.wrong = found, full, wrong

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The example's title, its score, and its steps."""
        found, example = self.found, self.found.example
        yield Line(_score(found))
        source = f", after {safe(example.source)}" if example.source else ""
        yield Line([Span(safe(example.title)), Span(source, "dim")])
        yield _checked(found)
        if self.full or self.wrong:
            if example.about:
                yield Line("")
                yield Line(safe(" ".join(example.about.split())))
            for checked in found.steps:
                if self.full or not _sound(checked):
                    yield from _step(checked, terminal)
            return
        yield from _digest(found, terminal)


class ScoresView:
    """Several examples, a line each."""

    def __init__(self, found: ExampleScores) -> None:
        self.found = found

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """A table of scores."""
        examples = self.found.examples
        about = Span("   tinytf verify NAME shows one; FILE.toml checks your own", "dim")
        yield Line([Span("worked examples", "strong"), about])
        yield Table(
            [
                Column("name", [Span(safe(one.example.name), "strong") for one in examples]),
                Column("hold", [f"{one.holding:,}" for one in examples], "right"),
                Column("carried", [f"{one.carrying:,}" for one in examples], "right"),
                Column("wrong", [f"{one.wrong:,}" for one in examples], "right"),
                Column("of claims", [f"{one.claims:,}" for one in examples], "right"),
                Column("not checked", [f"{one.skipped:,}" if one.skipped else "" for one in examples], "right", drop=1),
                Column("", [safe(one.example.title) for one in examples], shrink=40, drop=2),
            ]
        )
        yield Line("")
        yield Line(Span("carried: right given the author's own earlier numbers, but wrong in the end", "dim"))
        if any(one.skipped for one in examples):
            yield Line(Span("not checked: token ids; give a --tokenizer", "dim"))


def _score(found: Verification) -> list[Span]:
    """``cat-sat: 131 hold · 5 carried · 33 wrong``."""
    words = [Span(safe(found.example.name), "strong"), Span(": ")]
    states = (found.holding, "hold", "good"), (found.carrying, "carried", "k"), (found.wrong, "wrong", "bad")
    for place, (count, word, role) in enumerate(states):
        words += [Span(" · " if place else ""), Span(f"{count:,} {word}", role if count else "dim")]
    if found.skipped:
        words.append(Span(f" · {found.skipped:,} not checked without a --tokenizer", "dim"))
    return words


def _checked(found: Verification) -> Line:
    worst = found.worst
    how = "agree on every step" if worst.agrees else "disagree"
    off = f"largest difference {worst.apart:.1e} at {worst.step.name}"
    return verdict(worst.agrees, f"tinytf and float64 numpy {how}, {off}")


def _sound(checked: CheckedStep) -> bool:
    """Whether there is nothing to say against a step."""
    return checked.right and checked.agrees


def _digest(found: Verification, terminal: Terminal) -> Iterator[Block]:
    """Of each step that does not hold the wrong and carried cells that fit a line, and what is wrong with them."""
    faulty = [checked for checked in found.steps if not _sound(checked)]
    results = [checked for checked in found.steps if checked.step.shown and _sound(checked)]
    if faulty:
        yield Line("")
    for checked in faulty[:_MOST_STEPS]:
        head = _head(checked)
        yield Line(head + list(_that_fit(checked, terminal, sum(cell_len(span.text) for span in head))))
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
    held = f"{plural(len(faulty), 'step')} that {'does' if len(faulty) == 1 else 'do'} not hold"
    wrong = [("--wrong", f"every number of the {held}")] if faulty else []
    yield from next_lines(terminal, *wrong, ("--full", f"every number of all {plural(len(found.steps), 'step')}"))


def _that_fit(checked: CheckedStep, terminal: Terminal, used: int) -> Iterator[Span]:
    """The faulty cells for which the line has room, at least one, and how many are left."""
    cells = faulty_cells(checked, terminal)
    for place, cell in enumerate(cells):
        used += 2 + sum(cell_len(span.text) for span in cell)
        more = f"  and {len(cells) - place} more"
        if place and used + len(more) * (place + 1 < len(cells)) > terminal.width:
            yield Span(more, "dim")
            return
        yield Span("  ")
        yield from cell


def _verdict(checked: CheckedStep) -> tuple[str, str, str]:
    """The sign of a step, what is said of its claims, and in which role."""
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
    said = " · ".join(f"{count:,} {word}" for count, word in counted if count)
    return mark, f"{said} of {claims:,}" if said else "incomplete", role


def _head(checked: CheckedStep) -> list[Span]:
    """``✗ weights   5 wrong of 9``."""
    sign, said, role = _verdict(checked)
    return [Span(f"{sign} ", role), Span(safe(checked.step.name), "strong"), Span(f"   {said}", role)]


def _step(checked: CheckedStep, terminal: Terminal) -> Iterator[Block]:
    step = checked.step
    title, formula = f"   {safe(step.title)}" if step.title else "", f"   {safe(step.formula.text)}"
    yield Line("")
    yield Line([*_head(checked), Span(title), Span(formula, "dim")])
    if not checked.skipped:
        yield from claimed_cells(checked, terminal)
        yield from _remarks(checked)


def _remarks(checked: CheckedStep) -> Iterator[Block]:
    """What there is to say of a step beside its cells."""
    if checked.holds is not None and checked.true is not None and not checked.of_one_shape:
        claimed, true = (" × ".join(map(str, one.shape)) or "one number" for one in (checked.holds, checked.true))
        yield Line(Span(f"wrong shape: {claimed} claimed, {true} true", "bad"), indent=2)
    if checked.step.note:
        yield Line(Span(safe(checked.step.note), "dim"), indent=2, hanging=0)
    if not checked.agrees:
        yield Line(Span(f"tinytf and numpy differ here by {checked.apart:.1e}", "bad"), indent=2)
