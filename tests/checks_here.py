"""A check inside this process, which keeps what it works out of a reference: every forked one works it out again."""

import io
import linecache
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import TypeVar

import pytest

from tinytf.check.process import SECONDS, _Head
from tinytf.confined import read_answer, write_answer

T = TypeVar("T")


def _run(work: Callable[[], T], seconds: float = SECONDS) -> T:
    """The result of ``work``, by way of the answer that a process of its own would send."""
    answer, printed, path = io.BytesIO(), io.TextIOWrapper(_Head(), "utf-8", "replace", write_through=True), [*sys.path]
    linecache.clearcache()  # a test may write one file twice
    with redirect_stdout(printed), redirect_stderr(printed):
        write_answer(answer, work)
    sys.path[:] = path
    answer.seek(0)
    return read_answer(answer, work)


@pytest.fixture
def checks_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks run in this process. That they are safe in one of their own is for tests/check/test_process.py."""
    monkeypatch.setattr("tinytf.check.checked.run_in_subprocess", _run)
