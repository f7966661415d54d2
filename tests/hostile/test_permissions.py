"""Without the right to pass over permissions: a result or one line, and nothing of another user is changed."""

import ctypes
import os
import sys
import tempfile
from itertools import islice
from pathlib import Path

import pytest
from failing_disk import Disk
from faults.child import in_child, needs_fork

from hostile.case import Case
from hostile.permissions import ANOTHER, cases
from hostile.watchdog import tried, watched

_OVERRIDING = (1, 2, 3)
"""Linux' numbers of CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH and CAP_FOWNER."""
_VERSION = 0x20080522


def without_privileges() -> None:
    """Let permissions hold for this process for good, also where it is root's, as for any other user's.

    It stays root: the interpreter's own files may be for root alone.
    """
    if os.geteuid():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(_VERSION, 0), (ctypes.c_uint32 * 6)()
    if libc.capget(header, sets):
        raise OSError(ctypes.get_errno(), "capget")
    for place in range(3):  # effective, permitted, inheritable; the second three are of capabilities from 32 on
        for number in _OVERRIDING:
            sets[place] &= ~(1 << number)
    if libc.capset(header, sets):
        raise OSError(ctypes.get_errno(), "capset")


def _try_all(count: int, folder: Path) -> int:
    tempfile.tempdir = str(folder)
    with watched():
        for case in islice(cases(count, 0), count):
            if fault := tried(case).fault:
                raise AssertionError(f"{case.about}\n{case.words!a}\n{fault}")
    return 0


@pytest.fixture
def open_folder(tmp_path: Path) -> Path:
    tried(Case("", ("tokens", "the cat")))  # so that no child has all of it to import
    return tmp_path


@needs_fork
@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux'")
def test_what_may_not_be_read_or_written_is_a_line(pytestconfig: pytest.Config, open_folder: Path) -> None:
    count = pytestconfig.getoption("hostile") // 10
    ended = in_child(lambda: _try_all(count, open_folder), Disk(open_folder), without_privileges)
    assert ended.status == 0, ended.said


@needs_fork
@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root has privileges to give up")
def test_a_child_without_privileges_may_not_write_what_is_another_users(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("theirs")
    os.chown(tmp_path / "file", ANOTHER, ANOTHER)

    def write() -> int:
        try:
            (tmp_path / "file").write_text("mine")
        except PermissionError:
            return 7
        return 0

    assert in_child(write, Disk(tmp_path / "other folder"), lambda: (tmp_path / "other folder").mkdir()).status == 0
    assert in_child(write, Disk(tmp_path / "other folder"), without_privileges).status == 7
