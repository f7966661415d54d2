"""What takes long to import is imported while the first line is typed, and Ctrl-C cannot break it in the middle.

An extension module whose import was broken off cannot be imported again: the session would be of no use. Ctrl-C is
for the main thread alone, and that only waits for this one. Nothing of tinytf is imported here, so that neither
thread can wait for a module that the other is busy with.
"""

import contextlib
import importlib
import threading
from collections.abc import Iterator

_SLOW = ("torch", "tokenizers", "safetensors.torch")


@contextlib.contextmanager
def warming() -> Iterator[None]:
    """Import what is slow beside whatever is done meanwhile, and be done with it before leaving."""
    thread = threading.Thread(target=_import, name="warming")
    thread.start()
    try:
        yield
    finally:
        while thread.is_alive():
            with contextlib.suppress(KeyboardInterrupt):
                thread.join()


def _import() -> None:
    for name in _SLOW:
        with contextlib.suppress(Exception):  # whoever needs it says what is wrong
            importlib.import_module(name)
