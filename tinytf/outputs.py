"""The one place that opens files for writing, makes folders, and renames or removes anything.

What a user names is an *output*: never a file that was read, never inside the folder of a model or run, and what stood
there keeps its mode. What a run, a cache or the history keeps for itself is *state*, in folders of its own. Both appear
whole: they are written beside their place, under a random name that nobody can have prepared, and renamed. A ``Fence``
holds what lines of a stranger's file may write.
"""

import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from platformdirs import user_cache_path, user_config_path, user_data_path, user_state_path

from tinytf.errors import TinytfError, UsageError
from tinytf.files import expect_unread, is_read, resolved

RESULTS = (".txt", ".json", ".ndjson", ".csv", ".html", ".svg", ".safetensors", ".npz", ".cast", ".session")
"""The extensions of files that lines of a stranger's file may write: nothing that any program runs."""

_SECONDS_FOR_A_READER = 5.0
_LONGEST_NAME = 255
"""Bytes of a file name, on all common file systems."""
_NO_ROOM = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


# What may be written


def expect_output(path: Path) -> None:
    """Declare the output of the running command before any work, as far as it must not be written over.

    From now on the command can no longer read that file. Raises as ``require_place`` does.
    """
    require_place(path)
    expect_unread(path)


def require_place(path: Path) -> None:
    """Raise UsageError where an output must not be written.

    Refused are files that were read, read-only files, GGUF models, anything in the folder of a model or training run or
    in a folder inside it, and whatever the fence does not permit.
    """
    require_outside(path)
    if path.is_file():
        if path.suffix.lower() == ".gguf":
            raise UsageError(f"{path} is a model", "name another file")
        if is_read(path):
            raise UsageError(f"{path} is read by this command", "write to another file")
        _require_writable(path)
    if _fence is not None:
        _fence.require_result(path)


def require_outside(path: Path) -> None:
    """Raise UsageError for a path in the folder of a model or training run, or in a folder inside one."""
    for place in dict.fromkeys((path.absolute(), resolved(path))):
        for folder in place.parents[:2]:
            if (kind := _kind_of(folder)) is not None:
                raise UsageError(f"{path} lies in the folder of a {kind}, {folder}", "write to another folder")


def _kind_of(folder: Path) -> str | None:
    """Whether a folder is that of a model or of a training run; None where it is neither."""

    def has(*names: str) -> bool:
        return any((folder / name).exists() for name in names)

    if has("recipe.json") and has("metrics.jsonl", ".lock"):
        return "training run"
    return "model" if has("config.json") and has("tokenizer.json", *_WEIGHTS) else None


def _require_writable(path: Path) -> None:
    """Raise UsageError for a file that its owner has made read-only, also where this process could replace it."""
    if not path.stat().st_mode & 0o222 or not os.access(path, os.W_OK):
        raise UsageError(f"{path} is read-only", "write to another file, or make it writable first")


class Fence:
    """What lines of a stranger's file may write: new files of results below ``folder``, or nothing where it is None.

    Nothing that begins with a dot, nothing in the folders of tinytf's own settings and state, and nothing that was
    there before they ran; what they made themselves they may replace and remove.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = None if folder is None else resolved(folder)
        self._made: set[Path] = set()

    def require_result(self, path: Path) -> None:
        """Raise UsageError for an output that the lines may not write."""
        self.require(path)
        if path.suffix.lower() not in RESULTS:
            raise UsageError(
                f"a file's lines may not write {path.name!r}: its extension is that of no result",
                f"known: {' '.join(RESULTS)}",
            )

    def require(self, path: Path) -> None:
        """Raise UsageError for a file or folder that the lines may not write or remove."""
        place = resolved(path.parent) / path.name
        if self._is_made(place):
            return
        if self.folder is None:
            raise UsageError(
                f"a file's lines may not write {str(path)!r}",
                "--write-to DIR lets them write new files below DIR, --allow-code lets them do all that you may",
            )
        if not place.is_relative_to(self.folder) or resolved(path) != place:
            raise UsageError(f"a file's lines may write only below {self.folder}, and {str(path)!r} is not")
        own = (user_config_path, user_data_path, user_state_path, user_cache_path)
        hidden = any(part.startswith(".") for part in place.relative_to(self.folder).parts)
        if hidden or any(place.is_relative_to(resolved(folder("tinytf", appauthor=False))) for folder in own):
            raise UsageError(f"a file's lines may write no hidden file and no settings: {str(path)!r}")
        if os.path.lexists(place):
            raise UsageError(f"a file's lines may not write over {str(path)!r}, which was there before")

    def made(self, path: Path) -> None:
        """Remember a file or folder that the lines made."""
        self._made.add(resolved(path.parent) / path.name)

    def _is_made(self, place: Path) -> bool:
        return not self._made.isdisjoint((place, *place.parents))


_fence: Fence | None = None


@contextmanager
def fenced(fence: Fence | None) -> Iterator[None]:
    """Let ``fence`` hold what is written inside; a fence that holds already stays, and None changes nothing."""
    global _fence
    before, _fence = _fence, _fence or fence
    try:
        yield
    finally:
        _fence = before


def is_fenced() -> bool:
    """Whether a stranger's lines are running, which may write nothing outside one folder."""
    return _fence is not None


def require_unfenced(what: str) -> None:
    """Raise UsageError where a stranger's lines are running, which may not do ``what``."""
    if _fence is not None:
        raise UsageError(f"a file's lines may not {what}", "--allow-code lets them do all that you may")


def _permit(path: Path) -> None:
    if _fence is not None:
        _fence.require(path)


def _made(path: Path) -> None:
    if _fence is not None:
        _fence.made(path)


# Writing


