"""The view of a backward pass: how the gradient flows, what the loss depends on, then gradients and weights."""

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass

import numpy as np

from tinytf.gradients.by_hand import Agreement
from tinytf.gradients.differences import TOLERANCE, Differences
from tinytf.gradients.grad import AXES, Backward
from tinytf.gradients.parameters import ParameterRow
from tinytf.gradients.saliency import HeadSaliency
from tinytf.tolerance import Comparison
from tinytf.trace.address import Address
from tinytf_cli.numbers import number
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.backward import Shown, cell_blocks, derivation_blocks, gradient_blocks, vocabulary_blocks
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import (
    Bar,
    Bars,
    Beside,
    Block,
    Cell,
    Column,
    Figure,
    Heading,
    Histogram,
    Line,
    Piece,
    Scale,
    Span,
    Table,
)
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.overview import Again, commands_about
from tinytf_cli.views.parts import (
    Extent,
    coloured_text,
    figures,
    folded,
    full_scale,
    head_map,
    next_lines,
    not_finite,
    note,
    one_form,
    share_column,
    shown_in,
    signed_bars,
    titled,
    verdict,
)
from tinytf_cli.views.pipeline import layer_gaps, shape_words
from tinytf_cli.views.predictions import fault_blocks
from tinytf_cli.views.stack import stack_blocks
from tinytf_cli.views.steps import address_note, labels, signed_role, tensors_at

_WORST = 10
"""The most entries of the finite differences."""
_TARGETS, _LAYERS, _TOKENS, _HEADS, _TEXT = 2, 3, 3, 3, 40
"""The most rows of each table of a short summary, and the most tokens of its text."""
_CAUSES = 34
"""The fewest columns for tokens and heads beside the stack."""


@dataclass(frozen=True)
class GradDisplay(Display):
    """``dims`` numbers of a row, ``rows`` tokens of a table; ``again`` makes command lines about a text.

    ``sections`` are some of ``summary`` (long beside ``pipeline``), ``pipeline``, ``block`` and ``weights``.
    """

    dims: int | None = None
    rows: int | None = None
    sections: Set[str] = frozenset({"summary"})
    again: Callable[[str], Again] | None = None

    @property
    def short(self) -> bool:
        return "pipeline" not in self.sections


@draws(Backward, GradDisplay)
def grad(report: Backward, terminal: Terminal, display: GradDisplay) -> Iterator[Block]:
    """The verdict and its grounds, then the sections asked for, in the order of the backward pass."""
    model, trace = model_of(report), report.trace
    extent = Extent(display.dims, display.rows, terminal.cuts)
    yield from banner(model, trace.encoding)
    yield from _verdict(report, model.shown)
    if "summary" in display.sections:
        yield from _summary(report, model.shown, display.short, terminal.plain)
    elif report.integrated is not None:
        yield from _token_tables(report, display.short)
    if "pipeline" in display.sections:
        yield from _backward(report)
    if "block" in display.sections:
        for layer in reversed(report.layers):
            yield from _block(report, layer, extent)
    for address in report.addresses:
        yield from _address(report, address, model.shown, extent)
    for derivation in report.derivations:
        yield from derivation_blocks(trace, derivation, extent, model.shown)
    if "weights" in display.sections:
        yield from _weights(report.weights, report.by, report.lr)
    if report.differences is not None:
        yield from _differences(report.differences)
    yield Line("")
    yield _agreement(report.agreement)
    yield from fault_blocks(report.fail_on, report.fault)
    if display.sections == {"summary"}:
        layer, head = report.heads.ranked[0][:2] if report.heads.ranked else (0, 0)
        again = (display.again or commands_about(report))(trace.encoding.text)
        yield from next_lines(
            terminal,
            (again("grad", options=("--block", f"L{layer}H{head}")), "that block"),
            (again("grad", options=("--pipeline",)), "every step"),
            (again("grad", options=("--all",)), "all of it"),
        )


