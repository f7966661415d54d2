"""An act in a forked child, which has all modules already: it can be killed, and each try begins with one state."""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from failing_disk import Disk, failing

SECONDS = 120
"""After which a child that never ends is ended, by the clock."""

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


@dataclass(frozen=True)
class Ended:
    """How a child ended: the exit status, negative for a signal, and what it wrote to stdout and stderr."""

    status: int
    said: str

    @property
    def killed(self) -> bool:
        return self.status == -signal.SIGKILL


def in_child(act: Callable[[], int], disk: Disk, prepare: Callable[[], None] = lambda: None) -> Ended:
    """Run ``act``, after ``prepare``, in the folder of a disk."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        status = 99
        try:
            os.close(ours)
            signal.alarm(SECONDS)
            torch.set_num_threads(1)  # threads do not come along into a child
            os.dup2(theirs, 1)
            os.dup2(theirs, 2)
            with open(1, "w", encoding="utf-8", buffering=1) as said, redirect_stdout(said), redirect_stderr(said):
                try:
                    prepare()
                    with there(disk.folder), failing(disk):
                        status = act()
                except BaseException:
                    traceback.print_exc()
        finally:
            os._exit(status)
    os.close(theirs)
    with open(ours, "rb") as heard:
        said = heard.read()
    _, status = os.waitpid(child, 0)
    return Ended(os.waitstatus_to_exitcode(status), said.decode("utf-8", "replace"))


@contextmanager
def there(folder: Path) -> Iterator[None]:
    """In a folder for a while, with nothing on standard input."""
    before, stdin = Path.cwd(), sys.stdin
    os.chdir(folder)
    try:
        with open(os.devnull) as sys.stdin:
            yield
    finally:
        os.chdir(before)
        sys.stdin = stdin
