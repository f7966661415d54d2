"""The paths of a run's text, in corpus.json, so that the run resumes without naming its files again."""

import json
import os
from dataclasses import replace
from pathlib import Path

from tinytf.errors import CheckpointError, UsageError
from tinytf.fields import Fields
from tinytf.files import read_json
from tinytf.outputs import make_folder, write_state
from tinytf.runs.run_files import CORPUS, PIPED
from tinytf.text.corpus import Corpus, OnRead, Reading, find_files, ignore_progress


def remember(run: Path, corpus: Corpus) -> None:
    """Store absolute paths and checksums of the files; text from a pipe is copied into the run. Raises OSError."""
    files = []
    for number, file in enumerate(corpus.files):
        if file.source.path is not None:
            path = os.path.abspath(file.source.path)
        else:
            path = f"{PIPED}/{number}{Path(file.source.name).suffix or '.txt'}"
            make_folder(run / PIPED)
            write_state(run / path, file.source.data)
        files.append({"path": path, "sha256": file.sha256})
    write_state(
        run / CORPUS, (json.dumps({"files": files, "weights": corpus.weights}, indent=2) + "\n").encode("ascii")
    )


def find_remembered_corpus(run: Path, reading: Reading, on_read: OnRead = ignore_progress) -> Corpus | None:
    """The text that a run was started with, read as its recipe says; None if unknown.

    Raises UsageError for a file that is missing or has changed, CheckpointError for a damaged corpus.json.
    """
    if not (run / CORPUS).exists():
        return None
    files, weights = _read(run)
    for path, _ in files:
        if not path.is_file():
            raise UsageError(f"{path}, which {run} was started with, no longer exists", "name its new path")
    corpus = find_files([path for path, _ in files], reading, on_read=on_read)
    for file, (path, sha256) in zip(corpus.files, files, strict=True):
        if file.sha256 != sha256:
            raise UsageError(f"{path} is no longer what {run} was started with", "name an unchanged copy")
    return replace(corpus, weights=weights)


def files_of(run: Path) -> list[Path]:
    """The paths of a run's text when the run began; none if unknown."""
    return [path for path, _ in _read(run)[0]] if (run / CORPUS).exists() else []


def _read(run: Path) -> tuple[list[tuple[Path, str]], tuple[tuple[int, float], ...]]:
    """The files with their checksums, and the weights of a corpus. Raises CheckpointError."""
    fields = Fields(read_json(run / CORPUS), run / CORPUS, CheckpointError, "name the files again")
    parts = (Fields(file, fields.source, fields.error, fields.hint) for file in fields.array("files", dict))
    files = [(run / file.text("path"), file.text("sha256")) for file in parts]
    pairs = [tuple(pair) for pair in fields.array("weights", list, [])]
    numbers = all(len(pair) == 2 and type(pair[0]) is int and isinstance(pair[1], float) for pair in pairs)
    if not numbers or (pairs and sum(count for count, _ in pairs) != len(files)):
        raise CheckpointError(f"the weights in {run / CORPUS} do not match its files", "name the files again")
    return files, tuple(pairs)
