"""A session in a real pseudo-terminal, seen as a terminal shows it: typed, completed, stepped, interrupted, left."""

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are of POSIX", allow_module_level=True)

import pexpect
import pyte

from tinytf.loading import load
from tinytf_cli.repl.welcome import _NEXT

_PATIENCE = 90  # seconds; what is waited for decides, and not how long it took
_BY_ITSELF = ("PAGER", "LESS")


@dataclass
class Seen:
    """A child on a terminal, and that terminal's screen."""

    child: "pexpect.spawn[bytes]"
    screen: pyte.Screen
    stream: pyte.ByteStream

    def type(self, keys: str) -> None:
        self.child.send(keys.encode())

    def until(self, holds: Callable[[str], bool], what: str) -> str:
        """Wait until the screen is so; the answer is the screen."""
        shown, until = "\n".join(self.screen.display), time.monotonic() + _PATIENCE
        while not holds(shown):
            try:
                self.stream.feed(self.child.read_nonblocking(65536, timeout=until - time.monotonic()))
            except (pexpect.TIMEOUT, pexpect.EOF):
                pytest.fail(f"never seen: {what}\n{shown}")
            assert time.monotonic() < until, f"something is drawn all the time, but never seen: {what}\n{shown}"
            shown = "\n".join(self.screen.display)
        return shown

    def shows(self, *words: str) -> str:
        return self.until(lambda shown: all(word in shown for word in words), repr(words))

    def prompts(self, line: str = "") -> str:
        """Wait for a prompt with a line on it, where the cursor is."""

        def holds(shown: str) -> bool:
            return shown.split("\n")[self.screen.cursor.y].rstrip() == f"tinytf> {line}".rstrip()

        return self.until(holds, f"the prompt with {line!r}")


def _begin(columns: int, rows: int, folder: Path, before: str = "", *, newcomer: bool = False) -> Seen:
    """A shell that starts tinytf, so that the terminal can be looked at when it has ended; ``before`` is Python."""
    history = folder / "tinytf" / "history"
    if not newcomer:
        history.parent.mkdir()
        history.write_text("where\n", "utf-8")
    environment = {name: value for name, value in os.environ.items() if name not in _BY_ITSELF}
    environment.update(TERM="xterm-256color", XDG_STATE_HOME=str(folder), LC_ALL="C.UTF-8")
    # Ctrl-C reaches the shell too, which would end with its child.
    script = (
        'trap : INT; before=$(stty -g); "$0" -c "$1"; echo "status $?"; '
        '[ "$before" = "$(stty -g)" ] && echo "as before"'
    )
    code = f"{before}\nfrom tinytf_cli.main import main\nmain()"
    words = ["-c", script, sys.executable, code]
    child = pexpect.spawn("/bin/sh", words, env=environment, dimensions=(rows, columns), timeout=_PATIENCE)
    screen = pyte.Screen(columns, rows)
    screen.write_process_input = child.send  # where the cursor is, when it is asked
    return Seen(child, screen, pyte.ByteStream(screen))


@pytest.mark.share(4)
@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (200, 50)])
@pytest.mark.slow
@pytest.mark.exhaustive  # a busy machine answers a key later than it waits
def test_a_session_at_a_terminal(columns: int, rows: int, tmp_path: Path) -> None:
    seen = _begin(columns, rows, tmp_path)
    try:
        seen.shows("tinytf 0.1.0, tiny: run TEXT begins")
        seen.prompts()
        seen.type("run The\r")  # torch may not be imported yet, which must not be broken off in the middle
        seen.type("\x03")
        seen.prompts()
        seen.type("run The cat sat\r")
        seen.shows("3 tokens, 92 steps", "tokens 1/92")
        seen.prompts()

        seen.type("hea")  # completes a verb, a head, a step and a cell
        seen.prompts("hea")
        seen.type("t L0H1.w\t")
        seen.prompts("heat L0H1.weights")
        seen.type("[sat,c\t")
        seen.prompts("heat L0H1.weights[sat,cat]")
        seen.type("\x03")
        seen.prompts()
        seen.type("set \t")  # several: a menu with what each is
        seen.shows("colormap", "digits after the point")
        seen.type("\x03")
        seen.prompts()

        seen.type("step 4\r")
        seen.shows("L0.in 5/92")
        seen.type("\r")
        seen.shows("L0.v 9/92")
        seen.type("\x1b[1;3A")  # Alt-Up
        seen.shows("L0.k 8/92")

        seen.type("! while True: pass\r")
        seen.until(lambda shown: "while True" in shown and "8/92" not in shown.split("\n")[-1], "the running command")
        seen.type("\x03")
        seen.shows("tinytf: interrupted")
        seen.prompts()
        seen.type("where\r")
        seen.shows("decoder, 4 layers", "interrupted")
        seen.prompts()

        seen.child.setwinsize(rows, columns - 20)
        seen.screen.resize(rows, columns - 20)
        seen.prompts()
        seen.type("\x04")
        shown = seen.shows("status 0", "as before")
        assert "Traceback" not in shown
        assert not seen.screen.cursor.hidden
        assert 2004 << 5 not in seen.screen.mode  # pastes are no longer in brackets
        seen.child.expect(pexpect.EOF)
    finally:
        seen.child.close(force=True)
    lines = (tmp_path / "tinytf" / "history").read_text("utf-8").splitlines()
    assert lines[-4:] == ["run The cat sat", "step 4", "! while True: pass", "where"]


