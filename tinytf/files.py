"""Reading files of any kind, a register of the files that were read, and JSON in files.

A file that a command reads is identified by its device and inode, whatever names and links lead to it, so that no
output can replace it. Files of an open model and scripts stay registered while the process runs, all others for the
command, and for the commands inside it, as the lines of a session are.
"""

import errno
import json
import os
import stat
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any

from tinytf.errors import CheckpointError, UsageError

MEBI = 2**20
SMALL, CONFIGURATION, TOKENIZER = 1 * MEBI, 16 * MEBI, 256 * MEBI
"""The most bytes of a file written by hand, of a configuration, and of a tokenizer."""

_SECONDS_FOR_THE_OTHER_END = 5.0
_KINDS = {stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe", stat.S_ISCHR: "a device", stat.S_ISBLK: "a device",
          stat.S_ISSOCK: "a socket"}  # fmt: skip


_FileId = tuple[int, int]


@dataclass
class _Command:
    """The files that one command read, and those that it is to write, by device and inode.

    It runs inside the ``outer`` one, if any.
    """

    outer: "_Command | None" = None
    read: dict[_FileId, Path] = field(default_factory=dict)
    written: set[_FileId] = field(default_factory=set)


_lasting: dict[_FileId, Path] = {}
"""The files of models that were opened, whose weights may be mapped, and the scripts that a session ran."""
_command: _Command | None = None
_is_lasting = ContextVar("_is_lasting", default=False)


@contextmanager
def command_files() -> Iterator[None]:
    """Keep the files that a command reads and writes separate from those of commands before and after it."""
    global _command
    previous, _command = _command, _Command(_command)
    try:
        yield
    finally:
        _command = previous


@contextmanager
def lasting_files() -> Iterator[None]:
    """Register the files that this thread reads inside for as long as the process runs."""
    previous = _is_lasting.get()
    _is_lasting.set(True)
    try:
        yield
    finally:
        _is_lasting.set(previous)


def expect_unread(path: Path) -> None:
    """Forbid the running command to read a file that it is going to write over."""
    if _command is not None and path.is_file():
        _command.written.add(_file_id(path.stat()))


def is_read(path: Path) -> bool:
    """Whether a file was read by the running command or those around it, is a script, or is of an open model."""
    file_id, readers, command = _file_id(path.stat()), [_lasting], _command
    while command is not None:
        readers.append(command.read)
        command = command.outer
    # An inode is reused once its file is gone, so it counts only while the path that was read still leads to it.
    return any(file_id in files and _leads_to(files[file_id], file_id) for files in readers)


def _leads_to(path: Path, file_id: _FileId) -> bool:
    try:
        return _file_id(path.stat()) == file_id
    except OSError:
        return False


def _file_id(status: os.stat_result) -> _FileId:
    return status.st_dev, status.st_ino


def reading(path: Path) -> Path:
    """Register a file that a library opens by its path, and return the path. Raises like ``open_bytes``."""
    open_bytes(path).close()
    return path


def register_model(path: Path) -> None:
    """Register the file of a model, or all files in its folder, since any library may read them later."""
    with lasting_files(), suppress(OSError):
        for file in path.iterdir() if path.is_dir() else [path]:
            if file.is_file():
                _register(file.stat(), file)


def lasting_paths() -> list[Path]:
    """The files of models that were opened, and the scripts that ran."""
    return list(_lasting.values())


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
    """Register a file as read. Raises UsageError for one that the running command is to write."""
    file_id = _file_id(status)
    if _is_lasting.get():
        _lasting[file_id] = path.absolute()
    if _command is not None:
        if file_id in _command.written:
            raise UsageError(f"{path} is read by this command", "write to another file")
        _command.read[file_id] = path.absolute()


