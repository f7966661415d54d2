"""The only module that opens files for writing, makes folders, and renames or removes anything.

A file that a user names is an *output*: never a file that was read, never inside a kept folder (``kept``), and a
replaced file keeps its mode. A file that a run, a cache or the history keeps for itself is *state*, in folders of its
own. Both appear whole: they are written next to their path, under a random name that nobody can have prepared, and
renamed. A ``Fence`` limits what lines of a stranger's file may write.
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
from tinytf.files import expect_unread, is_read, resolve_links
from tinytf.kept import Kept, kept_above

RESULTS = (
    ".txt", ".json", ".ndjson", ".csv", ".html", ".svg", ".png", ".pdf", ".safetensors", ".npz", ".cast", ".session",
)  # fmt: skip
"""The extensions that lines of a stranger's file may write: no file that a program would run."""

_SECONDS_FOR_A_READER = 5.0
_MAX_NAME_BYTES = 255
"""The most bytes of a file name on common file systems."""
_NO_ROOM = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


# What may be written


def expect_output(path: Path) -> None:
    """Declare an output of the running command before any work, so that it is refused early.

    From now on the command can no longer read that file. Raises like ``require_place``.
    """
    require_place(path)
    expect_unread(path)


def require_place(path: Path) -> None:
    """Raise UsageError if an output must not be written.

    Refused are files that were read, read-only files, GGUF files, which may be models, anything below a kept folder,
    and anything that the fence does not permit.
    """
    require_outside(path)
    if path.is_file():
        if path.suffix.lower() == ".gguf":
            raise UsageError(f"{path} exists and may be a model, so it is not replaced", "name another file")
        if is_read(path):
            raise UsageError(f"{path} is read by this command", "write to another file")
        _require_writable(path)
    if _fence is not None:
        _fence.require_result(path)


def require_outside(path: Path, own: Kept | None = None, within: Kept | None = None) -> None:
    """Raise UsageError for a path below a kept folder.

    A command that makes a folder may go on in one of its ``own`` kind, and begin one in one of the kind ``within``.
    """
    if (own is not None and own.marks(path)) or (within is not None and within.marks(path.parent)):
        return
    if (found := kept_above(path)) is not None:
        folder, kind = found
        raise UsageError(f"{path} lies in the folder of {kind.words}, {folder}", "write to another folder")


def _require_writable(path: Path) -> None:
    """Raise UsageError for a file that its owner has made read-only, even if this process could replace it."""
    if not path.stat().st_mode & 0o222 or not os.access(path, os.W_OK):
        raise UsageError(f"{path} is read-only", "write to another file, or make it writable first")


class Fence:
    """What lines of a stranger's file may write: new result files below ``folder``, or nothing if it is None.

    They may not write names that begin with a dot, the folders of tinytf's own settings and state, or anything that
    existed before they ran. They may replace and remove what they made themselves. Lines of a served ``page`` write
    nothing.
    """

    def __init__(self, folder: Path | None = None, *, page: bool = False) -> None:
        self.folder, self.page = None if folder is None else resolve_links(folder), page
        self._lines = "lines of a page" if page else "a file's lines"
        self._made: set[Path] = set()

    def require_result(self, path: Path) -> None:
        """Raise UsageError for an output that the lines may not write."""
        self.require(path)
        if path.suffix.lower() not in RESULTS:
            raise UsageError(
                f"{self._lines} may not write {path.name!r}: its extension is not that of a result",
                f"known: {' '.join(RESULTS)}",
            )

    def require(self, path: Path) -> None:
        """Raise UsageError for a file or folder that the lines may not write or remove."""
        target = resolve_links(path.parent) / path.name
        if self._is_made(target):
            return
        if self.folder is None:
            raise self.refusal(f"write {str(path)!r}", "--write-to DIR lets them write new files below DIR, ")
        if not target.is_relative_to(self.folder) or resolve_links(path) != target:
            raise UsageError(f"a file's lines may write only below {self.folder}, and {str(path)!r} is not")
        own_folders = (user_config_path, user_data_path, user_state_path, user_cache_path)
        is_hidden = any(part.startswith(".") for part in target.relative_to(self.folder).parts)
        if is_hidden or any(
            target.is_relative_to(resolve_links(folder("tinytf", appauthor=False))) for folder in own_folders
        ):
            raise UsageError(f"a file's lines may write no hidden file and no settings: {str(path)!r}")
        if os.path.lexists(target):
            raise UsageError(f"a file's lines may not write over {str(path)!r}, which existed before")

    def refusal(self, what: str, hint: str = "") -> UsageError:
        """The error of lines that would do ``what``; ``hint`` is what else may let lines of a file do it."""
        if self.page:
            return UsageError(f"{self._lines} may not {what}", "start tinytf in a terminal for that")
        return UsageError(f"{self._lines} may not {what}", f"{hint}--allow-code lets them do anything that you may")

    def made(self, path: Path) -> None:
        """Remember a file or folder that the lines made."""
        self._made.add(resolve_links(path.parent) / path.name)

    def _is_made(self, path: Path) -> bool:
        return not self._made.isdisjoint((path, *path.parents))


