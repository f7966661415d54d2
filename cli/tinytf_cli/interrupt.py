"""Ctrl-C: remembered, since a library that is being imported can swallow the exception, and held off while writing."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from tinytf_cli.host import host


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


def current() -> Interrupt:
    """That of the command that is running; a new one, which nothing interrupts, outside of any command."""
    context = click.get_current_context(silent=True)
    lender = host()
    found = context.find_object(Interrupt) if context is not None else None
    return found or (lender.interrupt if lender is not None else Interrupt())
