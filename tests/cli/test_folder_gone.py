"""A folder that is deleted under the shell: one line and a hint, where a library would end the process."""

import subprocess
import sys
from pathlib import Path

import click
import pytest
from driving import Tinytf

from tinytf.errors import TinytfError
from tinytf_cli.main import EVERY, cli

SAID = "tinytf: error: the folder you are in is gone\nhint: go to one that exists, such as: cd ~\n"


@pytest.fixture(autouse=True)
def gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The present folder does not exist."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()


@pytest.mark.parametrize("name", EVERY)
def test_a_command_asks_for_a_folder_before_anything_else_and_has_its_help(name: str, tinytf: Tinytf) -> None:
    assert isinstance(cli, click.Group)
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.callback is not None
    with pytest.raises(TinytfError, match="the folder you are in is gone"):
        command.callback()
    assert tinytf(*name.split(), "--help").status == 0


@pytest.mark.parametrize("words", [("trace", "hi"), ("repl", "-c", "run hi")])
def test_it_is_a_line_and_a_hint(words: tuple[str, ...], tinytf: Tinytf) -> None:
    ran = tinytf(*words)
    assert (ran.status, ran.out, ran.err) == (1, "", SAID)


@pytest.mark.parametrize(("words", "status", "error"), [(("trace", "hi"), 1, SAID), (("--version",), 0, "")])
def test_a_process_that_starts_there_says_so(words: tuple[str, ...], status: int, error: str) -> None:
    ran = subprocess.run([sys.executable, "-m", "tinytf", *words], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (status, error)
