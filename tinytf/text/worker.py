"""A worker process for untrusted tokenizers and templates: running out of time or memory ends only that process.

It is a fresh Python without torch, started at the first request and kept for later ones. Its output is discarded.
Requests are pickled; answers are plain data (``tinytf.confined``).
"""

import os
import pickle
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar

from tinytf.confined import BadAnswer, limit, read_answer, write_answer
from tinytf.errors import CheckpointError, TinytfError, UsageError
from tinytf.files import MEBI

P = ParamSpec("P")
T = TypeVar("T")

SECONDS, GROWTH = 5, 512 * MEBI
"""The budget of a request: seconds of one processor, and bytes of memory."""
_START = "import sys; sys.path[:] = {!r}; from tinytf.text.worker import serve; serve()"
_OUT_OF_TIME, _OUT_OF_MEMORY = getattr(signal, "SIGXCPU", None), getattr(signal, "SIGABRT", None)


class Worker:
    """Runs functions of tinytf in another process; ``subject`` names the untrusted input in error messages.

    A call returns or raises what the function does, and raises CheckpointError when it exceeds its budget.
    """

    def __init__(self, subject: str, begin: Callable[..., object] | None = None, *arguments: Any) -> None:
        self.subject = subject
        self.begin_with(begin, *arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._owner, self._lock = 0, threading.Lock()

    def begin_with(self, begin: Callable[..., object] | None, *arguments: Any) -> None:
        """Set the function to call before the next request, and first in every new process."""
        self._begin, self._begin_arguments, self._begun = begin, arguments, False

    def __reduce__(self) -> tuple[Any, ...]:
        """Reduce to the arguments: a copy starts its own process."""
        return Worker, (self.subject, self._begin, *self._begin_arguments)

    def __call__(self, work: Callable[P, T], /, *arguments: P.args, **keywords: P.kwargs) -> T:
        with self._lock:
            if self._process is None or self._owner != os.getpid():
                self._start()
            if self._begin is not None and not self._begun:
                self._ask(self._begin, *self._begin_arguments)
                self._begun = True
            answer: T = self._ask(work, *arguments, **keywords)
            return answer

    def _start(self) -> None:
        self._process, self._owner = subprocess.Popen(
            [sys.executable, "-c", _START.format(sys.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True,
        ), os.getpid()  # fmt: skip
        self._begun = False
        self.close = weakref.finalize(self, _end, self._process, self._owner)

    def _ask(self, work: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            request = pickle.dumps((SECONDS, GROWTH, work, arguments, keywords))
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise UsageError(f"{self.subject} cannot take this: {error}", "give plain data") from None
        try:
            process.stdin.write(request)
            process.stdin.flush()
            return read_answer(process.stdout, work)
        except TinytfError:
            raise
        except MemoryError:
            raise self._stopped(_OUT_OF_MEMORY) from None
        except BaseException as error:  # the process has ended, or nobody would read its answer
            if isinstance(error, OSError | EOFError):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(SECONDS)
            status, self._process = process.returncode, None
            self.close()
            if isinstance(error, OSError | EOFError | BadAnswer):
                raise self._stopped(-(status or 0)) from None
            raise

    def _stopped(self, signal_number: int | None) -> CheckpointError:
        reasons = {_OUT_OF_TIME: f"takes more than {SECONDS:g} seconds",
                _OUT_OF_MEMORY: f"takes more than {GROWTH // MEBI:,} MiB of memory",
                0: "gives an invalid answer"}  # fmt: skip
        reason = reasons.get(signal_number, f"ends its worker process ({signal_number})")
        return CheckpointError(
            f"{self.subject} {reason}, and was stopped", "it comes with the model; do you trust that?"
        )


def _end(process: "subprocess.Popen[bytes]", owner: int) -> None:
    if owner == os.getpid():  # not in a forked process: the worker belongs to the parent
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


def serve() -> None:
    """Answer requests until the input ends."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            seconds, growth, work, arguments, keywords = pickle.load(requests)
        except EOFError:
            return
        limit(growth, seconds)
        write_answer(answers, partial(work, *arguments, **keywords))
