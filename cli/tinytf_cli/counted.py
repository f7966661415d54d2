"""How far something slow is: one line on a terminal's stderr, which is gone when it is done."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from tinytf_cli.numbers import duration

Progress = Callable[[int, int], None]

_SECONDS_BEFORE_THE_FIRST, _SECONDS_BETWEEN = 1.0, 0.2


@contextmanager
def counted(stream: TextIO | None, what: str, *, at_most: bool = False) -> Iterator[Progress]:
    """Gives a function to be called with how many are done, and of how many: that many, or ``at_most``.

    What takes no second says nothing, and nothing is said where ``stream`` is no terminal.
    """
    started = said = time.monotonic()
    width, limit = 0, "at most " if at_most else ""

    def show(done: int, of: int) -> None:
        nonlocal said, width
        now = time.monotonic()
        if stream is None or not stream.isatty() or now - started < _SECONDS_BEFORE_THE_FIRST:
            return
        if width and now - said < _SECONDS_BETWEEN:
            return
        left = duration((now - started) / max(1, done) * (of - done))
        line = f"tinytf: {what} {done} of {limit}{of}, {limit}{left} left"
        line = line[: shutil.get_terminal_size().columns - 1]  # one that is broken could not be taken back
        stream.write(f"\r{line.ljust(width)}")
        stream.flush()
        said, width = now, len(line)

    try:
        yield show
    finally:
        if stream is not None and width:
            stream.write(f"\r{' ' * width}\r")
            stream.flush()
