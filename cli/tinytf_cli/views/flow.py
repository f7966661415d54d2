"""One block as a drawing: the residual stream down the side, what leaves it, what is added back."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from tinytf.analysis.flow import Flow, FlowStep
from tinytf_cli.views.blocks import Block, Column, Span, Table


def shape_text(shape: Sequence[int]) -> str:
    """``(3, 128)``."""
    return f"({', '.join(map(str, shape))})"


def flow_blocks(flow: Flow, *, rails: bool) -> Iterator[Block]:
    """The steps of a block: how each is made with the shapes of its weights, and its own shape; without ``rails`` no
    lines that connect them.
    """
    rows = list(_rows(one for one in flow.steps if not one.step.from_stream))
    drawn = Column("", _rails([row[0] for row in rows]), said="")
    yield Table(
        [
            *([drawn] if rails else []),
            Column("", [list(_made(row)) for row in rows], shrink=12, said=""),
            Column("", [Span(shape_text(row[-1].shape), "dim") for row in rows], said="shape"),
        ],
        header=False,
    )


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


def _made(row: Sequence[FlowStep]) -> Iterator[Span]:
    """``n (3, 128) · W_Q (128, 128) + b = q → q_rot``."""
    first = row[0]
    yield from _formula(first)
    if " = " not in first.step.formula:
        yield Span(" = ", "dim")
        yield Span(first.name, first.step.role)
    for before, one in pairwise(row):
        if before.shape != one.shape:
            yield Span(f" {shape_text(before.shape)}", "dim")
        yield Span(" → ", "dim")
        yield Span(one.name, one.step.role)


def _formula(one: FlowStep) -> Iterator[Span]:
    """The formula, with the shapes of the weights, and of what a matrix is multiplied with."""
    formula, matrix = one.step.formula, one.step.matrix
    if one.has_matrix:
        before, _, after = formula.partition(f"·{matrix}")
        (_, taken), *_ = one.inputs
        (shape,) = (weight.shape for weight in one.weights if weight.name == matrix)
        yield Span(before)
        yield Span(f" {shape_text(taken)}", "dim")
        yield Span(f" · {matrix}")
        yield Span(f" {shape_text(shape)}", "dim")
        yield Span(after)
        return
    yield Span(formula)
    if one.weights:
        names = " and ".join(weight.name for weight in one.weights)
        yield Span(f", {names} {shape_text(one.weights[0].shape)}", "dim")
