"""A line on stderr that counts the seconds a command has been working, and says how far its loop is, until other output
appears.

On a terminal it is redrawn and erased; elsewhere, such as in a log, it is written anew every ten seconds.
"""

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

import click

from tinytf.counting import told_to

_SECONDS_BEFORE_THE_FIRST, _SECONDS_BETWEEN = 1.0, 0.5
SECONDS_IN_A_LOG = 10.0
"""The least seconds between lines off a terminal, and before the first."""
_META_KEY = "tinytf.working"


def for_progress(stream: TextIO | None) -> TextIO | None:
    """A stream, unless it is off a terminal and ``TINYTF_PROGRESS`` says ``never``."""
    silent = stream is None or (not stream.isatty() and os.environ.get("TINYTF_PROGRESS") == "never")
    return None if silent else stream


class CountedLine:
    """A line that a thread redraws on ``stream`` from ``start`` on; ``stop`` erases it for good.

    Without a stream nothing is drawn. Whoever starts it has to be sure to stop it, even if interrupted in between.
    """

    def __init__(self, label: str, stream: TextIO | None) -> None:
        self._label, self._at = label, ""
        self._stopped, self._thread = threading.Event(), None
        if stream is not None:
            self._thread = threading.Thread(target=self._draw, args=(stream,), daemon=True)

    def start(self) -> None:
        """Draw from now on."""
        if self._thread is not None:
            self._thread.start()

    def tell(self, unit: str, done: int, total: int) -> None:
        """Say from now on how far the work is."""
        self._at = f", {unit} {done:,} of {total:,}"

    def _line(self, began: float) -> str:
        return f"tinytf: {self._label}{self._at}, {time.monotonic() - began:.0f} s"

    def _draw(self, stream: TextIO) -> None:
        with suppress(OSError, ValueError):  # what was reading it, or it, is closed
            self._count(stream)

    def _count(self, stream: TextIO) -> None:
        began, wait, width = time.monotonic(), _SECONDS_BEFORE_THE_FIRST, 0
        while not stream.isatty():
            if self._stopped.wait(SECONDS_IN_A_LOG):
                return
            stream.write(f"{self._line(began)}\n")
            stream.flush()
        while not self._stopped.wait(wait):
            line = self._line(began)[: shutil.get_terminal_size().columns - 1]  # a wrapped line could not be erased
            stream.write(f"\r{line.ljust(width)}")
            width, wait = len(line), _SECONDS_BETWEEN
            stream.flush()
        if width:
            stream.write(f"\r{' ' * width}\r")
            stream.flush()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()


@contextmanager
def working(label: str, *, shows_itself: bool = False) -> Iterator[None]:
    """Show for how long the command has been running until ``quiet``: on a terminal from the first second on.

    Commands run inside it show nothing, nor does a command that ``shows_itself``.
    """
    context = click.get_current_context()
    if _META_KEY in context.meta:
        yield
        return
    line = CountedLine(label, None if shows_itself else for_progress(sys.stderr))
    try:
        context.meta[_META_KEY] = line
        line.start()  # in here, for Ctrl-C may come before it returns
        with told_to(line.tell):
            yield
    finally:
        line.stop()
        context.meta.pop(_META_KEY, None)


def quiet() -> None:
    """Erase the line of the running command, before other output."""
    context = click.get_current_context(silent=True)
    line = None if context is None else context.meta.get(_META_KEY)
    if line is not None:
        line.stop()
