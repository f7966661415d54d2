"""The fields that only some lines of metrics.jsonl have, in one table.

A run measures thousands of times, and most readers ask for the last measurement or for none, so values of many numbers
stay in the file until they are asked for.
"""

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, overload

import numpy as np
from numpy.typing import NDArray

from tinytf.errors import CheckpointError
from tinytf.runs.history import Series, Steps, Thorough
from tinytf.runs.lines import json_or_none, number_or_nan

Parts = list[tuple[Any, ...]]


def _numbers(values: Iterable[Any]) -> Parts:
    numbers = tuple(map(number_or_nan, values))
    return [] if any(map(math.isnan, numbers)) else [numbers]


def _number(value: Any) -> Parts:
    return _numbers([value])


def _noise(value: Any) -> Parts:
    return _numbers(map(value.get, ("trace", "square"))) if isinstance(value, dict) else []


def _shifts(value: Any) -> Parts:
    return _numbers(value) if isinstance(value, list) and len(value) == 3 else []


def _thorough(value: Any) -> Parts:
    if not isinstance(value, dict) or math.isnan(loss := number_or_nan(value.get("loss"))):
        return []
    exact, batches = number_or_nan(value.get("exact")), value.get("batches")
    return [(Thorough(loss, batches if type(batches) is int else 0, None if math.isnan(exact) else exact),)]


def _sentences(value: Any) -> Parts:
    return [(sentence,) for sentence in value if isinstance(sentence, str)] if isinstance(value, list) else []


def _ratios(value: Any) -> Parts:
    ratios = {name: number_or_nan(ratio) for name, ratio in value.items()} if isinstance(value, dict) else {}
    finite = {name: ratio for name, ratio in ratios.items() if not math.isnan(ratio)}
    return [(finite,)] if finite else []


def _series(columns: Any, axes: int) -> Parts:
    """The columns that are arrays of numbers with so many axes."""
    series: dict[str, Series] = {}
    for name, values in columns.items() if isinstance(columns, dict) else ():
        with suppress(TypeError, ValueError):
            numbers = np.array(values, dtype=np.float64)
            if numbers.ndim == axes and numbers.size:
                series[name] = numbers
    return [(series,)] if series else []


@dataclass(frozen=True)
class Field:
    """A field of a line: its ``column`` in History, the parts that ``read`` finds in it, and where they stay."""

    column: str
    read: Callable[[Any], Parts]
    before: bool = False
    """Whether it was measured before the step of its line."""
    in_file: bool = False


FIELDS = {
    "held_out_before": Field("held_out", _number, before=True),
    "held_out_loss": Field("held_out", _number),
    "held_out_exact": Field("exact", _number),
    "seen_loss": Field("seen", _number),
    "copying": Field("copying", _number),
    "noise": Field("noise", _noise),
    "shifts": Field("shifts", _shifts),
    "thorough_before": Field("thorough", _thorough, before=True, in_file=True),
    "thorough": Field("thorough", _thorough, in_file=True),
    "milestones": Field("milestones", _sentences, in_file=True),
    "updates": Field("updates", _ratios, in_file=True),
    "experts": Field("experts", lambda value: _series({"shares": value}, 2), in_file=True),
    "heads_before": Field("heads", lambda value: _series(value, 2), before=True, in_file=True),
    "heads": Field("heads", lambda value: _series(value, 2), in_file=True),
    "health": Field("health", lambda value: _series(value, 1), in_file=True),
}


_NAMES = list(FIELDS)


class Measured(Sequence[tuple[Any, ...]]):
    """What was measured, each with its step: numbers, or a value that is read from its line when it is asked for.

    ``rows`` have the numbers, or for fields ``in_file`` the byte where the line starts, the number of the field, and
    which of its parts. Equal to a list of equal items. Items raise CheckpointError if the file has changed since.
    """

    def __init__(self, path: Path, steps: Steps, rows: Series, in_file: bool) -> None:
        self._path, self._steps, self._rows, self._in_file = path, steps, rows, in_file

    def __len__(self) -> int:
        return len(self._steps)

    @overload
    def __getitem__(self, index: int) -> tuple[Any, ...]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[Any, ...]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return list(self._items(range(len(self))[index]))
        return next(self._items([range(len(self))[index]]))

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._items(range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def _items(self, indices: Sequence[int]) -> Iterator[tuple[Any, ...]]:
        if not self._in_file:
            yield from ((int(self._steps[index]), *self._rows[index].tolist()) for index in indices)
        elif indices:
            try:
                with self._path.open("rb") as stream:
                    for index in indices:
                        step = int(self._steps[index])
                        yield step, self._read(stream, step, *map(int, self._rows[index]))
            except OSError as error:
                raise CheckpointError(f"cannot read {self._path}: {error.strerror}") from None

    def _read(self, stream: IO[bytes], step: int, start: int, field: int, part: int) -> Any:
        stream.seek(start)
        row, name = json_or_none(stream.readline()), _NAMES[field]
        parts: Parts = []
        if isinstance(row, dict) and row.get("step") == step + FIELDS[name].before:
            parts = FIELDS[name].read(row.get(name))
        if part >= len(parts):
            raise CheckpointError(f"{self._path} changed while it was read", "read it again")
        return parts[part][0]


class Column:
    """What lines have measured for a column of History, as they are read."""

    def __init__(self, path: Path) -> None:
        self._path, self._lines, self._before, self._rows, self._in_file = (
            path,
            array("q"),
            array("b"),
            array("d"),
            False,
        )

    def add(self, line: int, start: int, field: Field, name: str, parts: Parts) -> None:
        """Add the parts of a field in a line that begins at the byte ``start``."""
        for number, part in enumerate(parts):
            self._lines.append(line)
            self._before.append(field.before)
            self._rows.extend((start, _NAMES.index(name), number) if field.in_file else part)
            self._in_file = field.in_file

    def of(self, counts: NDArray[np.bool_], steps: Steps) -> Measured:
        """What the lines that count have measured, of which all have ``steps``."""
        lines = np.array(self._lines, dtype=np.int64)
        rows = np.array(self._rows).reshape(len(lines), -1) if len(lines) else np.zeros((0, 1))
        chosen, measured_at = counts[lines], steps[lines] - np.array(self._before, dtype=np.int64)
        return Measured(self._path, measured_at[chosen], rows[chosen], self._in_file)
