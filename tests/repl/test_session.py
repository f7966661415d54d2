"""The session as a whole: what it keeps warm, what it survives, and where its output goes."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from driving import Tinytf
from talking import SENTENCE, Talk

from tinytf.loading import Model
from tinytf.trace.trace import Text
from tinytf_cli.repl import prompt


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that went through a model."""
    texts: list[str] = []
    right = Model.trace

    def trace(self: Model, text: Text, **settings: Any) -> Any:
        if isinstance(text, str):
            texts.append(text)
        return right(self, text, **settings)

    monkeypatch.setattr(Model, "trace", trace)
    return texts


def test_one_forward_pass_serves_verbs_and_commands(talk: Callable[..., Talk], recorded: list[str]) -> None:
    begun = talk()
    begun(f"run {SENTENCE}", "heat L0H0", "heat L1H1", "step 9", "heads", "top", "trace", "attention", "print L0.ffn",
          "explain L0H0.scores[1,0]", f"attention {SENTENCE}", "run")  # fmt: skip
    assert recorded == [SENTENCE]
    begun("run The dog", "diff", "undo", "heat L0H0")
    assert recorded == [SENTENCE, "The dog"]


def test_the_model_is_opened_once_and_when_it_is_needed(
    talk: Callable[..., Talk], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tinytf_cli.repl import models

    opened: list[str] = []
    right = models.load

    def load(name: str, **settings: Any) -> Model:
        opened.append(name)
        return right(name, **settings)

    monkeypatch.setattr(models, "load", load)
    monkeypatch.setattr("tinytf.loading.load", lambda *_, **__: pytest.fail("opened by a command"))
    begun = talk()
    begun("show", "help")
    assert opened == []
    assert not begun.session.is_open
    begun("run The cat", "trace", "score", "generate --max-tokens 2", "info", "tokens", "grad --pipeline")
    begun("model tiny-encoder", "model tiny", "model tiny-encoder")
    assert opened == ["tiny", "tiny-encoder"]


def test_another_model_is_opened_for_one_command(ran: Talk) -> None:
    assert "\ntiny-encoder " in ran("attention -m tiny-encoder")
    assert "float64" in "".join(ran("trace --dtype float64 --pipeline").splitlines()[:3])
    assert ran.session.state.spec.words == "tiny"
    assert "float32" in ran("where")


def test_a_line_that_fails_leaves_the_session_as_it_was(ran: Talk) -> None:
    before, place = ran.session.state, ran.session.row
    for line in (
        "run ''",
        "model nothing",
        "set dims x",
        "break L0 if",
        "display L9",
        "goto L9",
        "undisplay 4",
        "run '",
    ):
        ran.fails(line)
        assert (ran.session.state, ran.session.row) == (before, place)


def test_an_interrupted_run_leaves_the_session_sound(ran: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    before, place = ran.session.state, ran.session.row
    model = ran.session.model.transformer
    hooks = sum(len(module._forward_hooks) for module in model.modules())
    right = type(model.blocks[2]).forward

    def interrupted(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self is model.blocks[2]:
            raise KeyboardInterrupt
        return right(self, *args, **kwargs)

    monkeypatch.setattr(type(model.blocks[2]), "forward", interrupted)
    outcome = ran.session.execute("run The dog")
    monkeypatch.undo()
    assert (outcome.status, outcome.failure) == (130, None)
    assert (ran.session.state, ran.session.row) == (before, place)
    assert sum(len(module._forward_hooks) for module in model.modules()) == hooks
    assert "The│·dog" in ran("run The dog")


def test_ctrl_c_stops_the_line_that_runs_and_not_the_session(ran: Talk) -> None:
    interrupt = ran.session.interrupt
    before = interrupt.listen()
    try:
        began = time.monotonic()
        outcome = ran.session.execute("! import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)")
        assert time.monotonic() - began < 30
    finally:
        signal.signal(signal.SIGINT, before)
    assert outcome.status == 130
    assert not interrupt.happened
    ran.session.say(outcome)
    assert ran.err.text == "tinytf: interrupted\n"
    assert ran("! 1") == "1\n"


def test_a_million_characters_are_refused_at_once(ran: Talk) -> None:
    outcome = ran.fails("run " + "cat " * 250_000)
    assert outcome.failure is not None
    assert outcome.failure.message == "the line has 1,000,004 characters, and a session takes at most 100,000"
    assert len(ran.session.log.lines) == 1


def test_what_is_typed_never_acts_on_the_terminal(ran: Talk) -> None:
    lines = ["\x1b[2J", "run '\x1b[2J", "print \x1b]0;x\x07", "set \x9b1m x", "break L0 if \x1b", "help \u202e"]
    lines += ["display '\x1b[31m'", "> /nowhere/\x1b[2J", "source \x1b", "| exit 3 # \x1b", "! '\x1b' + 1"]
    for line in lines:
        outcome = ran.session.execute(line)
        assert outcome.failure is not None, line
        ran.session.say(outcome)
    ran("run '\x1b[2J the cat \u202e'", "history", "where", "list", "diff", "undo", "! '\x1b'")
    written = ran.out.text + ran.err.text
    assert all(char.isprintable() or char == "\n" for char in written)


def test_output_goes_to_files_by_their_extension(ran: Talk, tmp_path: Path) -> None:
    drawn = ran("heat L0H0")
    ran(f"> '{tmp_path / 'a.txt'}'", f"heat L0H0 > '{tmp_path / 'b.log'}'", f"heat L0H0 > {tmp_path / 'c.json'}")
    ran(f"trace > {tmp_path / 'd.svg'}", f"trace > {tmp_path / 'e.safetensors'}")
    ran(f"heat L0H0 -o {tmp_path / 'f.html'}")
    assert (tmp_path / "a.txt").read_text("utf-8") == (tmp_path / "b.log").read_text("utf-8") == drawn
    assert json.loads((tmp_path / "c.json").read_text("utf-8"))["address"] == "L0H0.weights"
    assert (tmp_path / "d.svg").read_text("utf-8").startswith("<svg")
    assert {path.name for path in tmp_path.iterdir()} == {
        "a.txt",
        "b.log",
        "c.json",
        "d.svg",
        "e.safetensors",
        "f.html",
    }
    assert "wrote" in ran.err.text
    assert "no data to write" in ran.fails(f"trace --help > {tmp_path / 'x.svg'}").failure.message  # type: ignore[union-attr]


def test_the_last_output_stays_while_it_is_used(ran: Talk) -> None:
    drawn = ran("heat L0H0")
    ran("| head -2", "| wc -l")
    ran.session.streams.stdout.write("--\n")
    ran("| cat")
    assert ran.out.text.split("--\n")[1] == drawn


def test_a_terminals_output_is_without_colour_and_uncut_in_a_pipe(talk: Callable[..., Talk], tmp_path: Path) -> None:
    begun = talk(terminal=True)
    begun("set color always", f"run {SENTENCE}")
    assert "\x1b[" in begun("heat L0H0")
    begun(f"> {tmp_path / 'a.log'}", f"generate --max-tokens 3 > {tmp_path / 'b.log'}")
    assert "\x1b" not in (tmp_path / "a.log").read_text("utf-8") + (tmp_path / "b.log").read_text("utf-8")


def test_a_command_that_fails_says_its_status(ran: Talk) -> None:
    outcome = ran.fails("heat L0H0 | exit 3", 1)
    assert outcome.failure is not None
    assert outcome.failure.message == "'exit 3' ended with status 3"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are of POSIX")
def test_what_is_no_file_is_written_to_and_stays_what_it_is(ran: Talk, tmp_path: Path) -> None:
    """No device of the machine is named here: a file that is renamed over one would take its place for everybody."""
    pipe, link = tmp_path / "pipe.log", tmp_path / "link.log"
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "target.log")
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text("utf-8")), daemon=True)
    reader.start()
    drawn = ran(f"heat L0H0 > {pipe}")
    reader.join(timeout=30)
    assert got == [drawn]
    assert pipe.is_fifo()
    ran(f"heat L0H0 > {link}")
    assert link.is_symlink()
    assert (tmp_path / "target.log").read_text("utf-8") == drawn


