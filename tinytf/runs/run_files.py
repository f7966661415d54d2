"""The folder of a training run: recognise it, and know which of its files a run wrote and may remove."""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tinytf import kept
from tinytf.errors import CheckpointError, UsageError
from tinytf.files import read_json
from tinytf.nearest import near_path
from tinytf.outputs import move, remove, remove_folder, temporary_path

METRICS, SAMPLES, SPEED = kept.METRICS, "samples.jsonl", "speed.jsonl"
RECIPE, TOKENS, LOCK = kept.RECIPE, "tokens", kept.LOCK
CORPUS, PIPED = kept.CORPUS, "piped"
FRAMES, PROBES, SIZES = "frames", "probes.json", "text.json"
_MODEL = r"config\.json | model\.safetensors | tokenizer\.json"
_MANIFEST = re.compile(
    rf"""(recipe | corpus | text)\.json | (metrics | samples | speed)\.jsonl | {_MODEL}
    | tokens/(index\.json | (train | held_out)\.bin)
    | checkpoints/\.?step-\d+(\.[0-9a-f]+\.(part | old))?/
      ({_MODEL} | optimizer\.safetensors | training\.json | SHA256SUMS)
    | frames/(probes\.json | step-\d+\.safetensors | step-\d+/({_MODEL}))
    | tensorboard/events\.out\.tfevents\..*
    | adapter/adapter_(config\.json | model\.safetensors)
    | piped/\d+\.(txt | jsonl)""",
    re.VERBOSE,
)
"""The files that a run writes, relative to its folder; no others are ever removed."""
_BEFORE_RECIPE = (f"{TOKENS}/", f"{PIPED}/", CORPUS)
"""What a run writes before its recipe, with which it can be resumed."""
_FRAME = re.compile(r"step-(\d+)(?:\.safetensors)?")
_UNFINISHED = re.compile(r"(?:(?<=/)|^)\.([^/]+)\.[0-9a-f]+\.part$")
"""The name of a file while it is written, by this or an earlier version."""


def frame_step(path: Path) -> int:
    """The step in the name of a frame of the film; -1 for any other file."""
    match = _FRAME.fullmatch(path.name)
    return int(match[1]) if match else -1


def is_run(directory: Path) -> bool:
    """Whether a folder holds a training run, perhaps a damaged one."""
    return (directory / RECIPE).is_file() or (directory / METRICS).is_file()


def holds_run(directory: Path) -> bool:
    """Whether a folder holds a run that ``train`` began, not just files of the same names."""
    try:
        return {"model", "steps", "block", "batch"} <= read_json(directory / RECIPE).keys()
    except CheckpointError:
        return False


def is_stopped(directory: Path) -> bool:
    """Whether a process has trained in a folder and none does now: its lock is free. False if unknown."""
    try:
        import fcntl

        with (directory / LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # released when it is closed
    except (ImportError, OSError):
        return False
    return True


def is_free(directory: Path) -> bool:
    """Whether a new run may use a folder: it is empty, or holds what a run leaves if killed before it begins."""
    has_lock = (directory / LOCK).is_file()
    return all(
        has_lock and (name == LOCK or (written and (name.startswith(_BEFORE_RECIPE) or _UNFINISHED.search(name))))
        for name, written in _files_in(directory)
    )


def written_files(directory: Path) -> Iterator[Path]:
    """The files that a run wrote in its folder, or in the folder of a checkpoint."""
    run = directory if directory.parent.name != "checkpoints" else directory.parents[1]
    subfolder = directory.relative_to(run)
    for name, written in _files_in(run, subfolder):
        if written:
            yield run / name


def clear_leftovers(directory: Path) -> None:
    """Remove the leftovers of a process that was killed while it wrote a file, or wrote or removed a checkpoint.

    Raises UsageError if they cannot be removed.
    """
    with _removing(directory):
        _remove(
            path
            for path in written_files(directory)
            if _UNFINISHED.search(path.name) or path.parent.name.startswith(".step-")
        )
    for folder in directory.glob("checkpoints/.step-*"):
        with contextlib.suppress(OSError):  # not empty
            remove_folder(folder)


def remove_run(directory: Path) -> None:
    """Remove what a run wrote, except its tokens, which the next run may use; files that no run wrote stay.

    The recipe goes last but for the paths of the text, which it needs: it marks the folder as a run, so that an
    interrupted removal can be completed. Raises UsageError if something cannot be removed.
    """
    files = (path for path in written_files(directory) if path.parent.name != TOKENS)
    last = [directory / RECIPE, directory / CORPUS]

    def turn(path: Path) -> int:
        return 1 + last.index(path) if path in last else 2 * (path.parent == directory / PIPED)

    with _removing(directory):
        _remove(sorted(files, key=turn))


def remove_checkpoint(checkpoint: Path) -> None:
    """Remove a checkpoint, renaming it first so that nobody sees half of it; files that no run wrote stay."""
    hidden = temporary_path(checkpoint)
    move(checkpoint, hidden)
    _remove(written_files(hidden))
    if hidden.exists():
        move(hidden, checkpoint)


@contextlib.contextmanager
def _removing(directory: Path) -> Iterator[None]:
    """Turn an OSError of a removal in this context into a UsageError that names the file."""
    try:
        yield
    except OSError as error:
        message = f"cannot remove {error.filename or directory}: {error.strerror or error}"
        raise UsageError(message, "give another --out") from None


def _files_in(run: Path, subfolder: Path = Path()) -> Iterator[tuple[str, bool]]:
    """Every file in a folder of a run, by its name relative to the run, and whether runs write such a file."""
    for folder, _, files in os.walk(run / subfolder):
        for file in files:
            name = (Path(folder) / file).relative_to(run).as_posix()
            yield name, _MANIFEST.fullmatch(_UNFINISHED.sub(r"\1", name)) is not None


def _remove(files: Iterable[Path]) -> None:
    """Remove files, and the folders below the run that are empty afterwards."""
    for path in list(files):
        remove(path)
        with contextlib.suppress(OSError):  # not empty
            remove_folder(path.parent)
            if path.parent.name.startswith((".step-", "step-")):
                remove_folder(path.parents[1])


def find_runs(folder: Path) -> list[Path]:
    """The folder itself if it is a run, else the runs one and two levels below it, sorted by path.

    Raises UsageError for a folder that does not exist or cannot be read.
    """
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", near_path(folder) or "tinytf train makes one for every run")
    if is_run(folder):
        return [folder]
    try:
        patterns = [f"{level}/{name}" for level in ("*", "*/*") for name in (RECIPE, METRICS)]
        runs = {path.parent for pattern in patterns for path in folder.glob(pattern)}
    except OSError as error:
        raise UsageError(f"cannot look through {folder}: {error.strerror}") from None
    return sorted(path for path in runs if path.parent not in runs)
