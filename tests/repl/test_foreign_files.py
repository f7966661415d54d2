"""Lines of a stranger's file write nothing, or new files of results in the one folder that the user names."""

import os
from pathlib import Path

import pytest
from driving import Tinytf

from tinytf_cli.repl import startup as startup_file

RECIPE = """
tokenizer = "char"
steps = 3
batch = 2
block = 8
warmup = 0
eval_every = 1

[model]
d_model = 8
n_layers = 1
n_heads = 1
d_ff = 8
context = 16
"""
LINES = [
    "score 'The cat' > {file}",
    "tokens 'The cat' -o {file}",
    "save {file}",
    "generate The > {file}",
    "blame The -m tiny --budget 1MB --resume {file}",
]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, where the session runs: with a configuration, a run, a text and a folder for results."""
    home = tmp_path / "home"
    for name in (".config/tinytf", "results", "Photos"):
        (home / name).mkdir(parents=True)
    (home / "book.txt").write_text("The cat sat on the mat. " * 20, "utf-8")
    (home / "results" / "old.txt").write_text("old", "utf-8")
    (home / "recipe.toml").write_text(RECIPE, "utf-8")
    for name, place in (("XDG_CONFIG_HOME", ".config"), ("HOME", ".")):
        monkeypatch.setenv(name, str(home / place))
    monkeypatch.chdir(home)
    return home


def contents(home: Path) -> dict[str, bytes]:
    return {str(path.relative_to(home)): path.read_bytes() for path in home.rglob("*") if path.is_file()}


def foreign(tinytf: Tinytf, home: Path, *lines: str, write_to: str | None = None) -> tuple[int, str]:
    """Run lines of a stranger's file; the status and what was said. Nothing that was there has changed or gone."""
    (home.parent / "stranger").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    before = contents(home)
    ran = tinytf("repl", "-f", home.parent / "stranger", *(() if write_to is None else ("--write-to", write_to)))
    after = contents(home)
    assert {name: after.get(name) for name in before} == before
    return ran.status, ran.err


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize(
    "name", [".config/tinytf/session", ".bash_aliases", "new.txt", "results/old.txt", "results/new.txt"]
)
def test_a_file_writes_nothing_unless_a_folder_is_named(tinytf: Tinytf, home: Path, line: str, name: str) -> None:
    before = set(contents(home))
    status, message = foreign(tinytf, home, line.format(file=name))
    assert status == 1
    assert "tinytf: error: " in message
    assert set(contents(home)) == before


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("new.txt", "only below"),
        ("results/../new.txt", "only below"),
        ("results/.bashrc.txt", "no hidden file"),
        ("results/old.txt", "which existed before"),
        ("results/conftest.py", "not that of a result"),
        ("results/out/new.txt", "only below"),
    ],
)
def test_a_named_folder_takes_new_files_of_results_and_nothing_else(
    tinytf: Tinytf, home: Path, name: str, why: str
) -> None:
    (home / "results" / "out").symlink_to(home / "Photos")
    before = set(contents(home))
    status, message = foreign(tinytf, home, f"score 'The cat' > {name}", write_to="results")
    assert status == 1
    assert why in message
    assert set(contents(home)) == before
    assert foreign(tinytf, home, "score 'The cat' > results/new.txt", write_to="results")[0] == 0
    assert "The" in (home / "results" / "new.txt").read_text("utf-8")


def test_the_users_settings_are_never_written_even_inside_the_named_folder(
    tinytf: Tinytf, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "settings" / "tinytf").mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "settings"))
    status, message = foreign(tinytf, home, "score 'The cat' > settings/tinytf/session.txt", write_to=".")
    assert status == 1
    assert "no settings" in message


