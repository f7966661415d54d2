"""A file that is cut short while its mapped pages are read: one line in place of a death by SIGBUS."""

import mmap
import os
import signal
import sys
import time
from contextlib import suppress
from typing import Any

from tinytf.text.printable import printable

_handlers: list[Any] = []
"""The handler, once it is installed; the library that calls it keeps no reference."""
_told: list[bool] = []


def tell_of_cut_files() -> None:
    """From now on such a read ends the process with a line that names the file, and status 1.

    Python's own handlers run between its instructions, and the read never returns: this one is called where it failed.
    """
    if _handlers or not hasattr(signal, "SIGBUS"):
        return
    import ctypes

    _handlers.append(ctypes.CFUNCTYPE(None, ctypes.c_int)(_tell))
    ctypes.CDLL(None).signal(int(signal.SIGBUS), _handlers[0])


def _tell(number: int) -> None:
    if _told:  # another thread read it too
        time.sleep(60)
    _told.append(True)
    try:
        path = _cut_short()
    except LookupError:  # of another cause: it happens again, and ends the process as ever
        signal.signal(number, signal.SIG_DFL)
        return
    with suppress(Exception):
        sys.stdout.flush()
    with suppress(OSError):
        line = f"tinytf: error: {printable(path, spaces=False)} was cut short while it was read\n"
        start = "\r\x1b[K" if os.isatty(2) else ""
        os.write(2, f"{start}{line}hint: run it again once the file is whole\n".encode())
    os._exit(1)


def _cut_short() -> str:
    """The mapped file that is shorter than its mapping. Raises LookupError where there is none."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            lines = [line.rstrip("\n").split(maxsplit=5) for line in maps]
    except OSError:
        return "a file that is open"
    mapped = [line for line in lines if line[5:] and line[5].startswith("/")]
    programs = {line[5] for line in mapped if "x" in line[1]}  # the loader of programs maps more than a file has
    for span, _, offset, _, _, path in mapped:
        first, last = (int(end, 16) for end in span.split("-"))
        with suppress(OSError):
            size = -(-os.stat(path).st_size // mmap.PAGESIZE) * mmap.PAGESIZE
            if path not in programs and int(offset, 16) + last - first > size:
                return path
    raise LookupError
