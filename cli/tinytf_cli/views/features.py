"""Features: the active ones of each token, what they promote, what is kept of the step, and a changed prediction."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tinytf.features.coder import SparseCoder
from tinytf.features.fidelity import Fidelity
from tinytf.features.report import ActiveFeature, FeatureChange, FeatureDirection, Features, TokenFeatures
from tinytf.loading import Model
from tinytf.sentences import percent
from tinytf.text.printable import printable
from tinytf_cli.numbers import number, plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.ablate import check_line, choice_table, where_predicted
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Column, Figure, Heading, Line, Piece, Scale, Span, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.neurons import examples_of, in_vocabulary, logit_columns, strongest_table
from tinytf_cli.views.parts import (
    coloured_text,
    fold_note,
    full_scale,
    middle_out,
    most_rows,
    note,
    size_column,
    titled,
)

_TABLE_ROWS = 21  # rows of the table, unless more are asked for
_TEXT = 120  # tokens of the coloured text

Row = tuple[TokenFeatures, ActiveFeature]


@dataclass(frozen=True)
class FeaturesDisplay(Display):
    """``rows`` limits the tokens of the table (0: all)."""

    rows: int | None = None


@draws(Features, FeaturesDisplay)
def features(report: Features, terminal: Terminal, display: FeaturesDisplay) -> Iterator[Block]:
    """The changed prediction, the features of each token, or each chosen one along the text, and what is kept."""
    model = model_of(report)
    yield from banner(model, report.encoding)
    yield from coder_lines(report.coder, report.at, report.into)
    if report.change is not None:
        yield from _change(report, model, report.change)
    directions = {direction.feature: direction for direction in report.directions}
    if report.chosen:
        for feature in report.chosen:
            yield from _chosen(report, model, directions[feature], display)
    elif report.change is None:
        yield from _table(report, model, directions, display)
    if report.change is None:
        yield from kept(report.fidelity, report.into)
    if report.change is None or report.chosen:
        yield Line("")
        yield Line(Span(f"directions: {report.reading}", "dim"))
    if report.change is None and any(
        active.contribution is not None for token in report.tokens for active in token.features
    ):
        yield Line(Span(f"Δ logit: {report.contributing}", "dim"))
    if report.examples is not None:
        yield from examples_of(model, report.examples)


def coder_lines(coder: SparseCoder, at: str, into: str) -> Iterator[Block]:
    """Which autoencoder it is, and where."""
    kind = "transcoder" if coder.is_transcoder else "autoencoder"
    step = f"reads {at}, writes {into}" if coder.is_transcoder else f"of {at}"
    active = f"{coder.architecture}, k = {coder.k}" if coder.k else coder.architecture
    words = f" · {kind} {step} · {plural(coder.n_features, 'feature')}, {active} · layout of {coder.layout}"
    words += f", trained on {coder.trained_on}" if coder.trained_on else ""
    yield titled(coder.name, words)
    yield from (note(words) for words in coder.notes)


def _table(
    report: Features, model: Model, directions: Mapping[int, FeatureDirection], display: FeaturesDisplay
) -> Iterator[Block]:
    """The strongest features of each token."""
    tokens = report.tokens
    per_token = max((len(token.features) for token in tokens), default=0)
    keep = middle_out(len(tokens), most_rows(display.rows, max(2, _TABLE_ROWS // (per_token + 1))))
    entries = [(tokens[i], active) for i in keep for active in tokens[i].features]
    if not entries:
        yield note(f"no feature is active{' at the tokens shown' if len(keep) < len(tokens) else ''}")
        return
    yield Heading("features", "the strongest of the active ones at each token", "ffn")
    numbers = Column("feature", [Span(str(active.feature), "ffn") for _, active in entries], "right")
    bars = _bars(entries, full_scale(active.activation for token in tokens for active in token.features))
    own = [directions[active.feature] for _, active in entries]
    ends, counts = [(of.promoted, of.suppressed) for of in own], [token.active for token, _ in entries]
    yield strongest_table(report, model, entries, [numbers, bars], ends, counts)
    yield from fold_note(range(len(tokens)), keep, "tokens")


def _bars(rows: Sequence[Row], full: float) -> Column:
    """The activation of each feature."""
    return size_column("activation", [active.activation for _, active in rows], "ffn", full=full)


def _chosen(report: Features, model: Model, direction: FeatureDirection, display: FeaturesDisplay) -> Iterator[Block]:
    """One feature along the text, in the vocabulary, and the features that are most like it."""
    rows = [
        (token, next((active for active in token.features if active.feature == direction.feature), None))
        for token in report.tokens
    ]
    full = full_scale(active.activation for _, active in rows if active is not None)
    names = [token.shown for token in report.encoding.tokens]
    yield Heading(f"feature {direction.feature}", "its activation along the text", "ffn")
    roles = ["dim" if active is None else f"unit:{round(255 * active.activation / full)}" for _, active in rows]
    yield coloured_text(names, roles, None if display.rows == 0 else _TEXT)
    yield Scale("unit", full)
    shown = [(token, active) for token, active in rows if active is not None and active.activation > 0]
    keep = middle_out(len(shown), most_rows(display.rows, 6))
    visible = [shown[i] for i in keep]
    if visible:
        yield Table(
            [
                Column("#", [str(token.position) for token, _ in visible], "right", said="token"),
                Column("token", [names[token.position] for token, _ in visible], shrink=8, said=""),
                _bars(visible, full),
                *logit_columns(model, visible),
            ]
        )
        yield from fold_note(range(len(shown)), keep, "tokens where it is active")
    yield from in_vocabulary(model, f"feature {direction.feature}", "‖direction‖", direction)
    if direction.nearest:
        alike: list[Piece] = ["nearest by direction: "]
        for index, (other, cosine) in enumerate(direction.nearest):
            alike += [", " if index else "", Span(str(other), "ffn"), " (", Figure(cosine, "%.2f"), ")"]
        yield note(alike)


def _change(report: Features, model: Model, change: FeatureChange) -> Iterator[Block]:
    """The prediction before and after."""
    ablated = [f"feature {number} at 0" for number in change.ablated]
    added = [f"{value:+g} on feature {number}" for number, value in change.added.items()]
    words = f"{', '.join([*ablated, *added])}, at every token; the rest of {report.into} stays"
    yield Heading("changed", words, "attention")
    yield note(where_predicted(model, report.encoding, change.position))
    yield choice_table(change.choices, model.shown, (change.target,))
    pieces: list[Piece] = ["KL(before ‖ after) = ", Figure(change.effect.kl, "%.4f", "strong"), " nats"]
    if change.loss_before is not None and change.loss_after is not None:
        pieces += ["; loss on the text ", Figure(change.loss_before, "%.4f"), " → ", Figure(change.loss_after, "%.4f")]
    yield Line(pieces, indent=2)
    yield from check_line(change.check)


def kept(fidelity: Fidelity, step: str) -> Iterator[Block]:
    """What the reconstruction keeps of the step and of the loss."""
    yield Heading("kept", f"of {step} by its reconstruction, over {plural(fidelity.tokens, 'token')}", "residual")
    share, recovered = fidelity.explained_variance, fidelity.loss_recovered
    names, values = ["active features a token"], [f"{fidelity.l0:.3g}"]
    if share is not None:
        names.append("explained variance")
        values.append(percent(share) if share >= 0 else f"{share:.3g}: worse than the mean")
    names += ["‖error‖ ÷ ‖step‖", "cosine with the step"]
    values += [number(fidelity.relative_error, "%.3f"), number(fidelity.cosine, "%.3f")]
    losses = (fidelity.loss, fidelity.loss_reconstructed, fidelity.loss_zeroed)
    if not any(loss is None for loss in losses):
        names += ["loss: plain, reconstructed, zeros"]
        values += ["  ".join(number(loss, "%.4f") for loss in losses if loss is not None)]
        if recovered is not None:
            names += ["loss recovered"]
            values += [percent(recovered) if 0 <= recovered <= 1 else f"{100 * recovered:.1f} %"]
    yield Table([Column("", names, said=""), Column("", [printable(v, spaces=False) for v in values])], header=False)
