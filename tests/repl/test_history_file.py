"""What was typed in earlier sessions: private, bounded, shared by sessions, and no reason to fail."""

import stat
import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from typing_keys import ENTER, UP, pasted, typist

from tinytf_cli.repl.history import KEPT, FileHistory, history_path

RUN = f'run "The cat sat"{ENTER}'


def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines()


def test_it_is_in_the_state_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = history_path()
    assert path.name == "history"
    assert path.parent.name == "tinytf" or sys.platform == "win32"
    if sys.platform == "linux":
        assert path == tmp_path / "tinytf" / "history"


@pytest.mark.skipif(sys.platform == "win32", reason="modes are of POSIX")
def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "tinytf" / "history"
    FileHistory(path).append_string("run The secret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_another_session_finds_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with typist(tmp_path, monkeypatch) as first:
        first(f"{RUN}goto L1.weights{ENTER}")
    with typist(tmp_path, monkeypatch) as second:
        second(f"run{UP}{ENTER}")
    assert second.lines == ['run "The cat sat"']


def test_pasted_lines_are_remembered_one_by_one_and_repetitions_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with typist(tmp_path, monkeypatch) as typed:
        typed(pasted('run "The cat sat"\nstep\nstep') + ENTER + f"where{ENTER}")
    assert _lines(tmp_path / "tinytf" / "history") == ['run "The cat sat"', "step", "where"]


def test_sessions_at_once_lose_no_line(tmp_path: Path) -> None:
    path = tmp_path / "tinytf" / "history"
    sessions = [FileHistory(path) for _ in range(4)]

    def talk(number: int) -> None:
        for line in range(50):
            sessions[number].append_string(f"run {number} {line}")

    talking = [threading.Thread(target=talk, args=(number,)) for number in range(4)]
    for one in talking:
        one.start()
    for one in talking:
        one.join()
    assert sorted(_lines(path)) == sorted(f"run {number} {line}" for number in range(4) for line in range(50))


def test_a_long_file_is_cut_to_its_newest_lines(tmp_path: Path) -> None:
    path = tmp_path / "tinytf" / "history"
    path.parent.mkdir()
    path.write_text("".join(f"run line {number}\n" for number in range(2 * KEPT)), "utf-8")
    FileHistory(path).append_string("where")
    left = _lines(path)
    assert len(left) == KEPT
    assert left[-2:] == [f"run line {2 * KEPT - 1}", "where"]
    assert {one.name for one in path.parent.iterdir()} <= {"history", "history.lock"}
    if sys.platform != "win32":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_newest_lines_come_first_and_what_is_no_text_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_bytes(b"first\n\xff\xfe\x00\n\nlast\n")
    found = list(FileHistory(path).load_history_strings())
    assert (found[0], found[-1], len(found)) == ("last", "first", 3)


def test_a_history_that_cannot_be_written_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tinytf").write_text("a file where the folder would be", "utf-8")
    with typist(tmp_path, monkeypatch) as typed:
        assert typed(f"{RUN}step{ENTER}where{ENTER}") == 0
    assert typed.lines == ['run "The cat sat"', "step", "where"]
    notes = [line for line in typed.err.text.splitlines() if "not saved" in line]
    assert len(notes) == 1
    assert str(tmp_path / "tinytf" / "history") in notes[0]


def test_a_folder_in_its_place_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tinytf" / "history").mkdir(parents=True)
    with typist(tmp_path, monkeypatch) as typed:
        typed(RUN)
    assert typed.err.text.count("not saved") == 1