def test_long_output_is_paged_on_a_terminal_alone(talk: Callable[..., Talk], tmp_path: Path) -> None:
    pages: list[str] = []
    for terminal in (True, False):
        begun = talk(terminal=terminal)
        begun.session.streams.page = pages.append
        begun(f"run {SENTENCE}", "set pager on")
        text = begun("list 60")
        assert pages == ([text] if terminal else [])
        begun("show dims")
        begun(f"list 60 > '{tmp_path / 'help.log'}'")
        assert len(pages) == terminal
        pages.clear()


def test_python_sees_the_session_and_keeps_what_is_assigned(ran: Talk) -> None:
    assert ran("! trace['L0H0.weights'].shape") == "torch.Size([5, 5])\n"
    assert ran("! model.name, np.float32(1) == 1, torch.__name__").startswith("('tiny', ")
    assert ran("! x = 3") == ""
    assert ran("! x * 2") == "6\n"
    assert ran("! _ + 1") == "7\n"
    assert ran("! None") == ""
    assert ran("! print('a'); x = 4") == "a\n"
    assert "fault" not in ran("help")


def test_an_error_of_python_is_a_line_and_its_traceback_is_there_when_asked_for(ran: Talk) -> None:
    outcome = ran.fails("! def_ined", 1)
    assert outcome.failure is not None
    assert outcome.failure.message == "NameError: name 'def_ined' is not defined"
    assert outcome.failure.hint == "!! shows the traceback"
    shown = ran("!!")
    assert shown.startswith("Traceback")
    assert "session.py" not in shown
    assert shown.endswith("NameError: name 'def_ined' is not defined\n")
    assert ran.fails("! 1/0", 1).leave is False
    ran.fails("! 'unclosed", 1)


