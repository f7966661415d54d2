"""Keys at the prompt: what they run, what they leave on the line, and that none ends the session by accident."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prompt_toolkit.formatted_text import to_plain_text
from prompt_toolkit.layout.screen import Char
from rich.cells import cell_len

sys.path.insert(0, str(Path(__file__).parent))

from typing_keys import ALT, CANCEL, ENTER, LEAVE, TAB, UP, Typist, pasted, typist

from tinytf_cli.repl.keys import RUNS, describe_keys
from tinytf_cli.repl.line import LONGEST
from tinytf_cli.repl.prompt import Bar, bar_of, interact
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import VERBS
from tinytf_cli.repl.state import Spec
from tinytf_cli.repl.welcome import banner
from tinytf_cli.screen import clean_exit

RUN = f'run "The cat sat"{ENTER}'


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Typist]:
    with typist(tmp_path, monkeypatch) as begun:
        yield begun


def _place(typed: Typist) -> str:
    return typed.prompt.session.step_words.partition(" ")[0]


def test_a_line_is_run_and_the_end_of_input_leaves(typed: Typist) -> None:
    assert typed(RUN) == 0
    assert typed.lines == ['run "The cat sat"']
    assert "3 tokens" in typed.out.text


def test_quit_leaves_without_a_question(typed: Typist) -> None:
    assert typed(f"quit{ENTER}where{ENTER}") == 0
    assert typed.lines == ["quit"]


def test_an_empty_line_repeats_the_last_movement(typed: Typist) -> None:
    typed(f"{RUN}step 2{ENTER}{ENTER}{ENTER}")
    assert typed.prompt.session.row == 6


@pytest.mark.parametrize(
    ("key", "line", "place"),
    [(ALT["down"], "step", 1), (ALT["up"], "back", 0), (ALT["right"], "next", 4), ("\x1b[19~", "step", 1)],
)
def test_keys_move_through_the_steps_and_keep_what_is_being_typed(
    typed: Typist, key: str, line: str, place: int
) -> None:
    typed(f"{RUN}hea{key}t L0H0{ENTER}")
    assert typed.lines == ['run "The cat sat"', *([line] if line != "back" else ["back"]), "heat L0H0"]
    assert typed.prompt.session.row == place


def test_what_keys_run_is_not_in_the_history(typed: Typist) -> None:
    typed(f"{RUN}{ALT['down']}")
    assert typed.lines == ['run "The cat sat"', "step"]
    assert typed.prompt.history.get_strings() == ['run "The cat sat"']


def test_ctrl_c_gives_up_the_line_and_not_the_session(typed: Typist) -> None:
    typed(f"run nonsense{CANCEL}{RUN}")
    assert typed.lines == ['run "The cat sat"']


def test_ctrl_d_in_a_line_takes_a_character_and_does_not_leave(typed: Typist) -> None:
    typed(f"xwhere\x01{LEAVE}{ENTER}")
    assert [line.strip() for line in typed.lines] == ["where"]


def test_a_colour_code_that_is_typed_does_no_harm(typed: Typist) -> None:
    typed(f"\x1b[31m{RUN}")
    assert typed.lines == ['run "The cat sat"']


def test_an_error_is_said_and_the_session_goes_on(typed: Typist) -> None:
    typed(f"stpe{ENTER}{RUN}")
    assert "there is no verb or command 'stpe'" in typed.err.text
    assert typed.lines[-1] == 'run "The cat sat"'


def test_ctrl_c_of_a_python_loop_ends_the_line_alone(typed: Typist) -> None:
    typed(f"! raise KeyboardInterrupt{ENTER}{RUN}")
    assert typed.err.text == "tinytf: interrupted\n"
    assert _place(typed) == "tokens"


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_told_to_end_it_ends_also_while_python_runs(name: str, status: int, typed: Typist) -> None:
    number = getattr(signal, name)
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as ended, clean_exit():
            typed(f"! import os, signal; os.kill(os.getpid(), signal.{name}){ENTER}{RUN}")
        assert ended.value.code == status
        assert typed.lines == []
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_told_to_end_in_a_finalizer_where_python_drops_errors_it_ends_too() -> None:
    class Left:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)  # the handler runs here, at the latest

    before, hook = signal.signal(signal.SIGTERM, signal.SIG_DFL), sys.unraisablehook
    try:
        with pytest.raises(SystemExit) as ended, clean_exit():
            time.sleep(30 if Left() else 0)
        assert ended.value.code == 143
        assert sys.unraisablehook is hook
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_nohup_keeps_a_session_from_ending_with_its_terminal(typed: Typist) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with clean_exit():
            typed(f"! import os, signal; os.kill(os.getpid(), signal.SIGHUP){ENTER}{RUN}")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert len(typed.lines) == 2


def test_pasted_lines_run_one_after_the_other(typed: Typist) -> None:
    typed(pasted('run "The cat sat"\r\nstep 2\r\n\r\nheat L0H0\r\n') + ENTER)
    assert typed.lines == ['run "The cat sat"', "step 2", "heat L0H0"]
    assert "tinytf> step 2\n" in typed.out.text


def test_pasted_lines_wait_for_enter_and_can_be_given_up(typed: Typist) -> None:
    typed(pasted("step\nstep\n") + CANCEL)
    assert typed.lines == []


def test_pasted_lines_end_at_an_error_and_say_how_many_were_not_run(typed: Typist) -> None:
    typed(pasted("help\nstep\nwhere\nrun The cat") + ENTER)
    assert typed.lines == ["help", "step"]
    assert typed.err.text.count("error") == 1
    assert typed.err.text.endswith("tinytf: note: not run: 2 more lines\n")
    typed(pasted("help\nstep") + ENTER)
    assert typed.err.text.count("not run") == 1


def test_a_megabyte_is_refused_in_one_line_and_what_was_typed_stays(
    typed: Typist, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(f"run The {pasted('x' * 1_000_000)}cat{ENTER}")
    assert typed.lines == ["run The cat"]
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"tinytf: error: 1,000,000 characters were pasted; a session takes at most {LONGEST:,}"
    assert len(said) == 2


def test_a_burst_is_a_paste_also_where_the_terminal_does_not_say_so(
    typed: Typist, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(f"{'x' * 150_000}{ENTER}run {'The cat ' * 500}{ENTER}{RUN}")
    assert typed.lines[-1] == 'run "The cat sat"'
    assert capsys.readouterr().err.count("150,000 characters were pasted") == 1


def test_up_finds_the_line_that_begins_the_same(typed: Typist) -> None:
    typed(f"{RUN}heat L0H1{ENTER}where{ENTER}")
    typed(f"he{UP}{ENTER}")
    assert typed.lines[-1] == "heat L0H1"


def test_ctrl_r_searches(typed: Typist) -> None:
    typed(f"{RUN}heat L0H1{ENTER}where{ENTER}")
    typed(f"\x12H1{ENTER}{ENTER}")
    assert typed.lines[-1] == "heat L0H1"


def test_tab_types_at_once_what_can_only_be_meant(typed: Typist) -> None:
    typed(f"{RUN}fin{TAB}{ENTER}expla{TAB}L0H0.wei{TAB}[sat,ca{TAB}{ENTER}")
    assert [line.strip() for line in typed.lines[1:]] == ["finish", "explain L0H0.weights[sat,cat]"]


@pytest.mark.slow
def test_a_script_needs_nothing_of_the_prompt() -> None:
    code = (
        "import sys; from tinytf_cli.main import run; run(['repl', '-c', 'help keys']); "
        "print('prompt_toolkit' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_a_dumb_terminal_gets_the_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("tinytf_cli.repl.prompt.talk_plainly", lambda session: 7)
    monkeypatch.setattr("tinytf_cli.repl.prompt._import_slow", lambda: None)
    assert interact(Session(VERBS)) == 7


def test_the_keys_that_help_lists_are_those_that_are_bound() -> None:
    names = " ".join(name for name, _ in describe_keys())
    assert all(name in names for _, name, _ in RUNS)
    assert {line for _, _, line in RUNS} <= {said for _, said in describe_keys()}


def test_help_keys_lists_them(typed: Typist) -> None:
    typed.prompt.session.keys = describe_keys()
    typed(f"help keys{ENTER}")
    assert "Alt-Down, F8" in typed.out.text


def test_the_banner_is_one_line_that_fits() -> None:
    session = Session(VERBS, Spec("a/very/long/path/to/a/folder/with/a/model/in/it"))
    said = {banner(session, width) for width in range(20, 200)}
    assert all(len(banner(session, width)) < width for width in range(20, 200))
    assert max(said, key=len).endswith("Ctrl-D leaves")
    assert not any("\n" in line for line in said)


def test_the_bar_says_model_text_place_memory_and_time(typed: Typist) -> None:
    typed(f"{RUN}goto L1.weights{ENTER}")
    said = to_plain_text(bar_of(typed.prompt.session).fitted(80))
    assert said.startswith("tiny · The cat sat · L1.weights ")
    assert "/92 · " in said
    assert "MiB" in said
    assert said.endswith((" s", " ms"))


def test_the_bar_has_room_for_all_beside_a_model_in_a_deep_folder() -> None:
    session = Session(VERBS, Spec("/a/very/long/path/to/a/folder/with/a/model/SmolLM2-135M-Instruct.Q4_1.gguf"))
    bar = replace(bar_of(session), text="The cat", step="L11.weights 117/638", memory="512.0 MiB", took="118 ms")
    said = to_plain_text(bar.fitted(100))
    assert said == "SmolLM2-135M-Instruct.Q4_1.gguf · The cat · L11.weights 117/638 · 512.0 MiB · 118 ms"
    assert to_plain_text(bar.fitted(80)).startswith("SmolLM2-135M-Instruct.Q4_1.gguf · The cat · L11.weights 117/638")
    assert bar_of(Session(VERBS, Spec("hub:ORG/NAME"))).model == "hub:ORG/NAME"


@pytest.mark.parametrize("text", ["The cat", "猫が座った" * 30, "", "a" * 500])
def test_the_bar_fits_any_width(text: str) -> None:
    bar = Bar("a-model-with-a-name", text, "L11.ffn.hidden 117/236", "ffn", "497.1 MiB", "118 ms")
    for width in range(1, 130):
        said = to_plain_text(bar.fitted(width))
        assert cell_len(said) <= width
        assert said or width < 2
        assert "L11.ffn.hidden 117/236" in said or width < 25


def test_the_bar_shows_no_control_characters(typed: Typist) -> None:
    typed(RUN + pasted('run "a\x1b[31mb"') + ENTER)
    said = to_plain_text(bar_of(typed.prompt.session).fitted(200))
    assert "\x1b" not in said
    assert "\\x1b[31m" in said


def test_vi_keys_are_those_of_the_prompt_when_they_are_set(typed: Typist) -> None:
    typed(f"set vi on{ENTER}wshow dims\x1b0x{ENTER}set vi off{ENTER}show rows{ENTER}")
    assert typed.lines == ["set vi on", "show dims", "set vi off", "show rows"]


@pytest.mark.parametrize("char", ["\u202e", "\u200b", "\ufeff", "\u2066", "\ufe0f", "\U000e0041", "\x9b", "\u2028"])
def test_what_a_terminal_could_act_on_is_drawn_as_its_number(char: str) -> None:
    """From the history or a paste it would reach the screen as it is."""
    drawn = Char(char)
    assert char not in drawn.char
    assert drawn.char.isascii()
    assert drawn.width == len(drawn.char)


def test_what_is_drawn_of_letters_stays_as_it_is() -> None:
    assert [Char(char).char for char in "aé猫🙂"] == [*"aé猫🙂"]
