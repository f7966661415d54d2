"""Files with a JSON object a line, which grow while somebody reads them; free of torch."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def json_or_none(data: bytes | str) -> object:
    """What some JSON says; None where it is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def number_or_nan(value: object) -> float:
    """A number; NaN for what is none."""
    try:
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.nan


def rows_in(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file that say of which step they are; other lines are passed over. Raises OSError."""
    for line in path.read_bytes().splitlines():
        row = json_or_none(line)
        if isinstance(row, dict) and type(row.get("step")) is int:
            yield row
