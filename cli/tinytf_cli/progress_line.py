"""Progress of a slow computation: one line on a terminal's stderr, erased at the end."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from tinytf.report import Progress
from tinytf_cli.numbers import duration
from tinytf_cli.working import quiet

_SECONDS_BEFORE_THE_FIRST, _SECONDS_BETWEEN = 1.0, 0.2


@contextmanager
def progress_line(stream: TextIO | None, unit: str, *, at_most: bool = False) -> Iterator[Progress]:
    """Yield a function to call with the number done and the total, or with ``at_most`` an upper bound of the total.

    Nothing is shown in the first second, nor off a terminal.
    """
    started = shown_at = time.monotonic()
    width, limit = 0, "at most " if at_most else ""

    def show(done: int, total: int) -> None:
        nonlocal shown_at, width
        now = time.monotonic()
        if stream is None or not stream.isatty() or now - started < _SECONDS_BEFORE_THE_FIRST:
            return
        if width and now - shown_at < _SECONDS_BETWEEN:
            return
        time_left = duration((now - started) / max(1, done) * (total - done))
        quiet()
        line = f"tinytf: {unit} {done} of {limit}{total}, {limit}{time_left} left"
        line = line[: shutil.get_terminal_size().columns - 1]  # a wrapped line could not be erased
        stream.write(f"\r{line.ljust(width)}")
        stream.flush()
        shown_at, width = now, len(line)

    try:
        yield show
    finally:
        if stream is not None and width:
            stream.write(f"\r{' ' * width}\r")
            stream.flush()
