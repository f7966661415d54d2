"""Training runs side by side: a line each, their losses in one chart, their last milestones."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinytf.analysis.size import parameter_count
from tinytf.report import SCHEMA_VERSION
from tinytf.text.printable import printable
from tinytf.training.history import History
from tinytf_cli.numbers import count, loss_in_words
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Column, Curve, Curves, Heading, Line, Span, Table
from tinytf_cli.views.run import milestone_lines
from tinytf_cli.views.run_data import run_data, run_events

ROLES = ("q", "k", "v", "attention", "embed", "output", "ffn", "residual")
"""What colours the curves, the first run first; as many runs are drawn."""


@dataclass(frozen=True)
class Run:
    """A run that was found; ``history`` is None where it is damaged, and ``problem`` says how."""

    name: str
    path: Path
    history: History | None
    problem: str = ""


def _order(run: Run) -> tuple[int, float, str]:
    if run.history is None:
        return 2, 0.0, run.name
    return (0, run.history.best[1], run.name) if run.history.best else (1, 0.0, run.name)


class RunsView:
    """Runs in every form, the one with the lowest held-out loss first."""

    def __init__(self, runs: Sequence[Run], folders: Sequence[Path]) -> None:
        self.runs, self.folders = sorted(runs, key=_order), folders

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """A table, the losses in one chart, and milestones."""
        if not self.runs:
            where = ", ".join(printable(str(folder.resolve()), spaces=False) for folder in self.folders)
            yield Line(Span(f"no training runs in {where}; tinytf train makes them", "dim"))
            return
        histories = [(run, run.history) for run in self.runs if run.history is not None]
        drawn = [(run, one) for run, one in histories if one.step.size][: len(ROLES)]
        roles = {run.path: role for (run, _), role in zip(drawn, ROLES, strict=False)}
        yield Table(
            [
                Column("run", [Span(_name(run), roles.get(run.path, "strong")) for run in self.runs], shrink=8),
                Column("steps", [_steps(run.history) for run in self.runs], "right", drop=2),
                Column("loss", [_loss(run.history) for run in self.runs], "right", drop=3),
                Column("best held-out", [_best(run.history) for run in self.runs], "right", narrow=[
                    loss_in_words(run.history.best[1]) if run.history and run.history.best else "" for run in self.runs
                ], drop=1),
                Column("at step", [_best_step(run.history) for run in self.runs], "right", drop=4),
                Column("parameters", [_parameters(run.history) for run in self.runs], "right", drop=5),
                Column("tokens/s", [_speed(run.history) for run in self.runs], "right", drop=6),
                Column("state", [_state(run) for run in self.runs], shrink=8),
            ]
        )  # fmt: skip
        for run in self.runs:
            if run.history is None:
                yield Line([Span(_name(run), "bad"), Span(f": {printable(run.problem, spaces=False)}")], indent=2)
        if drawn:
            left = sum(one.step.size > 0 for _, one in histories) - len(drawn)
            note = f"; the best {len(drawn)}, without {left} more" if left else ""
            yield Heading("training loss", f"smoothed{note}")
            curves = [Curve(_name(run), *one.smoothed, roles[run.path]) for run, one in drawn]
            yield Curves(curves, "step", "loss", 14)
        if any(one.milestones for _, one in histories):
            yield Heading("milestones", "the last of each run")
            for run, one in histories:
                if one.milestones:
                    yield Line(Span(_name(run), roles.get(run.path, "strong")))
                    yield from milestone_lines(one, 3)

    def data(self) -> dict[str, Any]:
        """The same as one JSON object, with every logged step."""
        return {"schema_version": SCHEMA_VERSION, "kind": "runs", "runs": [_data(run) for run in self.runs]}

    def events(self) -> Iterator[dict[str, Any]]:
        """Each run, and what its steps logged."""
        for run in self.runs:
            if run.history is None:
                yield {"type": "run", **_data(run)}
            else:
                yield from run_events(run.name, run.history)


def _name(run: Run) -> str:
    return printable(run.name, spaces=False)


def _steps(history: History | None) -> str:
    return f"{history.last:,} of {history.steps:,}" if history else ""


def _loss(history: History | None) -> str:
    return loss_in_words(float(history.loss[-1])) if history and history.step.size else ""


def _best(history: History | None) -> Span:
    return Span(loss_in_words(history.best[1]), "strong") if history and history.best else Span("")


def _best_step(history: History | None) -> str:
    return f"{history.best[0]:,}" if history and history.best else ""


def _parameters(history: History | None) -> str:
    return count(parameter_count(history.config)) if history and history.config else ""


def _speed(history: History | None) -> str:
    return f"{history.tokens_per_second:,.0f}" if history and history.tokens_per_second is not None else ""


def _state(run: Run) -> Span:
    history = run.history
    if history is None:
        return Span("damaged", "bad")
    if history.skipped:
        return Span(f"{history.skipped:,} lines cannot be read", "bad")
    return Span("finished", "good") if history.finished else Span(f"at {100 * history.last // history.steps} %")


def _data(run: Run) -> dict[str, Any]:
    if run.history is None:
        return {"name": run.name, "path": str(run.path), "state": "damaged", "problem": run.problem}
    return run_data(run.name, run.history)
