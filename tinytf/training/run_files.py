"""The folder of a training run: whether one is there, and what its small files say."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tinytf.checkpoints.run_config import checkpoint_step, checkpoints_of
from tinytf.errors import CheckpointError, UsageError
from tinytf.fields import Fields
from tinytf.files import read_json
from tinytf.training.history import Checkpoint, Speed
from tinytf.training.lines import number_or_nan, rows_in
from tinytf.training.samples import Sample, read_samples

METRICS, RECIPE, TOKENS, LOCK = "metrics.jsonl", "recipe.json", "tokens", ".lock"
_MODEL = r"config\.json | model\.safetensors | tokenizer\.json"
_MANIFEST = re.compile(
    rf"""(recipe | corpus)\.json | (metrics | samples | speed)\.jsonl | {_MODEL}
    | tokens/(index\.json | (train | held_out)\.bin)
    | checkpoints/\.?step-\d+(\.\d+\.(part | old))?/({_MODEL} | optimizer\.safetensors | training\.json)
    | tensorboard/events\.out\.tfevents\..*
    | piped/\d+\.txt""",
    re.VERBOSE,
)
"""The files that a run writes, from its folder on; no others are ever removed."""
_UNFINISHED = re.compile(r"(?:(?<=/)|^)\.([^/]+)\.\d+\.part$")
"""The name of a file while ``write_whole`` writes it."""


def is_run(directory: Path) -> bool:
    """Whether a folder is (or was meant to be) that of a training run."""
    return (directory / RECIPE).is_file() or (directory / METRICS).is_file()


def holds_run(directory: Path) -> bool:
    """Whether a folder holds a run that ``train`` began, and not only files of the same names."""
    try:
        return {"model", "steps", "block", "batch"} <= read_json(directory / RECIPE).keys()
    except CheckpointError:
        return False


def is_free(directory: Path) -> bool:
    """Whether a new run may use a folder: nothing is in it, or what a run leaves that is killed before it begins."""
    begun = (directory / LOCK).is_file()
    return all(
        begun and (name == LOCK or (written and (name.startswith(f"{TOKENS}/") or _UNFINISHED.search(name))))
        for name, written in _files_in(directory)
    )


def written_files(directory: Path) -> Iterator[Path]:
    """All files below the folder of a run, or of one checkpoint in it, that the run wrote."""
    run = directory if directory.parent.name != "checkpoints" else directory.parents[1]
    inside = directory.relative_to(run)
    for name, written in _files_in(run, inside):
        if written:
            yield run / name


def clear_leftovers(directory: Path) -> None:
    """Remove what a process left that was killed while it wrote a file, or wrote or removed a checkpoint."""
    _remove(
        path
        for path in written_files(directory)
        if _UNFINISHED.search(path.name) or path.parent.name.startswith(".step-")
    )
    for folder in directory.glob("checkpoints/.step-*"):
        with contextlib.suppress(OSError):  # not empty
            folder.rmdir()


def remove_run(directory: Path) -> None:
    """Remove what a run wrote, but for its tokens, which may be those of the next; what else is there stays."""
    _remove(path for path in written_files(directory) if path.parent.name != TOKENS)


def remove_checkpoint(place: Path) -> None:
    """Remove a checkpoint, out of sight first so that nobody sees half of it; files that no run wrote stay."""
    hidden = place.with_name(f".{place.name}.{os.getpid()}.old")
    place.replace(hidden)
    _remove(written_files(hidden))
    if hidden.exists():
        hidden.replace(place)


def _files_in(run: Path, inside: Path = Path()) -> Iterator[tuple[str, bool]]:
    """The name of every file in a folder of a run, from the run's own folder on, and whether a run writes such."""
    for folder, _, files in os.walk(run / inside):
        for file in files:
            name = (Path(folder) / file).relative_to(run).as_posix()
            yield name, _MANIFEST.fullmatch(_UNFINISHED.sub(r"\1", name)) is not None


def _remove(files: Iterator[Path]) -> None:
    """Remove files, and the folders that this leaves empty, up to that of the run."""
    for path in list(files):
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty
            path.parent.rmdir()
            if path.parent.name.startswith((".step-", "step-")):
                path.parents[1].rmdir()


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
    Fields(recipe, directory / RECIPE).whole("steps", least=1, most=2**63 - 1)
    return recipe


def checkpoints_in(directory: Path) -> list[Checkpoint]:
    """Models that are whole, by step; the one at the top comes last."""
    found = [Checkpoint(checkpoint_step(place), place) for place in checkpoints_of(directory)]
    found.append(Checkpoint(None, directory))
    return [one for one in found if all((one.path / name).is_file() for name in ("config.json", "model.safetensors"))]


def last_sample(path: Path, step: int) -> Sample | None:
    """The newest sample that is not of a step whose metrics were not there yet."""
    try:
        samples = [sample for sample in read_samples(path) if sample.step <= step]
    except OSError:
        return None
    return samples[-1] if samples else None


def read_speed(path: Path) -> Speed:
    """The lines of speed.jsonl that are whole; none where there is no such file."""
    rows: list[dict[str, Any]] = []
    with contextlib.suppress(OSError):
        rows = list(rows_in(path))
    seconds, tokens, memory = (
        np.array([number_or_nan(row.get(name)) for row in rows], dtype=np.float64)
        for name in ("seconds", "tokens_per_second", "memory_bytes")
    )
    return Speed(np.array([min(row["step"], 2**62) for row in rows], dtype=np.int64), seconds, tokens, memory)
