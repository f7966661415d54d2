"""The view of a backward pass: the loss, every gradient, what the loss depends on, the weights, and the checks."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from tinytf.gradients.by_hand import Agreement, Matched
from tinytf.gradients.differences import TOLERANCE, Differences
from tinytf.gradients.flow import Flow
from tinytf.gradients.parameters import ParameterRow
from tinytf.gradients.report import Backward
from tinytf.gradients.saliency import HeadSaliency
from tinytf.loading import Model
from tinytf.text.tokenizer import Tokenizer
from tinytf.trace.address import Address
from tinytf_cli.numbers import number
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.backward import cell_blocks, derivation_blocks, figure, gradient_blocks, vocabulary_blocks
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import (
    Bar,
    Bars,
    Block,
    Cell,
    Column,
    Figure,
    Heading,
    Heat,
    Histogram,
    Line,
    Meter,
    Scale,
    Span,
    Table,
)
from tinytf_cli.views.parts import row_limit, verdict
from tinytf_cli.views.pipeline import layer_gaps, shape_words
from tinytf_cli.views.predictions import fault_blocks
from tinytf_cli.views.steps import labels, left_out, shown_rows, signed_role, tensors_at

_WORST = 10
"""How many entries of the finite differences are shown."""


class GradView:
    """One backward pass, drawn: ``dims`` numbers of a row, ``rows`` tokens of a table."""

    def __init__(self, model: Model, found: Backward, dims: int, rows: int | None) -> None:
        self.model, self.found, self.trace, self.dims, self.rows = model, found, found.trace, dims, rows

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """The view, in the order in which the gradient goes back."""
        chosen, trace, rows = self.found, self.trace, row_limit(terminal, self.rows)
        yield from banner(self.model, trace.encoding)
        yield from _loss(chosen, self.model.tokenizer, rows)
        for where in chosen.addresses:
            yield from self._address(where, rows)
        for found in chosen.derivations:
            yield from derivation_blocks(trace, found, self.dims, self.model.tokenizer)
        if not chosen.addresses and not chosen.derivations:
            yield from _backward(chosen)
            for layer in reversed(chosen.layers):
                yield from self._block(layer, rows)
            yield from _flow(chosen.flow)
            yield from _tokens(chosen, rows)
            yield from _heads(chosen.heads)
            yield from _weights(chosen.weights, chosen.by, chosen.lr)
        if chosen.differences is not None:
            yield from _differences(chosen.differences)
        yield Line("")
        yield _agreement(chosen.agreement)
        yield from fault_blocks(chosen.fail_on, chosen.fault)

    def _block(self, layer: int, rows: int | None) -> Iterator[Block]:
        chosen, config = self.found, self.trace.config
        note = f"of {config.n_layers} layers and {config.n_heads} heads; --layer and --head choose, --full shows all"
        yield Heading(f"block L{layer}, head {chosen.head}", note)
        for step in reversed(self.trace.steps.layer_steps):
            yield from gradient_blocks(self.trace, step, layer, chosen.head, dims=self.dims, rows=rows, asked=False)

    def _address(self, where: Address, rows: int | None) -> Iterator[Block]:
        if where.note:
            yield Line(Span(where.note, "dim"))
        if where.cell:
            yield from cell_blocks(self.trace, where, self.dims, self.model.tokenizer)
            return
        for step, layer, head in tensors_at(self.trace, where, backward=True):
            if step.is_vocabulary:
                yield from vocabulary_blocks(self.trace, step, self.model.tokenizer, self.dims, rows)
            else:
                yield from gradient_blocks(self.trace, step, layer, head, dims=self.dims, rows=rows, asked=True)


def _loss(found: Backward, tokenizer: Tokenizer, limit: int | None) -> Iterator[Block]:
    """The targets, with the logits that each of them changes most."""
    trace, rows = found.trace, found.targets
    note = f"the mean of {len(rows)} cross-entropies" if len(rows) > 1 else "the cross-entropy of one target"
    yield Heading("loss", f"{trace.loss:.4f} nats, {note}; ∂logits = (p − onehot) / {len(rows)}", "output")
    keep = shown_rows(len(rows), limit)
    shown = [rows[i] for i in keep]
    pushed: list[Cell] = []
    for row in shown:
        words: list[Span] = []
        for token_id, gradient in row.pushed:
            name = Span(tokenizer.shown(token_id), "output" if token_id == row.id else "")
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


def _backward(found: Backward) -> Iterator[Block]:
    """One line per step, last step first."""
    rows, total = found.rows, len(found.trace.steps.rows)
    missing = [row.statistics.not_finite for row in rows]
    lost: list[Cell] = [Span(f"{count:,}" if count else "", "bad") for count in missing]
    short = ["×".join(f"{size}" for _, size in one.row.shape) for one in rows]
    yield Heading("backward", f"{len(rows)} of {total} steps have a gradient; the last step comes first")
    yield Table(
        [
            Column("#", [str(one.row.number) for one in rows], "right", drop=3, said="step"),
            Column("gradient of", [Span(f"∂{one.row.name}", one.row.step.role) for one in rows], said=""),
            Column("shape", [shape_words(one.row.shape) for one in rows], narrow=short, drop=2),
            Column("‖∂‖", [figure(row.norm) for row in rows], "right", said="norm"),
            Column("÷ step", [figure(row.ratio) for row in rows], "right", said="divided by the step's norm"),
            Column("mean", [figure(row.statistics.mean) for row in rows], "right", drop=1),
            Column("min", [figure(row.statistics.min) for row in rows], "right"),
            Column("", [Histogram(row.statistics.histogram) for row in rows]),
            Column("max", [figure(row.statistics.max) for row in rows], "left"),
            *([Column("not finite", lost, "right")] if any(missing) else []),
            Column("by hand", [_off(row.by_hand) for row in rows], "right", drop=4, said="by hand off by"),
        ],
        rule_after=layer_gaps([one.row for one in rows]),
    )


def _off(compared: Matched | None) -> str:
    """How far a formula is from autograd, relative to the largest entry."""
    if compared is None:
        return ""
    return f"{compared.relative:.0e}" if compared.relative else "equal"


def _flow(found: Flow) -> Iterator[Block]:
    """The norm of the gradient at the input of each block, last block first, and the verdict."""
    yield Heading("flow", "‖∂loss/∂·‖ of the residual stream, from the last block to the first")
    norms = [(found.end, found.last), *((f"L{one.layer}.in", one.into) for one in found.layers)]
    bars = [Bar(name, norm, figure(norm), "residual") for name, norm in norms]
    yield Bars(bars, max(norm for _, norm in norms))
    yield Line(Span(found.verdict, "good" if found.word == "steady" else "bad"), indent=2)


def _tokens(found: Backward, limit: int | None) -> Iterator[Block]:
    """What each token adds to the log-probability of the targets."""
    first_order, integrated = found.first_order, found.integrated
    shown = integrated.attributions if integrated else first_order
    most = max(abs(value) for value in shown)
    what = "integrated gradients" if integrated else "gradient × input"
    yield Heading("tokens", f"{what}, in nats of the targets' mean log-probability")
    names = labels(found.trace)
    coloured = [Span(name, signed_role(value, most)) for name, value in zip(names, shown, strict=True)]
    yield Line(coloured, indent=2)
    yield Scale("signed", most)
    yield Line("")
    keep = shown_rows(len(names), limit)
    columns = [
        Column("#", [str(i) for i in keep], "right", said="token"),
        Column("piece", [coloured[i] for i in keep], said=""),
        Column("gradient × input", [Figure(first_order[i], "%+.4f") for i in keep], "right"),
    ]
    if integrated:
        columns.append(Column("integrated", [Figure(integrated.attributions[i], "%+.4f") for i in keep], "right"))
    yield Table(columns)
    yield from left_out(len(names), keep)
    if integrated:
        said = (
            f"they sum to {integrated.sum:+.4f}; from the mean embedding to the text the log-probability goes from "
            f"{integrated.at_baseline:.4f} to {integrated.at_input:.4f}, by {integrated.difference:+.4f} (off by "
            f"{integrated.relative_error:.2%}, {integrated.points} points)"
        )
        yield verdict(integrated.holds, said, "complete", "not complete", 2)


def _heads(found: HeadSaliency) -> Iterator[Block]:
    """Attention × gradient, layers down and heads across."""
    values = np.array(found.absolute, dtype=np.float32)
    yield Heading("heads", "attention × gradient: Σ |w ⊙ ∂loss/∂w| of each head's map, in nats", "attention")
    rows = [f"L{layer}" for layer in range(len(values))]
    columns = [f"H{head}" for head in range(values.shape[1])]
    yield Heat(values, rows, columns, "unit", limit=float(values.max(initial=0.0)) or 1.0)


def _weights(rows: Sequence[ParameterRow], by: str, lr: float) -> Iterator[Block]:
    """The parameters, or groups of them."""
    yield Heading("weights", f"by {by}; --by parameter, layer, kind or head")
    columns = [
        Column("" if by == "parameter" else by, [row.name for row in rows], shrink=14, said=""),
        Column("‖∂‖", [figure(row.gradient_norm) for row in rows], "right", said="gradient norm"),
        Column("‖W‖", [figure(row.weight_norm) for row in rows], "right", said="weight norm", drop=2),
        Column("÷ ‖W‖", [figure(row.ratio) for row in rows], "right", said="gradient norm over weight norm"),
        Column("update", [figure(row.update_ratio) for row in rows], "right"),
        Column("zeros", [_share(row.zero_share) for row in rows], "right"),
    ]
    if by != "head":
        dead = [f"{row.dead_rows:,} of {row.rows:,}" if row.dead_rows else "" for row in rows]
        columns.append(Column("dead rows", dead, "right", drop=1))
    yield Table(columns)
    yield Line(Span(f"update: lr · ‖∂‖ ÷ ‖W‖, for plain gradient descent with lr {lr:g}", "dim"), indent=2)


def _share(share: float) -> str:
    return "" if not share else f"{share:.1%}" if share >= 0.001 else "< 0.1%"


def _differences(found: Differences) -> Iterator[Block]:
    """The entries that are furthest off, and the outcome in one line."""
    yield Heading("finite differences", f"the worst of {len(found.rows)} entries, in float64, by Ridders' method")
    shown = sorted(found.rows, key=lambda row: -row.relative_error)[:_WORST]
    errors: list[Cell] = [
        Span(f"{row.relative_error:.1e}", "" if row.relative_error <= TOLERANCE else "bad") for row in shown
    ]
    yield Table(
        [
            Column("entry", [f"{row.name}[{','.join(map(str, row.index))}]" for row in shown], shrink=20),
            Column("analytic", [number(row.analytic, "%+.9e") for row in shown], "right"),
            Column("numeric", [number(row.numeric, "%+.9e") for row in shown], "right"),
            Column("relative error", errors, "right"),
        ]
    )
    said = f"{len(found.rows)} of {found.asked} entries measured"
    if found.rows:
        said += f", largest relative error {found.worst.relative_error:.1e} (allowed {TOLERANCE:.0e})"
    if found.redrawn:
        said += f", {found.redrawn} drawn again because of a kink"
    if found.unresolved:
        said += f", {found.unresolved} with a gradient of 0 but for rounding"
    yield verdict(found.holds, said, indent=2)


def _agreement(outcome: Agreement) -> Line:
    """Whether the formulas give what autograd gave, in one line."""
    worst = outcome.worst
    figures = f"largest difference {worst.difference:.1e}, {worst.relative:.1e} of its gradient, at {worst.name}"
    if outcome.holds:
        compared = f"{len(outcome.steps)} steps and {len(outcome.parameters)} parameters"
        return verdict(True, f"by hand {compared} have autograd's gradient, {figures}")
    if not math.isfinite(worst.difference):
        said = "not all gradients are finite, so by hand and autograd cannot be compared"
        return verdict(False, f"{said}, first at {worst.name}")
    return verdict(False, f"by hand and autograd differ, {figures} (allowed {outcome.tolerance:.0e})")
