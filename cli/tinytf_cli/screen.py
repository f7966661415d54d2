"""A picture that is redrawn in place, below the earlier output."""

import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from rich.cells import cell_len
from rich.text import Text

from tinytf_cli.working import quiet

_AT_ONCE, _DONE = "\x1b[?2026h", "\x1b[?2026l"


class Terminated(SystemExit):
    """SIGTERM, or SIGHUP of a terminal that goes, has told the program to end."""


class Screen:
    """Redraw by moving the cursor up over the last picture.

    No terminal mode needs to be restored: there is no alternate screen, and the cursor rests below the picture.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._drawn: list[int] = []

    @property
    def size(self) -> tuple[int, int]:
        """(columns, rows) now."""
        return shutil.get_terminal_size((80, 24))

    def draw(self, lines: Sequence[str]) -> None:
        """Replace the last picture by ``lines``; lines that do not fit on the screen are omitted at the end."""
        columns, rows = self.size
        lines = lines[: max(1, rows - 1)]
        # A line drawn on a wider screen now takes several rows.
        up = min(rows - 1, sum(max(1, -(-width // max(1, columns))) for width in self._drawn))
        back = f"\x1b[{up}A\r" if up else "\r"
        body = "".join(f"{line}\x1b[0m\x1b[K\n" for line in lines)
        self.stream.write(f"{_AT_ONCE}{back}{body}\x1b[J{_DONE}")
        self.stream.flush()
        self._drawn = [cell_len(Text.from_ansi(line).plain) for line in lines]

    def forget(self) -> None:
        """Draw the next picture below the present one."""
        self._drawn = []


@contextmanager
def clean_exit(redraw: Callable[[], None] | None = None) -> Iterator[None]:
    """Take the screen: raise Terminated on SIGTERM and SIGHUP, and call ``redraw`` after a stop (Ctrl-Z).

    SIGHUP stays off where ``nohup`` has switched it off.
    """
    quiet()

    def end(number: int, *_: Any) -> None:
        signal.signal(number, signal.SIG_IGN)  # a shell passes on a second one, which would break off what this begins
        raise Terminated(128 + number)

    wanted: dict[str, Any] = {"SIGTERM": end, "SIGHUP": end}
    if redraw is not None:
        wanted["SIGCONT"] = lambda *_: redraw()
    before = {
        getattr(signal, name): signal.signal(getattr(signal, name), handler)
        for name, handler in wanted.items()
        if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
