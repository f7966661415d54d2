"""Files of a run that grow by a line of JSON per step: written in training, read meanwhile."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinytf.errors import TrainingError
from tinytf.files import parse_json, reading
from tinytf.outputs import appending, write_state, writing


def json_or_none(data: bytes | str) -> object:
    """Parse JSON; None if the data is not JSON."""
    try:
        return parse_json(data)
    except ValueError:
        return None


def number_or_nan(value: object) -> float:
    """A number; NaN for anything else."""
    try:
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.nan


def rows_in(path: Path) -> list[dict[str, Any]]:
    """The lines of a file that are objects with a step; none if the file cannot be read."""
    try:
        rows = map(json_or_none, reading(path).read_bytes().splitlines())
    except OSError:
        return []
    return [row for row in rows if isinstance(row, dict) and type(row.get("step")) is int]


def append_line(path: Path, row: Mapping[str, Any], *, sync: bool = False) -> None:
    """Append a line; ``sync`` flushes it to the disk. Raises TrainingError if it cannot be written."""
    errors = writing(path, "continue with --resume", TrainingError)
    with errors, appending(path) as lines:
        lines.write(f"{json.dumps(row)}\n".encode("ascii"))
        if sync:
            lines.flush()
            os.fsync(lines.fileno())


def sync_lines(path: Path) -> None:
    """Flush all lines to the disk. Raises TrainingError if that fails."""
    with writing(path, "continue with --resume", TrainingError), appending(path) as lines:
        os.fsync(lines.fileno())


def keep_lines(path: Path, step: int) -> int:
    """Remove damaged lines and lines after ``step``, whose work will be repeated. Returns how many lines stay.

    Raises OSError.
    """
    if not path.exists():
        return 0
    lines = []
    for line in reading(path).read_bytes().splitlines():
        row = json_or_none(line)
        if isinstance(row, dict) and type(row.get("step")) is int and 0 <= row["step"] <= step:
            lines.append(line + b"\n")
    write_state(path, b"".join(lines))
    return len(lines)
