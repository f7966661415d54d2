"""The stack of blocks as a drawing of the backward pass: the gradient on its way from the loss to the embedding."""

from collections.abc import Iterator
from dataclasses import dataclass

from tinytf.gradients.flow import LayerFlow
from tinytf.gradients.grad import Backward
from tinytf_cli.views.blocks import Block, Cell, Column, Figure, Heading, Meter, Span, Table
from tinytf_cli.views.parts import fold_note, full_scale, one_form

_RESIDUAL = "residual"


@dataclass(frozen=True)
class _Row:
    """A line of the drawing; ``share`` is None where no branch joins."""

    rail: str
    name: Span
    norm: float
    share: float | None = None


def stack_blocks(report: Backward, most: int | None, *, rails: bool) -> Iterator[Block]:
    """The logits, ``most`` blocks with their branches beside the residual stream, and the embedding."""
    flow, layers = report.flow, report.flow.layers
    shown = flow.telling(most if most is None or len(layers) > most + 1 else None)
    rows = [_Row("●", Span(flow.logits.step, "output"), flow.logits.norm)]
    outputs = [flow.last, *(layer.into for layer in layers)]
    output = report.trace.steps.output
    for layer, norm, above in zip(layers, outputs, [None, *layers], strict=False):
        if layer.layer in shown:
            if above is None or above.layer not in shown:
                rows.append(_Row("│" if above is None else "┊", Span(f"L{layer.layer}.{output}", _RESIDUAL), norm))
            rows += _block(report, layer)
    rows.append(_Row("●", Span(flow.embedded.step, "embed"), flow.embedded.norm))
    yield Heading("flow", "‖∂loss/∂·‖ from the loss down; share: what a branch adds to the sum below", _RESIDUAL)
    yield _drawing(rows, rails)
    yield from fold_note(
        [f"L{layer.layer}" for layer in layers], [len(layers) - 1 - n for n in shown], "layers", "--all"
    )


def _block(report: Backward, layer: LayerFlow) -> Iterator[_Row]:
    """A block from its output down to its input: each branch, and the sum where it leaves the stream."""
    for step in layer.stream:
        for index, branch in enumerate(step.branches):
            roles = [report.trace.steps.at(end, layer.layer).role for end in branch.ends]
            mixer = report.trace.config.at(layer.layer).mixer.replace("_", " ")
            named = {"ffn": "feed-forward", "cross": "cross-attention"}
            name = " and ".join(named.get(role, mixer) for role in roles)
            yield _Row("├" + "─┼" * index + "─╮", Span(name, roles[0]), branch.norm, branch.share)
        joined = len(step.branches)
        rail = "⊕" + "─┴" * (joined - 1) + "─╯" if joined else "│"
        yield _Row(rail, Span(f"L{layer.layer}.{step.step}", _RESIDUAL), step.norm)


def _drawing(rows: list[_Row], rails: bool) -> Table:
    shares: list[Cell] = ["" if row.share is None else Figure(row.share, "%.2f") for row in rows]
    form, whole = one_form(row.norm for row in rows), full_scale(row.norm for row in rows[1:-1])
    norms: list[Cell] = [Meter(row.norm / whole, Figure(row.norm, form), row.name.role) for row in rows]
    norms[0], norms[-1] = Figure(rows[0].norm, form), Figure(rows[-1].norm, form)  # not of the stream
    return Table(
        [
            *([Column("", [Span(row.rail, _RESIDUAL) for row in rows], said="")] if rails else []),
            Column("", [row.name for row in rows], said=""),
            Column("norm", norms),
            Column("share", shares, "right"),
        ]
    )
