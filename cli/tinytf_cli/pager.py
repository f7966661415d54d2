"""A pager for output that is longer than the screen."""

import io
import os
import re
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, TextIO

if TYPE_CHECKING:
    import subprocess

_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def find_pager() -> Sequence[str] | None:
    """The command of TINYTF_PAGER, else of PAGER, else less, as git does it.

    None if it is not installed, if it is empty or ``cat``, under CI, and on a dumb terminal.
    """
    try:
        command = shlex.split(os.environ.get("TINYTF_PAGER", os.environ.get("PAGER", "less")))
    except ValueError:  # a quote that is not closed
        command = ["less"]
    if command in ([], ["cat"]) or os.environ.get("CI") or os.environ.get("TERM", "dumb") in ("", "dumb"):
        return None
    found = shutil.which(command[0])
    return None if found is None else [found, *command[1:]]


def is_screen(stream: TextIO) -> bool:
    """Whether a stream is written to a terminal, and not to a stand-in for one in memory."""
    try:
        return os.isatty(stream.fileno())
    except (OSError, ValueError):
        return False


class Pager(io.StringIO):
    """A stream to a terminal. It holds what fits on the screen until the end; the line after that starts the pager.

    While the pager runs, Ctrl-C is the pager's. Writing raises BrokenPipeError once somebody has left it.
    """

    def __init__(self, stdout: TextIO, command: Sequence[str]) -> None:
        super().__init__()
        self._stdout, self._command = stdout, command
        self._columns, self._height = shutil.get_terminal_size()
        self._rows = 0
        self._to: TextIO | None = None
        self._process: subprocess.Popen[str] | None = None
        self._interrupt = signal.getsignal(signal.SIGINT)

    def write(self, text: str) -> int:
        if self._to is None:
            from rich.cells import cell_len

            lines = _CODES.sub("", text[: self._columns * self._height]).splitlines()  # more does not fit anyway
            self._rows += sum(max(1, -(-cell_len(line) // self._columns)) for line in lines)
            if self._rows < self._height:
                return super().write(text)
            self._to = self._start()
            self._to.write(self.getvalue())
        return self._to.write(text)

    def flush(self) -> None:
        if self._to is not None:
            self._to.flush()

    def release(self) -> None:
        """Write what is held, and from now on everything at once; no pager starts any more."""
        if self._to is None:
            self._to = self._stdout
            self._to.write(self.getvalue())

    def _start(self) -> TextIO:
        import subprocess

        self._stdout.flush()
        # R shows colours, F does not wait for a text that fits on the screen, X leaves it there.
        environment = {**os.environ, "LESS": f"{os.environ.get('LESS', '-FX')} -R"}
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._on_interrupt)  # the pager would inherit SIG_IGN, but not a function
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, env=environment, bufsize=1, encoding="utf-8",
            errors="backslashreplace",
        )  # fmt: skip
        assert self._process.stdin is not None
        return self._process.stdin  # type: ignore[return-value]

    def _on_interrupt(self, *received: Any) -> None:
        left = self._process is not None and self._process.poll() is not None
        if left and callable(self._interrupt):
            self._interrupt(*received)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait until the pager is left; without one, write what is held."""
        if self._process is None or self._to is None:
            self.release()
            self.flush()
            return
        with suppress(BrokenPipeError):
            self._to.close()
        self._process.wait()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._interrupt)


def page(text: str) -> None:
    """Show a text on stdout in the pager, or all at once where there is none."""
    command = find_pager()
    if command is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    with Pager(sys.stdout, command) as pager, suppress(BrokenPipeError):
        pager.write(text)