def _verdict(report: Backward, shown: Shown) -> Iterator[Block]:
    """A line each for the loss, the gradient's flow, and what the loss depends on."""
    trace, worst, flow, names = report.trace, report.worst, report.flow, labels(report.trace)
    mean = f"mean of {len(report.targets)} cross-entropies; worst: " if len(report.targets) > 1 else ""
    where = f" {'after' if trace.config.causal else 'at'} {names[worst.position]}, p "
    target = Span(shown(worst.id), "output")
    share, loss = Figure(worst.probability, "%.3g"), Figure(trace.loss, "%.4f", "strong")
    yield Line("")
    yield titled("loss ", [loss, f" nats, {mean}", target, where, share], "output")
    word = Span(flow.word, "good" if flow.word == "steady" else "bad")
    layer, factor = flow.steepest
    sizes = (flow.first, flow.last, flow.per_layer, factor)
    first, last, per_layer, most = (Figure(size, "%.3g") for size in sizes)
    norms: list[Piece] = [": norm ", last, f" at {flow.end}, ", first, " at L0.in, ", per_layer, " times a layer"]
    yield titled("gradient ", [word, *norms, f", most in L{layer}: ", most, " times"], "residual")
    of, position, added = report.strongest
    token = Span(f"{position} {labels(trace, AXES[of])[position]}", "strong")
    on: list[Piece] = [f"most on {of} ", token, " (", Figure(added, shown_in("%+.4f", added)), " nats)"]
    for top, head, strength in report.heads.ranked[:1]:
        by = Figure(strength, shown_in("%.4f", strength))
        on += [" and on head ", Span(f"L{top}H{head}", "strong"), " (", by, ")"]
    yield titled("depends ", on, "attention")


def _summary(report: Backward, shown: Shown, short: bool, plain: bool) -> Iterator[Block]:
    yield from _targets(report, shown, _TARGETS if short else None)
    heading, stack, *folds = stack_blocks(report, _LAYERS if short else None, rails=not plain)
    causes = [*_token_tables(report, short), *(_heads(report.heads, short) if report.heads.ranked else ())]
    yield heading
    yield from [Beside([[stack], causes], _CAUSES), *folds] if short else [stack, *causes]


def _block(report: Backward, layer: int, extent: Extent) -> Iterator[Block]:
    config = report.trace.config.at(layer)
    subtitle = f"of {config.n_layers} layers and {config.n_heads} heads"
    advice = "--layer and --head choose"
    yield Heading(f"block L{layer}, head {report.head}", subtitle, advice=advice)
    for step in reversed(report.trace.steps.in_layer(layer)):
        yield from gradient_blocks(report, step, layer, report.head, extent, asked=False)


def _address(report: Backward, address: Address, shown: Shown, extent: Extent) -> Iterator[Block]:
    yield from address_note(address)
    if address.step is None:
        yield Heading(f"block {address}", "the last step comes first")
    if address.cell:
        yield from cell_blocks(report.trace, address, extent, shown)
        return
    for step, layer, head in tensors_at(report.trace, address, backward=True):
        if step.is_vocabulary:
            yield from vocabulary_blocks(report, step, shown, extent)
        else:
            yield from gradient_blocks(report, step, layer, head, extent, asked=True)


def _targets(report: Backward, shown: Shown, most: int | None) -> Iterator[Block]:
    """The targets, with the logits that each changes most."""
    trace, rows = report.trace, report.targets
    yield Heading("targets", f"loss in nats; ∂logits = (p − onehot) / {len(rows)}", "output")
    pushed: list[Cell] = []
    fewer: list[Cell] = []
    form = one_form((row.pushed[0][1] for row in rows), sign=True)
    for row in rows:
        words: list[Piece] = []
        for token_id, gradient in row.pushed:
            name = Span(shown(token_id), "output" if token_id == row.id else "")
            words += ["  " if words else "", name, " ", Figure(gradient, form, "dim")]
        pushed.append(words)
        fewer.append(words[:8])
    table = Table(
        [
            Column("#", [str(row.position) for row in rows], "right", said="position"),
            Column(
                "after" if trace.config.causal else "masked" if trace.config.predicts_tokens else "at",
                [trace.tokens[row.position].shown for row in rows],
            ),
            Column("target", [Span(shown(row.id), "output") for row in rows]),
            share_column("p", [row.probability for row in rows], "output"),
            Column("loss", figures([row.loss for row in rows]), "right"),
            Column(
                "largest ∂loss/∂logits", pushed, narrow=fewer, drop=1, shrink=20, said="largest gradients of logits"
            ),
        ]
    )
    yield from folded(table, [str(row.position) for row in rows], most, "targets")


