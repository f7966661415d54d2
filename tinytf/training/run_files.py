"""The folder of a training run: whether one is there, and what its small files say."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tinytf.config import ModelConfig
from tinytf.errors import CheckpointError, ConfigError, UsageError
from tinytf.files import read_json
from tinytf.training.history import Checkpoint, Speed
from tinytf.training.metrics_reader import json_or_none, number_or_nan
from tinytf.training.samples import Sample, read_samples

METRICS, RECIPE, TOKENS, LOCK = "metrics.jsonl", "recipe.json", "tokens", ".lock"
_WRITTEN = (RECIPE, "corpus.json", METRICS, "samples.jsonl", "speed.jsonl")
_MODEL = ("config.json", "model.safetensors", "tokenizer.json")
_CHECKPOINT = re.compile(r"step-(\d{1,18})")


def is_run(directory: Path) -> bool:
    """Whether a folder is (or was meant to be) that of a training run."""
    return (directory / RECIPE).is_file() or (directory / METRICS).is_file()


def remove_run(directory: Path) -> None:
    """Take away what a run wrote, but for its tokens, which may be those of the next; what else is there stays."""
    for name in (*_WRITTEN, *_MODEL):
        (directory / name).unlink(missing_ok=True)
    for name in ("checkpoints", "tensorboard", "piped"):
        shutil.rmtree(directory / name, ignore_errors=True)


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


def recipe_of(directory: Path) -> dict[str, Any]:
    """The stored recipe. CheckpointError where it does not say how many steps there are to be."""
    recipe = read_json(directory / RECIPE)
    steps = recipe.get("steps")
    if type(steps) is not int or not 0 < steps < 2**63:
        raise CheckpointError(f"{directory / RECIPE} does not say how many steps there are to be: {steps!r}")
    return recipe


def checkpoints_in(directory: Path) -> list[Checkpoint]:
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


def config_of(checkpoints: Sequence[Checkpoint]) -> ModelConfig | None:
    """The architecture, as the newest checkpoint says it. CheckpointError where it is none."""
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


def last_sample(path: Path, step: int) -> Sample | None:
    """The newest sample that is not of a step whose metrics were not there yet."""
    try:
        samples = [sample for sample in read_samples(path) if sample.step <= step]
    except OSError:
        return None
    return samples[-1] if samples else None


def read_speed(path: Path) -> Speed:
    """The lines of speed.jsonl that are whole; none where there is no such file."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        lines = []
    found = (json_or_none(line) for line in lines)
    rows = [row for row in found if isinstance(row, dict) and type(row.get("step")) is int]
    seconds, tokens, memory = (
        np.array([number_or_nan(row.get(name)) for row in rows], dtype=np.float64)
        for name in ("seconds", "tokens_per_second", "memory_bytes")
    )
    return Speed(np.array([min(row["step"], 2**62) for row in rows], dtype=np.int64), seconds, tokens, memory)
