"""Blame: the damage of each tensor of another model, as a map of layers × kinds and a table of the worst."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np

from tinytf.cause.blame import Blame
from tinytf.cause.restoring import SHARES
from tinytf.estimate import Estimate
from tinytf.sentences import first_of
from tinytf.steps.table import table_of
from tinytf.text.printable import printable
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Column, Figure, Heading, Heat, Line, Span, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import NO_NUMBER, full_scale, most_rows, note, numbered, signed_bars

_TENSORS = 6
"""The most tensors of the table, unless more are asked for."""
_MAPS = {"kl": "KL", "loss": "loss", "margin": "difference of the two logits"}
"""The measures that are drawn as maps."""
_SETS = 3  # sets shown besides the ones that explain enough


@dataclass(frozen=True)
class BlameDisplay(Display):
    """``rows`` is the most tensors in the table: 0 for all of them, None for what suits a screen.

    ``all`` shows every restored set, the maps of every measure and the errors of the steps too.
    """

    rows: int | None = None
    all: bool = False


@draws(Blame, BlameDisplay)
def blame(report: Blame, terminal: Terminal, display: BlameDisplay) -> Iterator[Block]:
    """The whole damage, the tensors that do most of it, the restored sets, the map, and the errors of the steps."""
    yield from banner(model_of(report), report.about.text if report.about else None)
    yield from _whole(report)
    if not report.blamed:
        return
    yield from _table(report, display)
    yield from _notes(report)
    yield from _importance(report, display)
    yield from _sets(report, display)
    yield from _map(report, display)
    yield from _steps(report, display)


def _whole(report: Blame) -> Iterator[Block]:
    assert report.versus is not None
    name = printable(report.versus.model.name, spaces=False)
    yield Heading("damage", f"of {name}, mean per token of {plural(report.texts, 'text')}, in nats", "output")
    if not report.blamed:
        yield Line("no tensor differs: the models predict the same", indent=2)
        return
    whole = report.whole
    words = ["KL ", *estimated(whole.kl, "strong")]
    if whole.loss is not None:
        words += [" · loss ", *estimated(whole.loss, sign=True)]
    first, second = ("top", "second") if report.pair is None else map(model_of(report).shown, report.pair)
    words += [f" · logit {first} − {second} ", *estimated(whole.margin, sign=True)]
    yield Line(words, indent=2)
    tensors = plural(len(report.blamed), "tensor")
    counts = f"{plural(report.positions, 'token')}; {len(report.measured)} of {tensors} measured"
    counts += f", {report.same} equal in both" if report.same else ""
    counts += f"; stopped after {report.texts} of {report.asked} texts" if report.interrupted else ""
    yield note(counts)


def _map(report: Blame, display: BlameDisplay) -> Iterator[Block]:
    """Kinds down, since they are fewer, and layers across: the KL, with --all the other measures too."""
    inside = [tensor for tensor in report.measured if tensor.layer is not None]
    if not inside:
        return
    config, kinds_inside = model_of(report).config, {tensor.kind for tensor in inside}
    kinds = [kind for kind in table_of(config).parameters if kind in kinds_inside]
    for name, title in _MAPS.items() if display.all else [("kl", _MAPS["kl"])]:
        values = np.full((len(kinds), config.n_layers), np.nan, np.float32)
        for tensor in inside:
            estimate: Estimate | None = getattr(tensor.damage, name, None)
            values[kinds.index(tensor.kind), tensor.layer] = np.nan if estimate is None else estimate.value * 1000
        if np.isnan(values).all():
            continue
        most = float(np.nanmax(np.abs(values))) or 1.0
        yield Heading(f"{title} of each tensor alone", "in thousandths", "output")
        seen = None if np.isfinite(values).all() else np.isfinite(values)
        scale = "unit" if name == "kl" else "signed"
        layers = numbered("L", config.n_layers)
        yield Heat(np.nan_to_num(values), kinds, layers, scale, seen, most, hidden=NO_NUMBER)


def _table(report: Blame, display: BlameDisplay) -> Iterator[Block]:
    tensors = report.measured[: most_rows(display.rows, _TENSORS)]
    yield Heading("most damage", "the tensor of the other model alone; what restoring it alone recovers", "output")
    damages = [tensor.damage for tensor in tensors if tensor.damage]
    recovered = [tensor.recovered.kl.value if tensor.recovered else math.nan for tensor in tensors]
    yield Table(
        [
            Column("", [Span(tensor.address, "strong") for tensor in tensors], said=""),
            Column("KL", [estimated(damage.kl) for damage in damages], "left"),
            Column("loss", [Figure(d.loss.value, "%+.4f") if d.loss else "–" for d in damages], "right", drop=2),
            Column("Δ logit", [Figure(damage.margin.value, "%+.3f") for damage in damages], "right", drop=3),
            signed_bars("recovers", recovered, "%+.4f", full_scale(recovered)),
            Column("moved", [f"{tensor.moved:.1%}" for tensor in tensors], "right", drop=1),
            Column("expected", [Figure(tensor.expected, "%.4f") for tensor in tensors], "right", drop=4),
        ]
    )
    if len(tensors) < len(report.measured):
        yield note(f"folded: {len(report.measured) - len(tensors)} tensors that do less", "--rows 0 shows them")


def _notes(report: Blame) -> Iterator[Block]:
    moved, expected = (report.correlation(by) for by in ("moved", "expected"))
    if moved is not None and expected is not None:
        yield note(f"rank correlation with the damage: {moved:+.2f} how far a tensor moved, {expected:+.2f} expected")


def _importance(report: Blame, display: BlameDisplay) -> Iterator[Block]:
    """The most damaging tensors with their importance, and how both rankings agree."""
    found = report.importance
    if found is None:
        return
    chunks = f", {plural(found.chunks, 'chunk')}" if found.chunks else ""
    size = f" of {plural(found.chunk_size, 'token')}" if chunks and found.chunk_size else ""
    names = ", ".join(printable(name, spaces=False) for name in found.datasets) or "a text without a name"
    yield Heading("importance matrix", f"mean squares of the inputs of each matrix, on {names}{chunks}{size}", "output")
    tensors = found.tensors[: most_rows(display.rows, _TENSORS)]
    if not tensors:
        yield Line("no tensor that differs is in the matrix", indent=2)
        return
    damages = [Figure(tensor.damage, "%.4f") if tensor.damage is not None else "–" for tensor in tensors]
    yield Table(
        [
            Column("", [Span(tensor.address, "strong") for tensor in tensors], said=""),
            Column("KL", damages, "right"),
            Column("error", [Figure(tensor.error, "%.3g") for tensor in tensors], "right"),
            Column("relative", [f"{tensor.relative:.1%}" for tensor in tensors], "right"),
            Column("importance", [Figure(tensor.importance, "%.3g") for tensor in tensors], "right", drop=1),
            Column("in 1 % of inputs", [f"{tensor.top_share:.1%}" for tensor in tensors], "right", drop=2),
        ]
    )
    if len(tensors) < len(found.tensors):
        yield note(f"folded: {plural(len(found.tensors) - len(tensors), 'tensor')}", "--rows 0 shows them")
    if found.without:
        yield note(f"not in the matrix: {first_of(found.without, _SETS)}")
    absolute, relative = found.rank_correlation, found.rank_correlation_relative
    if absolute is not None and relative is not None:
        words = f"{absolute:+.2f} the error Σ importance·ΔW², {relative:+.2f} its root relative to the weights"
        yield note(f"rank correlation with the damage: {words}")


def _sets(report: Blame, display: BlameDisplay) -> Iterator[Block]:
    """The first sets, and the first set that explains each of SHARES; with ``all`` every set."""
    sets = report.sets
    if not sets:
        return
    first = sets if display.all else sets[:_SETS]
    shown = [tensors for tensors in sets if tensors in first or tensors in map(report.explaining, SHARES)]
    on = "" if sets[0].texts == report.texts else f", on {plural(sets[0].texts, 'text')}: stopped"
    subtitle = f"the share of the KL that these tensors explain, chosen greedily{on}"
    yield Heading("restored together", subtitle, "output")
    added = [", ".join([*(["…"] if tensors not in first else []), *tensors.added]) for tensors in shown]
    yield Table(
        [
            Column("tensors", [str(tensors.count) for tensors in shown], "right"),
            Column("explain", [estimated(tensors.share, "strong", share=True) for tensors in shown]),
            Column("added", added, shrink=20),
        ]
    )


def _steps(report: Blame, display: BlameDisplay) -> Iterator[Block]:
    steps = report.steps
    if not steps:
        return
    if not display.all:
        own, actual = median(error.own for error in steps), median(error.actual for error in steps)
        words = f"a step's error is {own:.1%} by its own tensors and {actual:.1%} with what it inherits"
        yield note(f"{words} (medians)", "--all shows them")
        return
    yield Heading(
        "error of each step", "‖error‖ ÷ ‖step‖ of a token: by its own tensors, and with what it inherits", "output"
    )
    names = list(dict.fromkeys(error.step for error in steps))
    groups = [[error for error in steps if error.step == name] for name in names]
    own_worst = [max(group, key=lambda error: error.own) for group in groups]
    actual_worst = [max(group, key=lambda error: error.actual) for group in groups]
    inherited = [f"{median(error.actual for error in group):.1%}" for group in groups]
    yield Table(
        [
            Column("step", [Span(name, "strong") for name in names]),
            Column("own, median", [f"{median(error.own for error in group):.1%}" for group in groups], "right"),
            Column("most", [f"{error.own:.1%} {error.name}" for error in own_worst]),
            Column("with inherited, median", inherited, "right"),
            Column("most", [f"{error.actual:.1%} {error.name}" for error in actual_worst]),
        ]
    )


def estimated(estimate: Estimate, role: str = "", sign: bool = False, share: bool = False) -> list[str | Figure | Span]:
    """``0.591 [0.533, 0.750]``, or ``59.1% [53.3%, 75.0%]``."""
    value, low, high = estimate.value, estimate.low, estimate.high
    if share:
        interval = [] if low is None or high is None else [Span(f" [{low:.1%}, {high:.1%}]", "dim")]
        return [Span(f"{value:.1%}", role), *interval]
    form = "%+.4f" if sign else "%.4f"
    interval = [] if low is None or high is None else [Span(f" [{form % low}, {form % high}]", "dim")]
    return [Figure(value, form, role), *interval]
