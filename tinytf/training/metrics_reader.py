"""metrics.jsonl while it is being written: every line is read once, and its numbers are kept in columns."""

import math
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tinytf.errors import CheckpointError
from tinytf.training.history import Series, Steps
from tinytf.training.lines import json_or_none, number_or_nan

_COLUMNS = ("loss", "lr", "grad_norm")
_CHUNK = 1 << 20
_TAIL = 256


class MetricsReader:
    """Takes of a file only what was added since it was read before; another file in its place is read anew.

    ``skipped`` lines were no metrics; a torn last line is not among them, since it may still be being written.
    """

    def __init__(self) -> None:
        self._restart()

    def _restart(self) -> None:
        self._offset, self._tail = 0, b""
        self._step, self._columns = array("q"), [array("d") for _ in _COLUMNS]
        self._extras: list[tuple[int, Mapping[str, Any]]] = []
        self.skipped = 0

    def lines(self) -> tuple[Steps, list[Series], list[tuple[int, Mapping[str, Any]]]]:
        """Steps (S,), their loss, lr and grad_norm, (S,) each, and with its step what only some lines have.

        A line counts unless a later one has its step or an earlier one: there the run was taken up again.
        """
        step = np.array(self._step, dtype=np.int64)
        kept = np.ones(step.shape, dtype=bool)
        if step.size:
            kept[:-1] = step[:-1] < np.minimum.accumulate(step[::-1])[::-1][1:]
        extras = [(int(step[row]), more) for row, more in self._extras if kept[row]]
        return step[kept], [np.array(column)[kept] for column in self._columns], extras

    def read(self, path: Path) -> None:
        """Take what is new. CheckpointError where the file cannot be read."""
        try:
            with path.open("rb") as stream:
                if not self._continues(stream.read, stream.seek):
                    self._restart()
                    stream.seek(0)
                while chunk := stream.read(_CHUNK):
                    while not chunk.endswith(b"\n") and (more := stream.readline()):
                        chunk += more
                    whole, _, torn = chunk.rpartition(b"\n")
                    if torn.strip() and isinstance(json_or_none(torn), dict):  # the last line, only its end is missing
                        whole, torn = chunk, b""
                    taken = len(chunk) - len(torn)
                    self._take(whole)
                    self._offset += taken
                    self._tail = (self._tail + chunk[:taken])[-_TAIL:]
                    if torn:  # its end may come while we are here, and belongs to it
                        break
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror}") from None

    def _continues(self, read: Any, seek: Any) -> bool:
        """Whether the file still begins with what was read; it is then left at the first new byte."""
        seek(self._offset - len(self._tail))
        return bool(read(len(self._tail)) == self._tail)

    def _take(self, data: bytes) -> None:
        """Whole lines into columns: all at once if every one is as it should be, else one by one."""
        lines = [line for line in data.split(b"\n") if line.strip()]
        rows = json_or_none(b"[" + b",".join(lines) + b"]")
        try:
            if not isinstance(rows, list) or len(rows) != len(lines):
                raise ValueError
            step = array("q", [row["step"] for row in rows])
            columns = [array("d", [row[name] for row in rows]) for name in _COLUMNS]
        except (KeyError, TypeError, ValueError, OverflowError):
            for line in lines:
                self._take_one(json_or_none(line))
            return
        first = len(self._step)
        self._step.extend(step)
        for column, values in zip(self._columns, columns, strict=True):
            column.extend(values)
        self._extras += [(first + i, more) for i, row in enumerate(rows) if len(row) > 4 and (more := _extras(row))]

    def _take_one(self, row: object) -> None:
        if not isinstance(row, dict) or type(row.get("step")) is not int or not 0 <= row["step"] < 2**63:
            self.skipped += 1
            return
        if more := _extras(row):
            self._extras.append((len(self._step), more))
        self._step.append(row["step"])
        for column, name in zip(self._columns, _COLUMNS, strict=True):
            column.append(number_or_nan(row.get(name)))


def _extras(row: Mapping[str, Any]) -> dict[str, Any]:
    """What only some lines have, as far as it is what it should be."""
    found: dict[str, Any] = {}
    if not math.isnan(held_out := number_or_nan(row.get("held_out_loss"))):
        found["held_out_loss"] = held_out
    if isinstance(row.get("heads"), dict) and (scores := dict(_scores(row["heads"]))):
        found["heads"] = scores
    if isinstance(row.get("milestones"), list) and (said := [t for t in row["milestones"] if isinstance(t, str)]):
        found["milestones"] = said
    return found


def _scores(heads: Mapping[str, Any]) -> Iterator[tuple[str, Series]]:
    for kind, rows in heads.items():
        if rows is None:
            continue
        try:
            scores = np.array(rows, dtype=np.float64)
        except (TypeError, ValueError):
            continue
        if scores.ndim == 2 and scores.size:
            yield kind, scores
