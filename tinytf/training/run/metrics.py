"""The lines that a run writes: metrics of each step, and its speed every two seconds."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tinytf.errors import TrainingError
from tinytf.text.printable import printable
from tinytf.training.film.probe import HeadScores
from tinytf.training.folder.history import Thorough
from tinytf.training.folder.lines import append_line
from tinytf.training.tuning.health import Health
from tinytf.training.tuning.noise import Noise

_PACE_SECONDS = 2.0


@dataclass(frozen=True)
class Metrics:
    """One line of metrics.jsonl: losses in nats per token, ``held_out_loss`` and ``heads`` only if measured.

    ``milestones`` are sentences about heads that took on or lost a kind; ``health`` comes with ``heads``. ``stopped``
    says why the run ends early. ``held_out_loss`` is always of the same few batches; ``thorough``, after the last step
    only, is of many more. On the first line only, ``held_out_before`` and ``thorough_before`` are of the model that the
    run begins from, and ``heads_before`` are the scores before the first step. ``held_out_exact`` is the share of
    held-out targets that a model of two stacks translates exactly. ``seen_loss``, measured with
    ``held_out_loss`` and likewise in evaluation mode, is of the training text; ``copying``, measured with ``heads``, is
    what a repetition of random tokens gains, in nats per token, ``updates`` the ratio of update and weights by
    matrix, and ``shifts`` those of ``shift_losses``. ``noise`` is of the gradient before clipping.
    """

    step: int
    loss: float
    lr: float
    grad_norm: float
    held_out_loss: float | None = None
    heads: HeadScores | None = None
    milestones: tuple[str, ...] = ()
    health: Health | None = None
    stopped: str | None = None
    held_out_before: float | None = None
    held_out_exact: float | None = None
    seen_loss: float | None = None
    copying: float | None = None
    updates: Mapping[str, float] | None = None
    shifts: tuple[float, ...] | None = None
    noise: Noise | None = None
    heads_before: HeadScores | None = None
    thorough: Thorough | None = None
    thorough_before: Thorough | None = None

    def to_dict(self) -> dict[str, Any]:
        """The fields of the line, except those that were not measured."""
        data = {key: value for key, value in vars(self).items() if value is not None and value != ()}
        measured: dict[str, Any] = {
            name: getattr(self, name).to_dict()
            for name in ("heads", "heads_before", "health", "noise", "thorough", "thorough_before")
            if name in data
        }
        return {**data, **measured}

    @classmethod
    def read(cls, line: Mapping[str, Any], groups: tuple[str, ...]) -> "Metrics":
        """Read a line of metrics.jsonl, for a model with these ``groups`` of weights.

        Raises TypeError, KeyError, ValueError or AttributeError for a line of any other form.
        """
        heads = {name: HeadScores.read(line[name]) for name in ("heads", "heads_before") if name in line}
        health = {"health": Health(groups, **line["health"])} if "health" in line else {}
        noise = {"noise": Noise(**line["noise"])} if "noise" in line else {}
        names = [name for name in ("thorough", "thorough_before") if name in line]
        thorough: dict[str, Any] = {name: Thorough(**line[name]) for name in names}
        numbers = {name: float(line[name]) for name in ("loss", "lr", "grad_norm")}
        words = tuple(printable(sentence, spaces=False) for sentence in line.get("milestones", ()))
        metrics = cls(**{**line, **numbers, "milestones": words, **heads, **health, **noise, **thorough})
        metrics.to_dict()  # raises if a score or a norm is not a number
        return metrics


class Pace:
    """Writes speed.jsonl, a line every two seconds; nothing in metrics.jsonl depends on the machine.

    A process begins with a line of 0 seconds. Tokens per second count only the time of steps, not of measuring
    the held-out text or writing checkpoints. The first line after two seconds also has the result of ``peak``, so that
    a short run does not wait for it.
    """

    def __init__(self, path: Path, peak: Callable[[], Mapping[str, float]] = dict) -> None:
        self.path, self._peak, self._has_peak = path, peak, False
        self._start = self._last_written = self._step_start = time.monotonic()
        self._tokens, self._step_seconds = 0, 0.0

    def begin(self, step: int) -> None:
        """Start the clock: the first step of this process is about to begin, after ``step`` earlier ones."""
        self._start = self._last_written = time.monotonic()
        self._write({"step": step, "seconds": 0.0})

    def step_begins(self) -> None:
        self._step_start = time.monotonic()

    def step_ends(self, tokens: int) -> None:
        """Count a finished step of the optimiser on ``tokens`` tokens."""
        self._tokens += tokens
        self._step_seconds += max(0.0, time.monotonic() - self._step_start)

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

    def _write(self, line: Mapping[str, Any]) -> None:
        with suppress(TrainingError):  # a run does not fail for its speed
            append_line(self.path, line)
