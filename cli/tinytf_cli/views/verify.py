"""A worked example beside the truth, step by step, and the scores of several."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len

from tinytf.text.printable import printable
from tinytf.worked import CheckedStep, Verification
from tinytf_cli.numbers import number, number_format
from tinytf_cli.output import SCHEMA_VERSION
from tinytf_cli.paint.terminal import Terminal
from tinytf_cli.views.blocks import Block, Cell, Column, Heading, Line, Span, Table

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
        yield Line([Span(_safe(example.name), "strong"), Span(f" · {_safe(example.title)}")])
        if example.source:
            yield Line(Span(f"after {_safe(example.source)}", "dim"))
        if example.about:
            yield Line("")
            yield Line(_safe(" ".join(example.about.split())))
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

    def data(self) -> dict[str, Any]:
        """The same as one JSON object."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "verification",
            **_example(self.found),
            "steps": [_step_data(checked) for checked in self.found.steps],
            "check": {
                "holds": self.found.holds,
                "agrees": self.found.worst.agrees,
                "largest_difference": self.found.worst.apart,
                "at": self.found.worst.step.name,
            },
        }

    def events(self) -> Iterator[dict[str, Any]]:
        """The same data, one event a line."""
        data = self.data()
        steps, check = data.pop("steps"), data.pop("check")
        yield {"type": data.pop("kind"), **data}
        for step in steps:
            yield {"type": "step", **step}
        yield {"type": "check", **check}


class ScoresView:
    """Several examples, a line each."""

    def __init__(self, found: Sequence[Verification]) -> None:
        self.found = found

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """A table of scores."""
        yield Heading("worked examples", "tinytf verify NAME shows one; FILE.toml checks your own")
        yield Table(
            [
                Column("name", [Span(_safe(one.example.name), "strong") for one in self.found]),
                Column("claims", [f"{one.claims:,}" for one in self.found], "right"),
                Column("hold", [f"{one.holding:,}" for one in self.found], "right"),
                Column("not checked", [f"{one.skipped:,}" if one.skipped else "" for one in self.found], "right"),
                Column("", [_safe(one.example.title) for one in self.found], shrink=12),
            ]
        )
        yield Line("")
        for one in self.found:
            yield Line(_score(one))

    def data(self) -> dict[str, Any]:
        """The same as one JSON object."""
        examples = [_example(one) for one in self.found]
        return {"schema_version": SCHEMA_VERSION, "kind": "worked_examples", "worked_examples": examples}

    def events(self) -> Iterator[dict[str, Any]]:
        """One event an example."""
        for one in self.found:
            yield {"type": "worked_example", **_example(one)}


def _safe(text: str) -> str:
    return printable(text, spaces=False)


