"""A worked example beside the truth, step by step, and the scores of several."""

from collections.abc import Iterator, Sequence
from typing import Any

from tinytf.report import SCHEMA_VERSION
from tinytf.worked import CheckedStep, Verification
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Column, Heading, Line, Span, Table
from tinytf_cli.views.worked_cells import claimed_cells, safe

_GAP = 2
_SIGNS, _SPOKEN = ("✓", "✗"), (" right", " wrong")
_RIGHT, _WRONG = Span("✓", "good"), Span("✗", "bad")


class VerifyView:
    """Every step of an example: what is claimed, what is true, and by how much they differ.

    Steps whose claims all hold take one line; with ``full`` their numbers are shown as well. With ``wrong`` only those
    are there that do not hold.
    """

    def __init__(self, found: Verification, *, full: bool = False, wrong: bool = False) -> None:
        self.found, self.full, self.wrong = found, full, wrong

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The example's title, its steps, and the score."""
        example = self.found.example
        yield Line([Span(safe(example.name), "strong"), Span(f" · {safe(example.title)}")])
        if example.source:
            yield Line(Span(f"after {safe(example.source)}", "dim"))
        if example.about:
            yield Line("")
            yield Line(safe(" ".join(example.about.split())))
        for checked in self.found.steps:
            if not (self.wrong and checked.agrees and not checked.skipped and _right(checked)):
                yield from _step(checked, self.full, terminal)
        yield Line("")
        yield Line(_score(self.found))
        yield self._agreement()

    def _agreement(self) -> Line:
        worst = self.found.worst
        said = f"tinytf and float64 numpy {{}}, largest difference {worst.apart:.1e} at {worst.step.name}"
        if worst.agrees:
            return Line([Span("checked", "good"), Span(": " + said.format("agree on every step"))])
        return Line([Span("check failed", "bad"), Span(": " + said.format("do not agree"))])


class ScoresView:
    """Several examples, a line each."""

    def __init__(self, found: Sequence[Verification]) -> None:
        self.found = found

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """A table of scores."""
        yield Heading("worked examples", "tinytf verify NAME shows one; FILE.toml checks your own")
        yield Table(
            [
                Column("name", [Span(safe(one.example.name), "strong") for one in self.found]),
                Column("claims", [f"{one.claims:,}" for one in self.found], "right"),
                Column("hold", [f"{one.holding:,}" for one in self.found], "right"),
                Column("not checked", [f"{one.skipped:,}" if one.skipped else "" for one in self.found], "right"),
                Column("", [safe(one.example.title) for one in self.found], shrink=12),
            ]
        )
        yield Line("")
        for one in self.found:
            yield Line(_score(one))

    def data(self) -> dict[str, Any]:
        """The same as one JSON object."""
        examples = [one.summary() for one in self.found]
        return {"schema_version": SCHEMA_VERSION, "kind": "worked_examples", "worked_examples": examples}

    def events(self) -> Iterator[dict[str, Any]]:
        """One event an example."""
        for one in self.found:
            yield {"type": "worked_example", **one.summary()}


def _score(found: Verification) -> list[Span]:
    """``cat-sleeps: 41 of 96 claims hold``."""
    words = [
        Span(safe(found.example.name), "strong"),
        Span(": "),
        Span(f"{found.holding:,} of {found.claims:,}", "good" if found.holding == found.claims else "bad"),
        Span(f" {'claim holds' if found.claims == 1 else 'claims hold'}"),
    ]
    if found.skipped:
        words.append(Span(f"; {found.skipped:,} not checked, for want of a --tokenizer", "dim"))
    return words


def _step(checked: CheckedStep, full: bool, terminal: Terminal) -> Iterator[Block]:
    step = checked.step
    yield Line("")
    name = Span(f"{safe(step.name)}", "strong")
    head = [Span(f"   {safe(step.title)}" if step.title else ""), Span(f"   {safe(step.formula.text)}", "dim")]
    if checked.skipped:
        yield Line([Span("– ", "dim"), name, Span(f"   not checked: {checked.skipped}", "dim"), *head])
        return
    if not checked.claims:
        yield Line([Span("= ", "dim"), name, Span("   not claimed", "dim"), *head])
        yield from claimed_cells(checked, terminal)
    elif _right(checked):
        yield Line([_RIGHT, Span(" "), name, Span(f"   {_all(checked.claims)}", "good"), *head])
        if full:
            yield from claimed_cells(checked, terminal)
    else:
        yield Line([_WRONG, Span(" "), name, Span(f"   {_some(checked)}", "bad"), *head])
        yield from _other_shape(checked)
        yield from claimed_cells(checked, terminal)
        yield from _carried(checked)
    if step.note:
        yield Line(safe(step.note), indent=2)
    if not checked.agrees:
        yield Line(Span(f"tinytf and numpy differ here by {checked.apart:.1e}", "bad"), indent=2)


def _right(checked: CheckedStep) -> bool:
    return checked.holding == checked.claims and checked.of_one_shape


def _all(claims: int) -> str:
    return "holds" if claims == 1 else f"all {claims:,} hold"


def _some(checked: CheckedStep) -> str:
    one = checked.claims == 1 and not checked.holding
    return "does not hold" if one else f"{checked.holding:,} of {checked.claims:,} hold"


def _other_shape(checked: CheckedStep) -> Iterator[Block]:
    assert checked.holds is not None
    assert checked.true is not None
    if not checked.of_one_shape:
        claimed, true = (" × ".join(map(str, one.shape)) or "one number" for one in (checked.holds, checked.true))
        yield Line(Span(f"of another shape: {claimed} claimed, {true} true", "bad"), indent=2)


def _carried(checked: CheckedStep) -> Iterator[Block]:
    wrong, carried = checked.claims - checked.holding, int(checked.carried.sum()) if checked.carried is not None else 0
    if carried:
        which = "it follows" if wrong == 1 else ("all of them follow" if carried == wrong else f"{carried:,} follow")
        if carried == 1 and wrong > 1:
            which = "1 follows"
        yield Line(Span(f"{which} from what the author claims before", "dim"), indent=2)
