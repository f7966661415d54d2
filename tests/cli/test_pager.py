"""Long outputs, a screen at a time, in the pager that a user has chosen or in none."""

import os
import re
import shutil
import signal
import sys

import pytest
from driving import Stream

from tinytf_cli.pager import Pager, find_pager, page

if sys.platform == "win32":
    pytest.skip("pagers and pseudo-terminals are of POSIX", allow_module_level=True)

import pexpect

TEXT = "".join(f"\x1b[1mline\x1b[0m {number}\n" for number in range(2_000))


@pytest.fixture(autouse=True)
def outside_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI", "TINYTF_PAGER"):
        monkeypatch.delenv(name, raising=False)


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
    page(TEXT)
    assert capfd.readouterr().out == "-i -R\n"


def on_a_terminal(*arguments: str, rows: int = 24, **environment: str) -> "pexpect.spawn[str]":
    """tinytf on a pseudo-terminal of 80 columns, where a pager marks each line that it gets."""
    marked = {"TERM": "xterm-256color", "TINYTF_PAGER": "sed 's/^/paged: /'", "LC_ALL": "C.UTF-8", **environment}
    command = [sys.executable, "-m", "tinytf_cli", *arguments, "--theme", "dark"]
    return pexpect.spawn(
        command[0], command[1:], env={**os.environ, **marked}, dimensions=(rows, 80), encoding="utf-8", timeout=60
    )


def ran_on_a_terminal(*arguments: str, rows: int = 24, **environment: str) -> tuple[str, int]:
    """All output of a run but the line that says how long it takes, and its exit status."""
    child = on_a_terminal(*arguments, rows=rows, **environment)
    shown = re.sub(r"(\rtinytf: \w+, \d+ s)+\r *\r", "", child.read().replace("\r\n", "\n"))
    child.close()
    return shown, child.exitstatus


LONG = ("tokens", "--lines", "\n".join(["The cat sat on the mat"] * 5))
"""Several results, one after the other, in 70 lines."""


@pytest.mark.slow
def test_what_is_longer_than_the_screen_is_paged_whole_and_in_colour() -> None:
    shown, status = ran_on_a_terminal(*LONG)
    plain, _ = ran_on_a_terminal(*LONG, "--no-pager")
    assert shown == "".join(f"paged: {line}" for line in plain.splitlines(keepends=True))
    assert "\x1b[" in plain
    assert status == 0


@pytest.mark.parametrize(
    "environment",
    [{"TINYTF_PAGER": "cat"}, {"TINYTF_PAGER": ""}, {"TINYTF_PAGER": "no-such-pager"}, {"PAGER": "cat"},
     {"CI": "1"}, {"TERM": "dumb"}],
    ids=str,
)  # fmt: skip
def test_there_may_be_no_pager(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ({"PAGER": "head", "TERM": "xterm"} | environment).items():
        monkeypatch.setenv(name, value)
    assert find_pager() is None


def test_the_pager_of_tinytf_goes_before_that_of_all_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("PAGER", "cat")
    monkeypatch.setenv("TINYTF_PAGER", "head -n '2'")
    assert find_pager() == [shutil.which("head"), "-n", "2"]


@pytest.mark.slow
def test_a_pager_that_is_left_early_keeps_the_exit_status_of_the_command() -> None:
    """The worked example has wrong claims, so that verify fails."""
    shown, status = ran_on_a_terminal("verify", "cat-sat", TINYTF_PAGER="sed 3q")
    assert len(shown.splitlines()) == 3
    assert status == 1


@pytest.mark.slow
def test_less_is_left_with_q_and_stays_at_ctrl_c() -> None:
    child = on_a_terminal(*LONG, TINYTF_PAGER="less", LESS="-X")
    child.expect("\n:")
    child.sendintr()
    for _ in range(5):  # less drops what is typed while it hears Ctrl-C
        child.send("G")
        if not child.expect(["END", pexpect.TIMEOUT], timeout=3):
            break
    child.send("q")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_a_pager_starts_with_the_line_that_no_longer_fits(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Before the output is complete, so that nobody waits for a slow command."""
    monkeypatch.setenv("LINES", "10")
    monkeypatch.setenv("COLUMNS", "20")
    terminal = Stream()
    with Pager(terminal, ["head", "-9"]) as pager:
        for _ in range(7):
            pager.write("\x1b[1mshort\x1b[0m\n")
        assert pager._process is None
        pager.write(f"{'two lines on the screen':.>40}\n")
        assert pager._process is None
        pager.write("last\n")
        assert pager._process is not None
    assert capfd.readouterr().out.endswith("lines on the screen\nlast\n")
    assert terminal.got() == b""


def test_a_live_result_is_never_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Stream()
    with Pager(terminal, ["cat"]) as pager:
        pager.write("held\n")
        assert terminal.got() == b""
        pager.release()
        pager.write("live\n" * 100)
        assert terminal.got() == b"held\n" + b"live\n" * 100


def test_json_on_a_terminal_is_paged() -> None:
    assert ran_on_a_terminal("config", "--json", rows=3)[0].startswith("paged: {")
