"""Long outputs, a screen at a time, in the pager that a user has chosen or in none."""

import signal
import sys

import pytest

from tinytf_cli.repl.streams import page

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pagers of POSIX")

TEXT = "".join(f"\x1b[1mline\x1b[0m {number}\n" for number in range(2_000))


@pytest.mark.parametrize("pager", ["cat", "cat -u", "no-such-pager-anywhere"])
def test_the_whole_text_is_shown(
    pager: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("PAGER", pager)
    page(TEXT)
    assert capfd.readouterr().out == TEXT


def test_a_pager_may_be_left_before_the_end(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("PAGER", "head -1")
    page(TEXT * 100)
    assert capfd.readouterr().out == TEXT.split("\n")[0] + "\n"


def test_a_dumb_terminal_has_no_pager(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("PAGER", "head -1")
    page(TEXT)
    assert capfd.readouterr().out == TEXT


def test_ctrl_c_is_for_the_pager_and_for_the_session_again_afterwards(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("PAGER", "sh -c 'kill -INT $PPID; cat'")
    before = signal.getsignal(signal.SIGINT)
    page(TEXT)
    assert capfd.readouterr().out == TEXT
    assert signal.getsignal(signal.SIGINT) is before


def test_colours_are_shown_whatever_the_options_of_less(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("LESS", "-i")
    monkeypatch.setenv("PAGER", "sh -c 'echo \"$LESS\"'")
    page("")
    assert capfd.readouterr().out == "-i -R\n"
