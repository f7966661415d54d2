"""Reading files that may be anything, a register of the files that were read, and the JSON in files.

A file that a command reads is known by its device and inode, whatever names and links lead to it, so that no output can
take its place. Files of an open model count for as long as the process runs, all others for the command.
"""

import errno
import json
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any

from tinytf.errors import CheckpointError, UsageError

MEBI = 2**20
SMALL, CONFIGURATION, TOKENIZER = 1 * MEBI, 16 * MEBI, 256 * MEBI
"""The most bytes of a file that somebody writes by hand, of a configuration, and of a tokenizer."""

_SECONDS_FOR_THE_OTHER_END = 5.0
_KINDS = {stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe", stat.S_ISCHR: "a device", stat.S_ISBLK: "a device",
          stat.S_ISSOCK: "a socket"}  # fmt: skip


_FileId = tuple[int, int]


@dataclass
class _Command:
    """The files that one command read, and those that it was asked to write, by device and inode."""

    read: dict[_FileId, Path] = field(default_factory=dict)
    written: set[_FileId] = field(default_factory=set)


_of_models: dict[_FileId, Path] = {}
"""The files of models that were opened: their weights may be mapped."""
_command: _Command | None = None
_opens_model = False


@contextmanager
def command_files() -> Iterator[None]:
    """Keep the files that a command reads and writes apart from those of the commands around it and after it."""
    global _command
    before, _command = _command, _Command()
    try:
        yield
    finally:
        _command = before


@contextmanager
def model_files() -> Iterator[None]:
    """Remember the files that are read inside as those of an open model."""
    global _opens_model
    before, _opens_model = _opens_model, True
    try:
        yield
    finally:
        _opens_model = before


def expect_unread(path: Path) -> None:
    """Let the running command no longer read a file, which it is going to write over."""
    if _command is not None and path.is_file():
        _command.written.add(_file_id(path.stat()))


def is_read(path: Path) -> bool:
    """Whether a file was read by the running command, or belongs to a model that was opened."""
    number = _file_id(path.stat())
    readers = [_of_models, *([] if _command is None else [_command.read])]
    # A number is given again once its file is gone: it counts while the name that was read still leads to it.
    return any(number in files and _leads_to(files[number], number) for files in readers)


def _leads_to(path: Path, number: _FileId) -> bool:
    try:
        return _file_id(path.stat()) == number
    except OSError:
        return False


def _file_id(status: os.stat_result) -> _FileId:
    return status.st_dev, status.st_ino


def reading(path: Path) -> Path:
    """Register a file that a library opens by its name, and return that. Raises as ``open_bytes`` does."""
    open_bytes(path).close()
    return path


def register_model(path: Path) -> None:
    """Register the file of a model, or all files in its folder: what is read of them later, by whichever library."""
    with model_files(), suppress(OSError):
        for place in path.iterdir() if path.is_dir() else [path]:
            if place.is_file():
                _register(place.stat(), place)


def read_standard_input() -> None:
    """Register the file that standard input comes from, if it is one."""
    try:
        descriptor = sys.stdin.fileno()
        status = os.fstat(descriptor)
    except (AttributeError, OSError, ValueError):  # closed, or in memory
        return
    if stat.S_ISREG(status.st_mode):
        _register(status, Path(f"/dev/fd/{descriptor}"))


def _register(status: os.stat_result, path: Path) -> None:
    """Remember that a file is read. Raises UsageError for one that the running command was asked to write."""
    number = _file_id(status)
    if _opens_model:
        _of_models[number] = path.absolute()
    if _command is not None:
        if number in _command.written:
            raise UsageError(f"{path} is read by this command", "write to another file")
        _command.read[number] = path.absolute()


def open_bytes(path: Path) -> BufferedReader:
    """A regular file, open for reading, and registered. Never waits for a pipe.

    Raises OSError that says what else it is, and UsageError for a file that the running command was asked to write.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError:  # a NUL in the name
        raise OSError(errno.EINVAL, "a file name cannot hold a NUL byte", str(path)) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = next((kind for is_it, kind in _KINDS.items() if is_it(status.st_mode)), "no file")
            raise OSError(errno.EINVAL, f"it is {kind}, not a file", str(path))
        _register(status, path)
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path, limit: int) -> bytes:
    """The bytes of a regular file of at most ``limit`` bytes. Raises OSError that says what else it is."""
    with open_bytes(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            said = f"it has {size:,} bytes, and the limit for such a file is {limit:,}"
            raise OSError(errno.EFBIG, said, str(path))
        # A read sets aside all that it is asked for. /proc gives no size, and None where nothing is there yet.
        return file.read(size or limit) or b""


def read_once(path: Path, limit: int) -> bytes:
    """Up to ``limit`` bytes of what cannot be read again, a pipe or a device.

    Waits some seconds for somebody to write to a pipe, and then for as long as they do. Raises OSError.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        is_pipe, until = stat.S_ISFIFO(os.fstat(descriptor).st_mode), time.monotonic() + _SECONDS_FOR_THE_OTHER_END
        while not (begin := stream.read(MEBI)) and is_pipe:
            if begin is None:  # nothing yet, but somebody has it open
                break
            if time.monotonic() > until:
                raise OSError(errno.ENXIO, "nobody writes to this pipe", str(path))
            time.sleep(0.01)
        os.set_blocking(descriptor, True)
        found = BytesIO(begin or b"")  # which gives what it holds without another copy
        found.seek(0, os.SEEK_END)
        while part := stream.read(min(MEBI, limit - found.tell())):
            found.write(part)
        return found.getvalue()


def is_there(path: str) -> bool:
    """Whether a file or folder has this name. Raises PermissionError where a folder above may not be looked into."""
    try:
        os.lstat(path)
    except PermissionError:
        raise
    except (OSError, ValueError):  # no such file, or a name that none can have
        return False
    return True


def resolved(path: Path) -> Path:
    """The absolute path behind all links; one that goes round in circles, or that cannot be, stays as it is."""
    try:
        return Path(os.path.realpath(path))
    except ValueError:  # a NUL in the name
        return path.absolute()


def to_json(data: object) -> bytes:
    """JSON as it is stored: UTF-8, indented, ending in a newline."""
    return (json.dumps(data, ensure_ascii=False, indent=2) + "\n").encode("utf-8")


def read_json(path: Path, limit: int = CONFIGURATION) -> dict[str, Any]:
    """A JSON object from a file of at most ``limit`` bytes.

    Raises CheckpointError, which names file and place, when it is missing, cannot be read, or is not one.
    """
    try:
        data = json.loads(read_bytes(path, limit).decode("utf-8"))
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
