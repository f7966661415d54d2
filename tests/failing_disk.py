"""A disk that fills up, or breaks, or a process that is killed, at a chosen one of the operations below a folder."""

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

FULL, BROKEN, TORN, KILLED = "full", "broken", "torn", "killed"
_CHANGING = ("fsync", "link", "mkdir", "rename", "replace")
_REMOVING = ("unlink", "rmdir", "utime")


@dataclass
class Disk:
    """Writes below ``folder`` pass until the ``fails_at``-th, from 1; 0 is a disk without faults.

    A FULL disk stays full, though files can be removed. A TORN one is full after half of the data of that write; it
    fails at writes of data alone. A BROKEN one fails that once, with an input/output error. At one that is KILLED,
    removals among them, SIGKILL ends the process; at a write once half of the data are there. ``failed`` is what did,
    and ``at`` which file.
    """

    folder: Path
    fails_at: int = 0
    kind: str = FULL
    done: int = 0
    failed: str = ""
    at: Path = Path()
    _opened: dict[int, Path] = field(default_factory=dict)

    def passes(self, what: str, path: Path) -> bool:
        """Count an operation; False for a write that is to be torn. Raises OSError where the disk fails."""
        if not path.is_relative_to(self.folder):
            return True
        if what in _REMOVING and self.kind != KILLED:
            return True
        self.done += self.kind != TORN or what == "write" or bool(self.failed)
        if not self.fails_at or self.done < self.fails_at or (self.kind == BROKEN and self.failed):
            return True
        if not self.failed:
            self.failed, self.at = what, path
            if self.kind == KILLED and what != "write":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.kind in (TORN, KILLED):
                return False
        number = errno.EIO if self.kind == BROKEN else errno.ENOSPC
        raise OSError(number, os.strerror(number), *(() if what in ("write", "fsync") else (str(path),)))

    def place(self, file: Any) -> Path:
        """Where an open file, or one by its name, is."""
        return self._opened.get(file, Path()) if isinstance(file, int) else Path(os.path.abspath(os.fspath(file)))


class _File(io.FileIO):
    """A file of that disk, as the system sees it: without a buffer."""

    def __init__(self, disk: Disk, place: Path, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._disk, self._place = disk, place
        disk._opened[self.fileno()] = place

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        whole = self._disk.passes("write", self._place)
        written = super().write(view if whole else view[: len(view) // 2])
        if not whole and self._disk.kind == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
        return written


@contextmanager
def failing(disk: Disk) -> Iterator[Disk]:
    """Everything that this process writes below the folder of ``disk`` passes through it."""
    genuine = {name: getattr(os, name) for name in ("open", *_CHANGING, *_REMOVING)}
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
        if buffering == 0:
            return raw
        stream = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return stream if "b" in mode else io.TextIOWrapper(stream, encoding, errors, newline)

    def open_descriptor(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        place = disk.place(path)
        if flags & os.O_CREAT:
            disk.passes("open", place)
        descriptor: int = genuine["open"](path, flags, *args, **kwargs)
        disk._opened[descriptor] = place
        return descriptor

    def changing(name: str) -> Callable[..., Any]:
        def change(*args: Any, **kwargs: Any) -> Any:
            if name == "mkdir" and os.path.exists(args[0]):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(args[0]))
            disk.passes(name, disk.place(args[1] if name in ("link", "rename", "replace") else args[0]))
            return None if name == "fsync" else genuine[name](*args, **kwargs)  # nobody pulls the plug here

        return change

    patched = {"open": open_descriptor, **{name: changing(name) for name in (*_CHANGING, *_REMOVING)}}
    with patch.multiple(os, **patched), patch("io.open", open_file), patch("builtins.open", open_file):
        yield disk
