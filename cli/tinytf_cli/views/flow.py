"""One block as a drawing: the residual stream down the side, its branches, and what they add back."""

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
    """The steps of a block: the formula of each with the shapes of its weights, and its own shape.

    It has ``lines`` lines of ``width`` columns, or of ``narrow`` ones without the shapes that another line shows.
    Without ``rails`` no lines connect the steps.
    """

    def __init__(self, flow: Flow, *, rails: bool, ascii: bool) -> None:
        rows = _rows(node for node in flow.steps if not node.step.from_stream)
        self.rails = _rails([row[0] for row in rows])
        self.table = _table(rows, self.rails if rails else [])
        self.lines = len(rows)
        with_shape = (
            4 + max(len(rail.text) for rail in self.rails) + max(len(shape_text(row[-1].shape)) for row in rows)
        )
        self.width, self.narrow = (
            with_shape + 2 + max(_length(_working(row, brief), ascii=ascii) for row in rows) for brief in (False, True)
        )

    def blocks(self, *, cut: bool) -> Iterator[Block]:
        """The drawing; with ``cut``, a formula that is too long for a screen is cut."""
        columns = [replace(column, shrink=column.shrink if cut else 0) for column in self.table.columns]
        yield replace(self.table, columns=columns)


def _length(line: Iterable[Span], *, ascii: bool = False) -> int:
    """The width of a line in columns; in 7 bits some signs, such as an arrow, take two."""
    return sum(len(span.text) + sum(span.text.count(sign) for sign in "→ᵀ…" if ascii) for span in line)


def _table(rows: Sequence[Sequence[FlowStep]], rails: Sequence[Span], *, even: bool = False) -> Table:
    """A table with a line per row; with ``even`` lengths, so that parts of the table are aligned."""
    full, brief_lines = ([list(_working(row, brief)) for row in rows] for brief in (False, True))
    longest = max(map(_length, full)) if even else 0
    full = [[*line, Span(" " * (longest - _length(line)))] for line in full]
    return Table(
        [
            *([Column("", rails, said="")] if rails else []),
            Column("", full, narrow=brief_lines, shrink=_CUT, said=""),
            Column("", [Span(shape_text(row[-1].shape), "dim") for row in rows], said="shape"),
        ],
        header=False,
    )


def multi_head_blocks(
    stream: FlowStep,
    steps: Sequence[FlowStep],
    maps: Sequence[tuple[int, Miniature, float]],
    left_out: str,
    remedy: str,
    *,
    rails: bool,
) -> Iterator[Block]:
    """The ``steps`` of attention by heads: the inputs of each, its map and its output, and how they are joined.

    ``stream`` is the first row. ``maps`` are (head, small map of its weights, how much it adds), in the order shown.
    """
    last = max(index for index, node in enumerate(steps) if node.step.has_heads) + 1
    split, joined = _rows(steps[:last]), _rows(steps[last:])
    projected, inside = ([row for row in split if row[0].has_matrix == matrix] for matrix in (True, False))
    above = [[stream], *(row for row in inside if not row[0].step.has_heads), *projected]
    (weights,) = (node for node in steps if node.step.is_map and node.step.holds_shares)
    output = steps[last - 1]
    lines = _rails([row[0] for row in (*above, *joined)])
    drawn = _table([*above, *joined], lines if rails else [], even=True)
    yield drawn.only(range(len(above)))
    yield Fan(
        [small for _, small, _ in maps],
        f"{weights.name} {shape_text(weights.shape[1:])}",
        [
            (
                f"takes {shape_text(projected[0][-1].shape[1:])}",
                [list(_projections_of(projected, head)) for head, _, _ in maps],
            )
        ],
        [
            (output.name, [shape_text(output.shape[1:])] * len(maps)),
            ("adds", [[Figure(share, "%.2f")] for _, _, share in maps]),
        ],
        "│ ",
        left_out,
        remedy,
    )
    yield drawn.only(range(len(above), len(above) + len(joined)))


def _projections_of(projected: Sequence[Sequence[FlowStep]], head: int) -> Iterator[Span]:
    """``q5 k1 v1``: the projections that a head takes; several heads may share one."""
    heads = max(row[-1].shape[0] for row in projected)
    for index, row in enumerate(projected):
        projection = row[-1]
        number = head * projection.shape[0] // heads
        yield Span(f"{' ' * (index > 0)}{row[0].name}{number}", projection.step.role)


def _rows(steps: Iterable[FlowStep]) -> list[list[FlowStep]]:
    """The steps of each line: a step that follows a single step with heads, or its norm, continues that line."""
    rows: list[list[FlowStep]] = []
    for node in steps:
        sources = [name for name, _ in node.inputs]
        row = next((row for row in rows if [row[-1].name] == sources), None)
        if row and not node.has_matrix and (row[-1].step.has_heads or node.branch == node.name):
            row.append(node)
        else:
            rows.append([node])
    return rows


def _rails(steps: Sequence[FlowStep]) -> list[Span]:
    """The stream with its open branches, one line per step."""
    rails, open_branches = [], list[str]()
    for node in steps:
        if node.joins:
            line = "⊕" + "─┴" * (len(open_branches) - 1) + "─╯"
            open_branches = [branch for branch in open_branches if branch not in node.joins]
        elif node.branch and node.branch not in open_branches:
            line = "├" + "─┼" * len(open_branches) + "─╮"
            open_branches.append(node.branch)
        else:
            line = "│" + " │" * len(open_branches)
        rails.append(Span(line, "residual"))
    return rails


def _working(row: Sequence[FlowStep], brief: bool) -> Iterator[Span]:
    """``n (3, 128) · W_Q (128, 128) + b = q → q_rot``; if ``brief``, only the weights with their shapes."""
    first = row[0]
    yield from _formula(first, brief)
    if " = " not in first.step.formula:
        yield Span(" = ", "dim")
        yield Span(first.name, first.step.role)
    if brief and len(row) > 2:
        yield Span(" → …", "dim")
        row = row[-2:]
    for previous, node in pairwise(row):
        if previous.shape != node.shape and not brief:
            yield Span(f" {shape_text(previous.shape)}", "dim")
        yield Span(" → ", "dim")
        yield Span(node.name, node.step.role)


def _formula(node: FlowStep, brief: bool) -> Iterator[Span]:
    """The formula, with the shapes of the weights and of the other factor of a matrix product."""
    formula, matrix = node.step.formula, node.step.matrix
    if node.has_matrix:
        prefix, _, suffix = formula.partition(f"·{matrix}")
        factor = f" {shape_text(node.inputs[0][1])}" if node.inputs else ""  # the keys of waves have none
        (shape,) = (weight.shape for weight in node.weights if weight.name == matrix)
        yield Span(prefix)
        yield Span("" if brief else factor, "dim")
        yield Span(f" · {matrix}")
        yield Span(f" {shape_text(shape)}", "dim")
        yield Span(suffix)
        return
    yield Span(formula)
    if node.weights:
        names = " and ".join(weight.name for weight in node.weights if weight.name not in formula)
        yield Span((f", {names}" if names else "") + ("" if brief else f" {shape_text(node.weights[0].shape)}"), "dim")
