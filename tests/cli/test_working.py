"""The line of a command that works for long: on a terminal's stderr alone, erased before anything else is written."""

import fcntl
import io
import itertools
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from driving import Tinytf

from tinytf.counting import counted, told_to
from tinytf.report import Report
from tinytf_cli import progress_line as progress_module
from tinytf_cli import working as module
from tinytf_cli.output import Output
from tinytf_cli.progress import TrainingProgress
from tinytf_cli.progress_line import progress_line
from tinytf_cli.screen import clean_exit
from tinytf_cli.terminal import Terminal, detect
from tinytf_cli.views.blocks import Block, Line
from tinytf_cli.views.draw import Shown
from tinytf_cli.working import quiet, working


class Screen(io.StringIO):
    """A stream that says whether it is a terminal."""

    def __init__(self, terminal: bool = True) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "_SECONDS_BEFORE_THE_FIRST", 0.0)
    monkeypatch.setattr(module, "_SECONDS_BETWEEN", 0.01)
    with click.Context(click.Command("test")):
        yield


def drawn(screen: Screen) -> str:
    """What is on the screen once something is."""
    until = time.monotonic() + 60
    while not screen.getvalue() and time.monotonic() < until:
        time.sleep(0.01)
    return screen.getvalue()


def test_it_says_what_works_and_is_erased() -> None:
    screen = Screen()
    with redirect_stderr(screen):
        with working("attribute"):
            assert drawn(screen).startswith("\rtinytf: attribute, 0 s")
            quiet()
            assert screen.getvalue().endswith(f"\r{' ' * len('tinytf: attribute, 0 s')}\r")
            before = screen.getvalue()
            time.sleep(0.1)
        assert screen.getvalue() == before


