"""The lines that a run writes: metrics of each step, and now and then its speed."""

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tinytf.errors import TrainingError
from tinytf.training.lines import append_line
from tinytf.training.probe import HeadScores

_PACE_SECONDS = 2.0


@dataclass(frozen=True)
class Metrics:
    """One line of metrics.jsonl: losses in nats per token, ``held_out_loss`` and ``heads`` only if measured.

    ``milestones`` are sentences about heads that became something, or ceased to be it.
    """

    step: int
    loss: float
    lr: float
    grad_norm: float
    held_out_loss: float | None = None
    heads: HeadScores | None = None
    milestones: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The line as it is written, without what was not measured."""
        data = {key: value for key, value in vars(self).items() if value is not None and value != ()}
        return {**data, "heads": self.heads.to_dict()} if self.heads is not None else data


class Pace:
    """Writes speed.jsonl, a line every two seconds; metrics.jsonl has nothing that depends on the machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._began = self._said = time.monotonic()
        self._tokens = 0

    def step(self, step: int, tokens: int, *, last: bool) -> float | None:
        """Count a step of so many tokens; the last is always written. Returns tokens per second, if written."""
        self._tokens += tokens
        now = time.monotonic()
        if now - self._said < _PACE_SECONDS and not last:
            return None
        speed = round(self._tokens / max(now - self._said, 1e-9), 1)
        data = {
            "step": step,
            "seconds": round(now - self._began, 3),
            "tokens_per_second": speed,
            "memory_bytes": psutil.Process().memory_info().rss,
        }
        self._tokens, self._said = 0, now
        with suppress(TrainingError):  # the run does not depend on it
            append_line(self.path, data)
        return speed
