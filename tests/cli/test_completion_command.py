"""The completion script of a shell: printed, or written to where the shell reads it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tinytf_cli.main import run

PLACES = {
    "bash": "data/bash-completion/completions/tinytf",
    "zsh": "data/zsh/site-functions/_tinytf",
    "fish": "config/fish/completions/tinytf.fish",
}


@pytest.mark.parametrize("shell", PLACES)
def test_it_is_written_to_where_the_shell_reads_it(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert run(["config", "--completion", shell]) == 0
    printed = capsys.readouterr().out
    assert "_TINYTF_COMPLETE" in printed
    assert run(["config", "--completion", shell, "--install"]) == 0
    written = tmp_path / PLACES[shell]
    assert f"wrote {written}" in capsys.readouterr().out
    assert written.read_text().strip() == printed.strip()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_takes_the_script_and_completes_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "--completion", "bash"]) == 0
    script = capsys.readouterr().out
    line = "COMP_WORDS=(tinytf attr); COMP_CWORD=1; _tinytf_completion tinytf; echo ${COMPREPLY[@]}"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{line}"], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "attribute"


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "--completion", "tcsh"]) == 2
    assert "tcsh" in capsys.readouterr().err
