"""What the loss hangs on: the flow of the gradient over depth, the tokens of the text, the heads."""

from collections.abc import Iterator, Sequence

import numpy as np

from tinytf.gradients.flow import Flow
from tinytf.gradients.saliency import HeadSaliency, Integrated
from tinytf.gradients.trace import GradientTrace
from tinytf_cli.numbers import number
from tinytf_cli.views.backward import figure
from tinytf_cli.views.blocks import Bar, Bars, Block, Column, Heading, Heat, Line, Scale, Span, Table
from tinytf_cli.views.steps import labels, left_out, shown_rows, signed_role


def flow_blocks(found: Flow) -> Iterator[Block]:
    """The norm of the gradient at the input of every block, from the last to the first, and what it means."""
    yield Heading("flow", "‖∂loss/∂·‖ of the residual stream, from the last block down to the first")
    norms = [(found.end, found.last), *((f"L{one.layer}.in", one.into) for one in found.layers)]
    yield Bars(
        [Bar(name, norm, figure(norm), "residual") for name, norm in norms],
        max((norm for _, norm in norms), default=1.0),
    )
    yield Line(Span(found.verdict, "good" if found.word == "steady" else "bad"), indent=2)


def token_blocks(
    trace: GradientTrace, first_order: Sequence[float], integrated: Integrated | None, limit: int | None
) -> Iterator[Block]:
    """Every token with what it adds to the log-probability of the targets."""
    shown = integrated.attributions if integrated else first_order
    most = max((abs(value) for value in shown), default=0.0)
    what = "integrated gradients" if integrated else "gradient × input"
    yield Heading("tokens", f"{what}, in nats of the targets' mean log-probability")
    names = labels(trace)
    coloured = [Span(name, signed_role(value, most)) for name, value in zip(names, shown, strict=True)]
    yield Line(coloured, indent=2)
    yield Scale("signed", most)
    yield Line("")
    keep = shown_rows(len(names), limit)
    columns = [
        Column("#", [str(i) for i in keep], "right", said="token"),
        Column("piece", [coloured[i] for i in keep], said=""),
        Column("gradient × input", [number(first_order[i], "%+.4f") for i in keep], "right"),
    ]
    if integrated:
        columns.append(Column("integrated", [number(integrated.attributions[i], "%+.4f") for i in keep], "right"))
    yield Table(columns)
    yield from left_out(len(names), keep)
    if integrated:
        yield Line(
            [
                Span("complete" if integrated.holds else "not complete", "good" if integrated.holds else "bad"),
                Span(
                    f": they sum to {integrated.sum:+.4f}; from the mean embedding to the text the log-probability "
                    f"goes from {integrated.at_baseline:.4f} to {integrated.at_input:.4f}, "
                    f"by {integrated.difference:+.4f} (off by {integrated.relative_error:.2%}, "
                    f"{integrated.points} points)"
                ),
            ],
            indent=2,
        )


def head_blocks(found: HeadSaliency) -> Iterator[Block]:
    """Attention × gradient, layers down and heads across."""
    values = np.array(found.absolute, dtype=np.float32)
    yield Heading("heads", "attention × gradient: Σ |w ⊙ ∂loss/∂w| of each head's map, in nats", "attention")
    rows = [f"L{layer}" for layer in range(len(values))]
    columns = [f"H{head}" for head in range(values.shape[1])]
    yield Heat(values, rows, columns, "unit", limit=float(values.max(initial=0.0)) or 1.0)