def write_output(path: Path, data: bytes | Iterable[bytes | memoryview]) -> int:
    """Write a file that a user named, whole or in parts; return how many bytes it has.

    It appears whole or not at all. Links are followed. A device or a named pipe is written to. Raises UsageError as
    ``require_place`` does, and OSError, also for a pipe that nobody reads.
    """
    require_place(path)
    parts = [data] if isinstance(data, bytes) else data
    if path.exists() and not path.is_file():
        with os.fdopen(_open_to_write(path), "wb") as stream:
            return sum(map(stream.write, parts))
    with replacing(resolved(path)) as stream:
        return sum(map(stream.write, parts))


def write_state(path: Path, data: bytes) -> None:
    """Write a file that a run, a cache or tinytf itself keeps; it appears whole. A link is replaced. Raises OSError."""
    with replacing(path) as stream:
        stream.write(data)


@contextmanager
def replacing(path: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """Yield a stream to a new file beside ``path``, which it replaces once it is on the disk, or else is removed.

    The new file has ``mode``, or that of the one that it replaces; where that is allowed, its owner too. An OSError
    names ``path``: what the system says of a write names no file. Raises UsageError for a read-only file.
    """
    _permit(path)
    with suppress(FileNotFoundError):
        _require_writable(path)
    place = beside(path)
    with _named(path):
        usual = mode is None and not os.path.lexists(path)
        descriptor = os.open(place, _NEW, 0o666 if usual else 0o600)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                _like(path, stream.fileno(), mode)
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(place, path)
        finally:
            with suppress(OSError):
                os.unlink(place)
    _made(path)


def link(source: Path, path: Path) -> None:
    """Give a file a second name, which replaces what had it; a copy where the file system has no links.

    Raises OSError.
    """
    _permit(path)
    place = beside(path)
    try:
        os.link(source, place)
    except OSError:
        with open(source, "rb") as stored, replacing(path) as stream:
            shutil.copyfileobj(stored, stream)
        return
    with _named(path):
        try:
            os.replace(place, path)
        finally:
            with suppress(OSError):
                os.unlink(place)  # a rename onto another name of the file does nothing
    _made(path)


@contextmanager
def appending(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a stream that adds to the end of a file that tinytf keeps, new with ``mode``. A link is not followed.

    Raises OSError.
    """
    _permit(path)
    with os.fdopen(os.open(path, _APPENDING, mode), "ab") as stream:
        yield stream


def beside(path: Path) -> Path:
    """A new place beside ``path``, hidden, with a random name that is as long as a file system takes."""
    end = f".{secrets.token_hex(8)}.part"
    begin = os.fsencode(path.name)[: _LONGEST_NAME - len(end) - 1]
    return path.with_name(f".{begin.decode('utf-8', 'ignore')}{end}")


def _like(path: Path, descriptor: int, mode: int | None) -> None:
    """Give an open file the owner of the file at ``path``, if there is one, and ``mode`` or that file's."""
    with suppress(FileNotFoundError):
        status = os.lstat(path)
        if stat.S_ISREG(status.st_mode) and hasattr(os, "fchmod"):
            with suppress(PermissionError):
                os.fchown(descriptor, status.st_uid, status.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(status.st_mode) if mode is None else mode)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Let an OSError inside name ``path``."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def _open_to_write(path: Path) -> int:
    """A descriptor of a device or pipe; waits some seconds for a reader of a pipe, not for ever."""
    until = time.monotonic() + _SECONDS_FOR_A_READER
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
def writing(path: Path, then: str = "", kind: type[TinytfError] = TinytfError) -> Iterator[None]:
    """Raise an OSError of a write inside as ``kind`` that names the file, or ``path`` where the system names none.

    The hint is what ``remedy`` makes of ``then``.
    """
    try:
        yield
    except OSError as error:
        message = f"cannot write {error.filename or path}: {error.strerror or error}"
        raise kind(message, remedy(error, then)) from None


def remedy(error: OSError, then: str) -> str:
    """What to do about a file that could not be written: make room where there is none, then what ``then`` says."""
    room = "make room" if error.errno in _NO_ROOM else ""
    return ", then ".join(filter(None, (room, then)))


# Folders, moving and removing


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder and those above it, where they are not there. Raises OSError."""
    missing = [place for place in (path, *path.parents) if not place.exists()]
    for place in missing:
        _permit(place)
    path.mkdir(mode, parents=True, exist_ok=True)
    for place in missing:
        _made(place)


@contextmanager
def filling(folder: Path) -> Iterator[None]:
    """Make a folder that is new or empty; on failure it is again as it was, and so are those above it.

    Raises UsageError for one that is not empty or cannot be made, TinytfError where a file in it cannot be written.
    """
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        with writing(folder, "give another folder", UsageError):
            make_folder(folder)
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
        for place in missing:
            with suppress(OSError):
                place.rmdir()
        raise


def move(source: Path, path: Path) -> None:
    """Rename a file or folder that tinytf keeps. Raises OSError."""
    _permit(source)
    _permit(path)
    source.replace(path)
    _made(path)


def remove(path: Path) -> None:
    """Remove a file that tinytf keeps, if it is there. Raises OSError."""
    _permit(path)
    path.unlink(missing_ok=True)


def remove_folder(path: Path) -> None:
    """Remove an empty folder that tinytf keeps. Raises OSError, also where it is not empty."""
    _permit(path)
    path.rmdir()


def remove_all(path: Path) -> None:
    """Remove a folder that tinytf made, with all that is in it, as far as it can be removed."""
    _permit(path)
    shutil.rmtree(path, ignore_errors=True)


def flush_folder(path: Path) -> None:
    """Flush what was created, renamed or removed in a folder to the disk, on POSIX."""
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
