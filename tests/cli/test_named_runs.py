"""Runs by their name, or the newest where none is named: every command that takes a run finds it."""

import json
import os
import shutil
from pathlib import Path

import pytest
from driving import Tinytf, is_a_clean_error
from filelock import FileLock

from tinytf.runs.run_files import LOCK
from tinytf.training.recipe import Recipe
from tinytf.training.train import train
from tinytf_cli.main import run as run_command

TEXT = "The cat sat on the mat. " * 20
NEEDING_A_RUN = (("runs", "--follow"), ("runs", "--film"), ("train", "--resume"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs in ``runs/``: first, which finished, and later, stopped after half of its steps."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "book.txt").write_text(TEXT, "utf-8")
    recipe = Recipe(
        model={"d_model": 8, "n_layers": 1, "n_heads": 1, "d_ff": 8, "context": 16}, tokenizer="char", block=8,
        batch=2, steps=4, warmup=1, eval_every=2, held_out=0.2, probe_every=2,
    )  # fmt: skip
    calls: list[int] = []

    def halfway() -> bool:
        calls.append(1)
        return len(calls) >= 2

    train(TEXT, recipe, folder / "runs" / "first")
    train(TEXT, recipe, folder / "runs" / "later", interrupted=halfway)
    for age, name in ((200, "later"), (100, "first")):  # the finished one is the newest
        for path in (folder / "runs" / name).glob("*.json*"):
            os.utime(path, (1_700_000_000 - age,) * 2)
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("given", NEEDING_A_RUN, ids=" ".join)
def test_without_a_run_in_the_folder_one_line_says_how_to_make_one(
    tinytf: Tinytf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = tinytf(*given)
    assert is_a_clean_error(ran, 2)
    assert ran.err.splitlines() == [
        "tinytf: error: there is no run in the current folder",
        "hint: tinytf train TEXT.txt makes one; or name the folder of a run",
    ]


@pytest.mark.usefixtures("folder")
def test_a_run_is_found_by_its_name_and_the_newest_without_one(tinytf: Tinytf) -> None:
    for given in (("runs", "--follow", "first", "--once"), ("runs", "--follow", "--once"), ("runs", "first")):
        assert "4 of 4" in tinytf(*given).out, given
    for given in (("runs", "--film", "first"), ("runs", "--film")):
        assert "runs/first" in tinytf(*given).out, given
    assert tinytf("runs", "--film", "first", "--versus", "later").status == 0
    by_path = tinytf(
        "generate", "-m", "runs/later", "The", "--device", "cpu", "--temperature", "0", "--max-tokens", "4"
    )
    by_name = tinytf("generate", "-m", "later", "The", "--device", "cpu", "--temperature", "0", "--max-tokens", "4")
    assert by_name.status == 0
    assert by_name.out == by_path.out
    (named,) = json.loads(tinytf("runs", "later", "--json").out)["runs"]
    assert named["path"] == "runs/later"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("given", [(), ("later",), ("book.txt",)], ids=" ".join)
def test_resume_continues_the_newest_run_with_steps_left(tinytf: Tinytf, given: tuple[str, ...]) -> None:
    """Also with the text it trains on in front, as in the line that began it."""
    Path("book.txt").write_text(TEXT, "utf-8")
    ran = tinytf("train", *given, "--resume")
    assert (ran.status, ran.err.splitlines()[0]) == (0, "tinytf: continuing runs/later")
    done = tinytf("train", "--resume")
    assert is_a_clean_error(done, 2)
    assert "every run in runs/ has finished" in done.err


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", ["trace", "score", "generate", "diff"])
def test_a_run_in_place_of_a_text_is_said_to_be_one(tinytf: Tinytf, command: str) -> None:
    ran = tinytf(command, "runs/first", "runs/later") if command == "diff" else tinytf(command, "runs/first")
    assert is_a_clean_error(ran, 2)
    assert "runs/first is a training run, and this takes a text" in ran.err
    assert "tinytf runs runs/first" in ran.err


@pytest.mark.usefixtures("folder")
def test_export_names_its_folder_after_the_model(tinytf: Tinytf) -> None:
    assert tinytf("export", "later").status == 0
    assert Path("later-hf/config.json").is_file()
    assert is_a_clean_error(tinytf("export", "runs/later"), 2)  # it is not empty


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("status", "runs"), ("logs", "runs"), ("resume", "train --resume"), ("follow", "runs --follow")],
)
def test_what_a_trainer_types_leads_to_the_command(tinytf: Tinytf, typed: str, meant: str) -> None:
    assert f"hint: tinytf {meant} " in tinytf(typed).err


@pytest.mark.usefixtures("folder")
def test_overwrite_never_picks_a_run(tinytf: Tinytf) -> None:
    assert is_a_clean_error(tinytf("train", "book.txt", "--overwrite"), 2)


@pytest.mark.usefixtures("folder")
def test_runs_tells_a_run_that_goes_on_from_one_that_stopped_and_says_what_to_type(
    capsys: pytest.CaptureFixture[str], tinytf: Tinytf
) -> None:
    states = {run["name"]: run["state"] for run in json.loads(tinytf("runs", "--json").out)["runs"]}
    assert states == {"first": "finished", "later": "stopped"}
    assert run_command(["runs"]) == 0
    out = capsys.readouterr().out
    assert "stopped at 50 %" in out
    assert "tinytf train --resume runs/later" in out
    with FileLock(Path("runs/later") / LOCK):
        assert run_command(["runs"]) == 0
    out = capsys.readouterr().out
    assert "at 50 %" in out
    assert "stopped" not in out
    assert "tinytf runs --follow runs/later" in out
