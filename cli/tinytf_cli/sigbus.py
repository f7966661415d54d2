"""A mapped file that is truncated while it is read: an error message instead of death by SIGBUS."""

import mmap
import os
import signal
import sys
import time
from contextlib import suppress
from typing import Any

from tinytf.text.printable import printable

_handlers: list[Any] = []
"""The installed handler. ctypes keeps no reference to it, so this must."""
_reported: list[bool] = []


def report_truncated_files() -> None:
    """Install a handler that ends the process with status 1 and a line that names the truncated file.

    A Python signal handler would never run, because the failed read does not return. This C handler runs at once.
    """
    if _handlers or not hasattr(signal, "SIGBUS"):
        return
    import ctypes

    _handlers.append(ctypes.CFUNCTYPE(None, ctypes.c_int)(_report))
    ctypes.CDLL(None).signal(int(signal.SIGBUS), _handlers[0])


def _report(number: int) -> None:
    if _reported:  # another thread read it too
        time.sleep(60)
    _reported.append(True)
    try:
        path = _truncated_file()
    except LookupError:  # another cause: the read fails again, with the default action
        signal.signal(number, signal.SIG_DFL)
        return
    with suppress(Exception):
        sys.stdout.flush()
    with suppress(OSError):
        line = f"tinytf: error: {printable(path, spaces=False)} was cut short while it was read\n"
        start = "\r\x1b[K" if os.isatty(2) else ""
        os.write(2, f"{start}{line}hint: run it again once the file is whole\n".encode())
    os._exit(1)


def _truncated_file() -> str:
    """The mapped file that is shorter than its mapping. Raises LookupError if there is none."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            lines = [line.rstrip("\n").split(maxsplit=5) for line in maps]
    except OSError:
        return "a file that is open"
    mappings = [line for line in lines if line[5:] and line[5].startswith("/")]
    programs = {line[5] for line in mappings if "x" in line[1]}  # the program loader maps more than the file has
    for span, _, offset, _, _, path in mappings:
        first, last = (int(end, 16) for end in span.split("-"))
        with suppress(OSError):
            size = -(-os.stat(path).st_size // mmap.PAGESIZE) * mmap.PAGESIZE
            if path not in programs and int(offset, 16) + last - first > size:
                return path
    raise LookupError
