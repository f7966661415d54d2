"""What takes long to import is imported while the first line is typed, and Ctrl-C cannot break it in the middle.

An extension module whose import was broken off cannot be imported again: the session would be of no use. Ctrl-C is
for the main thread alone, and that only waits for this one. Nothing of tinytf is imported here, so that neither
thread can wait for a module that the other is busy with.
"""

import contextlib
import importlib
import threading

_SLOW = ("torch", "tokenizers", "safetensors.torch")


class Warming:
    """A thread that imports; begun once, and done before the session is left."""

    def __init__(self) -> None:
        self._thread = threading.Thread(target=_import, name="warming")

    def begin(self) -> None:
        """Begin, if that has not been done."""
        if self._thread.ident is None:
            self._thread.start()

    def end(self) -> None:
        """Wait until all is imported, if that was begun."""
        while self._thread.is_alive():
            with contextlib.suppress(KeyboardInterrupt):
                self._thread.join()


def _import() -> None:
    for name in _SLOW:
        with contextlib.suppress(Exception):  # whoever needs it says what is wrong
            importlib.import_module(name)