def _backward(report: Backward) -> Iterator[Block]:
    """One line per step, last step first."""
    rows, total = report.rows, len(report.trace.steps.rows)
    missing = [row.statistics.not_finite for row in rows]
    lost: list[Cell] = [Span(f"{count:,}" if count else "", "bad") for count in missing]
    short = ["×".join(f"{size}" for _, size in row.row.shape) for row in rows]
    yield Heading("backward", f"{len(rows)} of {total} steps have a gradient; the last step comes first")
    yield Table(
        [
            Column("#", [str(row.row.number) for row in rows], "right", drop=3, said="step"),
            Column("gradient of", [Span(f"∂{row.row.name}", row.row.step.role) for row in rows], said=""),
            Column("shape", [shape_words(row.row.shape) for row in rows], narrow=short, drop=2),
            Column("‖∂‖", figures([row.norm for row in rows]), "right", said="norm"),
            Column("÷ step", figures([row.ratio for row in rows]), "right", said="divided by the step's norm"),
            Column("mean", figures([row.statistics.mean for row in rows]), "right", drop=1),
            Column("min", figures([row.statistics.min for row in rows]), "right"),
            Column("", [Histogram(row.statistics.histogram) for row in rows]),
            Column("max", figures([row.statistics.max for row in rows]), "left"),
            *([Column("not finite", lost, "right")] if any(missing) else []),
            Column("by hand", [_off(row.by_hand) for row in rows], "right", drop=4, said="by hand off by"),
        ],
        rule_after=layer_gaps([row.row for row in rows]),
    )


def _off(compared: Comparison | None) -> str:
    """How far a formula is from autograd, relative to the largest entry."""
    if compared is None:
        return ""
    return f"{compared.relative:.0e}" if compared.relative else "equal"


def _token_tables(report: Backward, short: bool) -> Iterator[Block]:
    """What each token adds to the log-probability of the targets, in each text, and how well integrals add up."""
    most = full_scale(value for values in report.added.values() for value in values)
    first_order = {"token": report.first_order, "source token": report.first_order_of_source}
    for text, added in reversed(report.added.items()):
        names = labels(report.trace, AXES[text])
        yield from _tokens(text, names, added, first_order[text], most, short, report.integrated is not None)
    if integrated := report.integrated:
        interrupted = ", interrupted" if integrated.interrupted else ""
        words: list[Piece] = [
            "they sum to ", Figure(integrated.sum, "%+.4f"),
            "; from the mean embedding to the text the log-probability goes from ",
            Figure(integrated.at_baseline, "%.4f"), " to ", Figure(integrated.at_input, "%.4f"), ", by ",
            Figure(integrated.difference, "%+.4f"),
            f" (off by {integrated.relative_error:.2%}, {integrated.points} points{interrupted})",
        ]  # fmt: skip
        yield verdict(integrated.holds, words, "complete", "not complete", 2)


def _tokens(
    text: str, names: list[str], added: Sequence[float], first_order: Sequence[float], most: float, short: bool,
    integrated: bool,
) -> Iterator[Block]:  # fmt: skip
    ranked = sorted(enumerate(added), key=lambda item: -abs(item[1]))
    method = "integrated gradients" if integrated else "gradient × input"
    yield Heading(f"{text}s", f"{method}, in nats of the mean log p")
    roles = [signed_role(added[position], most) for position in range(len(names))]
    yield coloured_text(names, roles, _TEXT if short else None)
    yield Scale("signed", most)
    keep = sorted(position for position, _ in ranked[: _TOKENS if short else None])
    columns = [
        Column("#", [str(position) for position in keep], "right", said="token"),
        Column("piece", [Span(names[position], roles[position]) for position in keep], said=""),
        signed_bars("integrated" if integrated else "adds", [added[position] for position in keep], "%+.4f", most),
    ]
    if integrated:
        columns.append(
            Column("gradient × input", [Figure(first_order[i], shown_in("%+.4f", most)) for i in keep], "right")
        )
    yield Table(columns)
    if len(keep) < len(names):
        yield note(f"the strongest {len(keep)} of {len(names)} {text}s", "--all shows the others")