def _score(found: Verification) -> list[Span]:
    """``cat-sleeps: 41 of 96 claims hold``."""
    words = [
        Span(_safe(found.example.name), "strong"),
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
    name = Span(f"{_safe(step.name)}", "strong")
    head = [Span(f"   {_safe(step.title)}" if step.title else ""), Span(f"   {_safe(step.formula.text)}", "dim")]
    if checked.skipped:
        yield Line([Span("– ", "dim"), name, Span(f"   not checked: {checked.skipped}", "dim"), *head])
        return
    if not checked.claims:
        yield Line([Span("= ", "dim"), name, Span("   not claimed", "dim"), *head])
        yield from _tables(checked, terminal)
    elif _right(checked):
        yield Line([_RIGHT, Span(" "), name, Span(f"   {_all(checked.claims)}", "good"), *head])
        if full:
            yield from _tables(checked, terminal)
    else:
        yield Line([_WRONG, Span(" "), name, Span(f"   {_some(checked)}", "bad"), *head])
        yield from _other_shape(checked)
        yield from _tables(checked, terminal)
        yield from _carried(checked)
    if step.note:
        yield Line(_safe(step.note), indent=2)
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


def _tables(checked: CheckedStep, terminal: Terminal) -> Iterator[Block]:
    """The cells, matrix by matrix where there are more than two axes."""
    claim, true = checked.step.claim, checked.true
    assert true is not None
    shape = claim.shape if claim is not None and len(claim.shape) != true.ndim else true.shape
    for place in np.ndindex(shape[:-2]):
        if place:
            yield Line(Span(f"[{', '.join(map(str, place))}]", "dim"), indent=2)
        yield from _matrix(checked, place, terminal)


def _matrix(checked: CheckedStep, place: tuple[int, ...], terminal: Terminal) -> Iterator[Block]:
    """Claimed, true and difference side by side, or below each other where the width is short."""
    step = checked.step
    parts = [part for part in _parts(checked, place, _SPOKEN if terminal.plain else _SIGNS) if part[1]]
    rows = max(len(part[1]) for part in parts)
    labels = [_safe(label) for label in step.rows[:rows]] or ["" if rows == 1 else str(row) for row in range(rows)]
    labels += [str(row) for row in range(len(labels), rows)]
    names = [_safe(name) for name in step.columns]
    if terminal.plain:
        yield _table(labels, [(title, cells, names) for title, cells in parts], rule=False)
        return
    side = max(cell_len(label) for label in labels) + _GAP
    columns = [_widths(cells, names) for _, cells in parts]
    beside = sum(
        sum(c) - c[0] + max(c[0], cell_len(title)) + _GAP * len(c) for (title, _), c in zip(parts, columns, strict=True)
    )
    if side + beside + (1 + _GAP) * (len(parts) - 1) <= terminal.width:
        yield _table(labels, [(title, cells, names) for title, cells in parts])
        return
    for title, cells in parts:
        for first, last in _strips(_widths(cells, names), terminal.width - side):
            strip = [row[first:last] for row in cells]
            yield Line(
                Span(f"{title}{f', {first} to {last - 1}' if last - first < len(cells[0]) else ''}", "dim"), indent=2
            )
            yield _table(labels[: len(cells)], [("", strip, names[first:last])])


def _widths(cells: Sequence[Sequence[Sequence[Span]]], names: Sequence[str]) -> list[int]:
    columns = len(cells[0])
    widest = [max(sum(cell_len(span.text) for span in row[c]) for row in cells) for c in range(columns)]
    return [max(w, cell_len(names[c]) if c < len(names) else 0) for c, w in enumerate(widest)]


def _strips(widths: Sequence[int], room: int) -> Iterator[tuple[int, int]]:
    """Runs of columns that fit, at least one in each."""
    first, used = 0, 0
    for c, width in enumerate(widths):
        if c > first and used + width + _GAP > room:
            yield first, c
            first, used = c, 0
        used += width + _GAP
    yield first, len(widths)


Cells = list[list[list[Span]]]


def _table(labels: Sequence[str], parts: Sequence[tuple[str, Cells, Sequence[str]]], *, rule: bool = True) -> Table:
    """Groups of columns with a rule between them; names of columns are a first row."""
    named = rule and any(names for _, _, names in parts)
    first: list[Cell] = [""] if named else []
    columns = [Column("", first + [Span(label, "dim") for label in labels], said="row")]
    for place, (title, cells, names) in enumerate(parts):
        if place and rule:
            columns.append(Column("", [Span("│", "dim")] * (len(labels) + named), said=""))
        for c in range(len(cells[0])):
            name = names[c] if c < len(names) else ""
            column: list[Cell] = [Span(name, "dim")] if named else []
            column += [row[c] for row in cells] + [""] * (len(labels) - len(cells))
            columns.append(Column(title if not c else "", column, "right", said=f"{title} {name or c}".strip()))
    return Table(columns, header=any(column.title for column in columns))


def _parts(checked: CheckedStep, place: tuple[int, ...], signs: tuple[str, str]) -> Iterator[tuple[str, Cells]]:
    """The matrices of what is claimed, of what is true, and of the differences that matter."""
    claim = checked.step.claim
    true = _two_axes(checked.true, place)
    form = _form(checked)
    words = (claim is not None and claim.words) or true.dtype.kind in "US"
    if claim is not None:
        assert checked.holds is not None
        said, holds = _two_axes(claim.shown, place), _two_axes(checked.holds, place)
        yield (
            "claimed",
            [
                [
                    [
                        Span(_safe(str(text)), "good" if ok else "bad"),
                        Span(signs[0] if ok else signs[1], "good" if ok else "bad"),
                    ]
                    for text, ok in zip(texts, oks, strict=True)
                ]
                for texts, oks in zip(said, holds, strict=True)
            ],
        )
    yield "true", [[[Span(_true(value, form))] for value in row] for row in true]
    if claim is not None and not words and not claim.truths and checked.off is not None:
        off = _two_axes(checked.off, place)
        holds = _two_axes(checked.holds, place)
        yield (
            "off by",
            [
                [
                    [Span(_off(float(value), bool(ok), form), "dim" if ok else "bad")]
                    for value, ok in zip(values, oks, strict=True)
                ]
                for values, oks in zip(off, holds, strict=True)
            ],
        )


def _two_axes(array: NDArray[Any] | None, place: tuple[int, ...]) -> NDArray[Any]:
    assert array is not None
    part = array[place] if len(place) <= max(0, array.ndim - 2) else array
    return np.atleast_2d(part).reshape(-1, np.atleast_2d(part).shape[-1])


def _form(checked: CheckedStep) -> str:
    """Digits enough to see how far a claim is off: two more than it prints."""
    true = checked.true
    assert true is not None
    if true.dtype.kind in "US":
        return ""
    claim = checked.step.claim
    if claim is not None and claim.truths:
        return "yes or no"
    finite = true[np.isfinite(true)]
    if finite.size and (finite == np.rint(finite)).all() and np.abs(finite).max() < 1e15:
        return "whole"
    if claim is None or claim.words:
        alike = true.ndim != 1 or not checked.step.columns  # a row of named quantities has digits of each its own
        return number_format(true.astype(np.float32)) if alike else ""
    digits = max(
        (len(text.partition(".")[2]) for text in claim.shown.ravel().tolist() if "e" not in text.lower()), default=2
    )
    largest = float(np.abs(finite).max(initial=0.0))
    return f"%.{digits + 2}f" if not largest or 10.0 ** -(digits + 1) <= largest < 1e6 else "%.4g"


def _true(value: Any, form: str) -> str:
    if isinstance(value, str):
        return _safe(value)
    if form == "yes or no":
        return "yes" if value else "no"
    if not math.isfinite(value):
        return number(float(value))
    if form == "whole":
        return f"{int(value):,}" if abs(value) >= 10_000 else str(int(value))
    return number(float(value), form)


def _off(value: float, holds: bool, form: str) -> str:
    if math.isnan(value):
        return ""
    text = _true(value, form if form != "whole" or value.is_integer() else "%.3g")
    if holds and not text.strip("-0."):
        return "0"
    return text if text.startswith("-") else f"+{text}"


def _example(found: Verification) -> dict[str, Any]:
    example = found.example
    return {
        "name": example.name,
        "title": example.title,
        "source": example.source,
        "claims": found.claims,
        "hold": found.holding,
        "not_checked": found.skipped,
        "holds": found.holds,
    }


def _step_data(checked: CheckedStep) -> dict[str, Any]:
    step, claim = checked.step, checked.step.claim
    claimed = None if claim is None else (claim.shown if claim.words else claim.values).tolist()
    return {
        "name": step.name,
        "title": step.title,
        "formula": step.formula.text,
        "claimed": claimed,
        "as_written": None if claim is None else claim.shown.tolist(),
        "tolerance": None if claim is None or claim.words else claim.tolerance.tolist(),
        "true": None if checked.true is None else checked.true.tolist(),
        "difference": None if checked.off is None else _listed(checked.off),
        "holds": None if checked.holds is None else checked.holds.tolist(),
        "carried": None if checked.carried is None else checked.carried.tolist(),
        "computations_differ_by": checked.apart,
        "skipped": checked.skipped or None,
        "note": step.note or None,
        "line": step.line,
    }


def _listed(off: NDArray[np.float64]) -> Any:
    """Differences as lists; None where there is nothing to subtract."""
    return np.where(np.isnan(off), np.array(None), off.astype(object)).tolist()
