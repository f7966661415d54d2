"""A picture that is drawn again in its place, below what the terminal showed before."""

import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from rich.cells import cell_len
from rich.text import Text

_AT_ONCE, _DONE = "\x1b[?2026h", "\x1b[?2026l"


class Screen:
    """Redraws by moving the cursor up over the last picture; nothing of the terminal is changed that would have to

    be changed back: no alternate screen, the cursor stays visible and rests on the line under the picture.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._drawn: list[int] = []

    @property
    def size(self) -> tuple[int, int]:
        """(columns, rows) now."""
        return shutil.get_terminal_size((80, 24))

    def draw(self, lines: Sequence[str]) -> None:
        """Show ``lines`` in place of those of before; what has no room on the screen is left out at the end."""
        columns, rows = self.size
        lines = lines[: max(1, rows - 1)]
        # Lines that were drawn on a wider screen have become several.
        up = min(rows - 1, sum(max(1, -(-width // max(1, columns))) for width in self._drawn))
        back = f"\x1b[{up}A\r" if up else "\r"
        body = "".join(f"{line}\x1b[0m\x1b[K\n" for line in lines)
        self.stream.write(f"{_AT_ONCE}{back}{body}\x1b[J{_DONE}")
        self.stream.flush()
        self._drawn = [cell_len(Text.from_ansi(line).plain) for line in lines]

    def forget(self) -> None:
        """Draw the next picture below whatever is there now."""
        self._drawn = []


@contextmanager
def clean_exit(redraw: Callable[[], None]) -> Iterator[None]:
    """Leave as usual when told to end, and call ``redraw`` after a stop (Ctrl-Z)."""

    def end(*_: Any) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    def again(*_: Any) -> None:
        redraw()

    wanted = {"SIGTERM": end, "SIGCONT": again}
    before = {
        getattr(signal, name): signal.signal(getattr(signal, name), handler)
        for name, handler in wanted.items()
        if hasattr(signal, name)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
