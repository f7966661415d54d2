"""Reads a run directory, also while the run is training: recipe, metrics, speed, latest sample, checkpoints.

Nothing here writes or imports torch, and each line of metrics.jsonl is read once.
"""

import math
from array import array
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from tinytf.checkpoints.run_config import checkpoint_step, checkpoints_of, read_config, read_parameter_count
from tinytf.errors import CheckpointError, UsageError
from tinytf.fields import Fields
from tinytf.files import read_json
from tinytf.training.folder.history import History, Sample, SavedModel, Series, Speed, Steps
from tinytf.training.folder.lines import json_or_none, number_or_nan, rows_in
from tinytf.training.folder.run_files import METRICS, RECIPE, SAMPLES, SIZES, SPEED, is_run

BEFORE = "held_out_before"
"""Of the first line: the held-out loss of the model that the run begins from."""
_COLUMNS = ("loss", "lr", "grad_norm")
_CHUNK = 1 << 20
_TAIL = 256


def read_history(directory: Path) -> History:
    """All that a run directory says. Raises UsageError if it is not a run, CheckpointError if it is damaged."""
    return RunReader(directory).read()


class RunReader:
    """Reads a run that may be training: each ``read`` takes only what was added since the one before."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._metrics = _MetricsReader()

    def read(self) -> History:
        """The run as it is now. Raises UsageError if it is not a run, CheckpointError if it is damaged."""
        if not is_run(self.directory):
            why = f"neither {RECIPE} nor {METRICS} is in it" if self.directory.is_dir() else "there is no such folder"
            raise UsageError(f"{self.directory} is no run: {why}", "tinytf runs lists those that are there")
        recipe = read_json(self.directory / RECIPE)
        steps = Fields(recipe, self.directory / RECIPE).whole("steps", least=1, most=2**63 - 1)
        checkpoints = _checkpoints_in(self.directory)
        if (self.directory / METRICS).is_file():
            self._metrics.read(self.directory / METRICS)
        elif checkpoints:
            raise CheckpointError(f"there is no {METRICS} in {self.directory}")
        step, (loss, lr, grad_norm), extras = self._metrics.lines()
        if self._metrics.skipped and not step.size:
            raise CheckpointError(f"{self.directory / METRICS} holds no line of metrics")
        last = int(step[-1]) if step.size else 0
        if last >= steps:  # the model at the top is then that of the last step
            checkpoints = [SavedModel(steps if one.step is None else one.step, one.path) for one in checkpoints]
        samples = [one for one in read_samples(self.directory / SAMPLES) if one.step <= last]  # whose metrics are there
        return History(
            self.directory,
            recipe,
            step,
            loss,
            lr,
            grad_norm,
            held_out=[
                (at - 1 if name == BEFORE else at, more[name])
                for at, more in extras
                for name in (BEFORE, "held_out_loss")
                if name in more
            ],
            heads=[(at, more["heads"]) for at, more in extras if "heads" in more],
            milestones=[(at, text) for at, more in extras for text in more.get("milestones", ())],
            health=[(at, more["health"]) for at, more in extras if "health" in more],
            sizes=_read_sizes(self.directory / SIZES),
            speed=_read_speed(self.directory / SPEED),
            sample=samples[-1] if samples else None,
            checkpoints=checkpoints,
            config=read_config(checkpoints[-1].path) if checkpoints else None,
            parameters=read_parameter_count(checkpoints[-1].path) if checkpoints else None,
            skipped=self._metrics.skipped,
            stopped=next((more.get("stopped") for at, more in reversed(extras) if at == last), None),
        )


def _checkpoints_in(directory: Path) -> list[SavedModel]:
    """The complete models of a run by step, the one at its top last."""
    places = [SavedModel(checkpoint_step(place), place) for place in checkpoints_of(directory)]
    model = ("config.json", "model.safetensors")
    return [one for one in (*places, SavedModel(None, directory)) if all((one.path / name).is_file() for name in model)]


def read_samples(path: Path) -> list[Sample]:
    """The samples of a file in order; other lines are skipped, and a file that cannot be read has none."""
    return [
        Sample(row["step"], row["prompt"], row["text"])
        for row in rows_in(path)
        if isinstance(row.get("prompt"), str) and isinstance(row.get("text"), str)
    ]


def _read_sizes(path: Path) -> dict[str, int]:
    """What text.json says of the text; nothing where it is missing or damaged."""
    try:
        found = read_json(path)
    except (CheckpointError, OSError):
        return {}
    return {name: size for name, size in found.items() if type(size) is int and size >= 0}


def _read_speed(path: Path) -> Speed:
    rows = rows_in(path)
    seconds, tokens, memory = (
        np.array([number_or_nan(row.get(name)) for row in rows], dtype=np.float64)
        for name in ("seconds", "tokens_per_second", "memory_bytes")
    )
    peaks = [(number_or_nan(row.get("flops_per_token")), number_or_nan(row.get("peak_flops"))) for row in rows]
    peak = next((pair for pair in reversed(peaks) if not any(map(math.isnan, pair))), (None, None))
    return Speed(np.array([min(row["step"], 2**62) for row in rows], dtype=np.int64), seconds, tokens, memory, *peak)


class _MetricsReader:
    """Reads what was added to metrics.jsonl since it was read before, into columns; a new file is read from its start.

    ``skipped`` lines were no metrics; a torn last line is not among them, since it may still be incomplete.
    """

    def __init__(self) -> None:
        self._restart()

    def _restart(self) -> None:
        self._offset, self._tail = 0, b""
        self._step, self._columns = array("q"), [array("d") for _ in _COLUMNS]
        self._extras: list[tuple[int, Mapping[str, Any]]] = []
        self.skipped = 0

    def lines(self) -> tuple[Steps, list[Series], list[tuple[int, Mapping[str, Any]]]]:
        """Steps (S,), their loss, lr and grad_norm, (S,) each, and what only some lines have, with its step.

        A line counts unless a later one has the same step or an earlier one: there the run was resumed.
        """
        step = np.array(self._step, dtype=np.int64)
        kept = np.ones(step.shape, dtype=bool)
        if step.size:
            kept[:-1] = step[:-1] < np.minimum.accumulate(step[::-1])[::-1][1:]
        extras = [(int(step[row]), more) for row, more in self._extras if kept[row]]
        return step[kept], [np.array(column)[kept] for column in self._columns], extras

    def read(self, path: Path) -> None:
        """Read the new lines. Raises CheckpointError where the file cannot be read."""
        try:
            with path.open("rb") as stream:
                if not self._continues(stream):
                    self._restart()
                    stream.seek(0)
                while chunk := stream.read(_CHUNK):
                    while not chunk.endswith(b"\n") and (more := stream.readline()):
                        chunk += more
                    whole, _, torn = chunk.rpartition(b"\n")
                    if torn.strip() and isinstance(json_or_none(torn), dict):  # a complete line without its newline
                        whole, torn = chunk, b""
                    taken = len(chunk) - len(torn)
                    self._take(whole)
                    self._offset += taken
                    self._tail = (self._tail + chunk[:taken])[-_TAIL:]
                    if torn:  # its end may be written while this reads
                        break
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror}") from None

    def _continues(self, stream: IO[bytes]) -> bool:
        """Whether the file still begins with what was read; leaves it at the first new byte."""
        stream.seek(self._offset - len(self._tail))
        return stream.read(len(self._tail)) == self._tail

    def _take(self, data: bytes) -> None:
        """Complete lines into columns; they are parsed all at once, and one by one only if some are no JSON."""
        lines = [line for line in data.split(b"\n") if line.strip()]
        parsed = json_or_none(b"[" + b",".join(lines) + b"]")
        if not isinstance(parsed, list) or len(parsed) != len(lines):
            parsed = [json_or_none(line) for line in lines]
        rows = [
            row
            for row in parsed
            if isinstance(row, dict) and type(step := row.get("step")) is int and 0 <= step < 2**63
        ]
        self.skipped += len(parsed) - len(rows)
        self._extras += [
            (place, more) for place, row in enumerate(rows, len(self._step)) if len(row) > 4 and (more := _extras(row))
        ]
        self._step.extend(row["step"] for row in rows)
        for column, name in zip(self._columns, _COLUMNS, strict=True):
            values = (row.get(name) for row in rows)
            column.extend(value if type(value) is float else number_or_nan(value) for value in values)


def _extras(row: Mapping[str, Any]) -> dict[str, Any]:
    """The valid members that only some lines have."""
    found: dict[str, Any] = {}
    for name in (BEFORE, "held_out_loss"):
        if not math.isnan(held_out := number_or_nan(row.get(name))):
            found[name] = held_out
    if isinstance(row.get("stopped"), str):
        found["stopped"] = row["stopped"]
    if isinstance(row.get("heads"), dict) and (scores := _scores(row["heads"])):
        found["heads"] = scores
    if isinstance(row.get("health"), dict) and (numbers := _numbers(row["health"])):
        found["health"] = numbers
    if isinstance(row.get("milestones"), list) and (said := [t for t in row["milestones"] if isinstance(t, str)]):
        found["milestones"] = said
    return found


def _numbers(health: Mapping[str, Any]) -> dict[str, Series]:
    found = {}
    for name, values in health.items():
        with suppress(TypeError, ValueError):
            numbers = np.array(values, dtype=np.float64)
            if numbers.ndim == 1 and numbers.size:
                found[name] = numbers
    return found


def _scores(heads: Mapping[str, Any]) -> dict[str, Series]:
    found = {}
    for kind, rows in heads.items():
        with suppress(TypeError, ValueError):
            scores = np.array(rows, dtype=np.float64)
            if scores.ndim == 2 and scores.size:
                found[kind] = scores
    return found
