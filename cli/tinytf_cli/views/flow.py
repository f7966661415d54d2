"""One block as a drawing: the residual stream down the side, what leaves it, what is added back."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from tinytf.look.flow import Flow, FlowStep
from tinytf_cli.views.blocks import Block, Column, Fan, Figure, Miniature, Span, Table


def shape_text(shape: Sequence[int]) -> str:
    """``(3, 128)``."""
    return f"({', '.join(map(str, shape))})"


_CUT = 12  # columns that a formula keeps on a narrow screen


class Drawing:
    """The steps of a block: how each is made with the shapes of its weights, and its own shape.

    It has so many ``lines``, and is ``narrow`` columns wide without the shapes that stand in another line, else
    ``width``. Without ``rails`` no lines connect the steps.
    """

    def __init__(self, flow: Flow, *, rails: bool, ascii: bool) -> None:
        rows = list(_rows(one for one in flow.steps if not one.step.from_stream))
        self.rails = _rails([row[0] for row in rows])
        self.table = _drawn(rows, self.rails if rails else [])
        self.lines = len(rows)
        shape = 4 + max(len(rail.text) for rail in self.rails) + max(len(shape_text(row[-1].shape)) for row in rows)
        self.width, self.narrow = (
            shape + 2 + max(_length(_made(row, brief), ascii=ascii) for row in rows) for brief in (False, True)
        )

    def blocks(self, *, cut: bool) -> Iterator[Block]:
        """The drawing; with ``cut``, a formula that is too long for a screen is cut."""
        columns = [replace(one, shrink=one.shrink if cut else 0) for one in self.table.columns]
        yield replace(self.table, columns=columns)


def _length(line: Iterable[Span], *, ascii: bool = False) -> int:
    """How many columns a line takes; in 7 bits an arrow, for one, takes two."""
    return sum(len(span.text) + sum(span.text.count(sign) for sign in "→ᵀ…" if ascii) for span in line)


def _drawn(rows: Sequence[Sequence[FlowStep]], rails: Sequence[Span], *, even: bool = False) -> Table:
    """A line a row; ``even`` ones are alike in length, so that parts of the table are aligned."""
    made, short = ([list(_made(row, brief)) for row in rows] for brief in (False, True))
    longest = max(map(_length, made)) if even else 0
    made = [[*line, Span(" " * (longest - _length(line)))] for line in made]
    return Table(
        [
            *([Column("", rails, said="")] if rails else []),
            Column("", made, narrow=short, shrink=_CUT, said=""),
            Column("", [Span(shape_text(row[-1].shape), "dim") for row in rows], said="shape"),
        ],
        header=False,
    )


def multi_head_blocks(
    stream: FlowStep,
    steps: Sequence[FlowStep],
    maps: Sequence[tuple[int, Miniature, float]],
    left_out: str,
    *,
    rails: bool,
) -> Iterator[Block]:
    """The ``steps`` of attention, by heads: what each takes, its map and its output, and how they are joined.

    ``stream`` is what they begin and end with. ``maps`` are heads, the first to be shown first, each with its weights
    and how much it adds.
    """
    last = max(place for place, one in enumerate(steps) if one.step.has_heads) + 1
    split, joined = list(_rows(steps[:last])), list(_rows(steps[last:]))
    projected, inside = ([row for row in split if row[0].has_matrix == matrix] for matrix in (True, False))
    above = [[stream], *(row for row in inside if not row[0].step.has_heads), *projected]
    (weights,) = (one for one in steps if one.step.is_map and one.step.is_distribution)
    given = steps[last - 1]
    lines = _rails([row[0] for row in (*above, *joined)])
    drawn = _drawn([*above, *joined], lines if rails else [], even=True)
    yield drawn.only(range(len(above)))
    yield Fan(
        [one for _, one, _ in maps],
        f"{weights.name} {shape_text(weights.shape[1:])}",
        [(f"takes {shape_text(projected[0][-1].shape[1:])}", [list(_taken(projected, head)) for head, _, _ in maps])],
        [
            (given.name, [shape_text(given.shape[1:])] * len(maps)),
            ("adds", [[Figure(share, "%.2f")] for _, _, share in maps]),
        ],
        "│ ",
        left_out,
    )
    yield drawn.only(range(len(above), len(above) + len(joined)))


def _taken(projected: Sequence[Sequence[FlowStep]], head: int) -> Iterator[Span]:
    """``q5 k1 v1``: which of the projections a head takes; several heads may share one."""
    heads = max(row[-1].shape[0] for row in projected)
    for place, row in enumerate(projected):
        one = row[-1]
        number = head * one.shape[0] // heads
        yield Span(f"{' ' * (place > 0)}{row[0].name}{number}", one.step.role)


def _rows(steps: Iterable[FlowStep]) -> Iterator[list[FlowStep]]:
    """The steps of each line: what follows from one step with heads, or norms one, continues the line of that step."""
    rows: list[list[FlowStep]] = []
    for one in steps:
        sources = [name for name, _ in one.inputs]
        before = next((row for row in rows if [row[-1].name] == sources), None)
        if before and not one.has_matrix and (before[-1].step.has_heads or one.branch == one.name):
            before.append(one)
        else:
            rows.append([one])
    return iter(rows)


def _rails(steps: Sequence[FlowStep]) -> list[Span]:
    """The stream with its open branches, one line a step."""
    found, open_branches = [], list[str]()
    for one in steps:
        if one.joins:
            line = "⊕" + "─┴" * (len(open_branches) - 1) + "─╯"
            open_branches = [branch for branch in open_branches if branch not in one.joins]
        elif one.branch and one.branch not in open_branches:
            line = "├" + "─┼" * len(open_branches) + "─╮"
            open_branches.append(one.branch)
        else:
            line = "│" + " │" * len(open_branches)
        found.append(Span(line, "residual"))
    return found


def _made(row: Sequence[FlowStep], brief: bool) -> Iterator[Span]:
    """``n (3, 128) · W_Q (128, 128) + b = q → q_rot``; if ``brief``, only the weights with their shapes."""
    first = row[0]
    yield from _formula(first, brief)
    if " = " not in first.step.formula:
        yield Span(" = ", "dim")
        yield Span(first.name, first.step.role)
    if brief and len(row) > 2:
        yield Span(" → …", "dim")
        row = row[-2:]
    for before, one in pairwise(row):
        if before.shape != one.shape and not brief:
            yield Span(f" {shape_text(before.shape)}", "dim")
        yield Span(" → ", "dim")
        yield Span(one.name, one.step.role)


def _formula(one: FlowStep, brief: bool) -> Iterator[Span]:
    """The formula, with the shapes of the weights, and of what a matrix is multiplied with."""
    formula, matrix = one.step.formula, one.step.matrix
    if one.has_matrix:
        before, _, after = formula.partition(f"·{matrix}")
        (_, taken), *_ = one.inputs
        (shape,) = (weight.shape for weight in one.weights if weight.name == matrix)
        yield Span(before)
        yield Span("" if brief else f" {shape_text(taken)}", "dim")
        yield Span(f" · {matrix}")
        yield Span(f" {shape_text(shape)}", "dim")
        yield Span(after)
        return
    yield Span(formula)
    if one.weights:
        names = " and ".join(weight.name for weight in one.weights if weight.name not in formula)
        yield Span((f", {names}" if names else "") + ("" if brief else f" {shape_text(one.weights[0].shape)}"), "dim")
