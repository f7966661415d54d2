"""Dark or light: what the terminal answers, then what the environment says; nothing that was typed is lost."""

import os
import sys
import time
from collections.abc import Mapping

import pytest

from tinytf_cli.terminal import detect_theme

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are of POSIX", allow_module_level=True)

import pexpect

_PATIENCE = 60
_ASKS = b"\x1b]11;?\x1b\\\x1b[c"
_CHILD = """
import os, sys, termios
from tinytf_cli import terminal
from tinytf_cli.terminal import detect_theme
terminal._TIMEOUT = float(os.environ["PATIENCE"])
print("ready")
sys.stdin.readline()
before = termios.tcgetattr(0)
print("theme", detect_theme(os.environ, ask=True), "again", detect_theme(os.environ, ask=True))
print("modes", termios.tcgetattr(0) == before)
print("typed", sys.stdin.readline())
"""


@pytest.mark.parametrize(
    ("said", "theme"),
    [
        ({"COLORFGBG": "0;15"}, "light"),
        ({"COLORFGBG": "0;default;15"}, "light"),
        ({"COLORFGBG": "0;7"}, "light"),
        ({"COLORFGBG": "15;0"}, "dark"),
        ({"COLORFGBG": "7;8"}, "dark"),
        ({"COLORFGBG": "default;default"}, "dark"),
        ({}, "dark"),
    ],
)
def test_where_nobody_is_asked_the_environment_decides(said: Mapping[str, str], theme: str) -> None:
    assert detect_theme(said, ask=False) == theme


def begin(patience: float = _PATIENCE, **environment: str) -> "pexpect.spawn[bytes]":
    """A child on a terminal, about to ask it, which waits ``patience`` seconds for the answer."""
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "SSH_CONNECTION", "SSH_TTY")}
    child = pexpect.spawn(
        sys.executable,
        ["-c", _CHILD],
        env={**kept, "TERM": "xterm-256color", "PATIENCE": str(patience), **environment},
        timeout=_PATIENCE,
    )
    child.delayafterterminate = child.ptyproc.delayafterterminate = _PATIENCE / 10  # a busy machine ends it late
    child.setecho(False)
    child.expect_exact(b"ready")
    return child


@pytest.mark.parametrize(
    ("answer", "theme"),
    [
        (b"\x1b]11;rgb:ffff/ffff/ffff\x1b\\", "light"),
        (b"\x1b]11;rgb:fd/f6/e3\x07", "light"),
        (b"\x1b]11;rgba:0000/2b2b/3636/ffff\x1b\\", "dark"),
        (b"", "dark"),  # it knows no OSC 11, only its attributes
    ],
)
def test_a_terminal_is_asked_once_and_left_as_it_was(answer: bytes, theme: str) -> None:
    child = begin(COLORFGBG="")
    child.send(b"\n")
    child.expect_exact(_ASKS)
    child.send(answer + b"\x1b[?62;4c")
    child.expect_exact(f"theme {theme} again {theme}".encode())
    child.expect_exact(b"modes True")
    child.send(b"later\n")
    child.expect_exact(b"typed later")
    child.expect(pexpect.EOF)


def test_a_terminal_that_says_nothing_is_not_waited_for() -> None:
    child = begin(0.1, COLORFGBG="0;15")
    child.send(b"\n")
    child.expect_exact(_ASKS)
    child.expect_exact(b"theme light again light")
    child.expect_exact(b"modes True")
    child.send(b"\n")
    child.expect(pexpect.EOF)


def test_keys_that_were_typed_ahead_stay_and_the_terminal_is_not_asked() -> None:
    child = begin()
    child.send(b"\nearly")
    time.sleep(0.2)  # both are there before it looks
    child.expect_exact(b"modes True")
    assert b"\x1b]11" not in child.before
    child.send(b" bird\n")
    child.expect_exact(b"typed early bird")
    child.expect(pexpect.EOF)


@pytest.mark.parametrize("said", [{"CI": "true"}, {"SSH_CONNECTION": "a 1 b 2"}, {"TERM": "dumb"}, {"TERM": "linux"}])
def test_where_nobody_looks_or_the_answer_may_be_late_nothing_is_asked(said: dict[str, str]) -> None:
    child = begin(**said)
    child.send(b"\n")
    child.expect_exact(b"theme dark")
    assert b"\x1b]11" not in child.before
    child.close(force=True)
