"""The lines typed in earlier sessions: a private file of bounded size, which several sessions may append to."""

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
"""Lines that are kept when the file has grown to twice as many."""

_LONGEST = 2_000
_MOST_BYTES = 4 * 2**20
_PATIENCE = 5.0
"""Seconds to wait for another session's lock."""


def history_path() -> Path:
    """The file: in the platform's folder for the state of a program."""
    return Path(user_state_dir("tinytf", appauthor=False)) / "history"


class FileHistory(History):
    """prompt_toolkit's history in a file, a line each.

    ``trouble`` is why lines cannot be kept, once that is known; those of this session are still available.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.trouble = ""

    def append_string(self, string: str) -> None:
        """Remember what was typed; each line or statement of several that were pasted."""
        for _, line in statements(enumerate(string.split("\n"))):
            if line.strip() and (not self._loaded_strings or self._loaded_strings[0] != line):
                super().append_string(line)

    def load_history_strings(self) -> Iterable[str]:
        """The lines of the file, the newest first."""
        try:
            return reversed(_newest(self.path))
        except FileNotFoundError:
            return ()
        except OSError as error:
            self._fail(error)
            return ()

    def store_string(self, string: str) -> None:
        """Append a line, unless it is very long or several. Without a lock where the file system has none."""
        if self.trouble or len(string) > _LONGEST or "\n" in string:
            return
        lock = FileLock(self.path.with_suffix(".lock"), timeout=_PATIENCE, mode=0o600)
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
    """The last lines of the file, the oldest first."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _MOST_BYTES))
        data = file.read()
    lines = data.decode("utf-8", "replace").split("\n")
    if size > len(data):
        del lines[0]  # which may be incomplete
    return [line for line in lines if line.strip()][-KEPT:]


def _append(path: Path, line: str) -> None:
    begin = "\n" if _is_torn(path) else ""
    with appending(path, mode=0o600) as file:
        file.write(f"{begin}{line}\n".encode("utf-8", "backslashreplace"))


def _is_torn(path: Path) -> bool:
    """Whether the last line has no end: its process was killed, or its disk was full."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"
    return False


def _shorten(path: Path) -> None:
    """Replace a file that has grown too long by one with the newest lines, whole."""
    size = path.stat().st_size
    if size < KEPT * 20:
        return  # it cannot hold twice as many lines of a usual length
    with path.open("rb") as file:
        if sum(1 for _ in file) <= 2 * KEPT and size <= _MOST_BYTES:
            return
    with replacing(path, mode=0o600) as file:
        file.write("".join(f"{line}\n" for line in _newest(path)).encode("utf-8"))
