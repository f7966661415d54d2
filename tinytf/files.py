"""Files that are there whole or not at all, and the JSON in them."""

import json
import os
from pathlib import Path
from typing import Any

from tinytf.errors import CheckpointError


def write_whole(path: Path, data: bytes) -> None:
    """Write ``data`` beside ``path`` and rename it into place, so that no reader ever sees half of it.

    Links are followed. What is there and is no file, as /dev/null or a named pipe, is written to and stays what it is.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        with path.open("wb") as stream:
            stream.write(data)
        return
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def flush_folder(path: Path) -> None:
    """Make sure that what was created, renamed or removed in a folder is on the disk, where the system can tell."""
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
        raise CheckpointError(f"{path} is no JSON that a model has: {error}") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} holds a {type(data).__name__}, not a JSON object")
    return data
