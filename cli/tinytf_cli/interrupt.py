"""Ctrl-C: remembered, because an import can swallow the exception, and held back while output is written.

A training holds SIGTERM and SIGHUP back as well, until its checkpoint is written.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_PASSED_ON = 1.0
"""Seconds in which a second SIGTERM or SIGHUP is the first one again, passed on by a shell or a launcher."""


class Interrupt:
    """The handler of signals of one run; ``happened`` says whether Ctrl-C was pressed, or another asked it to end."""

    def __init__(self) -> None:
        self.happened = False
        self._held = False
        self._since = 0.0

    def __call__(self, number: int = signal.SIGINT, *_: object) -> None:
        again, self.happened = self.happened, True
        if again and number in _ENDING and time.monotonic() - self._since < _PASSED_ON:
            return
        self._since = time.monotonic()
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
    def asked(self) -> Iterator[Callable[[], bool]]:
        """Yield a question, whether to stop; once it is asked, signals do no more than answer it.

        These are Ctrl-C, SIGTERM, and SIGHUP unless ``nohup`` has switched it off. A second one interrupts at once.
        """
        before: dict[int, Any] = {}

        def question() -> bool:
            if not self._held:
                self._held = True
                if threading.current_thread() is threading.main_thread():
                    heard = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
                    before.update({number: signal.signal(number, self) for number in heard})
            return self.happened

        try:
            yield question
        finally:
            self._held = False
            for number, handler in before.items():
                signal.signal(number, handler)

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
