"""What a steering vector does at several strengths: to the tokens asked for, and to other texts."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tinytf.cause.steer.curve import SteeringCurve
from tinytf.text.printable import printable
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.ablate import check_line, control_line, where_predicted
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Column, Curve, Curves, Figure, Heading, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import figures, fold_note, note, share_column, signed, spread, stopped
from tinytf_cli.views.steer import short_interval

_STRENGTHS = 15
"""The most strengths of the table on a screen."""
_ROLES = ("output", "q", "k", "attention", "ffn", "residual")


@dataclass(frozen=True)
class SteeringCurveDisplay(Display):
    """``all`` shows every strength of a long table."""

    all: bool = False


@draws(SteeringCurve, SteeringCurveDisplay)
def steer_curve(report: SteeringCurve, terminal: Terminal, display: SteeringCurveDisplay) -> Iterator[Block]:
    """The probabilities by strength as curves, then the numbers of each strength."""
    model, doses = model_of(report), report.doses
    strengths = np.array([dose.strength for dose in doses])
    yield from banner(model, report.encoding)
    where = where_predicted(model, report.encoding, report.position)
    yield Heading("strength", f"of {printable(report.steering, spaces=False)}; {where}", "residual")
    yield from stopped(report.interrupted, len(doses), report.planned, "strengths", "")
    names = [model.shown(token) for token in report.asked]
    shares = [np.array([dose.probabilities[i] for dose in doses]) for i in range(len(names))]
    if len(doses) > 1:
        curves = [Curve(name, strengths, y, role) for name, y, role in zip(names, shares, _ROLES, strict=False)]
        yield Curves(curves, "strength", "probability", 8)
    columns = [
        Column("strength", [Figure(dose.strength, "%g", "strong") for dose in doses], "right"),
        *(share_column(f"p({name})", list(y), "output") for name, y in zip(names, shares, strict=True)),
    ]
    metric = report.metric
    if metric.name != "prob" or len(metric.answer) > 1:
        form = "%+.2f" if metric.unit == "logits" else "%.4g"
        title = metric.label.removeprefix("logit ")
        columns.append(Column(title, [signed(dose.value, form) for dose in doses], "right", drop=1))
    columns.append(Column("KL", figures([dose.kl for dose in doses]), "right"))
    if report.reference:
        means = [dose.elsewhere for dose in doses]
        columns.append(Column("elsewhere", figures([None if mean is None else mean.value for mean in means]), "right"))
        columns.append(Column("from … to", [short_interval(mean) for mean in means], "right", drop=3))
    columns.append(Column("then first", [model.shown(dose.best) for dose in doses], drop=2))
    keep = spread(len(doses), len(doses) if display.all else _STRENGTHS)
    yield Table(columns).only(keep)
    yield from fold_note([f"{strength:g}" for strength in strengths], keep, "strengths", "--all")
    unit = metric.in_unit and f", in{metric.in_unit}"
    explained = {"logit_diff": "the difference of their logits", "prob": metric.words}.get(
        metric.name, f"{metric.words}{unit}"
    )
    logits = (
        ""
        if metric.name == "prob" and len(metric.answer) == 1
        else f"{metric.label.removeprefix('logit ')}: {explained}; "
    )
    other = f"elsewhere: its mean per token on {report.reference}" if report.reference else (
        "--reference FILE shows how far other texts move"
    )  # fmt: skip
    yield note(f"{logits}KL(plain ‖ steered) in nats; {other}")
    yield from control_line(report.control, "changes")
    yield from check_line(report.check)