def _heads(saliency: HeadSaliency, short: bool) -> Iterator[Block]:
    """Attention × gradient: the strongest heads, or the map of all."""
    values = np.array(saliency.absolute, dtype=np.float32)
    yield Heading("heads", "attention × gradient: Σ |w ⊙ ∂w|, in nats", "attention")
    most = float(np.nanmax(values, initial=0.0)) or 1.0
    if not short:
        yield from head_map(values, "unit", most, whole=True)
        return
    best = saliency.ranked[:_HEADS]
    form = one_form(value for *_, value in best)
    yield Bars([Bar(f"L{layer}H{head}", value, Figure(value, form), "attention") for layer, head, value in best], most)


def _weights(rows: Sequence[ParameterRow], by: str, lr: float) -> Iterator[Block]:
    """The parameters, or groups of them."""
    yield Heading("weights", f"by {by}", advice="--by parameter, layer, kind or head")
    columns = [
        Column("" if by == "parameter" else by, [row.name for row in rows], shrink=14, said=""),
        Column("‖∂‖", figures([row.gradient_norm for row in rows]), "right", said="gradient norm"),
        Column("‖W‖", figures([row.weight_norm for row in rows]), "right", said="weight norm", drop=2),
        Column("÷ ‖W‖", figures([row.ratio for row in rows]), "right", said="gradient norm over weight norm"),
        Column("update", figures([row.update_ratio for row in rows]), "right"),
        Column("zeros", [_share(row.zero_share) for row in rows], "right"),
    ]
    if by != "head":
        dead = [f"{row.dead_rows:,} of {row.rows:,}" if row.dead_rows else "" for row in rows]
        columns.append(Column("dead rows", dead, "right", drop=1))
    yield Table(columns)
    yield note(f"update: lr · ‖∂‖ ÷ ‖W‖, for plain gradient descent with lr {lr:g}")


def _share(share: float) -> str:
    return "" if not share else f"{share:.1%}" if share >= 0.001 else "< 0.1%"


def _differences(differences: Differences) -> Iterator[Block]:
    """The entries that are most off, and the outcome in one line."""
    yield Heading("finite differences", f"the worst of {len(differences.rows)} entries, in float64, by Ridders' method")
    shown = sorted(differences.rows, key=lambda row: -row.relative_error)[:_WORST]
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
    words: list[Piece] = [f"{len(differences.rows)} of {differences.asked} entries measured"]
    if differences.rows:
        worst = Figure(differences.worst.relative_error, "%.1e")
        words += [", largest relative error ", worst, f" (allowed {TOLERANCE:.0e})"]
    if differences.redrawn:
        words.append(f", {differences.redrawn} drawn again because of a kink")
    if differences.unresolved:
        words.append(f", {differences.unresolved} with a gradient of 0 but for rounding")
    yield verdict(differences.holds, words, indent=2)


def _agreement(outcome: Agreement) -> Line:
    """Whether the formulas agree with autograd, in one line."""
    worst = outcome.telling
    off, allowed = Figure(worst.difference, "%.1e"), Figure(worst.allowed, "%.1e")
    if outcome.holds:
        compared = f"{len(outcome.steps)} steps and {len(outcome.parameters)} parameters"
        figures: list[Piece] = ["largest difference ", off, " where ", allowed, f" is allowed, at {worst.step}"]
        return verdict(True, [f"by hand, {compared} have autograd's gradient, ", *figures])
    if outcome.first_not_finite:
        return not_finite(outcome.first_not_finite, ", so no gradient can be compared")
    if not worst.is_finite:
        words = "not all gradients are finite, so by hand and autograd cannot be compared"
        return verdict(False, f"{words}, first at {worst.step}")
    words = f"by hand and autograd differ, first at {worst.step}, by "
    return verdict(False, [words, off, " where ", allowed, " is allowed"])