def test_ctrl_c_while_it_begins_leaves_no_line_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that goes on was drawn over the prompt of a session, for good."""
    begin, screen = threading.Thread.start, Screen()

    def interrupted(thread: threading.Thread) -> None:
        begin(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with redirect_stderr(screen), pytest.raises(KeyboardInterrupt), working("run"):
        pass
    assert not [thread for thread in threading.enumerate() if thread.name.endswith("(_draw)")]
    assert module._META_KEY not in click.get_current_context().meta


def test_nothing_is_said_by_what_shows_itself_and_inside_another() -> None:
    screen = Screen()
    with redirect_stderr(screen), working("explore", shows_itself=True), working("run"):
        time.sleep(0.1)
    assert screen.getvalue() == ""


def test_a_log_gets_whole_lines_unless_it_wants_none(monkeypatch: pytest.MonkeyPatch) -> None:
    log, silent = Screen(terminal=False), Screen(terminal=False)
    monkeypatch.setattr(module, "SECONDS_IN_A_LOG", 0.01)
    with redirect_stderr(silent), working("grad"):
        time.sleep(0.1)
    monkeypatch.delenv("TINYTF_PROGRESS")
    with redirect_stderr(log), working("grad"):
        drawn(log)
    assert set(log.getvalue().splitlines(keepends=True)) == {"tinytf: grad, 0 s\n"}
    assert silent.getvalue() == ""


@pytest.mark.parametrize(("seconds", "lines"), [(9.9, 0), (10.1, 1), (31.0, 3)])
def test_a_log_gets_a_line_of_progress_at_most_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, seconds: float, lines: int
) -> None:
    log, now = Screen(terminal=False), 0.0
    monkeypatch.delenv("TINYTF_PROGRESS")
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: now))
    with progress_line(log, "texts:") as on_progress:
        for tenth in range(int(10 * seconds) + 1):
            now = tenth / 10
            on_progress(tenth, 4_000)
    assert log.getvalue().count("\n") == lines
    assert not lines or log.getvalue().startswith("tinytf: texts: 100 of 4,000, ")


TEXT, PAIR = "The cat sat on the mat", ("The cat sat", "The dog sat")
LOOPS: dict[str, tuple[tuple[str, ...], str]] = {
    "trace": ((TEXT,), "steps checked:"),
    "attention": ((TEXT,), "steps checked:"),
    "attribute": ((TEXT,), "layers run:"),
    "neurons": ((TEXT,), "layers ranked:"),
    "grad": ((TEXT,), "steps taken back:"),
    "same": ((TEXT,), "ways tried:"),
    "diff": (PAIR, "layers compared:"),
    "lens": ((TEXT,), "lens: layer"),
    "heads": ((), "sequences"),
    "weights": ((), "heads:"),
    "ablate": ((TEXT, "--sweep", "heads"), "texts and ablations:"),
    "patch": ((*PAIR, "--sweep", "heads"), "patches:"),
}
"""Commands that are slow on a long text or a large model, and what each of them counts."""


@pytest.mark.parametrize("command", LOOPS)
def test_a_slow_command_says_how_many_of_how_many_are_done(
    tinytf: Tinytf, decoder: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    given, unit = LOOPS[command]
    said: list[tuple[str, int, int]] = []
    seconds = itertools.count(step=1_000)
    monkeypatch.delenv("TINYTF_PROGRESS")
    monkeypatch.setattr(module.CountedLine, "tell", lambda _, *far: said.append(far))
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    ran = tinytf(command, *given, "--model", decoder)
    assert ran.status in (0, 1), ran.err
    said += [
        (unit, int(done), int(total))
        for done, total in re.findall(rf"{re.escape(unit)} (\d+) of (?:at most )?(\d+)", ran.err)
    ]
    done, totals = zip(*(far for name, *far in said if name == unit), strict=True)
    assert list(done) == sorted(done)
    assert max(totals) > 1
    assert max(done) >= max(totals) - 1


def test_a_line_says_how_far_the_outer_loop_is() -> None:
    screen = Screen()
    with redirect_stderr(screen), working("trace"):
        for _ in counted("layers compared:", range(3)):
            for _ in counted("steps checked:", range(40)):
                pass
        time.sleep(0.1)
        quiet()
    assert "tinytf: trace, layers compared: 2 of 3, 0 s" in screen.getvalue()
    assert "steps checked" not in screen.getvalue()


def test_a_loop_that_is_left_early_leaves_the_next_one_to_be_counted() -> None:
    heard: list[tuple[str, int, int]] = []
    with told_to(lambda *far: heard.append(far)):
        for _ in counted("first:", range(5)):
            break
        list(counted("second:", range(1)))
    list(counted("third:", range(1)))
    assert heard == [("first:", 0, 5), ("second:", 0, 1)]


@pytest.mark.parametrize(("errors", "piped", "columns"), [(True, True, 64), (True, False, 100), (False, True, 100)])
def test_a_pipe_is_as_wide_as_the_terminal_behind_it(tmp_path: Path, errors: bool, piped: bool, columns: int) -> None:
    """``tinytf … | less`` writes its errors to the terminal that shows the pages; a file is for no terminal."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 64, 0, 0))
    program = "import sys; from tinytf_cli.terminal import detect; print(detect(sys.stdout).width)"
    with (tmp_path / "out").open("w+b") as file:
        subprocess.run(
            ["sh", "-c", f'"{sys.executable}" -c "{program}"{" | cat" * piped}'],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=slave if errors else subprocess.DEVNULL,
            check=True,
        )
        file.seek(0)
        assert int(file.read()) == columns
    os.close(master)
    os.close(slave)


def test_the_line_goes_before_the_first_output() -> None:
    screen, out = Screen(), io.StringIO()

    class Slow(Output):
        def blocks(self, shown: Shown, terminal: Terminal) -> Iterator[Block]:
            assert "tinytf: top" in drawn(screen)
            yield Line("answer")

    with redirect_stderr(screen), working("top"):
        assert sys.stderr is screen
        Slow(detect(out), stdout=out, stderr=screen).show(Shown(Report()))
        assert screen.getvalue().endswith(" \r")
    assert out.getvalue() == "answer\n"


def test_a_program_that_takes_the_screen_has_it_to_itself() -> None:
    screen = Screen()
    with redirect_stderr(screen), working("replay"):
        drawn(screen)
        with clean_exit():
            erased = screen.getvalue()
            time.sleep(0.1)
            assert screen.getvalue() == erased
    assert erased.endswith(" \r")


def test_compiling_before_the_first_step_counts_its_seconds_until_something_else_is_said(tmp_path: Path) -> None:
    screen = Screen()
    progress = TrainingProgress(10, tmp_path, screen)
    progress.prepare("compiling the model, which takes minutes", 0, 0)
    assert "tinytf: compiling the model, which takes minutes, 0 s" in drawn(screen)
    progress.clear()
    assert screen.getvalue().endswith(" \r")
    assert progress.counting is None
