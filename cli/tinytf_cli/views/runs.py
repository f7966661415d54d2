"""Training runs side by side: one line each, their losses in one chart, their last milestones."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tinytf.files import resolve_links
from tinytf.runs.history import MEANS_LABEL
from tinytf.runs.runs import RunReport, RunsReport
from tinytf.runs.verdict import verdict_of
from tinytf.text.printable import printable
from tinytf_cli.numbers import count, duration, loss_in_words
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Beside, Block, Column, Curve, Curves, Heading, Line, Span, Table
from tinytf_cli.views.branches import branch_blocks
from tinytf_cli.views.draw import Display, draws
from tinytf_cli.views.parts import next_lines, note, row_limit
from tinytf_cli.views.run import resuming, spike_line

_RUNS, _FIELDS = 10, 4
"""Runs in the table on a screen, and recipe fields that it shows."""
_CHART = 50
"""Least width of a chart, in columns."""
ROLES = ("q", "k", "v", "attention", "embed", "output", "ffn", "residual")
"""The colours of the curves, in the order of the runs. The chart draws at most this many runs."""
_NUMBERS = {
    "steps": 3, "loss": 4, "best held-out": 1, "at step": 5, "bits/byte": 2, "unigrams": 9, "bigrams": 10,
    "parameters": 6, "tokens/s": 7, "time": 8,
}  # fmt: skip
"""The columns of numbers. When width is short, the column with the highest number is dropped first."""


@dataclass(frozen=True)
class RunsDisplay(Display):
    """``log`` draws steps on a logarithmic axis."""

    log: bool = False


@draws(RunsReport, RunsDisplay)
def runs(report: RunsReport, terminal: Terminal, display: RunsDisplay) -> Iterator[Block]:
    """A table of the runs, a chart of their losses, and milestones."""
    if not report.runs:
        folders = ", ".join(printable(str(resolve_links(folder)), spaces=False) for folder in report.folders)
        yield Line(Span(f"no training runs in {folders}; tinytf train makes them", "dim"))
        return
    histories = [(run, run.history) for run in report.runs if run.history is not None]
    drawn = [(run, history) for run, history in histories if history.step.size][: len(ROLES)]
    names = {run.path: Span(printable(run.name, spaces=False), "strong") for run in report.runs}
    for (run, _), role in zip(drawn, ROLES, strict=False):
        names[run.path] = Span(names[run.path].text, role)
    rows = report.runs[: row_limit(terminal, None, _RUNS)]
    columns = zip(_NUMBERS.items(), zip(*map(_numbers, rows), strict=True), strict=True)
    numbers = [(heading, cells) for heading, cells in columns if any(cells)]
    yield Table(
        [
            Column("run", [names[run.path] for run in rows], shrink=8),
            *_recipe_columns(report, len(rows)),
            *(Column(title, cells, "right", drop=drop) for (title, drop), cells in numbers),
            Column("state", [_state(run) for run in rows], shrink=22),
        ]
    )
    yield from _settings(report)
    if len(rows) < len(report.runs):
        yield note(f"the best {len(rows)} of {len(report.runs)} runs; -o FILE.txt has them all")
    for run in report.runs:
        if run.history is None:
            problem = Span(f": {printable(run.problem, spaces=False)}")
            yield Line([Span(names[run.path].text, "bad"), problem], indent=2)
    for run, history in histories[: len(rows)]:
        if history.spikes:
            yield spike_line(history, f"{names[run.path].text}: ")
    if drawn:
        omitted = sum(history.step.size > 0 for _, history in histories) - len(drawn)
        yield Heading("losses", f"{MEANS_LABEL}{f'; the best {len(drawn)}, {omitted} more omitted' if omitted else ''}")
        curves = [Curve(names[run.path].text, *history.averaged, names[run.path].role) for run, history in drawn]
        charts = [Curves(curves, "step", "training loss", 10, log_x=display.log)]
        held_out = [
            Curve(names[run.path].text, *_points(history.held_out), names[run.path].role)
            for run, history in drawn
            if len(history.held_out) > 1
        ]
        if held_out and (
            not terminal.cuts or terminal.width >= 2 * _CHART + 2
        ):  # on a screen, only if it fits beside the first
            charts.append(Curves(held_out, "step", "held-out loss", 10, log_x=display.log))
        yield Beside([[chart] for chart in charts], _CHART, even=True)
    yield from branch_blocks(report.runs)
    last = [(run, *history.milestones[-1]) for run, history in histories[: len(rows)] if history.milestones]
    if last:
        yield Heading("milestones", "the last of each run")
        run_names = [names[run.path] for run, _, _ in last]
        steps = Column("", [f"step {step:,}" for _, step, _ in last], "right")
        words = Column("", [printable(text, spaces=False) for _, _, text in last], shrink=8)
        yield Table([Column("run", run_names, shrink=8), steps, words], header=False)
    yield from _next(report, terminal)


def _next(report: RunsReport, terminal: Terminal) -> Iterator[Block]:
    """What to type next, for the best run of each state."""
    first: dict[str, tuple[str, str]] = {}
    for run in report.runs:
        place = printable(shlex.quote(str(run.path)), spaces=False)
        state = run.summary()["state"]
        if state == "unfinished":
            first.setdefault(state, (f"tinytf runs --follow {place}", "watches it train"))
        elif state == "stopped" and run.history is not None and "watched" not in run.history.recipe:
            first.setdefault(state, (resuming(run.path), "continues it"))
        elif state == "finished" and _continues(run):
            first.setdefault(state, (f"tinytf generate -m {place} TEXT", "how it continues a text"))
    if first:
        yield from next_lines(terminal, *first.values())


def _settings(report: RunsReport) -> Iterator[Block]:
    """The mean and deviation over seeds of each setting."""
    if settings := report.settings:
        yield Heading("seeds", "mean ± standard deviation of the best held-out losses")
        names = [name.removeprefix("model.") for name in settings[0].values]
        values = zip(*(setting.values.values() for setting in settings), strict=True)
        cells = [printable(str(value), spaces=False) for column in values for value in column]
        columns = [cells[at : at + len(settings)] for at in range(0, len(cells), len(settings))]
        yield Table([
            *(Column(name, column, "right") for name, column in zip(names, columns, strict=True)),
            Column("seeds", [f"{setting.runs:,}" for setting in settings], "right"),
            Column("best held-out", [f"{setting.mean:.4f} ± {setting.deviation:.4f}" for setting in settings], "right"),
        ])  # fmt: skip


def _continues(run: RunReport) -> bool:
    """Whether its model continues a text, and is in the folder."""
    return run.history is None or (run.history.config is not None and run.history.config.causal)


def _recipe_columns(report: RunsReport, rows: int) -> Iterator[Column]:
    """The first recipe fields that differ between runs, a column each."""
    fields = [item for item in report.differing.items() if item[0] != "steps"]  # steps have a column already
    for index, (name, values) in enumerate(fields[:_FIELDS]):
        cells = ["" if value is None else printable(str(value), spaces=False) for value in values[:rows]]
        yield Column(name.removeprefix("model."), cells, "right", drop=11 + index)


def _points(points: Sequence[tuple[int, float]]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    steps, values = zip(*points, strict=True)
    return np.array(steps, dtype=np.int64), np.array(values, dtype=np.float64)


def _numbers(run: RunReport) -> list[str | Span]:
    """The cells of a run in the columns of ``_NUMBERS``."""
    history = run.history
    if history is None:
        return [""] * len(_NUMBERS)
    return [
        f"{history.last:,}" if history.planned is None else f"{history.last:,} of {history.planned:,}",
        loss_in_words(float(history.loss[-1])) if history.step.size else "",
        Span(loss_in_words(history.best[1]), "strong") if history.best else "",
        f"{history.best[0]:,}" if history.best else "",
        f"{bits:.3f}" if history.best and (bits := history.bits_per_byte(history.best[1])) is not None else "",
        *(loss_in_words(loss) if (loss := history.baselines.get(name)) else "" for name in ("unigram", "bigram")),
        count(history.parameters) if history.parameters else "",
        f"{history.tokens_per_second:,.0f}" if history.tokens_per_second is not None else "",
        duration(history.elapsed) if history.elapsed else "",
    ]


def _state(run: RunReport) -> Span:
    history = run.history
    if history is None:
        return Span("damaged", "bad")
    if history.skipped:
        return Span(f"{history.skipped:,} lines cannot be read", "bad")
    if (verdict := verdict_of(history)) is not None:
        return Span(
            f"{'finished' if history.finished else 'stopped' if run.stopped else 'trains'}, {verdict.fault}", "bad"
        )
    if history.finished:
        return Span("finished", "good")
    if history.planned is None:
        return Span("stopped" if run.stopped else "trains")
    share = f"{100 * history.last // history.planned} %"
    if run.stopped:
        return Span(f"stopped at {share}")
    left = "" if history.seconds_left is None else f", {duration(history.seconds_left)} left"
    return Span(f"at {share}{left}")
