"""Where the text of a run is, so that it can go on without being told again: corpus.json in its folder."""

import json
import os
from pathlib import Path

from tinytf.errors import CheckpointError, UsageError
from tinytf.fields import Fields
from tinytf.files import read_json, write_whole
from tinytf.training.corpus import Corpus, find_files
from tinytf.training.stream import Source

CORPUS, PIPED = "corpus.json", "piped"


def remember(run: Path, corpus: Corpus) -> None:
    """Note absolute paths and checksums of the files; what came through a pipe is kept in the run. Raises OSError."""
    paths = [_kept(run, number, file.source) for number, file in enumerate(corpus.files)]
    both = zip(paths, corpus.files, strict=True)
    data = {"files": [{"path": path, "sha256": file.sha256} for path, file in both]}
    write_whole(run / CORPUS, (json.dumps(data, indent=2) + "\n").encode("ascii"))


def _kept(run: Path, number: int, source: Source) -> str:
    """The path of a text that has one, else that of a copy, from the folder of the run."""
    if source.path is not None:
        return os.path.abspath(source.path)
    place = Path(PIPED) / f"{number}.txt"
    (run / PIPED).mkdir(exist_ok=True)
    write_whole(run / place, source.data)
    return str(place)


def remembered(run: Path) -> Corpus | None:
    """The text that a run was begun with; None where it does not know.

    Raises UsageError for a file that is gone or is not what it was, CheckpointError for a damaged corpus.json.
    """
    if not (run / CORPUS).exists():
        return None
    files = _files(run)
    for path, _ in files:
        if not path.is_file():
            raise UsageError(f"{path}, which {run} was begun with, is gone", "name the files where they are now")
    corpus = find_files([path for path, _ in files])
    for file, (path, sha256) in zip(corpus.files, files, strict=True):
        if file.sha256 != sha256:
            raise UsageError(f"{path} is no longer what {run} was begun with", "name a copy of what it was")
    return corpus


def files_of(run: Path) -> list[Path]:
    """Where the files of the text that a run was begun with were then; none where it does not know."""
    return [path for path, _ in _files(run)] if (run / CORPUS).exists() else []


def _files(run: Path) -> list[tuple[Path, str]]:
    said = Fields(read_json(run / CORPUS), run / CORPUS, CheckpointError, "name the files again")
    files = (Fields(file, said.source, said.error, said.hint) for file in said.array("files", dict))
    return [(run / file.text("path"), file.text("sha256")) for file in files]
