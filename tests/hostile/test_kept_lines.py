"""Files of what was typed and of a learner's place, damaged in every way: they are read as far as they can be."""

import os
from pathlib import Path
from random import Random

import pytest

from hostile.mutations import as_json, bytes_of, mutated
from hostile.strange import MADE
from hostile.strings import text
from hostile.watchdog import watched
from tinytf.learn import NAMES
from tinytf_cli.bookmark import Bookmark
from tinytf_cli.repl.history import FileHistory

_UNREADABLE = {"a pipe", "a socket", "a closed file", "64 GiB of nothing"} | {kind for kind in MADE if "link" in kind}


def test_a_damaged_history_is_read_and_goes_on(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    rng, path = Random("histories"), tmp_path / "history"
    for number in range(pytestconfig.getoption("hostile") // 5):
        sound = "".join(f"{text(rng)[:500]}\n" for _ in range(rng.randrange(5))).encode("utf-8", "surrogatepass")
        made = rng.choice([made for kind, made in MADE.items() if kind not in _UNREADABLE and isinstance(made, bytes)])
        path.unlink(missing_ok=True)
        path.write_bytes(rng.choice((sound, sound[:-1], bytes_of(rng, sound or b"x")[1], made, sound + made)))
        with watched():
            history = FileHistory(path)
            before = list(history.load_history_strings())
            history.append_string(f"run {number}")
            found = list(history.load_history_strings())
        assert not history.trouble
        assert found[0] == f"run {number}", path.read_bytes()[-200:]
        assert found[1:] == before[: len(found) - 1]
        assert all(line.strip() and "\n" not in line for line in found)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes and sockets are of POSIX")
@pytest.mark.parametrize("kind", ["a folder", "a loop of links"])
def test_a_history_that_is_no_file_is_a_trouble(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    MADE[kind](Path("history"))
    history = FileHistory(Path("history"))
    assert list(history.load_history_strings()) == []
    history.append_string("run The cat")
    assert "history" in history.trouble


def test_a_damaged_place_of_a_learner_is_none_or_a_lesson(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    rng, path = Random("places"), tmp_path / "learn.json"
    for _ in range(pytestconfig.getoption("hostile") // 5):
        about, data = mutated(rng, {"lesson": 3, "answers": {"tokens": True}})
        path.write_bytes(as_json(rng, data))
        with watched():
            found = Bookmark(path).lesson
        assert found is None or (type(found) is int and 1 <= found <= len(NAMES)), about
