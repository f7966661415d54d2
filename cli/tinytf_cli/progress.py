"""Progress of a training run on stderr: a board on a terminal, elsewhere a line every few seconds."""

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from tinytf.files import resolve_links
from tinytf.runs.reader import RunReader
from tinytf.text.printable import printable
from tinytf.training.data.setup import Setup
from tinytf.training.loop import Observer
from tinytf.training.metrics import Metrics
from tinytf_cli.board import Board, takes_pictures
from tinytf_cli.screen import Screen
from tinytf_cli.terminal import detect
from tinytf_cli.views.run import resuming
from tinytf_cli.working import CountedLine

_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_BETWEEN_PICTURES = 2.0
_SECONDS_BEFORE_PREPARING, _SECONDS_BETWEEN_UPDATES = 1.0, 0.2
_WIDEST = 78


class TrainingProgress(Observer):
    """Shows how far a run is. Off a terminal, at most one line every few seconds."""

    reads_files = True

    def __init__(self, steps: int, out: Path, stream: TextIO | None = None) -> None:
        self.steps, self.out, self.stream = steps, out, stream or sys.stderr
        self.started = self.reported_at = time.monotonic()
        self.first_step: int | None = None
        self.terminal = detect(self.stream)
        self.board: Board | None = None
        self.task, self.on_line = "", False
        self.counting: CountedLine | None = None

    def prepare(self, task: str, done: int, total: int) -> None:
        """Report work before the first step or after the last: ``done`` out of ``total`` (0: unknown).

        A terminal shows it on the board, or on one line that is overwritten and counts seconds if ``total`` is unknown.
        Elsewhere a line appears every few seconds, from the second second on.
        """
        now = time.monotonic()
        if total and now - self.started < _SECONDS_BEFORE_PREPARING:
            return
        between = _SECONDS_BETWEEN_UPDATES if self.stream.isatty() else _SECONDS_BETWEEN_LINES
        if (task == self.task or self.first_step is not None) and now - self.reported_at < between:
            return
        self.reported_at, self.task = now, task
        message = task + (f", {done / total:.0%} of {total:,}" if total else " …")
        line = f"tinytf: {message}"
        if self.board is not None:
            self.board.draw(message)
        elif self.stream.isatty() and not total:
            self.clear()
            self.counting = CountedLine(task, self.stream)
            self.counting.start()
        elif self.stream.isatty():
            if self.counting is not None:
                self.clear()
            self.on_line = True
            print(f"\r{line:<{_WIDEST}}", end="", file=self.stream, flush=True)
        else:
            self._line(line)

    def step(self, line: Metrics) -> None:
        if self.loop.group.writes:
            with suppress(OSError):  # a closed terminal must not stop the training
                self._update(line, self.loop.setup)

    def _update(self, metrics: Metrics, setup: Setup) -> None:
        now = time.monotonic()
        if self.first_step is None:
            count = sum(p.numel() for p in setup.model.parameters())
            self._line(f"{setup.model.config.kind}, {count:,} parameters, {setup.tokenizer.vocab_size:,} tokens")
            self.started, self.first_step = now, metrics.step
            if takes_pictures(self.terminal):
                name = resolve_links(self.out).name
                self.board = Board(name, RunReader(self.out), Screen(self.stream), self.terminal, fixed=False)
        if self.board is not None:
            if now - self.reported_at >= _SECONDS_BETWEEN_PICTURES or metrics.step == self.steps:
                self.board.draw()
                self.reported_at = time.monotonic()
            return
        for words in metrics.milestones:
            self._line(f"step {metrics.step}: {words}")
        if metrics.held_out_loss is None and now - self.reported_at < _SECONDS_BETWEEN_LINES:
            return
        self.reported_at = now
        done = metrics.step - self.first_step
        time_left = f"  {(now - self.started) / done * (self.steps - metrics.step) / 60:.1f} min left" if done else ""
        held_out = "" if metrics.held_out_loss is None else f"  held-out {metrics.held_out_loss:.4f}"
        if metrics.held_out_exact is not None:
            held_out += f"  exact {100 * metrics.held_out_exact:.1f} %"
        text = f"step {metrics.step}/{self.steps}  loss {metrics.loss:.4f}  lr {metrics.lr:.2e}{held_out}"
        self._line(f"{text}{time_left}")

    def _line(self, text: str) -> None:
        self.clear()
        print(text, file=self.stream, flush=True)

    def clear(self) -> None:
        """Erase the line that ``prepare`` wrote."""
        if self.counting is not None:
            self.counting.stop()
            self.counting = None
        if self.on_line:
            print(f"\r{'':<{_WIDEST}}\r", end="", file=self.stream, flush=True)
            self.on_line = False

    def finish(self, step: int) -> None:
        minutes = (time.monotonic() - self.started) / 60
        folder = printable(str(self.out), spaces=False)
        if step < self.steps:
            self._line(f"tinytf: stopped {folder} at step {step:,} of {self.steps:,}; {resuming(self.out)} continues")
        else:
            self._line(f"tinytf: wrote {folder} after {minutes:.1f} minutes")