@pytest.mark.slow
def test_a_newcomer_sees_what_it_is_numbers_of_a_pass_and_what_to_type_on_one_screen(tmp_path: Path) -> None:
    seen = _begin(80, 24, tmp_path, newcomer=True)
    try:
        seen.prompts()
        shown = seen.shows("tinytf shows every number inside a transformer", "next ·mat", "L1H0.weights", "why mat?")
        trace = load("tiny").trace("The cat sat on the")
        assert f"{float(trace['L1H0.weights'][-1, 0]):.3f}" in shown
        for line in (name for name, _ in _NEXT[:2]):
            seen.type(f"{line}\r")
            seen.prompts()
        seen.shows("in short: The logit of ·mat is", "ids 2/92")
        seen.type("\x04")
        seen.shows("status 0", "as before")
    finally:
        seen.child.close(force=True)


@pytest.mark.slow
def test_leaving_waits_for_no_import(tmp_path: Path) -> None:
    slow = "import time, tinytf_cli.repl.prompt as prompt; prompt._import_slow = lambda: time.sleep(60)"
    seen = _begin(80, 24, tmp_path, before=slow)
    try:
        seen.prompts()
        began = time.monotonic()
        seen.type("\x04")
        seen.shows("status 0", "as before")
        assert time.monotonic() - began < 30
    finally:
        seen.child.close(force=True)


def test_f2_explores_the_text_of_the_session_and_q_comes_back(tmp_path: Path) -> None:
    seen = _begin(120, 40, tmp_path)
    seen.prompts()
    seen.type("run --quiet The cat sat\r")
    seen.prompts()
    seen.type("\x1bOQ")
    seen.shows("L0H3.weights", "heads", "next", "·sat")
    seen.type("w")
    seen.shows("without L0H3 (zero)")
    seen.type("q")
    seen.shows("tinytf>", "tiny without L0H3 (zero) · The cat sat · L0H3.weights 15/92")  # pyte knows no second screen
    seen.type("history\r")
    shown = seen.shows("3  without L0H3")
    assert "2  goto L0H3.weights" in shown
    seen.prompts()  # before it, Ctrl-D would be the terminal's
    seen.type("\x04")
    assert "Traceback" not in seen.shows("status 0", "as before")


_AT_FIRST = """
import os, signal, threading
start = threading.Thread.start
def hang_up(thread):
    start(thread)
    if thread.name == "imports":
        os.kill(os.getpid(), signal.SIGHUP)
threading.Thread.start = hang_up
"""


hangs_up = pytest.mark.skipif(
    signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, reason="whoever started the tests ignores it, as nohup does"
)


@hangs_up
def test_a_terminal_that_hangs_up_while_the_prompt_is_drawn_is_given_back(tmp_path: Path) -> None:
    seen = _begin(10, 3, tmp_path, _AT_FIRST)
    assert "129" in seen.shows("as before")
    assert 2004 << 5 not in seen.screen.mode
    assert not seen.screen.cursor.hidden


@hangs_up
def test_a_terminal_that_hangs_up_is_given_back(tmp_path: Path) -> None:
    note = tmp_path / "number"
    seen = _begin(10, 3, tmp_path, f"import os; open({str(note)!r}, 'w').write(str(os.getpid()))")
    seen.prompts()
    assert 2004 << 5 in seen.screen.mode
    for _ in ("the system", "the shell"):
        os.kill(int(note.read_text("utf-8")), signal.SIGHUP)
    assert "129" in seen.shows("as before")
    assert 2004 << 5 not in seen.screen.mode
    assert not seen.screen.cursor.hidden
