"""The process of one page of the served explorer: it ends with its server."""

import os
import select
import sys
import threading

_GONE = 129
"""The exit status after SIGHUP."""


def end_with_server() -> None:
    """End this process as soon as its server has ended, in whatever way: the system then hangs up its standard input.

    Does nothing on systems that cannot wait for that, such as Windows.
    """
    if hasattr(select, "poll") and sys.__stdin__ is not None:
        threading.Thread(target=_await_hangup, args=(sys.__stdin__.fileno(),), daemon=True).start()


def _await_hangup(descriptor: int) -> None:
    waiting = select.poll()
    waiting.register(descriptor, 0)  # for no input, which is the screen's to read
    waiting.poll()
    os._exit(_GONE)
