"""What was asked for, and how badly it was foreseen."""

from collections.abc import Iterator

from tinytf.gradients.report import Backward
from tinytf.text.tokenizer import Tokenizer
from tinytf_cli.views.backward import figure
from tinytf_cli.views.blocks import Block, Cell, Column, Heading, Meter, Span, Table
from tinytf_cli.views.steps import left_out, shown_rows


def loss_blocks(found: Backward, tokenizer: Tokenizer, limit: int | None) -> Iterator[Block]:
    """A table of the targets, and the mean."""
    trace, rows = found.trace, found.targets
    several = len(rows) > 1
    note = f"the mean of {len(rows)} cross-entropies" if several else "the cross-entropy of one target"
    yield Heading("loss", f"{trace.loss:.4f} nats, {note}; ∂logits = (p − onehot) / {len(rows)}", "output")
    keep = shown_rows(len(rows), limit)
    shown = [rows[i] for i in keep]
    pushed: list[Cell] = []
    for row in shown:
        words: list[Span] = []
        for token_id, gradient in row.pushed:
            role = "output" if token_id == row.id else ""
            name = Span(tokenizer.shown(token_id), role)
            words += [Span("  " if words else ""), name, Span(f" {gradient:+.2g}", "dim")]
        pushed.append(words)
    yield Table(
        [
            Column("#", [str(row.position) for row in shown], "right", said="position"),
            Column("after" if trace.config.causal else "masked", [trace.tokens[row.position].shown for row in shown]),
            Column("target", [Span(tokenizer.shown(row.id), "output") for row in shown]),
            Column("p", [Meter(row.probability, f"{row.probability:.3f}", "output") for row in shown]),
            Column("loss", [figure(row.loss) for row in shown], "right"),
            Column("largest ∂loss/∂logits", pushed, drop=1, shrink=20, said="largest gradients of logits"),
        ]
    )
    yield from left_out(len(rows), keep)
