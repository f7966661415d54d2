"""The lines typed in earlier sessions: a private file of bounded size that several sessions may append to."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_state_dir
from prompt_toolkit.history import History

from tinytf.outputs import appending, make_folder, replacing
from tinytf_cli.repl.python import statements

KEPT = 5_000
"""The lines that remain when a file with twice as many is shortened."""

_LONGEST_LINE = 2_000
_MOST_BYTES = 4 * 2**20
_LOCK_TIMEOUT = 5.0
"""Seconds to wait for another session's lock."""


def history_path() -> Path:
    """The path of the file, in the platform's folder for program state."""
    return Path(user_state_dir("tinytf", appauthor=False)) / "history"


class FileHistory(History):
    """prompt_toolkit's history in a file of lines.

    ``trouble`` says why the file cannot be read or written, once that is known; the lines of this session remain
    available.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.trouble = ""

    def append_string(self, string: str) -> None:
        """Append what was typed: each line, or statement of several lines, as an entry of its own."""
        for _, line in statements(enumerate(string.split("\n"))):
            if line.strip() and (not self._loaded_strings or self._loaded_strings[0] != line):
                super().append_string(line)

    def load_history_strings(self) -> Iterable[str]:
        """The lines of the file, newest first."""
        try:
            return reversed(_newest(self.path))
        except FileNotFoundError:
            return ()
        except OSError as error:
            self._fail(error)
            return ()

    def store_string(self, string: str) -> None:
        """Append a line, unless it is very long or has line breaks; without a lock if the file system has none."""
        if self.trouble or len(string) > _LONGEST_LINE or "\n" in string:
            return
        lock = FileLock(self.path.with_suffix(".lock"), timeout=_LOCK_TIMEOUT, mode=0o600)
        try:
            make_folder(self.path.parent, mode=0o700)
            with contextlib.suppress(NotImplementedError, Timeout):
                lock.acquire()
            _append(self.path, string)
            _shorten(self.path)
        except OSError as error:
            self._fail(error)
        finally:
            lock.release()

    def _fail(self, error: OSError) -> None:
        self.trouble = f"{self.path}: {error.strerror or error}"


def _newest(path: Path) -> list[str]:
    """The last lines of the file, oldest first."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _MOST_BYTES))
        data = file.read()
    lines = data.decode("utf-8", "replace").split("\n")
    if size > len(data):
        del lines[0]  # it may be incomplete
    return [line for line in lines if line.strip()][-KEPT:]


def _append(path: Path, line: str) -> None:
    start = "\n" if _ends_torn(path) else ""
    with appending(path, mode=0o600) as file:
        file.write(f"{start}{line}\n".encode("utf-8", "backslashreplace"))


def _ends_torn(path: Path) -> bool:
    """Whether the last line lacks its line end, as after a killed process or on a full disk."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"
    return False


def _shorten(path: Path) -> None:
    """Replace a file that has grown too long by one with its newest lines, atomically."""
    size = path.stat().st_size
    if size < KEPT * 20:
        return  # too small for twice as many lines of usual length
    with path.open("rb") as file:
        if sum(1 for _ in file) <= 2 * KEPT and size <= _MOST_BYTES:
            return
    with replacing(path, mode=0o600) as file:
        file.write("".join(f"{line}\n" for line in _newest(path)).encode("utf-8"))
