"""Reading files that may be anything, writing files whole, what must not be overwritten, and the JSON in files."""

import errno
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any

from tinytf.errors import CheckpointError, TinytfError, UsageError

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


MEBI = 2**20
SMALL, CONFIGURATION, TOKENIZER = 1 * MEBI, 16 * MEBI, 256 * MEBI
"""The most bytes of a file that somebody writes by hand, of a configuration, and of a tokenizer."""

_SECONDS_FOR_THE_OTHER_END = 5.0
_KINDS = {stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe", stat.S_ISCHR: "a device", stat.S_ISBLK: "a device",
          stat.S_ISSOCK: "a socket"}  # fmt: skip
_NO_ROOM = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))


def open_bytes(path: Path) -> BufferedReader:
    """A regular file, open for reading. Never waits for a pipe. Raises OSError that says what else it is."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError:  # a NUL in the name
        raise OSError(errno.EINVAL, "a file name cannot hold a NUL byte", str(path)) from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = next((kind for is_it, kind in _KINDS.items() if is_it(mode)), "no file")
        raise OSError(errno.EINVAL, f"it is {kind}, not a file", str(path))
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


def write_whole(path: Path, data: bytes | Iterable[bytes | memoryview]) -> int:
    """Write ``data``, whole or in parts, beside ``path`` and rename it into place; return how many bytes it has.

    So no reader ever sees half of it. Links are followed. A device or a named pipe is written to. Raises OSError for a
    pipe that nobody reads.
    """
    path = resolved(path)
    parts = [data] if isinstance(data, bytes) else data
    if path.exists() and not path.is_file():
        with os.fdopen(_open_to_write(path), "wb") as stream:
            return sum(map(stream.write, parts))
    with replacing(path) as beside, beside.open("wb") as stream:
        size = sum(map(stream.write, parts))
        stream.flush()
        os.fsync(stream.fileno())
    return size


def _open_to_write(path: Path) -> int:
    """A descriptor of a device or pipe; waits some seconds for a reader of a pipe, not for ever."""
    until = time.monotonic() + _SECONDS_FOR_THE_OTHER_END
    while True:
        try:
            descriptor = os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > until:
                raise OSError(errno.ENXIO, "nobody reads this pipe", str(path)) from None
            time.sleep(0.01)
        else:
            os.set_blocking(descriptor, True)
            return descriptor


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path beside ``path`` to write to; it replaces ``path`` on success and is removed otherwise.

    An OSError names ``path``: what the system says of a write names no file.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield beside
        beside.replace(path)
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


@contextmanager
def writing(path: Path, then: str = "", kind: type[TinytfError] = TinytfError) -> Iterator[None]:
    """Raise an OSError of a write inside as ``kind`` that names the file, or ``path`` where the system names none.

    The hint is what ``remedy`` makes of ``then``.
    """
    try:
        yield
    except OSError as error:
        said = f"cannot write {error.filename or path}: {error.strerror or error}"
        raise kind(said, remedy(error, then)) from None


@contextmanager
def filling(folder: Path) -> Iterator[None]:
    """Make a folder that is new or empty; on failure it is again as it was, and so are those above it.

    Raises UsageError for one that is not empty or cannot be made, TinytfError where a file in it cannot be written.
    """
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        with writing(folder, "give another folder", UsageError):
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise UsageError(f"{folder} is not empty", "give a folder that is new or empty")
        try:
            with writing(folder):
                yield
        except BaseException:
            with suppress(OSError):
                for path in folder.iterdir():
                    path.unlink()
            raise
    except BaseException:
        for place in made:
            with suppress(OSError):
                place.rmdir()
        raise


def refuse_overwriting(path: Path, inputs: Iterable[str | Path | int] = ()) -> None:
    """Raise UsageError where writing ``path`` would destroy an input, or change a model or a training run.

    ``inputs`` are paths, words that may be paths, and open file descriptors. A folder of a model or run, and the
    folders inside it, take no other file.
    """
    for place in dict.fromkeys((path.absolute(), resolved(path))):
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


def remedy(error: OSError, then: str) -> str:
    """What to do about a file that could not be written: make room where there is none, then what ``then`` says."""
    room = "make room" if error.errno in _NO_ROOM else ""
    return ", then ".join(filter(None, (room, then)))


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