def test_a_run_of_a_file_lies_in_the_folder_and_others_are_left(tinytf: Tinytf, home: Path) -> None:
    train = "train book.txt --recipe recipe.toml --out {} {}"
    assert tinytf("train", "book.txt", "--recipe", "recipe.toml", "--out", "runs/a").status == 0
    for line in (
        train.format("runs/a", "--overwrite"),
        "train --out runs/a --resume --steps 9",
        train.format("runs/b", ""),
    ):
        for folder in (None, "results"):
            assert foreign(tinytf, home, line, write_to=folder)[0] == 1, line
    kept = train.format("results/b", "--save-every 1 --keep 1")
    status, message = foreign(tinytf, home, kept, "train --out results/b --resume", write_to="results")
    assert status == 0, message
    assert [path.name for path in (home / "results" / "b" / "checkpoints").iterdir()] == ["step-000003"]
    export = "export results/b {} --to huggingface"
    assert foreign(tinytf, home, export.format("exported"), write_to="results")[0] == 1
    assert foreign(tinytf, home, export.format("results/exported"), write_to="results")[0] == 0


@pytest.mark.parametrize(
    "line",
    [
        "generate The --compile",
        "train book.txt --recipe recipe.toml --out results/c --compile",
        "model hub:org/name",
        "sweep recipe.toml book.txt --out results/s",
    ],
)
def test_nothing_that_writes_elsewhere_is_started(tinytf: Tinytf, home: Path, line: str) -> None:
    status, message = foreign(tinytf, home, line, write_to="results")
    assert status == 1
    assert "--allow-code" in message


def test_a_sourced_file_has_no_more_rights_than_the_file_that_sources_it(tinytf: Tinytf, home: Path) -> None:
    (home / "inner").write_text("score 'The cat' > results/inner.txt\n", "utf-8")
    assert foreign(tinytf, home, "source inner --write-to results")[0] == 1
    assert not (home / "results" / "inner.txt").exists()
    assert tinytf("repl", "-c", "source inner").status == 1
    assert tinytf("repl", "-c", "source inner --write-to results").status == 0
    assert (home / "results" / "inner.txt").exists()


# The start-up file


def started(tinytf: Tinytf, path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    monkeypatch.setattr(startup_file, "startup_path", lambda: path)
    ran = tinytf("repl", "--startup", "-c", "show dims")
    return ran.out.split()[1], ran.err


@pytest.mark.skipif(os.name != "posix", reason="owners and modes of POSIX systems")
@pytest.mark.parametrize(("file", "folder"), [(0o666, 0o755), (0o620, 0o755), (0o600, 0o777)])
def test_a_start_up_file_that_others_may_write_is_not_run(
    tinytf: Tinytf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: int, folder: int
) -> None:
    path = tmp_path / "settings" / "session"
    path.parent.mkdir()
    path.write_text("set dims 3\n", "utf-8")
    path.chmod(0o600)
    assert started(tinytf, path, monkeypatch) == ("3", "")
    path.chmod(file)
    path.parent.chmod(folder)
    dims, message = started(tinytf, path, monkeypatch)
    assert dims == "auto"
    assert "was not run: others may write to" in message


@pytest.mark.skipif(os.name != "posix", reason="owners and modes of POSIX systems")
def test_a_start_up_file_of_another_user_is_not_run(
    tinytf: Tinytf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "session"
    path.write_text("set dims 3\n", "utf-8")
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    dims, message = started(tinytf, path, monkeypatch)
    assert dims == "auto"
    assert "belongs to another user" in message


@pytest.mark.parametrize(
    "line", ["perplexity 2.120: 1.084 bits per token", "nonsense", "The cat sat on the mat", "'open"]
)
def test_nothing_of_a_start_up_file_runs_in_which_a_line_is_none_of_a_session(
    tinytf: Tinytf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    path = tmp_path / "session"
    path.write_text(f"set dims 3\n! open({str(tmp_path / 'owned')!r}, 'w').close()\n{line}\n", "utf-8")
    dims, message = started(tinytf, path, monkeypatch)
    assert dims == "auto"
    assert "the start-up file was not run: session line 3" in message
    assert not (tmp_path / "owned").exists()
