"""Ctrl-C: remembered, because an import can swallow the exception, and deferred while output is written.

Training also defers SIGTERM and SIGHUP until its checkpoint is written.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_PASSED_ON = 1.0
"""Seconds within which a second SIGTERM or SIGHUP counts as the first one, forwarded by a shell or a launcher."""


class Interrupt:
    """The signal handler of one run. ``happened`` is true after Ctrl-C or another signal to end."""

    def __init__(self) -> None:
        self.happened = False
        self._blocking = False
        self._signalled_at = 0.0

    def __call__(self, number: int = signal.SIGINT, *_: object) -> None:
        repeated, self.happened = self.happened, True
        if repeated and number in _ENDING and time.monotonic() - self._signalled_at < _PASSED_ON:
            return
        self._signalled_at = time.monotonic()
        if repeated or not self._blocking:
            raise KeyboardInterrupt

    def listen(self) -> Any:
        """Install this handler in the main thread, and return the previous one; elsewhere return None."""
        if threading.current_thread() is not threading.main_thread():
            return None
        return signal.signal(signal.SIGINT, self)

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """Defer the first Ctrl-C until ``allowed``; a second one interrupts at once."""
        self._blocking = True
        try:
            yield
        finally:
            self._blocking = False

    @contextmanager
    def deferred(self) -> Iterator[Callable[[], bool]]:
        """Yield a function that says whether to stop. After its first call, a signal only makes it return true.

        The signals are Ctrl-C, SIGTERM, and SIGHUP unless ``nohup`` ignores it. A second one interrupts at once.
        """
        previous: dict[int, Any] = {}

        def must_stop() -> bool:
            if not self._blocking:
                self._blocking = True
                if threading.current_thread() is threading.main_thread():
                    handled = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
                    previous.update({number: signal.signal(number, self) for number in handled})
            return self.happened

        try:
            yield must_stop
        finally:
            self._blocking = False
            for number, handler in previous.items():
                signal.signal(number, handler)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Within ``blocked``, let Ctrl-C interrupt, including one that was deferred."""
        was_blocking, self._blocking = self._blocking, False
        try:
            if was_blocking and self.happened:
                raise KeyboardInterrupt
            yield
        finally:
            self._blocking = was_blocking
