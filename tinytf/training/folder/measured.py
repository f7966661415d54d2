"""What only some lines of metrics.jsonl hold: columns of numbers, and values that are read when they are asked for.

A run measures thousands of times, and most readers ask for the last measurement or for none, so that values of many
numbers stay in the file: memory does not grow with what a line holds.
"""

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, overload

import numpy as np
from numpy.typing import NDArray

from tinytf.errors import CheckpointError
from tinytf.training.folder.history import Series, Steps, Thorough
from tinytf.training.folder.lines import json_or_none, number_or_nan

BEFORE = "held_out_before"
"""The field of the first line with the held-out loss of the model that the run begins from."""
Counts = NDArray[np.bool_]


class _Sequence(Sequence[Any]):
    """A sequence whose items are made when they are asked for; equal to a list of equal items."""

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return list(self._items(range(len(self))[index]))
        return next(self._items([range(len(self))[index]]))

    def __iter__(self) -> Iterator[Any]:
        return self._items(range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def _items(self, indices: Sequence[int]) -> Iterator[Any]:
        raise NotImplementedError


class Points(_Sequence):
    """Numbers with the step of their measurement: (step, number) or (step, number, number)."""

    def __init__(self, steps: Steps, numbers: Series) -> None:
        self._steps, self._numbers = steps, numbers

    def __len__(self) -> int:
        return len(self._steps)

    def _items(self, indices: Sequence[int]) -> Iterator[tuple[Any, ...]]:
        return ((int(self._steps[index]), *self._numbers[index].tolist()) for index in indices)


class Values(_Sequence):
    """Values with the step of their measurement, read from their lines of a file.

    Items raise CheckpointError if the file has changed since its lines were counted.
    """

    def __init__(self, path: Path, name: str, line_steps: Steps, starts: Steps, parts: Steps) -> None:
        self._path, self._name, self._line_steps = path, name, line_steps
        self._starts, self._parts = starts, parts

    def __len__(self) -> int:
        return len(self._starts)

    def _items(self, indices: Sequence[int]) -> Iterator[tuple[int, Any]]:
        if not indices:
            return
        try:
            with self._path.open("rb") as stream:
                for index in indices:
                    yield self._read(stream, index)
        except OSError as error:
            raise CheckpointError(f"cannot read {self._path}: {error.strerror}") from None

    def _read(self, stream: IO[bytes], index: int) -> tuple[int, Any]:
        step, part = int(self._line_steps[index]), int(self._parts[index])
        stream.seek(int(self._starts[index]))
        row = json_or_none(stream.readline())
        try:
            if not isinstance(row, dict) or row["step"] != step:
                raise KeyError
            extras = extras_of(row)
            if self._name == "milestones":
                return step, extras["milestones"][part]
            return (step - 1, extras[f"{self._name}_before"]) if part else (step, extras[self._name])
        except (KeyError, IndexError):
            raise CheckpointError(f"{self._path} changed while it was read", "read it again") from None


class PointColumn:
    """The numbers of one field as they are read, a number or more per line that has it."""

    def __init__(self) -> None:
        self._lines, self._before, self._numbers = array("q"), array("b"), array("d")

    def add(self, line: int, before: bool, numbers: float | tuple[float, ...]) -> None:
        """Add the numbers of a line; ``before``: of the step before the line's."""
        self._lines.append(line)
        self._before.append(before)
        self._numbers.extend(numbers if isinstance(numbers, tuple) else (numbers,))

    def points(self, counts: Counts, line_steps: Steps) -> Points:
        """The numbers of the lines that count."""
        lines = np.array(self._lines, dtype=np.int64)
        chosen = counts[lines]
        numbers = np.array(self._numbers).reshape(len(lines), -1) if len(lines) else np.zeros((0, 1))
        return Points((line_steps[lines] - np.array(self._before, dtype=np.int64))[chosen], numbers[chosen])


class ValueColumn:
    """Where the values of one field are, as their lines are read."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        self._lines, self._starts, self._parts = array("q"), array("q"), array("q")

    def parts(self, extras: Mapping[str, Any]) -> Sequence[int]:
        """The parts of a line that are values of this field: of milestones each; 1 for one from before the step."""
        if self._name == "milestones":
            return range(len(extras.get("milestones", ())))
        before = [1] if f"{self._name}_before" in extras else []
        return [*before, 0] if extras.get(self._name) else before

    def add(self, line: int, start: int, part: int) -> None:
        """Add a part of the line that begins at the byte ``start``."""
        self._lines.append(line)
        self._starts.append(start)
        self._parts.append(part)

    def values(self, counts: Counts, line_steps: Steps) -> Values:
        """The values of the lines that count."""
        lines, starts, parts = (np.array(each, dtype=np.int64) for each in (self._lines, self._starts, self._parts))
        chosen = counts[lines]
        return Values(self._path, self._name, line_steps[lines][chosen], starts[chosen], parts[chosen])


def extras_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The valid fields that only some lines have."""
    extras: dict[str, Any] = {}
    for name in (BEFORE, "held_out_loss", "held_out_exact", "seen_loss", "copying"):
        if not math.isnan(value := number_or_nan(row.get(name))):
            extras[name] = value
    if isinstance(row.get("stopped"), str):
        extras["stopped"] = row["stopped"]
    for name in ("thorough", "thorough_before"):
        if isinstance(line := row.get(name), dict) and not math.isnan(loss := number_or_nan(line.get("loss"))):
            exact = number_or_nan(line.get("exact"))
            batches = line["batches"] if type(line.get("batches")) is int else 0
            extras[name] = Thorough(loss, batches, None if math.isnan(exact) else exact)
    for name in ("heads", "heads_before"):
        if isinstance(row.get(name), dict) and (scores := _series(row[name], 2)):
            extras[name] = scores
    if isinstance(row.get("health"), dict) and (numbers := _series(row["health"], 1)):
        extras["health"] = numbers
    if isinstance(row.get("updates"), dict):
        ratios = {name: number_or_nan(ratio) for name, ratio in row["updates"].items()}
        extras["updates"] = {name: ratio for name, ratio in ratios.items() if not math.isnan(ratio)}
    if isinstance(noise := row.get("noise"), dict):
        estimates = tuple(number_or_nan(noise.get(name)) for name in ("trace", "square"))
        if not any(map(math.isnan, estimates)):
            extras["noise"] = estimates
    if shares := _series({"shares": row.get("experts")}, 2):
        extras["experts"] = shares
    if isinstance(shifts := row.get("shifts"), list) and len(shifts) == 3:
        losses = tuple(map(number_or_nan, shifts))
        if not any(map(math.isnan, losses)):
            extras["shifts"] = losses
    if isinstance(row.get("milestones"), list) and (sentences := [t for t in row["milestones"] if isinstance(t, str)]):
        extras["milestones"] = sentences
    return extras


def _series(columns: Mapping[str, Any], axes: int) -> dict[str, Series]:
    """The columns that are arrays of numbers with so many axes."""
    series = {}
    for name, values in columns.items():
        with suppress(TypeError, ValueError):
            numbers = np.array(values, dtype=np.float64)
            if numbers.ndim == axes and numbers.size:
                series[name] = numbers
    return series