def open_bytes(path: Path) -> BufferedReader:
    """A regular file, open for reading, and registered. Never waits for a pipe.

    Raises OSError, with the kind, for anything but a regular file, and UsageError for a file that the running command
    is to write.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError:  # a NUL in the name
        raise OSError(errno.EINVAL, "a file name cannot hold a NUL byte", str(path)) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = next((kind for is_kind, kind in _KINDS.items() if is_kind(status.st_mode)), "no file")
            number = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
            raise OSError(number, f"it is {kind}, not a file", str(path))
        _register(status, path)
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path, limit: int) -> bytes:
    """The bytes of a regular file of at most ``limit`` bytes. Raises OSError, also for anything else."""
    with open_bytes(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            message = f"it has {size:,} bytes, and the limit for such a file is {limit:,}"
            raise OSError(errno.EFBIG, message, str(path))
        # A read allocates the size it is given. Files of /proc have no size, and give None if nothing is there yet.
        return file.read(size or limit) or b""


def read_once(path: Path, limit: int) -> bytes:
    """Up to ``limit`` bytes from a pipe or device, which cannot be read twice.

    Waits a few seconds for a writer of a pipe, and then for as long as it writes. Raises OSError.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        is_pipe, deadline = stat.S_ISFIFO(os.fstat(descriptor).st_mode), time.monotonic() + _SECONDS_FOR_THE_OTHER_END
        while not (first := stream.read(MEBI)) and is_pipe:
            if first is None:  # nothing yet, but a writer has it open
                break
            if time.monotonic() > deadline:
                raise OSError(errno.ENXIO, "nobody writes to this pipe", str(path))
            time.sleep(0.01)
        os.set_blocking(descriptor, True)
        buffer = BytesIO(first or b"")  # its getvalue makes no copy
        buffer.seek(0, os.SEEK_END)
        while part := stream.read(min(MEBI, limit - buffer.tell())):
            buffer.write(part)
        return buffer.getvalue()


def path_exists(path: str) -> bool:
    """Whether a file or folder has this path. Raises PermissionError if a folder above cannot be searched."""
    try:
        os.lstat(path)
    except PermissionError:
        raise
    except (OSError, ValueError):  # no such file, or an impossible name
        return False
    return True


def resolve_links(path: Path) -> Path:
    """The absolute path behind all links; a circular or impossible path is only made absolute."""
    try:
        return Path(os.path.realpath(path))
    except ValueError:  # a NUL in the name
        return path.absolute()


def to_json(data: object) -> bytes:
    """JSON in the stored form: UTF-8, indented, ending in a newline."""
    return (json.dumps(data, ensure_ascii=False, indent=2) + "\n").encode("utf-8")


def parse_json(data: bytes | str) -> Any:
    """The value of a JSON text. Raises ValueError for any other text, and for one that is nested too deeply."""
    try:
        return json.loads(data)  # noqa: TID251 - the one place
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_toml(text: str, parse_float: Callable[[str], Any] = float) -> dict[str, Any]:
    """The table of a TOML text. Raises ValueError like ``parse_json``."""
    try:
        return tomllib.loads(text, parse_float=parse_float)  # noqa: TID251 - the one place
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path, limit: int = CONFIGURATION) -> dict[str, Any]:
    """A JSON object from a file of at most ``limit`` bytes.

    Raises CheckpointError, with the file and the position, if it is missing, unreadable, or not a JSON object.
    """
    data = _read_json(path, limit)
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} holds a {type(data).__name__}, not a JSON object")
    return data


def read_json_list(path: Path, limit: int = CONFIGURATION) -> list[dict[str, Any]]:
    """A list of JSON objects. Raises like ``read_json``."""
    data = _read_json(path, limit)
    if not isinstance(data, list) or not all(isinstance(entry, dict) for entry in data):
        raise CheckpointError(f"{path} is not a list of JSON objects")
    return data


def _read_json(path: Path, limit: int) -> Any:
    try:
        return parse_json(read_bytes(path, limit).decode("utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"there is no {path.name} in {path.parent}") from None
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        message = f"{path} is not JSON: {error.msg.removesuffix(' at')} at line {error.lineno}, column {error.colno}"
        raise CheckpointError(message) from None
    except ValueError as error:  # nested too deeply, or a number of thousands of digits
        raise CheckpointError(f"{path} is not JSON that can be read: {error}") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
