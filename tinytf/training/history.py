"""What a training run has left so far: its recipe, a line a step, held-out losses, heads, milestones, speed.

Nothing here writes, and neither torch nor a weight is loaded, so that a run can be looked at while it goes on.
"""

import json
import math
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tinytf.config import ModelConfig
from tinytf.errors import CheckpointError, ConfigError, UsageError
from tinytf.files import read_json
from tinytf.training.samples import SAMPLES, Sample, read_samples

Series: TypeAlias = NDArray[np.float64]
Steps: TypeAlias = NDArray[np.int64]

METRICS, RECIPE, SPEED = "metrics.jsonl", "recipe.json", "speed.jsonl"
_CHUNK = 1 << 20
_TAIL = 256
_BLOCK = 256
_CHECKPOINT = re.compile(r"step-(\d{1,18})")


@dataclass(frozen=True)
class HeadScores:
    """One measurement of every head: ``scores[kind]`` is (layers, heads); a kind that was not measured is absent."""

    step: int
    scores: Mapping[str, Series]


@dataclass(frozen=True)
class Checkpoint:
    """A model that can be opened; ``step`` is None where nothing says after which step it was written."""

    step: int | None
    path: Path


@dataclass(frozen=True)
class Speed:
    """The lines of speed.jsonl side by side; ``seconds`` count from the start of the process that wrote them."""

    step: Steps
    seconds: Series
    tokens_per_second: Series
    memory_bytes: Series


