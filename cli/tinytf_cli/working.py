"""A line on a terminal's stderr that says how long a command has been working, until anything else is written."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import click

_SECONDS_BEFORE_THE_FIRST, _SECONDS_BETWEEN = 1.0, 0.5
_KEPT_AS = "tinytf.working"


class CountedLine:
    """The line, which a thread draws on ``stream``; ``stop`` erases it for good. Without a stream there is none."""

    def __init__(self, what: str, stream: TextIO | None) -> None:
        self._over, self._thread = threading.Event(), None
        if stream is not None:
            self._thread = threading.Thread(target=self._draw, args=(what, stream), daemon=True)
            self._thread.start()

    def _draw(self, what: str, stream: TextIO) -> None:
        began, wait, width = time.monotonic(), _SECONDS_BEFORE_THE_FIRST, 0
        while not self._over.wait(wait):
            line = f"tinytf: {what}, {time.monotonic() - began:.0f} s"
            width, wait = len(line), _SECONDS_BETWEEN
            stream.write(f"\r{line}")
            stream.flush()
        if width:
            stream.write(f"\r{' ' * width}\r")
            stream.flush()

    def stop(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()


@contextmanager
def working(what: str, *, shows_itself: bool = False) -> Iterator[None]:
    """Say that ``what`` is being worked on, on a terminal, from the first second until ``quiet``.

    Nothing is said for what runs inside it, nor for a command that ``shows_itself``.
    """
    context = click.get_current_context()
    if _KEPT_AS in context.meta:
        yield
        return
    stream = None if shows_itself or sys.stderr is None or not sys.stderr.isatty() else sys.stderr
    context.meta[_KEPT_AS] = line = CountedLine(what, stream)
    try:
        yield
    finally:
        del context.meta[_KEPT_AS]
        line.stop()


def quiet() -> None:
    """Erase the line of the running command, before something else is written."""
    context = click.get_current_context(silent=True)
    line = None if context is None else context.meta.get(_KEPT_AS)
    if line is not None:
        line.stop()
