"""Foreign code in a process of its own: whatever it does, what comes back is an answer or an error.

Exits, crashes and endless loops end that process alone, and what the code changes in Python or torch is gone with it.
This is no sandbox: the code may do what its user may.
"""

import faulthandler
import io
import os
import pickle
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from tempfile import TemporaryFile
from typing import IO, Any, NoReturn, TypeVar

import torch

from tinytf.errors import TinytfError

T = TypeVar("T")
SECONDS = 30.0
_MOST_PRINTED = 2**16
_limits: list[tuple[float, IO[bytes]]] = []
"""In the process of the foreign code: how long a stretch of it may take, and where the lines that it stands at go."""


class Ended(TinytfError):
    """The process did not answer; ``frames`` are the files and lines it stood at, the innermost first."""

    def __init__(self, message: str, frames: tuple[tuple[str, int], ...] = ()) -> None:
        super().__init__(message)
        self.frames = frames


def apart(work: Callable[[], T], seconds: float = SECONDS) -> T:
    """What ``work`` returns or raises in a forked process, in which each ``limited`` stretch may take that long.

    Raises Ended where that process ends without an answer.
    """
    if not hasattr(os, "fork"):
        raise TinytfError("this needs a system that can fork a process", "run it on Linux or macOS")
    with TemporaryFile() as answer, TemporaryFile() as dump:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads: the child starts none
            child = os.fork()
        if child == 0:
            _answer(work, seconds, answer, dump)
        try:
            _, status = os.waitpid(child, 0)
        except BaseException:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise
        finally:
            with suppress(ProcessLookupError, PermissionError):  # what it started itself
                os.killpg(child, signal.SIGKILL)
        answer.seek(0)
        written = answer.read()
        if not written:
            dump.seek(0)
            raise _ended(status, seconds, dump.read().decode("utf-8", "replace"))
        returned, found = pickle.loads(written)
    if not returned:
        raise found
    return found


def _answer(work: Callable[[], Any], seconds: float, answer: IO[bytes], dump: IO[bytes]) -> NoReturn:
    """In the child: run the work without a terminal, and write what comes of it."""
    try:
        os.setsid()  # Ctrl-C is the parent's
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        sys.stdin, sys.stdout = open(0), io.TextIOWrapper(_Kept(), "utf-8", "replace", write_through=True)  # noqa: SIM115
        sys.stderr = sys.stdout
        torch.set_num_threads(1)  # threads of the parent's are not here
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the reference is on the processor
        faulthandler.enable(dump)
        _limits.append((seconds, dump))
        try:
            written = pickle.dumps((True, work()))
        except BaseException as error:
            if not isinstance(error, TinytfError):  # a fault of tinytf, and perhaps of a class that cannot be sent
                error = RuntimeError(f"{type(error).__name__}: {error}")
            error.add_note(traceback.format_exc())  # a traceback cannot be sent
            written = pickle.dumps((False, error))
        answer.write(written)
        answer.flush()
    finally:
        os._exit(0)


class _Kept(io.BytesIO):
    """The beginning of what is written."""

    def write(self, data: Any) -> int:
        return super().write(data) if self.tell() < _MOST_PRINTED else len(data)


def printed() -> str:
    """What was printed so far in the process of the foreign code."""
    kept = getattr(sys.stdout, "buffer", None)
    return kept.getvalue().decode("utf-8", "replace") if isinstance(kept, _Kept) else ""


@contextmanager
def limited() -> Iterator[None]:
    """A stretch of foreign code; one that takes too long ends its process, whatever it is doing."""
    for seconds, dump in _limits:
        faulthandler.dump_traceback_later(seconds, exit=True, file=dump)
    try:
        yield
    finally:
        if _limits:
            faulthandler.cancel_dump_traceback_later()


def _ended(status: int, seconds: float, dump: str) -> Ended:
    frames = tuple((file, int(line)) for file, line in re.findall(r'^  File "(.*)", line (\d+)', dump, re.MULTILINE))
    if dump.startswith("Timeout"):
        return Ended(f"it was still running after {seconds:g} seconds", frames)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return Ended(f"Python crashed ({name})" + (", out of memory?" if name == "SIGKILL" else ""), frames)
    return Ended("it left Python (os._exit)", frames)