@dataclass(frozen=True)
class History:
    """A run as far as it has come. ``step``, ``loss``, ``lr`` and ``grad_norm`` have one entry a logged step, (S,).

    What a line lacks is NaN. Where a run was taken up again at an earlier step, only the later lines of a step count.
    ``skipped`` lines were no metrics; a torn last line is not among them, since it may still be being written.
    ``config`` is None as long as there is no checkpoint, ``sample`` as long as there is none.
    """

    directory: Path
    recipe: Mapping[str, Any]
    step: Steps
    loss: Series
    lr: Series
    grad_norm: Series
    held_out: Sequence[tuple[int, float]] = ()
    heads: Sequence[HeadScores] = ()
    milestones: Sequence[tuple[int, str]] = ()
    speed: Speed = field(default_factory=lambda: _speed([]))
    sample: Sample | None = None
    checkpoints: Sequence[Checkpoint] = ()
    config: ModelConfig | None = None
    skipped: int = 0

    @property
    def steps(self) -> int:
        """How many steps the recipe plans."""
        return int(self.recipe["steps"])

    @property
    def last(self) -> int:
        """The last step that was logged; 0 before the first."""
        return int(self.step[-1]) if self.step.size else 0

    @property
    def finished(self) -> bool:
        return self.last >= self.steps

    @cached_property
    def best(self) -> tuple[int, float] | None:
        """Step and value of the lowest held-out loss; the earliest of equals."""
        finite = [point for point in self.held_out if math.isfinite(point[1])]
        return min(finite, key=lambda point: point[1]) if finite else None

    @property
    def tokens_per_second(self) -> float | None:
        """The speed that was measured last."""
        known = self.speed.tokens_per_second[np.isfinite(self.speed.tokens_per_second)]
        return float(known[-1]) if known.size else None

    @property
    def seconds_left(self) -> float | None:
        """What the remaining steps take at the pace of the last quarter of the speed lines; None without two of them.

        Only lines of one process are compared: its clock starts at 0.
        """
        if self.finished:
            return 0.0
        step, seconds = self.speed.step, self.speed.seconds
        if step.size < 2:
            return None
        restarts = np.flatnonzero((np.diff(seconds) <= 0) | (np.diff(step) <= 0)) + 1
        first = max(int(restarts[-1]) if restarts.size else 0, step.size - 2 - step.size // 4)
        if step.size - first < 2:
            return None
        pace = float(seconds[-1] - seconds[first]) / float(step[-1] - step[first])
        return pace * (self.steps - self.last) if math.isfinite(pace) else None

    @cached_property
    def smoothed(self) -> tuple[Steps, Series]:
        """Steps with a finite loss, and the loss there smoothed by :func:`smoothed`."""
        finite = np.isfinite(self.loss)
        return self.step[finite], smoothed(self.loss[finite])


def smoothed(values: Series, decay: float = 0.95) -> Series:
    """Exponential moving average with bias correction: mₜ = decay·mₜ₋₁ + (1 − decay)·xₜ from m₀ = 0, over 1 − decayᵗ.

    The correction (Kingma and Ba 2015, section 3) makes the first values means of what there is instead of pulling
    them to 0. ``values`` (S,) are finite. It is computed in blocks of 256, each one product with a triangular matrix.
    """
    size = values.shape[0]
    padded = np.zeros(-(-size // _BLOCK) * _BLOCK)
    padded[:size] = values
    place = np.arange(_BLOCK)
    within = (1 - decay) * np.tril(decay ** np.maximum(0, place[:, None] - place))  # (256, 256)
    parts = padded.reshape(-1, _BLOCK) @ within.T  # (blocks, 256), each as if nothing had come before
    before = np.zeros(len(parts))
    for block in range(1, len(parts)):
        before[block] = parts[block - 1, -1] + decay**_BLOCK * before[block - 1]
    parts += before[:, None] * decay ** (place + 1)
    corrected: Series = parts.reshape(-1)[:size] / (1 - decay ** np.arange(1, size + 1))
    return corrected


def is_run(directory: Path) -> bool:
    """Whether a folder is (or was meant to be) that of a training run."""
    return (directory / RECIPE).is_file() or (directory / METRICS).is_file()


def find_runs(folder: Path) -> list[Path]:
    """The folder itself if it is a run, else the runs one level below it, and two, sorted by path.

    UsageError when there is no such folder.
    """
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", "tinytf train makes one for every run")
    if is_run(folder):
        return [folder]
    try:
        patterns = [f"{level}/{name}" for level in ("*", "*/*") for name in (RECIPE, METRICS)]
        below = {path.parent for pattern in patterns for path in folder.glob(pattern)}
    except OSError as error:
        raise UsageError(f"cannot look through {folder}: {error.strerror}") from None
    return sorted(path for path in below if path.parent not in below)


def read_history(directory: Path) -> History:
    """All that a run directory says. UsageError when it is none, CheckpointError when it is damaged."""
    return RunReader(directory).read()


class RunReader:
    """Reads a run that may be going on: each ``read`` takes only what was added since the one before."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._restart()

    def _restart(self) -> None:
        self._offset, self._tail = 0, b""
        self._step, self._columns = array("q"), [array("d") for _ in _COLUMNS]
        self._extras: list[tuple[int, Mapping[str, Any]]] = []
        self._skipped = 0

    def read(self) -> History:
        """The run as it is now. UsageError when it is none, CheckpointError when it is damaged."""
        if not is_run(self.directory):
            why = f"neither {RECIPE} nor {METRICS} is in it" if self.directory.is_dir() else "there is no such folder"
            raise UsageError(f"{self.directory} is no run: {why}", "tinytf runs lists those that are there")
        recipe = _recipe(self.directory)
        checkpoints = _checkpoints(self.directory)
        if (self.directory / METRICS).is_file():
            self._read_metrics(self.directory / METRICS)
        elif checkpoints:
            raise CheckpointError(f"there is no {METRICS} in {self.directory}")
        if self._skipped and not self._step:
            raise CheckpointError(f"{self.directory / METRICS} holds no line of metrics")
        step = np.array(self._step, dtype=np.int64)
        # A line counts unless a later one has its step or an earlier one: there the run was taken up again.
        kept = np.ones(step.shape, dtype=bool)
        if step.size:
            kept[:-1] = step[:-1] < np.minimum.accumulate(step[::-1])[::-1][1:]
        loss, lr, grad_norm = (np.array(column)[kept] for column in self._columns)
        extras = [(int(step[row]), more) for row, more in self._extras if kept[row]]
        if step.size and step[-1] >= recipe["steps"]:  # the model at the top is then that of the last step
            ends = (Checkpoint(recipe["steps"] if c.step is None else c.step, c.path) for c in checkpoints)
            checkpoints = list(ends)
        return History(
            self.directory,
            recipe,
            step[kept],
            loss,
            lr,
            grad_norm,
            held_out=[(at, more["held_out_loss"]) for at, more in extras if "held_out_loss" in more],
            heads=[HeadScores(at, more["heads"]) for at, more in extras if "heads" in more],
            milestones=[(at, text) for at, more in extras for text in more.get("milestones", ())],
            speed=_read_speed(self.directory / SPEED),
            sample=_last_sample(self.directory / SAMPLES, int(step[-1]) if step.size else 0),
            checkpoints=checkpoints,
            config=_config(checkpoints),
            skipped=self._skipped,
        )

    def _read_metrics(self, path: Path) -> None:
        try:
            with path.open("rb") as stream:
                if not self._continues(stream.read, stream.seek):
                    self._restart()
                    stream.seek(0)
                while chunk := stream.read(_CHUNK):
                    while not chunk.endswith(b"\n") and (more := stream.readline()):
                        chunk += more
                    whole, _, torn = chunk.rpartition(b"\n")
                    if torn.strip() and isinstance(_object(torn), dict):  # the last line, only its end is missing
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
        rows = _object(b"[" + b",".join(lines) + b"]")
        try:
            if not isinstance(rows, list) or len(rows) != len(lines):
                raise ValueError
            step = array("q", [row["step"] for row in rows])
            columns = [array("d", [row[name] for row in rows]) for name in _COLUMNS]
        except (KeyError, TypeError, ValueError, OverflowError):
            for line in lines:
                self._take_one(_object(line))
            return
        first = len(self._step)
        self._step.extend(step)
        for column, values in zip(self._columns, columns, strict=True):
            column.extend(values)
        self._extras += [(first + i, more) for i, row in enumerate(rows) if len(row) > 4 and (more := _extras(row))]

    def _take_one(self, row: object) -> None:
        if not isinstance(row, dict) or type(row.get("step")) is not int or not 0 <= row["step"] < 2**63:
            self._skipped += 1
            return
        if more := _extras(row):
            self._extras.append((len(self._step), more))
        self._step.append(row["step"])
        for column, name in zip(self._columns, _COLUMNS, strict=True):
            column.append(_number(row.get(name)))


_COLUMNS = ("loss", "lr", "grad_norm")


def _object(data: bytes) -> object:
    """What some JSON says; None where it is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _number(value: object) -> float:
    """A number; NaN for what is none."""
    try:
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.nan


def _extras(row: Mapping[str, Any]) -> dict[str, Any]:
    """What only some lines have, as far as it is what it should be."""
    found: dict[str, Any] = {}
    if not math.isnan(held_out := _number(row.get("held_out_loss"))):
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


def _recipe(directory: Path) -> dict[str, Any]:
    recipe = read_json(directory / RECIPE)
    steps = recipe.get("steps")
    if type(steps) is not int or not 0 < steps < 2**63:
        raise CheckpointError(f"{directory / RECIPE} does not say how many steps there are to be: {steps!r}")
    return recipe


def _checkpoints(directory: Path) -> list[Checkpoint]:
    """Models that are whole, by step; the one at the top comes last."""

    def whole(path: Path) -> bool:
        return (path / "config.json").is_file() and (path / "model.safetensors").is_file()

    found = []
    for path in directory.glob("checkpoints/step-*"):
        name = _CHECKPOINT.fullmatch(path.name)
        if name and whole(path):
            found.append(Checkpoint(int(name[1]), path))
    found.sort(key=lambda one: one.step or 0)
    return [*found, Checkpoint(None, directory)] if whole(directory) else found


def _config(checkpoints: Sequence[Checkpoint]) -> ModelConfig | None:
    """The architecture, as the newest checkpoint says it."""
    if not checkpoints:
        return None
    path = checkpoints[-1].path / "config.json"
    fields = read_json(path).get("model")
    if not isinstance(fields, dict):
        raise CheckpointError(f"{path} has no 'model' object")
    try:
        return ModelConfig.from_dict(fields)
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error.message}", error.hint) from None


def _last_sample(path: Path, step: int) -> Sample | None:
    """The newest sample that is not of a step whose metrics were not there yet."""
    try:
        samples = [sample for sample in read_samples(path) if sample.step <= step]
    except OSError:
        return None
    return samples[-1] if samples else None


def _read_speed(path: Path) -> Speed:
    """The lines of speed.jsonl that are whole; none where there is no such file."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        lines = []
    rows = (_object(line) for line in lines)
    return _speed([row for row in rows if isinstance(row, dict) and type(row.get("step")) is int])


def _speed(rows: Sequence[Mapping[str, Any]]) -> Speed:
    seconds, tokens, memory = (
        np.array([_number(row.get(name)) for row in rows], dtype=np.float64)
        for name in ("seconds", "tokens_per_second", "memory_bytes")
    )
    return Speed(np.array([min(row["step"], 2**62) for row in rows], dtype=np.int64), seconds, tokens, memory)
