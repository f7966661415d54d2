"""A picture redrawn in place, below earlier output."""

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from rich.cells import cell_len
from rich.text import Text

from tinytf_cli.working import quiet

_AGAIN_SECONDS = 0.02
_BEGIN_UPDATE, _END_UPDATE = "\x1b[?2026h", "\x1b[?2026l"


class Terminated(SystemExit):
    """SIGTERM, or SIGHUP from a closing terminal, has told the program to end."""


class Screen:
    """Redraws by moving the cursor up over the last picture.

    No terminal mode needs to be restored: there is no alternate screen, and the cursor rests below the picture.
    """

    _drawn: list[int]
    """The widths of the picture's lines."""
    _scrolled: list[int]
    """The widths of lines that a smaller screen pushed into its history."""
    _row: int | None
    """The row of the cursor, known once lines have scrolled away from a screen of ``_rows``."""
    _rows: int

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.forget()

    @property
    def size(self) -> tuple[int, int]:
        """The present size, (columns, rows)."""
        return shutil.get_terminal_size((80, 24))

    def draw(self, lines: Sequence[str]) -> None:
        """Replace the last picture with ``lines``. Lines that do not fit on the screen are cut off at the end."""
        columns, rows = self.size
        lines = lines[: max(1, rows - 1)]
        widths = [*self._scrolled, *self._drawn]
        heights = [_rows_of(width, columns) for width in widths]
        # The cursor keeps its distance to the end of a screen that grows, above which scrolled lines return.
        row = rows - 1 if self._row is None else min(rows - 1, self._row + max(0, rows - self._rows))
        up = room = min(row, sum(heights))
        while heights and heights[-1] <= room:
            room -= heights.pop()
        back = f"\x1b[{up}A\r" if up else "\r"
        body = "".join(f"{line}\x1b[0m\x1b[K\n" for line in lines)
        self.stream.write(f"{_BEGIN_UPDATE}{back}{body}\x1b[J{_END_UPDATE}")
        self.stream.flush()
        self._scrolled, self._rows = widths[: len(heights)], rows
        self._drawn = [cell_len(Text.from_ansi(line).plain) for line in lines]
        if self._scrolled or self._row is not None:
            self._row = min(rows - 1, row - up + sum(_rows_of(width, columns) for width in self._drawn))

    def forget(self) -> None:
        """Leave the present picture; draw the next one below it."""
        self._drawn, self._scrolled, self._row, self._rows = [], [], None, 0


def _rows_of(width: int, columns: int) -> int:
    """The rows of a line on a screen, perhaps a narrower one than it was drawn on."""
    return max(1, -(-width // max(1, columns)))


def forget_typed() -> None:
    """Discard the keys that were typed ahead, where the system can."""
    with suppress(ImportError, OSError, ValueError):
        import termios

        with suppress(termios.error):
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


@contextmanager
def clean_exit(redraw: Callable[[], None] | None = None) -> Iterator[None]:
    """Own the screen: raise Terminated on SIGTERM and SIGHUP, and call ``redraw`` after a stop (Ctrl-Z).

    A SIGHUP that ``nohup`` ignores stays ignored.
    """
    quiet()

    def end(number: int, *_: Any) -> None:
        signal.signal(number, signal.SIG_IGN)  # a shell may forward a second one, which would interrupt the exit
        raise Terminated(128 + number)

    def ignored(what: Any) -> None:
        """Send the signal once more where Python drops what it raised, as it does in a finalizer."""
        if isinstance(what.exc_value, Terminated):
            number = what.exc_value.args[0] - 128
            signal.signal(number, end)
            threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), number)).start()
        else:
            unraisable(what)

    handlers: dict[str, Any] = {"SIGTERM": end, "SIGHUP": end}
    if redraw is not None:
        handlers["SIGCONT"] = lambda *_: redraw()
    previous = {
        getattr(signal, name): signal.signal(getattr(signal, name), handler)
        for name, handler in handlers.items()
        if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) is not signal.SIG_IGN
    }
    unraisable, sys.unraisablehook = sys.unraisablehook, ignored
    try:
        yield
    finally:
        sys.unraisablehook = unraisable
        for number, handler in previous.items():
            signal.signal(number, handler)
