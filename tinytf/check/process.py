"""Run the user's own model code in a separate process, so that whatever it does, the answer is data or an error.

Two processes are forked. The code runs in the second, within limits of time and memory. The first supervises it: it
ends that process and, on Linux, every process the code has started, even detached ones.
This is not a sandbox: the code may do whatever its user may do.
"""

import ctypes
import faulthandler
import io
import math
import os
import re
import signal
import stat
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from mmap import mmap
from tempfile import TemporaryFile
from typing import IO, Any, NoReturn, TypeVar

import psutil
import torch

from tinytf.confined import BadAnswer, limit, read_answer, write_answer
from tinytf.errors import TinytfError
from tinytf.memory import free_bytes

T = TypeVar("T")
SECONDS, MEMORY = 30.0, 0.9
"""Limits of foreign code: seconds per call, and a share of the memory that is free when it starts."""
_MOST_PRINTED = 2**16
_TICK, _DUMP_SECONDS = 0.1, 2.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>
_ANSWERED, _OUT_OF_TIME = 0, 255
"""Exit statuses of a supervisor; any other is the signal that ended the process of the foreign code."""
_deadlines: "list[tuple[float, ctypes.c_double]]" = []
"""In the process of the foreign code: seconds that a call may take, and the time when the current one must end."""


class Ended(TinytfError):
    """The process ended without an answer; ``frames`` are the files and lines where it was, innermost first."""

    def __init__(self, message: str, frames: tuple[tuple[str, int], ...] = ()) -> None:
        super().__init__(message)
        self.frames = frames


def run_in_subprocess(work: Callable[[], T], seconds: float = SECONDS) -> T:
    """Run ``work`` in another process and return its result, which is checked against its annotation.

    Each ``time_limit`` context in it may take ``seconds``. Raises what ``work`` raises, and Ended if the process ends
    without an answer.
    """
    if not hasattr(os, "fork"):
        raise TinytfError("this needs a system that can fork processes", "run it on Linux or macOS")
    with TemporaryFile() as answer, TemporaryFile() as dump:
        supervisor = _fork()
        if supervisor == 0:
            _supervise(work, seconds, answer, dump)
        try:
            _, status = os.waitpid(supervisor, 0)
        except BaseException:
            os.kill(supervisor, signal.SIGTERM)
            os.kill(supervisor, signal.SIGCONT)
            os.waitpid(supervisor, 0)
            raise
        exit_code = os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        answer.seek(0)
        dump.seek(0)
        if exit_code != _ANSWERED:
            raise _end_error(exit_code, seconds, dump.read().decode("utf-8", "replace"))
        try:
            return read_answer(answer, work)
        except EOFError:
            raise Ended("it exited Python (os._exit)") from None
        except BadAnswer as error:
            raise Ended(f"it corrupted the answer of its check: {error}") from None


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about forking with threads: the child starts none
        return os.fork()


def _supervise(work: Callable[[], Any], seconds: float, answer: IO[bytes], dump: IO[bytes]) -> NoReturn:
    """In the first process: run the work in a second one, wait for it, and end whatever it leaves behind."""
    exit_code, worker = int(signal.SIGKILL), 0
    try:
        os.setsid()  # Ctrl-C is the parent's
        _control(_PR_SET_PDEATHSIG, signal.SIGTERM)
        _control(_PR_SET_CHILD_SUBREAPER, 1)
        _close_channels()
        end = ctypes.c_double.from_buffer(mmap(-1, ctypes.sizeof(ctypes.c_double)))
        end.value = math.inf
        signal.signal(signal.SIGTERM, _stop)
        worker = _fork()
        if worker == 0:
            _deadlines.append((seconds, end))
            _answer(work, answer, dump)
        signal.signal(signal.SIGALRM, lambda *_: _stop() if time.monotonic() > end.value else None)
        signal.setitimer(signal.ITIMER_REAL, _TICK, _TICK)
        try:
            _, status = os.waitpid(worker, 0)
            exit_code = os.WTERMSIG(status) if os.WIFSIGNALED(status) else _ANSWERED
        except TimeoutError:
            exit_code = _OUT_OF_TIME
            end.value = time.monotonic() + _DUMP_SECONDS
            os.kill(worker, signal.SIGABRT)  # faulthandler writes the stack
            os.waitpid(worker, 0)
    finally:
        with suppress(BaseException):
            signal.setitimer(signal.ITIMER_REAL, 0)
            _kill_descendants(worker)
        os._exit(exit_code)


def _stop(*_: object) -> NoReturn:
    raise TimeoutError


def _control(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _close_channels() -> None:
    """Point inherited terminals, pipes and sockets at /dev/null: whoever reads from them trusts what it reads."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in map(int, os.listdir("/dev/fd")):
        with suppress(OSError):  # the descriptor of the listing itself is closed by now
            kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
            if descriptor <= 2 or kind in (stat.S_IFCHR, stat.S_IFIFO, stat.S_IFSOCK):
                os.dup2(null, descriptor)


def _kill_descendants(worker: int) -> None:
    """End the process group of ``worker`` and every other descendant: orphans become children of this process."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(worker, signal.SIGKILL)
    with suppress(ChildProcessError, psutil.Error):
        while True:
            os.waitpid(-1, os.WNOHANG)  # raises when no children are left
            for child in psutil.Process().children():
                child.kill()
            os.waitpid(-1, 0)


def _answer(work: Callable[[], Any], answer: IO[bytes], dump: IO[bytes]) -> NoReturn:
    """In the second process: run the work, and write its answer."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        _control(_PR_SET_PDEATHSIG, signal.SIGKILL)
        sys.stdin, sys.stdout = open(0), io.TextIOWrapper(_Head(), "utf-8", "replace", write_through=True)  # noqa: SIM115
        sys.stderr = sys.stdout
        torch.set_num_threads(1)  # the parent's threads do not exist here
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the reference is on the CPU
        faulthandler.enable(dump)
        limit(int(MEMORY * free_bytes(torch.device("cpu"))))
        write_answer(answer, work)
    finally:
        os._exit(0)


class _Head(io.BytesIO):
    """A buffer that keeps only the beginning of what is written to it."""

    def write(self, data: Any) -> int:
        return super().write(data) if self.tell() < _MOST_PRINTED else len(data)


def captured_output() -> str:
    """The output printed so far in the process of the foreign code."""
    buffer = getattr(sys.stdout, "buffer", None)
    return buffer.getvalue().decode("utf-8", "replace") if isinstance(buffer, _Head) else ""


@contextmanager
def time_limit() -> Iterator[None]:
    """Limit the time of the foreign code in this context; running over ends its process, whatever it is doing."""
    for seconds, end in _deadlines:
        end.value = time.monotonic() + seconds
    try:
        yield
    finally:
        for _, end in _deadlines:
            end.value = math.inf


def _end_error(exit_code: int, seconds: float, dump: str) -> Ended:
    frames = tuple((file, int(line)) for file, line in re.findall(r'^  File "(.*)", line (\d+)', dump, re.MULTILINE))
    if exit_code == _OUT_OF_TIME:
        return Ended(f"it was still running after {seconds:g} seconds", frames)
    name = signal.Signals(exit_code).name
    return Ended(f"Python crashed ({name})" + (", out of memory?" if name == "SIGKILL" else ""), frames)
