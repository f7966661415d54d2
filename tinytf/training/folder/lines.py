"""Files of a run that grow by a JSON object a line, each with its step: written in training, read meanwhile."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinytf.errors import TrainingError
from tinytf.files import reading
from tinytf.outputs import appending, write_state, writing


def json_or_none(data: bytes | str) -> object:
    """The value of some JSON; None if it is not JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def number_or_nan(value: object) -> float:
    """A number; NaN for anything else."""
    try:
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.nan


def rows_in(path: Path) -> list[dict[str, Any]]:
    """The objects of a file that have a step; other lines are skipped, and a file that cannot be read has none."""
    try:
        rows = map(json_or_none, reading(path).read_bytes().splitlines())
    except OSError:
        return []
    return [row for row in rows if isinstance(row, dict) and type(row.get("step")) is int]


def append_line(path: Path, row: Mapping[str, Any], *, sync: bool = False) -> None:
    """Add a line, with ``sync`` onto the disk. Raises TrainingError where it cannot be written."""
    said = writing(path, "continue with --resume", TrainingError)
    with said, appending(path) as lines:
        lines.write(f"{json.dumps(row)}\n".encode("ascii"))
        if sync:
            lines.flush()
            os.fsync(lines.fileno())


def sync_lines(path: Path) -> None:
    """Make sure that all lines are on the disk. Raises TrainingError where they are not."""
    with writing(path, "continue with --resume", TrainingError), appending(path) as lines:
        os.fsync(lines.fileno())


def keep_lines(path: Path, step: int) -> int:
    """Remove the lines after ``step``, whose work will be repeated, and damaged ones. Returns how many stay.

    Raises OSError.
    """
    if not path.exists():
        return 0
    kept = []
    for line in reading(path).read_bytes().splitlines():
        row = json_or_none(line)
        if isinstance(row, dict) and type(row.get("step")) is int and 0 < row["step"] <= step:
            kept.append(line + b"\n")
    write_state(path, b"".join(kept))
    return len(kept)