_fence: Fence | None = None


@contextmanager
def fenced(fence: Fence | None) -> Iterator[None]:
    """Apply ``fence`` to everything written inside. A fence already in force stays; None changes nothing."""
    global _fence
    previous, _fence = _fence, _fence or fence
    try:
        yield
    finally:
        _fence = previous


def current_fence() -> Fence | None:
    """The fence of the stranger's lines that are running; None if there are none."""
    return _fence


def is_fenced() -> bool:
    """Whether a stranger's lines are running, which may write nothing outside one folder."""
    return _fence is not None


def require_unfenced(what: str) -> None:
    """Raise UsageError if a stranger's lines are running, which may not do ``what``."""
    if _fence is not None:
        raise _fence.refusal(what)


def _permit(path: Path) -> None:
    if _fence is not None:
        _fence.require(path)


def _record_made(path: Path) -> None:
    if _fence is not None:
        _fence.made(path)


# Writing


def write_output(path: Path, data: bytes | Iterable[bytes | memoryview]) -> int:
    """Write a file that a user named, from bytes or parts; return its size in bytes.

    It appears whole or not at all. Links are followed. A device or a named pipe is written to directly. Raises
    UsageError like ``require_place``, and OSError, also for a pipe that nobody reads.
    """
    require_place(path)
    parts = [data] if isinstance(data, bytes) else data
    if path.exists() and not path.is_file():
        with os.fdopen(_open_to_write(path), "wb") as stream:
            return sum(map(stream.write, parts))
    with replacing(resolve_links(path)) as stream:
        return sum(map(stream.write, parts))


def write_state(path: Path, data: bytes) -> None:
    """Write a file that a run, a cache or tinytf itself keeps; it appears whole. A link is replaced. Raises OSError."""
    with replacing(path) as stream:
        stream.write(data)


