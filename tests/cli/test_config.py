"""Defaults of the user: from variables and a file, under options that are typed; nothing else is accepted."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tinytf_cli.config import NAMES, PAGER
from tinytf_cli.main import run


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    path.write_text('model = "tiny-encoder"\nwidth = 60\nascii = true\npager = "head -n 3"\n')
    monkeypatch.setenv("TINYTF_CONFIG", str(path))
    return path


def settings(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    """The value and the source of each setting."""
    capsys.readouterr()
    assert run(["config", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    return {setting["name"]: (setting["value"], setting["source"]) for setting in data["settings"]}


def test_the_file_is_what_every_command_starts_from(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "the cat [MASK]"]) == 0
    shown = capsys.readouterr().out
    assert "\ntiny-encoder " in shown
    assert shown.isascii()
    assert run(["trace", "The cat", "-m", "tiny", "--width", "90"]) == 0
    assert "\ntiny . decoder" in capsys.readouterr().out


def test_a_variable_goes_before_the_file_and_an_option_before_both(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINYTF_MODEL", "tiny")
    monkeypatch.setenv("TINYTF_PRECISION", "5")
    found = settings(capsys)
    assert found["model"] == ("tiny", "TINYTF_MODEL")
    assert found["precision"] == ("5", "TINYTF_PRECISION")
    assert found["width"] == ("60", str(file))
    assert found["pager"][1] == str(file)
    assert found["theme"] == ("auto", "default")
    assert run(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "tiny"
    assert run(["info", "tiny-encoder", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "tiny-encoder"


def test_a_session_starts_from_the_file_and_its_own_settings_go_first(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["repl", "-c", "set", "-c", "set ascii off", "-c", "run the cat [MASK]"]) == 0
    before, _, after = capsys.readouterr().out.partition("ascii  off")
    assert "width      60" in before
    assert "[CLS]│the" in after


def test_without_a_file_all_is_as_declared(capsys: pytest.CaptureFixture[str]) -> None:
    found = settings(capsys)
    assert list(found) == [*NAMES, PAGER]
    assert {source for _, source in found.values()} == {"default"}
    assert run(["config"]) == 0
    assert capsys.readouterr().out.startswith("There is no ")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('them = "dark"', "unknown setting 'them'"),
        ('theme = "blue"', "theme: 'blue' is not one of"),
        ('width = "wide"', "width: 'wide' is not a valid integer"),
        ("width = 5", "width: 5 is not from 20 to 1000"),
        ("ascii = 3", "ascii: '3' is not a valid boolean"),
        ("pager = 3", "pager is a command in quotes"),
        ("theme = [1", "is not TOML"),
    ],
)
def test_what_is_no_setting_is_refused_by_name(
    line: str, said: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(f"{line}\n")
    assert run(["trace", "The cat"]) == 2
    error = capsys.readouterr().err
    assert str(file) in error
    assert said in error


def test_a_variable_with_a_wrong_value_and_a_file_that_is_gone_are_named(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINYTF_THEME", "blue")
    assert run(["trace", "The cat"]) == 2
    assert "TINYTF_THEME: theme: 'blue'" in capsys.readouterr().err
    file.unlink()
    assert run(["config"]) == 2
    assert f"no file {file}, which TINYTF_CONFIG names" in capsys.readouterr().err


def test_help_and_version_read_no_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("not toml [")
    assert run(["--help"]) == run(["--version"]) == 0


def paged(capsys: pytest.CaptureFixture[str]) -> tuple[tuple[str, str], str]:
    """The pager with its source, and what is said on stderr."""
    pager = settings(capsys)[PAGER]
    assert run(["config", "--json"]) == 0
    return pager, capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="owners and modes of POSIX systems")
@pytest.mark.parametrize(("mode", "folder"), [(0o666, 0o700), (0o620, 0o700), (0o602, 0o755), (0o600, 0o777)])
def test_a_pager_in_a_file_that_others_may_write_is_not_started(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, mode: int, folder: int
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("PAGER", "cat")
    file.chmod(0o600)
    assert paged(capsys) == ((f"{shutil.which('head')} -n 3", str(file)), "")
    file.chmod(mode)
    file.parent.chmod(folder)
    pager, said = paged(capsys)
    assert pager == ("none", "default")
    assert said.startswith(f"tinytf: note: the pager of {file} is not used: others may write to {file.parent}")
    assert said.count("\n") == 1
    assert settings(capsys)["model"] == ("tiny-encoder", str(file))
    monkeypatch.setenv("TINYTF_PAGER", "head -n 2")
    assert paged(capsys) == ((f"{shutil.which('head')} -n 2", "TINYTF_PAGER"), "")


@pytest.mark.skipif(os.name != "posix", reason="owners and modes of POSIX systems")
def test_a_pager_in_somebody_elses_file_is_not_started_nor_one_behind_a_link(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "shared").mkdir()
    link = tmp_path / "link.toml"
    link.symlink_to(file.rename(tmp_path / "shared" / "config.toml"))
    monkeypatch.setenv("TINYTF_CONFIG", str(link))
    assert paged(capsys)[1] == ""
    (tmp_path / "shared").chmod(0o777)
    assert "others may write to" in paged(capsys)[1]
    (tmp_path / "shared").chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: link.stat().st_uid + 1)
    pager, said = paged(capsys)
    assert pager[1] == "default"
    assert "belongs to another user" in said
