"""Files written whole or not at all, never over an input or a model, and JSON files."""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tinytf.errors import CheckpointError, UsageError

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def write_whole(path: Path, data: bytes) -> None:
    """Write ``data`` beside ``path`` and rename it into place, so that no reader ever sees half of it.

    Links are followed. /dev/null, a named pipe and the like are written to as they are.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        with path.open("wb") as stream:
            stream.write(data)
        return
    with replacing(path) as beside, beside.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path beside ``path`` to write to; it replaces ``path`` on success and is removed otherwise."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield beside
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def refuse_overwriting(path: Path, inputs: Iterable[str | Path | int] = ()) -> None:
    """Raise UsageError where writing ``path`` would destroy an input, or change a model or a training run.

    ``inputs`` are paths, words that may be paths, and open file descriptors. A folder of a model or run, and the
    folders inside it, take no other file.
    """
    for place in dict.fromkeys((path.absolute(), path.resolve())):
        for folder in place.parents[:2]:
            if (kind := _kind_of(folder)) is not None:
                raise UsageError(f"{path} lies in the folder of a {kind}, {folder}", "write to another folder")
    if path.is_file():
        if path.suffix.lower() == ".gguf":
            raise UsageError(f"{path} is a model", "name another file")
        for given in inputs:
            if _is_same(path, given):
                raise UsageError(f"{path} is read by this command", "write to another file")


def _kind_of(folder: Path) -> str | None:
    """Whether a folder is that of a model or of a training run; None where it is neither."""

    def has(*names: str) -> bool:
        return any((folder / name).exists() for name in names)

    if has("recipe.json") and has("metrics.jsonl", ".lock"):
        return "training run"
    return "model" if has("config.json") and has("tokenizer.json", *_WEIGHTS) else None


def _is_same(path: Path, given: str | Path | int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.stat(given))
    except (OSError, ValueError):  # no such file, or a word that cannot name one
        return False


def flush_folder(path: Path) -> None:
    """Flush what was created, renamed or removed in a folder to the disk, on POSIX."""
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def to_json(data: object) -> bytes:
    """JSON as it is stored: UTF-8, indented, ending in a newline."""
    return (json.dumps(data, ensure_ascii=False, indent=2) + "\n").encode("utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; CheckpointError, naming file and place, when it is missing or is not one."""
    try:
        data = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"there is no {path.name} in {path.parent}") from None
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        message = f"{path} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        raise CheckpointError(message) from None
    except (RecursionError, ValueError) as error:  # nested too deeply, or a number of thousands of digits
        raise CheckpointError(f"{path} is not JSON that can be read: {error}") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} holds a {type(data).__name__}, not a JSON object")
    return data