@contextmanager
def replacing(path: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """Yield a stream to a new file next to ``path``; it replaces ``path`` once it is on the disk, or is removed.

    The new file has ``mode``, or that of the file it replaces; its owner too, if that is allowed. An OSError names
    ``path``, since the system's own error of a write names no file. Raises UsageError for a read-only file.
    """
    _permit(path)
    with suppress(FileNotFoundError):
        _require_writable(path)
    part = temporary_path(path)
    with _named(path):
        is_new = mode is None and not os.path.lexists(path)
        descriptor = os.open(part, _NEW, 0o666 if is_new else 0o600)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                _copy_owner_and_mode(path, stream.fileno(), mode)
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(part, path)
        finally:
            with suppress(OSError):
                os.unlink(part)
    _record_made(path)


def link(source: Path, path: Path) -> None:
    """Give a file a second name, replacing any file of that name; copy it if the file system has no links.

    Raises OSError.
    """
    _permit(path)
    part = temporary_path(path)
    try:
        os.link(source, part)
    except OSError:
        with open(source, "rb") as stored, replacing(path) as stream:
            shutil.copyfileobj(stored, stream)
        return
    with _named(path):
        try:
            os.replace(part, path)
        finally:
            with suppress(OSError):
                os.unlink(part)  # renaming onto another link to the same file does nothing
    _record_made(path)


@contextmanager
def appending(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a stream that appends to a file that tinytf keeps; a new file gets ``mode``. Links are not followed.

    Raises OSError.
    """
    _permit(path)
    with os.fdopen(os.open(path, _APPENDING, mode), "ab") as stream:
        yield stream


def cut(path: Path, size: int) -> None:
    """Cut a file that tinytf keeps after its first ``size`` bytes. Links are not followed. Raises OSError."""
    with appending(path) as stream:
        stream.truncate(size)


def temporary_path(path: Path) -> Path:
    """A new path next to ``path``, hidden, with a random name that is no longer than file systems take."""
    suffix = f".{secrets.token_hex(8)}.part"
    stem = os.fsencode(path.name)[: _MAX_NAME_BYTES - len(suffix) - 1]
    return path.with_name(f".{stem.decode('utf-8', 'ignore')}{suffix}")


def _copy_owner_and_mode(path: Path, descriptor: int, mode: int | None) -> None:
    """Give an open file the owner of the file at ``path``, if there is one, and ``mode`` or that file's."""
    with suppress(FileNotFoundError):
        status = os.lstat(path)
        if stat.S_ISREG(status.st_mode) and hasattr(os, "fchmod"):
            with suppress(PermissionError):
                os.fchown(descriptor, status.st_uid, status.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(status.st_mode) if mode is None else mode)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Make an OSError inside name ``path``."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def _open_to_write(path: Path) -> int:
    """A descriptor of a device or pipe; waits a few seconds for a reader of a pipe, not for ever."""
    deadline = time.monotonic() + _SECONDS_FOR_A_READER
    while True:
        try:
            descriptor = os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > deadline:
                raise OSError(errno.ENXIO, "nobody reads this pipe", str(path)) from None
            time.sleep(0.01)
        else:
            os.set_blocking(descriptor, True)
            return descriptor


@contextmanager
def writing(path: Path, then: str = "", kind: type[TinytfError] = TinytfError) -> Iterator[None]:
    """Raise an OSError of a write inside as ``kind``, naming the file, or ``path`` if the system names none.

    The hint is ``remedy`` with ``then``, or to write elsewhere.
    """
    try:
        yield
    except OSError as error:
        message = f"cannot write {error.filename or path}: {error.strerror or error}"
        raise kind(message, remedy(error, then) or "write elsewhere") from None


def remedy(error: OSError, then: str) -> str:
    """The remedy for a file that could not be written: make room if the disk is full, then ``then``."""
    make_room = "make room" if error.errno in _NO_ROOM else ""
    return ", then ".join(filter(None, (make_room, then)))


# Folders, moving and removing


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder and its missing parents. Raises OSError."""
    missing = [parent for parent in (path, *path.parents) if not parent.exists()]
    for parent in missing:
        _permit(parent)
    path.mkdir(mode, parents=True, exist_ok=True)
    for parent in missing:
        _record_made(parent)


@contextmanager
def filling(folder: Path) -> Iterator[None]:
    """Make a folder, or take an empty one, to fill; on failure, restore it and the folders above it.

    Raises UsageError for a folder that is not empty, lies in a kept folder, or cannot be made; TinytfError if a file in
    it cannot be written.
    """
    require_outside(folder)
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
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
                for path in sorted(folder.rglob("*"), reverse=True):  # what is in a folder goes before it
                    path.rmdir() if path.is_dir() else path.unlink()
            raise
    except BaseException:
        for parent in missing:
            with suppress(OSError):
                parent.rmdir()
        raise


def move(source: Path, path: Path) -> None:
    """Rename a file or folder that tinytf keeps. Raises OSError."""
    _permit(source)
    _permit(path)
    source.replace(path)
    _record_made(path)


def remove(path: Path) -> None:
    """Remove a file that tinytf keeps, if it exists. Raises OSError."""
    _permit(path)
    path.unlink(missing_ok=True)


def remove_folder(path: Path) -> None:
    """Remove an empty folder that tinytf keeps. Raises OSError, also if it is not empty."""
    _permit(path)
    path.rmdir()


def remove_all(path: Path) -> None:
    """Remove a folder that tinytf made, with all of its contents, as far as possible."""
    _permit(path)
    shutil.rmtree(path, ignore_errors=True)


def flush_folder(path: Path) -> None:
    """Flush changes of a folder (files created, renamed or removed) to the disk, on POSIX."""
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
