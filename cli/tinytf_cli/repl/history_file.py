"""What was typed in earlier sessions: one line of a file each, added by every session, and bounded."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_state_dir
from prompt_toolkit.history import History

KEPT = 5_000
"""Lines that stay when the file has grown to twice as many."""

_LONGEST = 2_000
_MOST_BYTES = 4 * 2**20
_PATIENCE = 5.0
"""Seconds that another session may take; one that hangs is not waited for."""


def history_path() -> Path:
    """Where the lines are kept: in the platform's folder for the state of a program."""
    return Path(user_state_dir("tinytf", appauthor=False)) / "history"


class FileHistory(History):
    """The history of prompt_toolkit, in a file that several sessions may add to at once.

    ``trouble`` is why lines cannot be kept, from when that is known; the session's own lines are still at hand.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.trouble = ""

    def append_string(self, string: str) -> None:
        """Remember what was typed; of several lines that were pasted, each."""
        for line in string.split("\n"):
            if line.strip() and (not self._loaded_strings or self._loaded_strings[0] != line):
                super().append_string(line)

    def load_history_strings(self) -> Iterable[str]:
        """The lines of the file, the newest first."""
        try:
            return reversed(_newest(self.path))
        except FileNotFoundError:
            return ()
        except OSError as error:
            self._fails(error)
            return ()

    def store_string(self, string: str) -> None:
        """Add a line to the file; one that is very long is not worth a place there."""
        if self.trouble or len(string) > _LONGEST:
            return
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _alone(self.path):
                _append(self.path, string)
                _shorten(self.path)
        except OSError as error:
            self._fails(error)

    def _fails(self, error: OSError) -> None:
        self.trouble = f"{self.path}: {error.strerror or error}"


def _newest(path: Path) -> list[str]:
    """The last lines of the file, the oldest first."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _MOST_BYTES))
        data = file.read()
    lines = data.decode("utf-8", "replace").split("\n")
    if size > len(data):
        del lines[0]  # it may be half of one
    return [line for line in lines if line.strip()][-KEPT:]


def _append(path: Path, line: str) -> None:
    """One write, at the end of whatever others have written meanwhile."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode("utf-8", "backslashreplace"))
    finally:
        os.close(descriptor)


def _shorten(path: Path) -> None:
    """Leave the newest lines of a file that has grown too long, in a new file that takes its place whole."""
    if path.stat().st_size < KEPT * 20:
        return  # it cannot have twice as many lines of any length worth reading
    with path.open("rb") as file:
        if sum(1 for _ in file) <= 2 * KEPT and path.stat().st_size <= _MOST_BYTES:
            return
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write("".join(f"{line}\n" for line in _newest(path)).encode("utf-8"))
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """While no other session changes the file; at once where the file system has no locks."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(NotImplementedError, Timeout):
            held.enter_context(FileLock(path.with_suffix(".lock"), timeout=_PATIENCE, mode=0o600))
        yield
