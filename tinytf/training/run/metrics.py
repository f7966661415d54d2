"""The lines that a run writes: metrics of each step, and now and then its speed."""

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
from tinytf.training.folder.lines import append_line
from tinytf.training.tuning.health import Health

_PACE_SECONDS = 2.0


@dataclass(frozen=True)
class Metrics:
    """One line of metrics.jsonl: losses in nats per token, ``held_out_loss`` and ``heads`` only if measured.

    ``milestones`` are sentences about heads that became something, or ceased to be it; ``health`` comes with ``heads``.
    ``stopped`` says why the run ends early. ``held_out_before`` is that of the model that a run begins from, on its
    first line.
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

    def to_dict(self) -> dict[str, Any]:
        """The line as it is written, without what was not measured."""
        data = {key: value for key, value in vars(self).items() if value is not None and value != ()}
        measured = {name: getattr(self, name).to_dict() for name in ["heads", "health"] if name in data}
        return {**data, **measured}

    @classmethod
    def read(cls, line: Mapping[str, Any], groups: tuple[str, ...]) -> "Metrics":
        """Those of a line as it is written, of a model with these ``groups`` of weights.

        Raises TypeError, KeyError, ValueError or AttributeError for what is no such line.
        """
        heads = {"heads": HeadScores.read(line["heads"])} if "heads" in line else {}
        health = {"health": Health(groups, **line["health"])} if "health" in line else {}
        numbers = {name: float(line[name]) for name in ("loss", "lr", "grad_norm")}
        words = tuple(printable(one, spaces=False) for one in line.get("milestones", ()))
        found = cls(**{**line, **numbers, "milestones": words, **heads, **health})
        found.to_dict()  # which needs numbers too
        return found


class Pace:
    """Writes speed.jsonl, a line every two seconds; metrics.jsonl has nothing that depends on the machine.

    A process begins with a line of 0 seconds. Tokens per second are those of the steps alone: measuring the held-out
    text and writing checkpoints pass between them. The first line after two seconds also has what ``peak`` measures,
    so that a short run does not wait for it.
    """

    def __init__(self, path: Path, peak: Callable[[], Mapping[str, float]] = dict) -> None:
        self.path, self._peak, self._peaked = path, peak, False
        self._began = self._said = self._step_began = time.monotonic()
        self._tokens, self._training = 0, 0.0

    def begin(self, step: int) -> None:
        """The first step of this process is about to begin, after ``step`` others."""
        self._began = self._said = time.monotonic()
        self._write({"step": step, "seconds": 0.0})

    def step_begins(self) -> None:
        self._step_began = time.monotonic()

    def step_ends(self, tokens: int) -> None:
        """The optimiser has made its step on so many tokens."""
        self._tokens += tokens
        self._training += max(0.0, time.monotonic() - self._step_began)

    def write(self, step: int, *, last: bool) -> float | None:
        """Write a line where one is due; after the last step it always is. Returns tokens per second, if written."""
        now = time.monotonic()
        if (now - self._said < _PACE_SECONDS and not last) or not self._training:
            return None
        speed = round(self._tokens / self._training, 1)
        memory = psutil.Process().memory_info().rss
        seconds = round(max(0.0, now - self._began), 3)
        more = {} if self._peaked or last else self._peak()
        self._peaked = True
        self._write({"step": step, "seconds": seconds, "tokens_per_second": speed, "memory_bytes": memory, **more})
        self._tokens, self._training, self._said = 0, 0.0, time.monotonic()
        return speed

    def _write(self, line: Mapping[str, Any]) -> None:
        with suppress(TrainingError):  # the run does not depend on it
            append_line(self.path, line)
