"""Read a run directory, also while the run is training: recipe, metrics, speed, latest sample, checkpoints.

Nothing here writes or imports torch, and each line of metrics.jsonl is read once.
"""

import math
from array import array
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tinytf.checkpoints.run_config import checkpoint_step, checkpoints_of, read_config, read_parameter_count
from tinytf.errors import CheckpointError, UsageError
from tinytf.fields import Fields
from tinytf.files import read_json
from tinytf.nearest import near_path
from tinytf.runs.history import History, Sample, SavedModel, Speed, Steps
from tinytf.runs.lines import json_or_none, number_or_nan, rows_in
from tinytf.runs.measured import FIELDS, Column
from tinytf.runs.run_files import METRICS, RECIPE, SAMPLES, SIZES, SPEED, is_run

_COLUMNS = ("loss", "lr", "grad_norm")
_CHUNK = 1 << 20
_TAIL = 256


def read_history(directory: Path) -> History:
    """Read everything in a run directory. Raises UsageError if it is not a run, CheckpointError if it is damaged."""
    return RunReader(directory).read()


class RunReader:
    """Reads a run that may be training: each ``read`` takes only what was added since the last one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._metrics = _MetricsReader(directory / METRICS)

    def read(self) -> History:
        """Read the run as it is now. Raises UsageError if it is not a run, CheckpointError if it is damaged."""
        if not is_run(self.directory):
            reason = (
                f"neither {RECIPE} nor {METRICS} is in it" if self.directory.is_dir() else "there is no such folder"
            )
            raise UsageError(
                f"{self.directory} is not a run: {reason}", near_path(self.directory) or "tinytf runs lists the runs"
            )
        recipe = read_json(self.directory / RECIPE)
        steps = Fields(recipe, self.directory / RECIPE).whole("steps", least=1, most=2**63 - 1)
        checkpoints = _models_in(self.directory)
        if (self.directory / METRICS).is_file():
            self._metrics.read()
        elif checkpoints:
            raise CheckpointError(f"there is no {METRICS} in {self.directory}")
        metrics = self._metrics
        step, counts = metrics.steps()
        loss, lr, grad_norm = (np.array(column)[counts] for column in metrics.columns)
        if self._metrics.skipped and not step.size:
            raise CheckpointError(f"{self.directory / METRICS} holds no metrics")
        last = int(step[-1]) if step.size else 0
        if last >= steps:  # the run's own model is then of the last step
            checkpoints = [SavedModel(steps if model.step is None else model.step, model.path) for model in checkpoints]
        samples = [sample for sample in read_samples(self.directory / SAMPLES) if sample.step <= last]  # with metrics
        sizes, baselines = _read_text(self.directory / SIZES)
        return History(
            self.directory,
            recipe,
            step,
            loss,
            lr,
            grad_norm,
            **metrics.measured(counts),
            sizes=sizes,
            baselines=baselines,
            speed=_read_speed(self.directory / SPEED),
            samples=samples,
            checkpoints=checkpoints,
            config=read_config(checkpoints[-1].path) if checkpoints else None,
            parameters=read_parameter_count(checkpoints[-1].path) if checkpoints else None,
            skipped=self._metrics.skipped,
            stopped=metrics.stopped[1] if metrics.stopped is not None and metrics.stopped[0] == last else None,
        )


def _models_in(directory: Path) -> list[SavedModel]:
    """The complete models of a run: its checkpoints by step, then the model of the run itself."""
    checkpoints = [SavedModel(checkpoint_step(folder), folder) for folder in checkpoints_of(directory)]
    files = ("config.json", "model.safetensors")
    return [
        model
        for model in (*checkpoints, SavedModel(None, directory))
        if all((model.path / name).is_file() for name in files)
    ]


def read_samples(path: Path) -> list[Sample]:
    """The samples of a file in order, without other lines; none if the file cannot be read."""
    return [
        Sample(row["step"], row["prompt"], row["text"])
        for row in rows_in(path)
        if isinstance(row.get("prompt"), str) and isinstance(row.get("text"), str)
    ]


def _read_text(path: Path) -> tuple[dict[str, int], dict[str, float]]:
    """The sizes and baselines of the text in text.json; empty if the file is missing or damaged."""
    try:
        sizes = read_json(path)
    except (CheckpointError, OSError):
        return {}, {}
    losses = sizes.get("baselines")
    found = {name: number_or_nan(loss) for name, loss in losses.items()} if isinstance(losses, dict) else {}
    return (
        {name: size for name, size in sizes.items() if type(size) is int and size >= 0},
        {name: loss for name, loss in found.items() if not math.isnan(loss)},
    )


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
    """Reads what was added to metrics.jsonl since the last read, into columns; a new file is read from its start.

    ``stopped`` is the last line that says why the run ended, with its step. ``skipped`` counts lines that are not
    metrics, without a torn last line, which may still be incomplete.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._restart()

    def _restart(self) -> None:
        self._offset, self._tail, self._step = 0, b"", array("q")
        self.columns = [array("d") for _ in _COLUMNS]
        self._measured = {field.column: Column(self._path) for field in FIELDS.values()}
        self.stopped: tuple[int, str] | None = None
        self.skipped = 0

    def steps(self) -> tuple[Steps, NDArray[np.bool_]]:
        """Steps (S,) of the lines that count, and which lines do.

        A line does not count if a later line has the same or an earlier step, because the run was resumed there.
        """
        step = np.array(self._step, dtype=np.int64)
        counts = np.ones(step.shape, dtype=bool)
        if step.size:
            counts[:-1] = step[:-1] < np.minimum.accumulate(step[::-1])[::-1][1:]
        return step[counts], counts

    def measured(self, counts: NDArray[np.bool_]) -> dict[str, Any]:
        """What the lines that count have measured, by the column of History."""
        steps = np.array(self._step, dtype=np.int64)
        return {name: column.of(counts, steps) for name, column in self._measured.items()}

    def read(self) -> None:
        """Read the new lines. Raises CheckpointError if the file cannot be read."""
        try:
            with self._path.open("rb") as stream:
                if not self._continues(stream):
                    self._restart()
                    stream.seek(0)
                while chunk := stream.read(_CHUNK):
                    while not chunk.endswith(b"\n") and (rest := stream.readline()):
                        chunk += rest
                    complete, _, torn = chunk.rpartition(b"\n")
                    if torn.strip() and isinstance(json_or_none(torn), dict):  # a complete line without its newline
                        complete, torn = chunk, b""
                    size = len(chunk) - len(torn)
                    self._add_lines(complete)
                    self._offset += size
                    self._tail = (self._tail + chunk[:size])[-_TAIL:]
                    if torn:  # the rest may be written while this reads
                        break
        except OSError as error:
            raise CheckpointError(f"cannot read {self._path}: {error.strerror}") from None

    def _continues(self, stream: IO[bytes]) -> bool:
        """Whether the file still continues what was read; leaves the stream at the first new byte."""
        stream.seek(self._offset - len(self._tail))
        return stream.read(len(self._tail)) == self._tail

    def _add_lines(self, data: bytes) -> None:
        """Add complete lines to the columns; parses them all at once, or one by one if some are not JSON."""
        lines = data.split(b"\n")
        starts = accumulate((len(line) + 1 for line in lines), initial=self._offset)
        filled = [(line, start) for line, start in zip(lines, starts, strict=False) if line.strip()]
        parsed = json_or_none(b"[" + b",".join(line for line, _ in filled) + b"]")
        if not isinstance(parsed, list) or len(parsed) != len(filled):
            parsed = [json_or_none(line) for line, _ in filled]
        for row, (_, start) in zip(parsed, filled, strict=True):
            if not isinstance(row, dict) or type(step := row.get("step")) is not int or not 0 <= step < 2**63:
                self.skipped += 1
                continue
            if len(row) > 4:
                for name, field in FIELDS.items():
                    if name in row:
                        self._measured[field.column].add(len(self._step), start, field, name, field.read(row[name]))
                if isinstance(row.get("stopped"), str):
                    self.stopped = step, row["stopped"]
            self._step.append(step)
            for column, name in zip(self.columns, _COLUMNS, strict=True):
                value = row.get(name)
                column.append(value if type(value) is float else number_or_nan(value))
