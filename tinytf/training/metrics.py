"""What a run writes as it goes: a line a step, to go on with where it stopped; and beside it how fast it goes."""

import json
import math
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

from tinytf.errors import CheckpointError, TrainingError
from tinytf.files import write_whole
from tinytf.training.lines import json_or_none
from tinytf.training.probe import HeadScores

_PACE_SECONDS = 2.0


@dataclass(frozen=True)
class Metrics:
    """One line of metrics.jsonl: losses in nats a token, ``held_out_loss`` and ``heads`` only where they were measured.

    ``milestones`` are sentences about heads that have become something, or are it no longer.
    """

    step: int
    loss: float
    lr: float
    grad_norm: float
    held_out_loss: float | None = None
    heads: HeadScores | None = None
    milestones: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As it is written: without what was not measured."""
        data = {key: value for key, value in vars(self).items() if value is not None and value != ()}
        return {**data, "heads": self.heads.to_dict()} if self.heads is not None else data


def metrics_file(path: Path, step: int) -> IO[str]:
    """metrics.jsonl, open to go on behind ``step``: lines beyond it are of work that was lost, and will come again."""
    kept = []
    if step and path.exists():
        for line in path.read_text("utf-8").splitlines():
            row = json_or_none(line)
            if not isinstance(row, dict) or not row.get("step", math.inf) <= step:
                break  # torn by whatever ended the process, or of a later step
            kept.append(line)
        if len(kept) < step:
            raise CheckpointError(f"{path} has {len(kept):,} lines, and the newest checkpoint is of step {step:,}")
    write_whole(path, "".join(f"{line}\n" for line in kept).encode("utf-8"))
    return path.open("a", encoding="utf-8", newline="\n")


def write_line(lines: IO[str], data: dict[str, Any], out: Path) -> None:
    try:
        lines.write(json.dumps(data) + "\n")
        lines.flush()
    except OSError as error:
        raise TrainingError(
            f"cannot write to {out / 'metrics.jsonl'}: {error.strerror}", "make room, then go on with --resume"
        ) from None


class Pace:
    """Writes speed.jsonl now and then: how fast it goes depends on the machine, and has no part in metrics."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._began = self._said = time.monotonic()
        self._tokens = 0

    def step(self, step: int, tokens: int, *, last: bool) -> float | None:
        """Count a step of so many tokens; the last one is always written. Tokens a second, where they are."""
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
        with suppress(OSError), self.path.open("a", encoding="utf-8") as lines:  # the run does not depend on it
            lines.write(json.dumps(data) + "\n")
        return speed
