"""The lines that a run writes: metrics of each step, and its speed every two seconds."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from tinytf.errors import CheckpointError, TrainingError
from tinytf.files import to_json
from tinytf.outputs import appending, write_state, writing
from tinytf.runs.lines import append_line, keep_lines, rows_in, sync_lines
from tinytf.runs.run_files import METRICS, RECIPE, SAMPLES, SIZES, SPEED
from tinytf.text.corpus import Corpus
from tinytf.training.data.setup import sizes_of
from tinytf.training.loop import Loop, Observer
from tinytf.training.metrics import Metrics
from tinytf.training.remembered import remember
from tinytf.training.tuning.health import groups_of

_PACE_SECONDS = 2.0


class Files(Observer):
    """Writes what a run says of its recipe and its text, and removes lines of steps that will be repeated."""

    def __init__(self, corpus: Corpus, on_note: Callable[[str], None]) -> None:
        self.corpus, self.on_note = corpus, on_note

    def begin(self, loop: Loop) -> None:
        super().begin(loop)
        loop.pending = self._pending()
        if not loop.group.writes:
            return
        out, done, at_step = loop.out, loop.progress.step, loop.recipe.at_step
        last = done - (loop.pending is not None)
        with writing(out, "continue with --resume", TrainingError):
            remember(out, self.corpus)  # before the recipe, with which the folder is a run that can be resumed
            write_state(out / RECIPE, to_json(loop.recipe.to_dict()))
            write_state(out / SIZES, to_json(sizes_of(loop.setup, loop.recipe)))
            keep_lines(out / SPEED, last)
            with appending(out / METRICS):  # create it now, even if empty
                pass
            lines = {METRICS: keep_lines(out / METRICS, last)}
            lines[SAMPLES] = keep_lines(out / SAMPLES, last - (done == at_step))  # the first sample is written again
        has_prompt = any(getattr(observer, "prompt", None) for observer in loop.observers)
        measured = sum("held_out_loss" in row for row in rows_in(out / METRICS)) if has_prompt else 0
        for name, expected in ((METRICS, last - at_step), (SAMPLES, measured)):
            if lines[name] < expected:
                self.on_note(f"{out / name} has {lines[name]:,} of {expected:,} lines; the rest are lost")

    def _pending(self) -> Metrics | None:
        """Metrics of a saved last step whose line was never written, because the process ended first."""
        progress, path = self.loop.progress, self.loop.out / METRICS
        if not progress.pending:
            return None
        try:
            pending = Metrics.read(progress.pending, tuple(groups_of(self.loop.model)))
            if pending.step != progress.step:
                raise ValueError
        except (TypeError, KeyError, ValueError, AttributeError):
            message = f"{self.loop.out}: 'pending' of training.json is not a line of metrics"
            raise CheckpointError(
                message, "remove the last checkpoint; --resume continues from the one before it"
            ) from None
        line = next((row for row in rows_in(path) if row["step"] == pending.step), None)
        if line is None:
            return pending
        progress.note_best(line.get("held_out_loss"), pending.step)
        return None


class Log(Observer):
    """Writes metrics.jsonl."""

    def step(self, line: Metrics) -> None:
        if self.loop.group.writes:
            append_line(self.loop.out / METRICS, line.to_dict(), sync=line.step == self.loop.recipe.steps)

    def flush(self) -> None:
        """Bring the lines to the disk."""
        if self.loop.group.writes:
            sync_lines(self.loop.out / METRICS)


class SpeedLog(Observer):
    """Writes speed.jsonl, a line every two seconds; nothing in metrics.jsonl depends on the machine.

    A process begins with a line of 0 seconds. Tokens per second count only the time of steps, not of measuring
    the held-out text or writing checkpoints. The first line after two seconds also has the result of ``peak``, so that
    a short run does not wait for it.
    """

    def __init__(self, path: Path, peak: Callable[[], Mapping[str, float]] = dict) -> None:
        self.path, self._peak, self._has_peak = path, peak, False
        self._start = self._last_written = time.monotonic()
        self._tokens, self._step_seconds = 0, 0.0

    def begin(self, loop: Loop) -> None:
        super().begin(loop)
        if loop.progress.step < loop.recipe.steps:
            self.start(loop.progress.step)

    def start(self, step: int) -> None:
        """Start the clock: the first step of this process is about to begin, after ``step`` earlier ones."""
        self._start = self._last_written = time.monotonic()
        self._write({"step": step, "seconds": 0.0})

    def step(self, line: Metrics) -> None:
        if line.seconds:
            self.count(line.tokens, line.seconds)
        line.tokens_per_second = self.write(line.step, last=line.step == self.loop.recipe.steps)

    def count(self, tokens: int, seconds: float) -> None:
        """Count a finished step of the optimiser on ``tokens`` tokens."""
        self._tokens += tokens
        self._step_seconds += seconds

    def write(self, step: int, *, last: bool) -> float | None:
        """Write a line if it is due, or if the step is the ``last``. Returns tokens per second, if written."""
        now = time.monotonic()
        if (now - self._last_written < _PACE_SECONDS and not last) or not self._step_seconds:
            return None
        speed = round(self._tokens / self._step_seconds, 1)
        memory = psutil.Process().memory_info().rss
        seconds = round(max(0.0, now - self._start), 3)
        peak = {} if self._has_peak or last else self._peak()
        self._has_peak = True
        self._write({"step": step, "seconds": seconds, "tokens_per_second": speed, "memory_bytes": memory, **peak})
        self._tokens, self._step_seconds, self._last_written = 0, 0.0, time.monotonic()
        return speed

    def _write(self, line: Mapping[str, float]) -> None:
        with suppress(TrainingError):  # a run does not fail for its speed
            append_line(self.path, line)
