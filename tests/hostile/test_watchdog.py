"""The watchdog sees what it is there for: each thing that may not be, done once."""

import mmap
import signal
import time
from pathlib import Path

import pytest

from hostile import watchdog
from hostile.bases import ours, within
from hostile.case import Case
from hostile.watchdog import fault_in, tried

LINE = b"tinytf: error: there is no such thing\nhint: try another\n"


@pytest.mark.parametrize(
    ("status", "out", "err", "said"),
    [
        (0, b"\x1b[2J", b"", "stdout holds"),
        (0, "\u202e".encode(), b"", "stdout holds"),
        (2, b"", "tinytf: error: \u200b\n".encode(), "stderr holds"),
        (0, b"\xff", b"", "no UTF-8"),
        (1, b"", b"tinytf: error: KeyError: 'x'\nhint: this is a fault of tinytf; --debug shows where\n", "KeyError"),
        (1, b"", b'Traceback (most recent call last):\n  File "x"\n', "Traceback"),
        (2, b"", LINE * 2, "more than one line"),
        (1, b"", b"", "without a word"),
        (-9, b"", b"", "exit status -9"),
        (0, b"", b"/x.py:1: UserWarning: this may change\n", "not said by tinytf"),
    ],
)
def test_what_may_not_be_said_is_a_fault(tmp_path: Path, status: int, out: bytes, err: bytes, said: str) -> None:
    assert said in fault_in(status, out, err, tmp_path)


@pytest.mark.parametrize(("status", "out", "err"), [(0, "the cat · 猫\n".encode(), b""), (2, b"", LINE)])
def test_a_result_is_none_and_one_line_with_a_hint_is_none(tmp_path: Path, status: int, out: bytes, err: bytes) -> None:
    assert fault_in(status, out, err, tmp_path) == ""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("out.svg", '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'),
        ("out.svg", '<svg xmlns="http://www.w3.org/2000/svg"><g onclick="x()"/></svg>'),
        ("out.html", "<pre>a <img src=x> b</pre>"),
        ("out.html", "<pre>\u202e</pre>"),
        ("out.txt", "\x1b[31m"),
    ],
)
def test_what_acts_in_a_file_is_a_fault(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    assert fault_in(0, b"", b"", tmp_path)


def test_a_command_that_does_not_end_is_ended_and_a_large_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("", ("tokens", "the cat", "-m", "model"), within("model", ours()))
    assert tried(case).fault == ""
    monkeypatch.setattr(watchdog, "SECONDS", 0.05)
    monkeypatch.setattr(watchdog, "_run", lambda words: _work())
    assert tried(case).hung
    monkeypatch.undo()
    monkeypatch.setattr(watchdog, "_run", lambda words: _fill())
    monkeypatch.setattr(watchdog, "MOST", 2**23)
    assert "MB of memory" in tried(case).fault


def _fill() -> int:
    """Take new memory, where malloc may take what was freed before."""
    with mmap.mmap(-1, 2**26) as pages:
        pages.write(b"x" * 2**26)
    return 0


def _work() -> int:
    end = time.process_time() + 60
    while time.process_time() < end:
        pass
    return 0


def test_signals_are_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGALRM), signal.getsignal(signal.SIGPROF)
    tried(Case("", ("--version",)))
    assert (signal.getsignal(signal.SIGALRM), signal.getsignal(signal.SIGPROF)) == before
