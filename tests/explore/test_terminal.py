"""The explorer in a real pseudo-terminal: however it ends, the terminal is as it was; a slow line loses no key."""

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are of POSIX", allow_module_level=True)

from tests.repl.test_terminal import Seen, _begin

_MODES = {1000: "clicks", 1002: "drags", 1003: "moves", 1006: "the mouse", 1049: "the second screen", 2004: "pastes"}
_BEGINS = "import sys, os; sys.argv[1:] = ['explore', 'The cat sat']; print(os.getpid())"


def explore(folder: Path, more: str = "", size: tuple[int, int] = (100, 30)) -> tuple[Seen, int]:
    """The explorer on a terminal, drawn, and the number of its process."""
    seen = _begin(*size, folder, f"{_BEGINS}\n{more}")
    number = int(seen.until(lambda shown: bool(re.match(r"\d+\s", shown)), "its number").split()[0])
    seen.shows("L0H3.weights", "·sat")
    assert 1049 << 5 in seen.screen.mode, "it has a screen of its own"
    return seen, number


def assert_given_back(seen: Seen, status: int) -> str:
    """It ended so, and left the terminal as it was."""
    shown = seen.shows(f"status {status}", "as before")
    left_on = [name for mode, name in _MODES.items() if mode << 5 in seen.screen.mode]
    assert not left_on
    assert status == 1 or "Traceback" not in shown
    return shown


def test_the_terminal_is_given_back_when_it_ends(tmp_path: Path) -> None:
    """The tests below end it by q, by Ctrl-C and by SIGTERM."""
    seen, number = explore(tmp_path)
    os.kill(number, signal.SIGHUP)
    assert_given_back(seen, 129)


def test_the_terminal_is_given_back_when_it_crashes(tmp_path: Path) -> None:
    broken = (
        "import tinytf_cli.explore.keys as keys\n"
        "keys.KEYS = tuple(one._replace(action=lambda app: 1 / 0) if one.keys == 'n' else one for one in keys.KEYS)"
    )
    seen, _ = explore(tmp_path, broken)
    seen.type("n")
    assert "division by zero" in assert_given_back(seen, 1)


def test_ctrl_c_stops_the_line_that_runs_and_then_leaves(tmp_path: Path) -> None:
    seen, _ = explore(tmp_path)
    seen.type(":! while True: pass\r")
    seen.shows("Ctrl-C stops it")
    seen.type("\x03")
    seen.shows("interrupted")
    seen.type("\x03")
    assert_given_back(seen, 0)


@pytest.mark.slow
def test_leaving_stops_a_line_that_would_never_end(tmp_path: Path) -> None:
    seen, number = explore(tmp_path)
    seen.type(":! while True: pass\r")
    seen.shows("Ctrl-C stops it")
    os.kill(number, signal.SIGTERM)
    assert_given_back(seen, 143)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_over_a_slow_line_no_key_is_lost_and_the_last_screen_is_right(tmp_path: Path) -> None:
    seen, _ = explore(tmp_path, size=(120, 40))
    seen.type("\x1b[C" * 41 + "\x1b[6~")  # 41 heads on is the next of 4, then a layer down
    for _ in range(40):
        seen.stream.feed(seen.child.read_nonblocking(256, timeout=30))
        time.sleep(0.01)
    seen.shows("L1H0.weights", "step 36/92")
    seen.type("q")
    assert_given_back(seen, 0)
