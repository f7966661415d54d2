"""A training run as one picture, redrawn in place."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tinytf_cli.terminal import Terminal

if TYPE_CHECKING:
    from tinytf.runs.history import History
    from tinytf.runs.reader import RunReader
    from tinytf_cli.screen import Screen


def takes_pictures(terminal: Terminal) -> bool:
    """Whether the terminal can redraw a picture in place."""
    return terminal.cuts and not terminal.plain and os.environ.get("TERM", "dumb") not in ("", "dumb")


def quiet_seconds(run: Path) -> float | None:
    """Seconds since the last line of metrics.jsonl; 0 if unknown, None if the run was stopped."""
    from tinytf.runs.run_files import is_stopped

    if is_stopped(run):
        return None
    try:
        return max(0.0, time.time() - (run / "metrics.jsonl").stat().st_mtime)
    except OSError:
        return 0.0


class Board:
    """Draws a run from its files, in the largest layout that fits the screen. ``fixed`` keeps the terminal's width.

    ``log`` draws steps on a logarithmic axis.
    """

    def __init__(
        self, name: str, reader: "RunReader", screen: "Screen", terminal: Terminal, *, fixed: bool, log: bool = False
    ) -> None:
        self.name, self.reader, self.screen, self.terminal, self.fixed = name, reader, screen, terminal, fixed
        self.log = log
        self._began: tuple[float, int] | None = None

    def draw(self, doing: str = "") -> "History":
        """Read new metrics and redraw the run. ``doing`` is its present work besides steps.

        Raises BrokenPipeError if the reader of stdout has gone.
        """
        from tinytf.runs.runs import RunReport
        from tinytf_cli.paint.painter import paint
        from tinytf_cli.views.blocks import Line, Span
        from tinytf_cli.views.draw import blocks_of
        from tinytf_cli.views.run import LAYOUTS, RunDisplay, run

        history = self.reader.read()
        report = RunReport(self.name, self.reader.directory, history)
        columns, rows = self.screen.size
        terminal = self.terminal if self.fixed else replace(self.terminal, width=max(20, columns))
        seconds_left = self._seconds_left(history)
        for layout in LAYOUTS:
            display = RunDisplay(seconds_left, quiet_seconds(self.reader.directory), layout, doing, self.log)
            blocks = run if layout.tight else blocks_of
            lines = list(paint(blocks(report, terminal, display), terminal))
            if len(lines) < rows:
                break
        if len(lines) >= rows > 2:
            omitted = Line(Span(f"{len(lines) - rows + 2} more lines do not fit", "dim"))
            lines = [*lines[: rows - 2], *list(paint([omitted], terminal))[:1]]
        self.screen.draw(lines)
        return history

    def _seconds_left(self, history: "History") -> float | None:
        """Seconds to the last step, from speed.jsonl, or from the steps since the first picture."""
        now, step = time.monotonic(), history.last
        if self._began is None or step < self._began[1]:
            self._began = now, step
        elapsed, done = now - self._began[0], step - self._began[1]
        if history.seconds_left is not None or not done or history.planned is None:
            return history.seconds_left
        return elapsed / done * (history.planned - step)
