"""Ctrl-C: remembered, since a library that is being imported can swallow the exception, and held off while writing."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Interrupt:
    """The handler of one run; ``happened`` says whether Ctrl-C was pressed."""

    def __init__(self) -> None:
        self.happened = False
        self._held = False

    def __call__(self, *_: object) -> None:
        again, self.happened = self.happened, True
        if again or not self._held:
            raise KeyboardInterrupt

    def listen(self) -> Any:
        """Take over the signal, where that can be done; the answer is the handler of before."""
        if threading.current_thread() is not threading.main_thread():
            return None
        return signal.signal(signal.SIGINT, self)

    @contextmanager
    def held(self) -> Iterator[None]:
        """A stretch that the first Ctrl-C does not break: it waits for ``let_in``. The second one does."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    @contextmanager
    def let_in(self) -> Iterator[None]:
        """Within ``held``, a stretch that Ctrl-C breaks, also one that was pressed before."""
        held, self._held = self._held, False
        try:
            if held and self.happened:
                raise KeyboardInterrupt
            yield
        finally:
            self._held = held


class _Now:
    """The run that is going on; a program has one, tests have one after the other."""

    interrupt = Interrupt()


def begin() -> Interrupt:
    """A new run."""
    _Now.interrupt = Interrupt()
    return _Now.interrupt


def current() -> Interrupt:
    """That of the run that is going on."""
    return _Now.interrupt