def test_exit_of_python_leaves_the_session_without_a_fault(ran: Talk) -> None:
    for line in ("! exit()", "! raise SystemExit(3)"):
        outcome = ran.session.execute(line)
        assert (outcome.status, outcome.failure, outcome.leave) == (0, None, True)
    ran.fails("! raise KeyError", 1)
    ran.fails("! type('A', (), {'__repr__': lambda self: 1 / 0})()", 1)


def test_a_fault_of_our_own_is_a_line_too(ran: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    import tinytf_cli.views.values

    monkeypatch.setattr(tinytf_cli.views.values, "heat_blocks", lambda *_: 1 / 0)
    outcome = ran.session.execute("heat L0H0")
    assert outcome.status == 1
    assert outcome.failure is not None
    assert outcome.failure.message == "ZeroDivisionError: division by zero"


def test_the_interface_for_a_front_end_holds(ran: Talk) -> None:
    session = ran.session
    assert session.lexicon.names["p"] == "print"
    assert session.lexicon.names["trace"] == "trace"
    assert session.lexicon.verb_for(["grad", "L0H0.q"]) is None
    assert session.lexicon.verb_for(["heat"]) is session.lexicon.verbs["heat"]
    assert session.tokens == ("The", "·cat", "·sat", "·on", "·the")
    assert session.step_words == "tokens 1/92"
    assert session.models.nbytes > 4_000_000
    assert session.execute("heat L0H0").status == 0
    assert session.last_seconds > 0
    assert session.execute("quit").leave is True
    assert [entry.line for entry in session.log.lines] == [f'run "{SENTENCE}"', "heat L0H0", "quit"]


class _Keys:
    """What a user types at ``input``; an exception among the lines is raised."""

    def __init__(self, *lines: str | BaseException) -> None:
        self.lines: Iterator[str | BaseException] = iter(lines)

    def __call__(self, prompt: str = "") -> str:
        line = next(self.lines)
        if isinstance(line, BaseException):
            raise line
        return line


def test_the_plain_prompt_goes_on_after_ctrl_c_and_ends_with_ctrl_d(ran: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", _Keys("step", KeyboardInterrupt(), "nonsense", "", EOFError()))
    assert prompt.talk_plainly(ran.session) == 0
    assert ran.session.step_words.startswith("embed.tokens ")
    assert "there is no verb or command 'nonsense'" in ran.err.text
    monkeypatch.setattr("builtins.input", _Keys("quit", "step"))
    assert prompt.talk_plainly(ran.session) == 0


@pytest.mark.slow
def test_whoever_stops_reading_ends_the_session_quietly() -> None:
    command = f"{sys.executable} -m tinytf_cli repl -c 'help' -c 'help' -c 'help' | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=os.environ, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_session_takes_no_text_from_its_own_lines(tinytf: Tinytf) -> None:
    ran = tinytf("repl", "--on-error", "continue", stdin=b"trace -\ntokens\ntrain\nset dims 3\n")
    assert ran.status == 1
    assert ran.lines == ["  dims  3  auto or a number  numbers of a row shown; 0 is all"]


def test_an_undo_whose_output_cannot_be_delivered_takes_nothing_back(ran: Talk) -> None:
    ran("set dims 3")
    ran.fails("undo | exit 3", 1)
    assert ran.session.settings.dims == 3
    assert "can be undone" in ran("history").splitlines()[1]
    ran("undo")
    assert ran.session.settings.dims is None
    assert ran("history").splitlines()[1].split()[-1] == "undone"


def test_a_line_that_a_transcript_cannot_hold_is_said_and_nothing_is_saved(ran: Talk, tmp_path: Path) -> None:
    ran('run "The\ncat"')
    assert "has a line break" in ran.fails(f"save '{tmp_path / 'a'}'").failure.message  # type: ignore[union-attr]
    assert not (tmp_path / "a").exists()


def test_an_empty_address_is_not_displayed(ran: Talk) -> None:
    ran.fails('display ""')
    assert ran("display") == "nothing is displayed\n"


@pytest.mark.slow
def test_a_script_that_is_interrupted_says_so_once() -> None:
    line = "! import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)"
    command = [sys.executable, "-m", "tinytf_cli", "repl", "-c", line, "-c", "! 5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "tinytf: interrupted\n")


@pytest.mark.slow
def test_diff_imports_no_algebra() -> None:
    """sympy comes with torch.unravel_index, and takes seconds."""
    lines = ["run The cat", "run The dog", "diff", "! import sys", "! 'sympy' in sys.modules"]
    words = [word for line in lines for word in ("-c", line)]
    done = subprocess.run(
        [sys.executable, "-m", "tinytf_cli", "repl", *words], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"


def test_the_first_of_two_texts_is_the_sessions_where_one_is_given(talk: Callable[..., Talk]) -> None:
    begun = talk()
    begun("run The cat sat")
    contrast = "--answer on --versus down"
    assert begun(f'patch "The dog sat" {contrast}') == begun(f'patch "The cat sat" "The dog sat" {contrast}')
    assert begun('diff "The dog sat"') == begun('diff "The cat sat" "The dog sat"')
    said = talk().fails('patch "The dog sat"')
    assert said.failure is not None
    assert "there is no text" in said.failure.message


def test_on_a_screen_the_lines_about_the_model_are_not_told_again(talk: Callable[..., Talk], tmp_path: Path) -> None:
    for terminal in (True, False):
        begun = talk(terminal=terminal)
        begun("run The cat")
        said = [" · built in" in begun(line) for line in ("score", "lens", "run A dog", "attribute")]
        assert said == ([True, False, False, False] if terminal else [True, True, False, True])
        path = tmp_path / "b.txt"
        begun(f"lens > '{path}'")
        assert path.read_text("utf-8").splitlines()[1].startswith("tiny · decoder")
