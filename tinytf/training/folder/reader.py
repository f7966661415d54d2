"""Read a run directory, also while the run is training: recipe, metrics, speed, latest sample, checkpoints.

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

BEFORE, HEADS_BEFORE = "held_out_before", "heads_before"
"""Fields of the first line: the held-out loss of the model that the run begins from, and the scores of its heads."""
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
        self._metrics = _MetricsReader()

    def read(self) -> History:
        """Read the run as it is now. Raises UsageError if it is not a run, CheckpointError if it is damaged."""
        if not is_run(self.directory):
            reason = (
                f"neither {RECIPE} nor {METRICS} is in it" if self.directory.is_dir() else "there is no such folder"
            )
            raise UsageError(f"{self.directory} is not a run: {reason}", "tinytf runs lists the runs")
        recipe = read_json(self.directory / RECIPE)
        steps = Fields(recipe, self.directory / RECIPE).whole("steps", least=1, most=2**63 - 1)
        checkpoints = _models_in(self.directory)
        if (self.directory / METRICS).is_file():
            self._metrics.read(self.directory / METRICS)
        elif checkpoints:
            raise CheckpointError(f"there is no {METRICS} in {self.directory}")
        step, (loss, lr, grad_norm), extras = self._metrics.lines()
        if self._metrics.skipped and not step.size:
            raise CheckpointError(f"{self.directory / METRICS} holds no metrics")
        last = int(step[-1]) if step.size else 0
        if last >= steps:  # the run's own model is then of the last step
            checkpoints = [SavedModel(steps if model.step is None else model.step, model.path) for model in checkpoints]
        samples = [sample for sample in read_samples(self.directory / SAMPLES) if sample.step <= last]  # with metrics
        return History(
            self.directory,
            recipe,
            step,
            loss,
            lr,
            grad_norm,
            held_out=[
                (line_step - 1 if name == BEFORE else line_step, extra[name])
                for line_step, extra in extras
                for name in (BEFORE, "held_out_loss")
                if name in extra
            ],
            seen=[(line_step, extra["seen_loss"]) for line_step, extra in extras if "seen_loss" in extra],
            copying=[(line_step, extra["copying"]) for line_step, extra in extras if "copying" in extra],
            updates=[(line_step, extra["updates"]) for line_step, extra in extras if extra.get("updates")],
            noise=[(line_step, *extra["noise"]) for line_step, extra in extras if "noise" in extra],
            heads=[
                (line_step - 1 if name == HEADS_BEFORE else line_step, extra[name])
                for line_step, extra in extras
                for name in (HEADS_BEFORE, "heads")
                if name in extra
            ],
            milestones=[(line_step, text) for line_step, extra in extras for text in extra.get("milestones", ())],
            health=[(line_step, extra["health"]) for line_step, extra in extras if "health" in extra],
            sizes=_read_sizes(self.directory / SIZES),
            speed=_read_speed(self.directory / SPEED),
            samples=samples,
            checkpoints=checkpoints,
            config=read_config(checkpoints[-1].path) if checkpoints else None,
            parameters=read_parameter_count(checkpoints[-1].path) if checkpoints else None,
            skipped=self._metrics.skipped,
            stopped=next((extra.get("stopped") for line_step, extra in reversed(extras) if line_step == last), None),
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


def _read_sizes(path: Path) -> dict[str, int]:
    """The sizes of the text in text.json; empty if the file is missing or damaged."""
    try:
        sizes = read_json(path)
    except (CheckpointError, OSError):
        return {}
    return {name: size for name, size in sizes.items() if type(size) is int and size >= 0}


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

    ``skipped`` counts lines that are not metrics, without a torn last line, which may still be incomplete.
    """

    def __init__(self) -> None:
        self._restart()

    def _restart(self) -> None:
        self._offset, self._tail = 0, b""
        self._step, self._columns = array("q"), [array("d") for _ in _COLUMNS]
        self._extras: list[tuple[int, Mapping[str, Any]]] = []
        self.skipped = 0

    def lines(self) -> tuple[Steps, list[Series], list[tuple[int, Mapping[str, Any]]]]:
        """Steps (S,), their loss, lr and grad_norm, (S,) each, and the fields that only some lines have, with the step.

        A line does not count if a later line has the same or an earlier step, because the run was resumed there.
        """
        step = np.array(self._step, dtype=np.int64)
        counts = np.ones(step.shape, dtype=bool)
        if step.size:
            counts[:-1] = step[:-1] < np.minimum.accumulate(step[::-1])[::-1][1:]
        extras = [(int(step[row]), extra) for row, extra in self._extras if counts[row]]
        return step[counts], [np.array(column)[counts] for column in self._columns], extras

    def read(self, path: Path) -> None:
        """Read the new lines. Raises CheckpointError if the file cannot be read."""
        try:
            with path.open("rb") as stream:
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
            raise CheckpointError(f"cannot read {path}: {error.strerror}") from None

    def _continues(self, stream: IO[bytes]) -> bool:
        """Whether the file still continues what was read; leaves the stream at the first new byte."""
        stream.seek(self._offset - len(self._tail))
        return stream.read(len(self._tail)) == self._tail

    def _add_lines(self, data: bytes) -> None:
        """Add complete lines to the columns; parses them all at once, or one by one if some are not JSON."""
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
            (index, extra)
            for index, row in enumerate(rows, len(self._step))
            if len(row) > 4 and (extra := _extras(row))
        ]
        self._step.extend(row["step"] for row in rows)
        for column, name in zip(self._columns, _COLUMNS, strict=True):
            values = (row.get(name) for row in rows)
            column.extend(value if type(value) is float else number_or_nan(value) for value in values)


def _extras(row: Mapping[str, Any]) -> dict[str, Any]:
    """The valid fields that only some lines have."""
    extras: dict[str, Any] = {}
    for name in (BEFORE, "held_out_loss", "seen_loss", "copying"):
        if not math.isnan(value := number_or_nan(row.get(name))):
            extras[name] = value
    if isinstance(row.get("stopped"), str):
        extras["stopped"] = row["stopped"]
    for name in ("heads", HEADS_BEFORE):
        if isinstance(row.get(name), dict) and (scores := _scores(row[name])):
            extras[name] = scores
    if isinstance(row.get("health"), dict) and (numbers := _numbers(row["health"])):
        extras["health"] = numbers
    if isinstance(row.get("updates"), dict):
        ratios = {name: number_or_nan(ratio) for name, ratio in row["updates"].items()}
        extras["updates"] = {name: ratio for name, ratio in ratios.items() if not math.isnan(ratio)}
    if isinstance(noise := row.get("noise"), dict):
        estimates = tuple(number_or_nan(noise.get(name)) for name in ("trace", "square"))
        if not any(map(math.isnan, estimates)):
            extras["noise"] = estimates
    if isinstance(row.get("milestones"), list) and (sentences := [t for t in row["milestones"] if isinstance(t, str)]):
        extras["milestones"] = sentences
    return extras


def _numbers(health: Mapping[str, Any]) -> dict[str, Series]:
    series = {}
    for name, values in health.items():
        with suppress(TypeError, ValueError):
            numbers = np.array(values, dtype=np.float64)
            if numbers.ndim == 1 and numbers.size:
                series[name] = numbers
    return series


def _scores(heads: Mapping[str, Any]) -> dict[str, Series]:
    series = {}
    for kind, rows in heads.items():
        with suppress(TypeError, ValueError):
            scores = np.array(rows, dtype=np.float64)
            if scores.ndim == 2 and scores.size:
                series[kind] = scores
    return series
