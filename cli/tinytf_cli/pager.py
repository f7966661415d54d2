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

import click

if TYPE_CHECKING:
    import subprocess

_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


CONFIGURED = "tinytf_cli.pager"
"""The key of the configured pager in the data that the contexts of click share."""


def find_pager() -> Sequence[str] | None:
    """The pager command: that of TINYTF_PAGER or the user's file, else PAGER, else less, as in git.

    None if it is not installed, is empty or ``cat``, under CI, and on a dumb terminal.
    """
    context = click.get_current_context(silent=True)
    in_file = None if context is None else context.meta.get(CONFIGURED)
    default = os.environ.get("PAGER", "less") if in_file is None else in_file
    try:
        command = shlex.split(os.environ.get("TINYTF_PAGER", default))
    except ValueError:  # an unclosed quote
        command = ["less"]
    if command in ([], ["cat"]) or os.environ.get("CI") or os.environ.get("TERM", "dumb") in ("", "dumb"):
        return None
    program = shutil.which(command[0])
    return None if program is None else [program, *command[1:]]


def is_screen(stream: TextIO) -> bool:
    """Whether a stream is a real terminal, not an in-memory stand-in."""
    try:
        return os.isatty(stream.fileno())
    except (OSError, ValueError):
        return False


class Pager(io.StringIO):
    """A stream to a terminal. It buffers one screen of text; the next line starts the pager.

    While the pager runs, it handles Ctrl-C. Writing raises BrokenPipeError after the user quits it.
    """

    def __init__(self, stdout: TextIO, command: Sequence[str]) -> None:
        super().__init__()
        self._stdout, self._command = stdout, command
        self._columns, self._height = shutil.get_terminal_size()
        self._rows = 0
        self._target: TextIO | None = None
        self._process: subprocess.Popen[str] | None = None
        self._interrupt = signal.getsignal(signal.SIGINT)

    def write(self, text: str) -> int:
        if self._target is None:
            from rich.cells import cell_len

            lines = _CODES.sub("", text[: self._columns * self._height]).splitlines()  # more does not fit anyway
            self._rows += sum(max(1, -(-cell_len(line) // self._columns)) for line in lines)
            if self._rows < self._height:
                return super().write(text)
            self._target = self._start()
            self._target.write(self.getvalue())
        return self._target.write(text)

    def flush(self) -> None:
        if self._target is not None:
            self._target.flush()

    def release(self) -> None:
        """Write the buffered text, and everything from now on, straight to stdout. No pager starts any more."""
        if self._target is None:
            self._target = self._stdout
            self._target.write(self.getvalue())

    def _start(self) -> TextIO:
        import subprocess

        self._stdout.flush()
        # R shows colours, F does not wait if the text fits on the screen, X leaves the text there.
        environment = {**os.environ, "LESS": f"{os.environ.get('LESS', '-FX')} -R"}
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._on_interrupt)  # the pager would inherit SIG_IGN, but not a handler
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, env=environment, bufsize=1, encoding="utf-8",
            errors="backslashreplace",
        )  # fmt: skip
        assert self._process.stdin is not None
        return self._process.stdin  # type: ignore[return-value]

    def _on_interrupt(self, *received: Any) -> None:
        has_quit = self._process is not None and self._process.poll() is not None
        if has_quit and callable(self._interrupt):
            self._interrupt(*received)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait until the user quits the pager; without one, write the buffered text."""
        if self._process is None or self._target is None:
            self.release()
            self.flush()
            return
        with suppress(BrokenPipeError):
            self._target.close()
        self._process.wait()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._interrupt)


def page(text: str) -> None:
    """Show a text in the pager, or on stdout if there is none."""
    command = find_pager()
    if command is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    with Pager(sys.stdout, command) as pager, suppress(BrokenPipeError):
        pager.write(text)
