"""A worked example beside the truth, step by step, and the scores of several."""

from collections.abc import Iterator

from tinytf.worked import CheckedStep, ExampleScores, Verification
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Column, Heading, Line, Span, Table
from tinytf_cli.views.worked_cells import claimed_cells, safe


class VerifyView:
    """Every step of an example: what is claimed, what is true, and by how much they differ.

    A step whose claims all hold takes one line; with ``full`` its numbers are shown as well, with ``wrong`` it is
    omitted.
    """

    def __init__(self, found: Verification, *, full: bool = False, wrong: bool = False) -> None:
        self.found, self.full, self.wrong = found, full, wrong

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The example's title, its steps, and the score."""
        example, worst = self.found.example, self.found.worst
        yield Line([Span(safe(example.name), "strong"), Span(f" · {safe(example.title)}")])
        if example.source:
            yield Line(Span(f"after {safe(example.source)}", "dim"))
        if example.about:
            yield Line("")
            yield Line(safe(" ".join(example.about.split())))
        for checked in self.found.steps:
            if not (self.wrong and checked.agrees and not checked.skipped and checked.right):
                yield from _step(checked, self.full, terminal)
        yield Line("")
        yield Line(_score(self.found))
        said = f"float64 numpy {{}}, largest difference {worst.apart:.1e} at {worst.step.name}"
        if worst.agrees:
            yield Line([Span("checked", "good"), Span(f": tinytf and {said.format('agree on every step')}")])
        else:
            yield Line([Span("check failed", "bad"), Span(f": tinytf and {said.format('disagree')}")])


class ScoresView:
    """Several examples, a line each."""

    def __init__(self, found: ExampleScores) -> None:
        self.found = found

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """A table of scores."""
        examples = self.found.examples
        yield Heading("worked examples", "tinytf verify NAME shows one; FILE.toml checks your own")
        yield Table(
            [
                Column("name", [Span(safe(one.example.name), "strong") for one in examples]),
                Column("claims", [f"{one.claims:,}" for one in examples], "right"),
                Column("hold", [f"{one.holding:,}" for one in examples], "right"),
                Column("not checked", [f"{one.skipped:,}" if one.skipped else "" for one in examples], "right"),
                Column("", [safe(one.example.title) for one in examples], shrink=12),
            ]
        )
        yield Line("")
        for one in examples:
            yield Line(_score(one))


def _score(found: Verification) -> list[Span]:
    """``cat-sleeps: 41 of 96 claims hold``."""
    words = [
        Span(safe(found.example.name), "strong"),
        Span(": "),
        Span(f"{found.holding:,} of {found.claims:,}", "good" if found.holding == found.claims else "bad"),
        Span(f" {'claim holds' if found.claims == 1 else 'claims hold'}"),
    ]
    if found.skipped:
        words.append(Span(f"; {found.skipped:,} not checked without a --tokenizer", "dim"))
    return words


def _step(checked: CheckedStep, full: bool, terminal: Terminal) -> Iterator[Block]:
    step, claims, holding = checked.step, checked.claims, checked.holding
    if checked.skipped:
        sign, said, role = "–", f"not checked: {checked.skipped}", "dim"
    elif not claims:
        sign, said, role = "=", "not claimed", "dim"
    elif checked.right:
        sign, said, role = "✓", "holds" if claims == 1 else f"all {claims:,} hold", "good"
    else:
        said = "does not hold" if claims == 1 and not holding else f"{holding:,} of {claims:,} hold"
        sign, role = "✗", "bad"
    title, formula = f"   {safe(step.title)}" if step.title else "", f"   {safe(step.formula.text)}"
    yield Line("")
    head = [Span(f"{sign} ", role), Span(safe(step.name), "strong"), Span(f"   {said}", role)]
    yield Line([*head, Span(title), Span(formula, "dim")])
    if checked.skipped:
        return
    if not checked.of_one_shape and checked.holds is not None and checked.true is not None:
        claimed, true = (" × ".join(map(str, one.shape)) or "one number" for one in (checked.holds, checked.true))
        yield Line(Span(f"wrong shape: {claimed} claimed, {true} true", "bad"), indent=2)
    if full or not (claims and checked.right):
        yield from claimed_cells(checked, terminal)
    if checked.carrying:
        yield Line(Span(f"{_follow(checked)} from the author's earlier claims", "dim"), indent=2)
    if step.note:
        yield Line(safe(step.note), indent=2)
    if not checked.agrees:
        yield Line(Span(f"tinytf and numpy differ here by {checked.apart:.1e}", "bad"), indent=2)


def _follow(checked: CheckedStep) -> str:
    wrong, carried = checked.claims - checked.holding, checked.carrying
    if carried == wrong:
        return "it follows" if wrong == 1 else "all of them follow"
    return "1 follows" if carried == 1 else f"{carried:,} follow"
