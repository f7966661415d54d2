"""A disk that fills up, breaks or denies, or a process that is killed, at a chosen operation below a folder."""

import errno
import io
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch


@dataclass(frozen=True)
class Fault:
    """What happens at an operation: an error of this ``number``, or SIGKILL where it is 0.

    ``at`` are the operations that it may happen to, and, where it ``lasts``, those that fail from then on. One that
    ``tears`` happens to a write, after half of its data.
    """

    name: str
    number: int
    at: frozenset[str]
    lasts: bool = True
    tears: bool = False

    def __str__(self) -> str:
        return self.name

    def counts(self, what: str) -> bool:
        """Whether it may happen at such an operation."""
        return what == "write" if self.tears else what in self.at


_WRITING = frozenset(("open", "write", "fsync", "link", "mkdir", "rename"))
_REMOVING = frozenset(("unlink", "rmdir"))

FULL = Fault("full", errno.ENOSPC, _WRITING)
TORN = Fault("torn", errno.ENOSPC, _WRITING, tears=True)
BROKEN = Fault("broken", errno.EIO, _WRITING, lasts=False)
STUCK = Fault("stuck", errno.EIO, _REMOVING, lasts=False)
DENIED = Fault("denied", errno.EACCES, _REMOVING | _WRITING - {"write", "fsync"})
ACROSS = Fault("across", errno.EXDEV, frozenset(("link", "rename")))
KILLED = Fault("killed", 0, _WRITING | _REMOVING | {"utime"})
KILLED_MIDWAY = Fault("killed midway", 0, _WRITING, tears=True)

_NAMES = {"fsync": "fsync", "link": "link", "mkdir": "mkdir", "rename": "rename", "replace": "rename",
          "unlink": "unlink", "remove": "unlink", "rmdir": "rmdir", "utime": "utime"}  # fmt: skip


@dataclass(frozen=True)
class Operation:
    """One operation on the disk; ``source`` is where a file or folder that is renamed or linked was before."""

    what: str
    path: Path
    source: Path | None = None


@dataclass
class Disk:
    """Operations below ``folder`` pass until the ``fails_at``-th that the fault may happen to, from 1; 0 is no fault.

    ``tried`` are the operations up to that one, ``failed`` is what failed first, and ``at`` its file. ``log`` is told
    of each operation below the folder that has been done.
    """

    folder: Path
    fails_at: int = 0
    kind: Fault = FULL
    tried: list[str] = field(default_factory=list)
    failed: str = ""
    at: Path = Path()
    log: Callable[[Operation], None] = lambda _: None
    _opened: dict[int, Path] = field(default_factory=dict)

    def passes(self, what: str, path: Path) -> bool:
        """Count an operation; False for a write that is to be torn. Raises OSError where the disk fails."""
        if not path.is_relative_to(self.folder):
            return True
        if self.failed:
            if not self.kind.lasts or what not in self.kind.at:
                return True
        else:
            self.tried.append(what)
            if not self.kind.counts(what) or self.count(self.kind) != self.fails_at:
                return True
            self.failed, self.at = what, path
            if self.kind.tears:
                return False
        self.strike(*(() if what in ("write", "fsync") else (str(path),)))
        return True

    def count(self, kind: Fault) -> int:
        """How many operations were tried at which a fault may happen."""
        return sum(map(kind.counts, self.tried))

    def strike(self, *named: str) -> None:
        """Kill this process, or raise the OSError."""
        if not self.kind.number:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(self.kind.number, os.strerror(self.kind.number), *named)

    def did(self, what: str, path: Path, source: Path | None = None) -> None:
        if path.is_relative_to(self.folder):
            self.log(Operation(what, path, source))

    def place(self, file: Any, folder: int | None = None) -> Path:
        """Where an open file is, or one by its name, which may be relative to an open folder."""
        if isinstance(file, int):
            return self._opened.get(file, Path())
        path = Path(os.fsdecode(file))
        return Path(os.path.abspath(path if folder is None else self._opened.get(folder, Path()) / path))


class _File(io.FileIO):
    """A file of that disk, as the system sees it: without a buffer."""

    def __init__(self, disk: Disk, place: Path, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._disk, self._place = disk, place
        disk._opened[self.fileno()] = place

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        return _written(self._disk, self._place, view, super().write)


def _written(disk: Disk, place: Path, view: memoryview, write: Callable[[memoryview], int]) -> int:
    """Write some bytes, or half of them; how many."""
    if whole := disk.passes("write", place):
        size = write(view)
    else:
        size = write(view[: len(view) // 2])
        if not disk.kind.number:
            disk.strike()
    disk.did("write", place)
    return size if whole else len(view) // 2


@contextmanager
def failing(disk: Disk) -> Iterator[Disk]:
    """Everything that this process writes below the folder of ``disk`` passes through it."""
    genuine = {name: getattr(os, name) for name in ("open", "close", "write", "sendfile", *_NAMES) if hasattr(os, name)}
    genuine_open = io.open

    def open_file(file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
                  newline: Any = None, closefd: bool = True, opener: Any = None) -> Any:  # fmt: skip
        place = disk.place(file)
        if not set(mode) & set("wax+") or not place.is_relative_to(disk.folder):
            return genuine_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        if not isinstance(file, int):
            disk.passes("open", place)
        plain = "".join(letter for letter in mode if letter not in "bt")
        raw = _File(disk, place, file, plain, closefd, opener)
        if not isinstance(file, int):
            disk.did("open", place)
        if buffering == 0:
            return raw
        stream = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return stream if "b" in mode else io.TextIOWrapper(stream, encoding, errors, newline)

    def open_descriptor(path: Any, flags: int, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> int:
        place = disk.place(path, dir_fd)
        writes = flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR)
        if writes:
            disk.passes("open", place)
        descriptor: int = genuine["open"](path, flags, *args, dir_fd=dir_fd, **kwargs)
        disk._opened[descriptor] = place
        if writes:
            disk.did("open", place)
        return descriptor

    def close(descriptor: int) -> None:
        disk._opened.pop(descriptor, None)
        genuine["close"](descriptor)

    def write(descriptor: int, data: Any) -> int:
        view = memoryview(data).cast("B")
        return _written(disk, disk.place(descriptor), view, lambda part: genuine["write"](descriptor, part))

    def sendfile(target: int, source: int, offset: int, count: int) -> int:
        size = min(count, os.fstat(source).st_size - offset)
        view = memoryview(bytes(max(0, size)))
        return _written(
            disk, disk.place(target), view, lambda part: genuine["sendfile"](target, source, offset, len(part))
        )

    def changing(name: str) -> Callable[..., Any]:
        what = _NAMES[name]

        def change(*args: Any, **kwargs: Any) -> Any:
            if what == "mkdir" and os.path.exists(args[0]):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(args[0]))
            *sources, path = args[:2] if what in ("link", "rename") else args[:1]
            place = disk.place(path, kwargs.get("dir_fd", kwargs.get("dst_dir_fd")))
            if what in _REMOVING and not os.path.lexists(place):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(place))
            disk.passes(what, place)
            if what != "fsync":  # nobody pulls the plug here
                genuine[name](*args, **kwargs)
            disk.did(what, place, *(disk.place(source, kwargs.get("src_dir_fd")) for source in sources))

        return change

    patched = {"open": open_descriptor, "close": close, "write": write, "sendfile": sendfile}
    patched = {name: made for name, made in patched.items() if name in genuine}
    patched |= {name: changing(name) for name in _NAMES}
    with patch.multiple(os, **patched), patch("io.open", open_file), patch("builtins.open", open_file):
        yield disk
