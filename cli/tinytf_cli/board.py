"""A run that is going on, as one picture that is drawn again in its place."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tinytf_cli.terminal import Terminal

if TYPE_CHECKING:
    from tinytf.training.history import History
    from tinytf.training.reader import RunReader
    from tinytf_cli.screen import Screen


def takes_pictures(terminal: Terminal) -> bool:
    """Whether pictures can be redrawn there."""
    return terminal.cuts and not terminal.plain and os.environ.get("TERM", "dumb") not in ("", "dumb")


def quiet_seconds(run: Path) -> float:
    """Seconds since the last line was written."""
    try:
        return max(0.0, time.time() - (run / "metrics.jsonl").stat().st_mtime)
    except OSError:
        return 0.0


class _Pace:
    """What is left of a run without speed.jsonl, by the steps that were seen to pass."""

    def __init__(self) -> None:
        self.began: tuple[float, int] | None = None

    def seconds_left(self, step: int, steps: int) -> float | None:
        now = time.monotonic()
        if self.began is None or step < self.began[1]:
            self.began = now, step
        passed, done = now - self.began[0], step - self.began[1]
        return passed / done * (steps - step) if done else None


class Board:
    """Draws a run by its files: the largest layout that fits the rows. ``fixed`` keeps the terminal's width."""

    def __init__(self, name: str, reader: "RunReader", screen: "Screen", terminal: Terminal, *, fixed: bool) -> None:
        self.name, self.reader, self.screen, self.terminal, self.fixed = name, reader, screen, terminal, fixed
        self._pace = _Pace()

    def draw(self) -> "History":
        """Read what is new, and show the run as it is now. Raises BrokenPipeError where nobody looks any more."""
        from tinytf_cli.paint.painter import paint
        from tinytf_cli.views.blocks import Line, Span
        from tinytf_cli.views.run import LAYOUTS, RunView

        history = self.reader.read()
        columns, rows = self.screen.size
        terminal = self.terminal if self.fixed else replace(self.terminal, width=max(20, columns))
        left = history.seconds_left
        left = self._pace.seconds_left(history.last, history.steps) if left is None else left
        for layout in LAYOUTS:
            view = RunView(self.name, history, left, quiet_seconds(self.reader.directory), layout)
            lines = list(paint(view.blocks(terminal), terminal))
            if len(lines) < rows:
                break
        if len(lines) >= rows > 2:
            left_out = Line(Span(f"{len(lines) - rows + 2} more lines have no room here", "dim"))
            lines = [*lines[: rows - 2], *list(paint([left_out], terminal))[:1]]
        self.screen.draw(lines)
        return history
