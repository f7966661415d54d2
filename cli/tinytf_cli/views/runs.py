"""Training runs side by side: a line each, their losses in one chart, their last milestones."""

from collections.abc import Iterator

from tinytf.text.printable import printable
from tinytf.training.run_report import RunReport, RunsReport
from tinytf_cli.numbers import count, loss_in_words
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Column, Curve, Curves, Heading, Line, Span, Table
from tinytf_cli.views.branches import branch_blocks
from tinytf_cli.views.parts import note, row_limit

_ROWS = 12
"""Runs in the table on a screen."""
ROLES = ("q", "k", "v", "attention", "embed", "output", "ffn", "residual")
"""The colours of the curves, by order of the runs; as many runs are drawn."""
_NUMBERS = {"steps": 2, "loss": 3, "best held-out": 1, "at step": 4, "parameters": 5, "tokens/s": 6}
"""The columns of numbers, each with its place among those that go when width is short, the highest first."""


class RunsView:
    """The reports of several runs, drawn."""

    def __init__(self, found: RunsReport) -> None:
        self.found = found

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """A table, the losses in one chart, and milestones."""
        runs = self.found.runs
        if not runs:
            where = ", ".join(printable(str(folder.resolve()), spaces=False) for folder in self.found.folders)
            yield Line(Span(f"no training runs in {where}; tinytf train makes them", "dim"))
            return
        histories = [(run, run.history) for run in runs if run.history is not None]
        drawn = [(run, one) for run, one in histories if one.step.size][: len(ROLES)]
        names = {run.path: Span(printable(run.name, spaces=False), "strong") for run in runs}
        for (run, _), role in zip(drawn, ROLES, strict=False):
            names[run.path] = Span(names[run.path].text, role)
        rows = runs[: row_limit(terminal, None, _ROWS)]
        numbers = zip(_NUMBERS.items(), zip(*map(_numbers, rows), strict=True), strict=True)
        yield Table(
            [
                Column("run", [names[run.path] for run in rows], shrink=8),
                *(Column(title, cells, "right", drop=drop) for (title, drop), cells in numbers),
                Column("state", [_state(run) for run in rows], shrink=8),
            ]
        )
        if len(rows) < len(runs):
            yield note(f"the best {len(rows)} of {len(runs)} runs; -o FILE.txt has them all")
        for run in runs:
            if run.history is None:
                said = Span(f": {printable(run.problem, spaces=False)}")
                yield Line([Span(names[run.path].text, "bad"), said], indent=2)
        if drawn:
            left = sum(one.step.size > 0 for _, one in histories) - len(drawn)
            yield Heading("training loss", f"smoothed{f'; the best {len(drawn)}, {left} more omitted' if left else ''}")
            curves = [Curve(names[run.path].text, *one.smoothed, names[run.path].role) for run, one in drawn]
            yield Curves(curves, "step", "loss", 10)
        yield from branch_blocks(runs)
        if last := [(run, *one.milestones[-1]) for run, one in histories[: len(rows)] if one.milestones]:
            yield Heading("milestones", "the last of each run")
            who = [names[run.path] for run, _, _ in last]
            steps = Column("", [f"step {step:,}" for _, step, _ in last], "right")
            words = Column("", [printable(text, spaces=False) for _, _, text in last], shrink=8)
            yield Table([Column("run", who, shrink=8), steps, words], header=False)


def _numbers(run: RunReport) -> list[str | Span]:
    """The cells of a run in the columns of ``_NUMBERS``."""
    one = run.history
    if one is None:
        return [""] * len(_NUMBERS)
    return [
        f"{one.last:,} of {one.steps:,}",
        loss_in_words(float(one.loss[-1])) if one.step.size else "",
        Span(loss_in_words(one.best[1]), "strong") if one.best else "",
        f"{one.best[0]:,}" if one.best else "",
        count(one.parameters) if one.parameters else "",
        f"{one.tokens_per_second:,.0f}" if one.tokens_per_second is not None else "",
    ]


def _state(run: RunReport) -> Span:
    history = run.history
    if history is None:
        return Span("damaged", "bad")
    if history.skipped:
        return Span(f"{history.skipped:,} lines cannot be read", "bad")
    return Span("finished", "good") if history.finished else Span(f"at {100 * history.last // history.steps} %")
