"""Ctrl-C: remembered, because an import can swallow the exception, and held back while output is written."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from tinytf_cli.host import host


class Interrupt:
    """The SIGINT handler of one run; ``happened`` says whether Ctrl-C was pressed."""

    def __init__(self) -> None:
        self.happened = False
        self._held = False

    def __call__(self, *_: object) -> None:
        again, self.happened = self.happened, True
        if again or not self._held:
            raise KeyboardInterrupt

    def listen(self) -> Any:
        """Install this handler in the main thread, and return the previous one; elsewhere return None."""
        if threading.current_thread() is not threading.main_thread():
            return None
        return signal.signal(signal.SIGINT, self)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold back the first Ctrl-C until ``let_in``; a second one interrupts at once."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    @contextmanager
    def let_in(self) -> Iterator[None]:
        """Within ``held``, let Ctrl-C interrupt, including one that was held back."""
        held, self._held = self._held, False
        try:
            if held and self.happened:
                raise KeyboardInterrupt
            yield
        finally:
            self._held = held


def current() -> Interrupt:
    """The handler of the running command; outside any command, a new one that never fires."""
    context = click.get_current_context(silent=True)
    lender = host()
    found = context.find_object(Interrupt) if context is not None else None
    return found or (lender.interrupt if lender is not None else Interrupt())
