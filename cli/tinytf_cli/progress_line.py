"""Progress of a slow computation on stderr: one line on a terminal, erased at the end; elsewhere some in a log."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from tinytf.report import Progress
from tinytf_cli.numbers import duration
from tinytf_cli.working import SECONDS_IN_A_LOG, for_progress, quiet

_SECONDS_BEFORE_THE_FIRST, _SECONDS_BETWEEN = 1.0, 0.2


@contextmanager
def progress_line(stream: TextIO | None, unit: str, *, at_most: bool = False) -> Iterator[Progress]:
    """Yield a function to call with the number done and the total, or with ``at_most`` an upper bound of the total.

    Nothing is shown in the first second. Off a terminal a line is written every ten seconds.
    """
    stream = for_progress(stream)
    started = shown_at = time.monotonic()
    width, limit = 0, "at most " if at_most else ""

    def show(done: int, total: int) -> None:
        nonlocal shown_at, width
        now = time.monotonic()
        if stream is None:
            return
        screen = stream.isatty()
        first, between = (_SECONDS_BEFORE_THE_FIRST, _SECONDS_BETWEEN) if screen else (SECONDS_IN_A_LOG,) * 2
        if not screen:
            quiet()
        if now - started < first or (shown_at > started and now - shown_at < between):
            return
        time_left = duration((now - started) / max(1, done) * (total - done))
        quiet()
        line = f"tinytf: {unit} {done:,} of {limit}{total:,}, {limit}{time_left} left"
        if not screen:
            stream.write(f"{line}\n")
            stream.flush()
            shown_at = now
            return
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
