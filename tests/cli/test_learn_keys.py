"""The lessons under real keys: a pseudo-terminal of 80 × 24, and what its screen shows."""

import os
import sys
import time
from pathlib import Path

import pexpect
import pyte
import pytest

from tinytf.lessons.titles import NAMES

COLUMNS, ROWS = 80, 24
_DRAWN = b"\x1b[?2026l"


class Terminal:
    """A terminal with tinytf learn in it; ``screen`` is what somebody in front of it sees."""

    def __init__(self, *arguments: str, state: Path) -> None:
        environ = {**os.environ, "TERM": "xterm-256color", "XDG_STATE_HOME": str(state), "OMP_NUM_THREADS": "1"}
        for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
            environ.pop(name, None)
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self.stream = pyte.ByteStream(self.screen)
        self.seen = b""
        words = ["-m", "tinytf_cli", "learn", *arguments]
        self.child = pexpect.spawn(sys.executable, words, env=environ, dimensions=(ROWS, COLUMNS), timeout=60)

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display)

    def until(self, words: str, seconds: float = 60.0) -> str:
        """The screen as soon as ``words`` are on it, and it is drawn to its end."""
        end = time.monotonic() + seconds
        while not (words in self.text and self.seen.endswith(_DRAWN)):
            assert time.monotonic() < end, self.text
            try:
                self._feed(self.child.read_nonblocking(65_536, 1))
            except pexpect.TIMEOUT:
                continue
            except pexpect.EOF:
                raise AssertionError(self.text) from None
        return self.text

    def _feed(self, data: bytes) -> None:
        self.seen += data
        # pyte knows no alternate screen and no synchronised output; the rest is as a terminal does it
        self.stream.feed(data)

    def press(self, keys: str, words: str) -> str:
        self.child.send(keys)
        return self.until(words)

    def resize(self, columns: int, rows: int) -> None:
        self.screen.resize(rows, columns)
        self.child.setwinsize(rows, columns)

    def leave(self, keys: str) -> int:
        self.child.send(keys)
        while True:
            try:
                self._feed(self.child.read_nonblocking(65_536, 60))
            except pexpect.EOF:
                break
        self.child.close()
        return self.child.exitstatus


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def the_screen_is_whole(text: str) -> None:
    """Every row is used at most to its end, the keys stand in the last row, and no row was wrapped into another."""
    lines = text.splitlines()
    assert len(lines) == ROWS
    assert lines[-1].startswith("space ")
    assert lines[0].rstrip().endswith(f"of {len(NAMES)}")
    for label in ("why", "formula", "PyTorch", "predict"):
        assert sum(line.startswith(f"{label} ") for line in lines) == 1, label


def test_keys_turn_the_lessons_answer_explain_and_leave(state: Path) -> None:
    terminal = Terminal("1", "-m", "tiny", state=state)
    terminal.until("1 of 21")
    for number, name in enumerate(NAMES, 1):
        text = terminal.until(f"{number} of 21")
        assert text.startswith(f"{name}  ")
        the_screen_is_whole(text)
        assert "1-4 answer" in text
        answered = terminal.press("1", "✓")
        the_screen_is_whole(answered)
        assert ("\nright  " in answered) != ("✗" in answered and "\nno, " in answered)
        if number < len(NAMES):
            terminal.child.send(" \r"[number % 2])
    text = terminal.press("b", "20 of 21")
    assert "✓" in text  # what was answered stays so
    explained = terminal.press("e", "any key back")
    assert "checked: the terms add up to the recorded" in explained
    terminal.press("x", "20 of 21")
    terminal.resize(60, 12)
    small = terminal.until("up down scroll")
    assert small.startswith("backward")
    assert "no loss" not in small
    scrolled = terminal.press("\x1b[6~", "Autograd found")
    assert not scrolled.startswith("backward")
    terminal.resize(COLUMNS, ROWS)
    terminal.until("space next")
    assert terminal.leave("q") == 0
    assert terminal.seen.count(b"\x1b[?1049h") == terminal.seen.count(b"\x1b[?1049l") == 1
    end = terminal.seen[terminal.seen.rindex(b"\x1b[?1049l") :]
    assert terminal.seen.rindex(b"\x1b[?25h") > terminal.seen.rindex(b"\x1b[?25l")
    assert b"left at lesson 20, backward" in end
    assert end.count(b"\x1b[") == 1


def test_the_place_is_remembered_and_ctrl_c_leaves_too(state: Path) -> None:
    (state / "tinytf").mkdir(parents=True)
    (state / "tinytf" / "learn.json").write_text('{"lesson": 7}', "utf-8")
    terminal = Terminal(state=state)
    text = terminal.until("on from lesson 7, where you left")
    assert text.startswith("mask  ")
    terminal.press(" ", "8 of 21")
    assert terminal.leave("\x03") == 0
    assert '"lesson": 8' in (state / "tinytf" / "learn.json").read_text("utf-8")
    assert terminal.seen.count(b"\x1b[?1049l") == 1
    assert b"Traceback" not in terminal.seen
