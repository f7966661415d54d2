"""What was asked for, and how badly it was foreseen."""

from collections.abc import Iterator
from typing import Any

from tinytf.gradients.trace import GradientTrace
from tinytf.steps.operations.softmax import probabilities
from tinytf.text.tokenizer import Tokenizer
from tinytf_cli.views.backward import figure
from tinytf_cli.views.blocks import Block, Cell, Column, Heading, Meter, Span, Table
from tinytf_cli.views.steps import left_out, shown_rows

_MOST = 3


def loss_rows(trace: GradientTrace, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Each target with its probability and loss, and the logits there whose gradient is largest."""
    rows = []
    for place, token_id, loss in zip(trace.targets.positions, trace.targets.ids, trace.losses, strict=True):
        gradient = trace.grad.step("logits")[place]
        largest = gradient.abs().topk(min(1 + _MOST, len(gradient))).indices.tolist()
        probs = probabilities(trace.step("logits")[place])
        rows.append(
            {
                "position": place,
                "at": trace.tokens[place].shown,
                "target": tokenizer.shown(token_id),
                "id": token_id,
                "probability": float(probs[token_id]),
                "loss": loss,
                "logit_gradients": [
                    {"token": tokenizer.shown(i), "id": i, "gradient": float(gradient[i])} for i in largest
                ],
            }
        )
    return rows


def loss_blocks(trace: GradientTrace, rows: list[dict[str, Any]], limit: int | None) -> Iterator[Block]:
    """A table of the targets, and the mean."""
    several = len(rows) > 1
    note = f"the mean of {len(rows)} cross-entropies" if several else "the cross-entropy of one target"
    yield Heading("loss", f"{trace.loss:.4f} nats, {note}; ∂logits = (p − onehot) / {len(rows)}", "output")
    keep = shown_rows(len(rows), limit)
    shown = [rows[i] for i in keep]
    pushed: list[Cell] = []
    for row in shown:
        words: list[Span] = []
        for one in row["logit_gradients"]:
            role = "output" if one["id"] == row["id"] else ""
            words += [Span("  " if words else ""), Span(one["token"], role), Span(f" {one['gradient']:+.2g}", "dim")]
        pushed.append(words)
    yield Table(
        [
            Column("#", [str(row["position"]) for row in shown], "right", said="position"),
            Column("after" if trace.config.causal else "masked", [row["at"] for row in shown]),
            Column("target", [Span(row["target"], "output") for row in shown]),
            Column("p", [Meter(row["probability"], f"{row['probability']:.3f}", "output") for row in shown]),
            Column("loss", [figure(row["loss"]) for row in shown], "right"),
            Column("largest ∂L/∂logits", pushed, drop=1, shrink=20, said="largest gradients of logits"),
        ]
    )
    yield from left_out(len(rows), keep)
