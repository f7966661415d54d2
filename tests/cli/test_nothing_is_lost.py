"""Nothing that was there before is written over or removed unasked: models, inputs, runs, and files beside them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from driving import CORPUS, Tinytf, is_a_clean_error

from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import VERBS


@pytest.fixture
def model(tmp_path: Path, decoder: Path) -> Path:
    return Path(shutil.copytree(decoder, tmp_path / "model"))


@pytest.fixture
def run(tinytf: Tinytf, tmp_path: Path, recipe: Path, corpus: Path) -> Path:
    assert tinytf("train", corpus, "--recipe", recipe, "--out", tmp_path / "run").status == 0
    return tmp_path / "run"


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder but locks."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "new.json", "new.txt"])
def test_no_output_goes_into_the_folder_of_a_model(tinytf: Tinytf, model: Path, name: str) -> None:
    before = contents(model)
    for given in (("trace", "The cat"), ("attention", "The cat"), ("grad", "The cat sat")):
        ran = tinytf(*given, "--model", model, "-o", model / name)
        assert is_a_clean_error(ran)
        assert "lies in the folder of a model" in ran.err
    assert is_a_clean_error(tinytf("tokens", "The cat", "-o", model / name))  # another model's folder too
    assert contents(model) == before


def test_a_link_into_a_model_is_not_followed(tinytf: Tinytf, model: Path, tmp_path: Path) -> None:
    before = contents(model)
    (tmp_path / "link.json").symlink_to(model / "config.json")
    (tmp_path / "other").symlink_to(model)
    for out in (tmp_path / "link.json", tmp_path / "other" / "config.json", model / ".." / "model" / "config.json"):
        assert is_a_clean_error(tinytf("trace", "The cat", "--model", model, "-o", out))
    assert contents(model) == before


def test_no_output_goes_into_a_run(tinytf: Tinytf, run: Path) -> None:
    before = contents(run)
    for name in ("recipe.json", "report.svg", "tokens/index.json", "checkpoints/step-000002/training.json"):
        assert is_a_clean_error(tinytf("trace", "The cat", "-o", run / name))
    assert contents(run) == before


@pytest.mark.slow
def test_an_input_is_not_written_over(tinytf: Tinytf, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(CORPUS[0], "utf-8")
    linked = tmp_path / "linked.txt"
    os.link(text, linked)
    for out in (text, linked):
        ran = tinytf("ablate", "The cat sat", "--at", "L0H0", "--how", "mean", "--reference", text, "-o", out)
        assert is_a_clean_error(ran)
        assert "is read by this command" in ran.err
    with text.open("rb") as stream:
        piped = subprocess.run(
            [sys.executable, "-m", "tinytf_cli", "tokens", "-", "-o", text], stdin=stream, capture_output=True
        )
    assert piped.returncode == 2
    assert b"is read by this command" in piped.stderr
    assert text.read_text("utf-8") == CORPUS[0]


def test_a_session_writes_over_no_model(model: Path, tmp_path: Path) -> None:
    before = contents(model)
    weights = tmp_path / "weights.gguf"
    weights.write_bytes(b"GGUF")
    session = Session(VERBS)
    for line in (
        f"tokens The > {model / 'model.safetensors'}",
        f"tokens The > {model / 'notes'}",
        f"tokens The > {weights}",
        f"tokens The -o {model / 'config.json'}",
        f"save --force {model / 'tokenizer.json'}",
    ):
        assert session.execute(line).status == 2, line
    assert contents(model) == before
    assert weights.read_bytes() == b"GGUF"


@pytest.mark.parametrize(
    "names",
    [
        ("letter.txt",), ("model.safetensors",), ("config.json", "tokenizer.json"), ("recipe.json",),
        ("metrics.jsonl",), ("tokens/train.bin",), (".X.part",), (".metrics.jsonl.12.part",),
        ("checkpoints/step-000001/notes.txt",),
    ],
    ids="+".join,
)  # fmt: skip
@pytest.mark.parametrize("option", [(), ("--overwrite",), ("--resume",)], ids=" ".join)
def test_training_leaves_a_folder_that_is_no_run_alone(
    tinytf: Tinytf, tmp_path: Path, recipe: Path, corpus: Path, names: tuple[str, ...], option: tuple[str, ...]
) -> None:
    folder = tmp_path / "somebody's"
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('{"mine": 1}', "utf-8")
    before = contents(folder)
    ran = tinytf("train", corpus, "--recipe", recipe, "--out", folder, *option)
    assert is_a_clean_error(ran)
    assert "there is no run in" in ran.err or "a recipe has no field 'mine'" in ran.err
    assert contents(folder) == before


@pytest.mark.parametrize("option", ["--overwrite", "--resume"])
def test_training_leaves_a_model_alone(
    tinytf: Tinytf, tmp_path: Path, recipe: Path, corpus: Path, model: Path, option: str
) -> None:
    exported = tmp_path / "exported"
    assert tinytf("export", "tiny", exported, "--to", "huggingface").status == 0
    for folder in (exported, model):
        before = contents(folder)
        assert is_a_clean_error(tinytf("train", corpus, "--recipe", recipe, "--out", folder, option))
        assert is_a_clean_error(tinytf("train", corpus, "--recipe", recipe, "--out", folder))
        assert contents(folder) == before


def test_overwriting_removes_only_what_the_run_wrote(tinytf: Tinytf, run: Path, recipe: Path, corpus: Path) -> None:
    mine = {
        "notes.txt", ".X.part", "tokens/mine.bin", "checkpoints/best", "checkpoints/step-000002/notes.txt",
        "checkpoints/kept/model.safetensors", "tensorboard/picture.png", "piped/letter.txt",
    }  # fmt: skip
    for name in mine:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("mine", "utf-8")
    (run / "checkpoints/.step-000001.7.part").mkdir()
    (run / "checkpoints/.step-000001.7.part/config.json").write_text("{}", "utf-8")
    (run / ".metrics.jsonl.12.part").write_text("half", "utf-8")
    before = contents(run)
    assert tinytf("train", corpus, "--recipe", recipe, "--out", run, "--overwrite").status == 0
    after = contents(run)
    assert after.keys() == before.keys() - {".metrics.jsonl.12.part", "checkpoints/.step-000001.7.part/config.json"}
    assert {name for name, data in after.items() if data == b"mine"} == mine
    assert tinytf("train", corpus, "--out", run, "--resume").status == 0


def test_pruning_leaves_a_note_in_a_checkpoint(tinytf: Tinytf, tmp_path: Path, recipe: Path, corpus: Path) -> None:
    given = ("train", corpus, "--recipe", recipe, "--out", tmp_path / "run", "--save-every", "1", "--keep", "1")
    assert tinytf(*given, "--steps", "4", "--eval-every", "4").status == 0
    note = tmp_path / "run" / "checkpoints" / "step-000002" / "notes.txt"
    assert not note.parent.exists()
    assert tinytf(*given[:-1], "9", "--steps", "4", "--eval-every", "4", "--overwrite").status == 0
    note.write_text("mine", "utf-8")
    assert tinytf(*given, "--steps", "4", "--eval-every", "4", "--overwrite").status == 0
    assert [path.name for path in note.parent.iterdir()] == ["notes.txt"]
    assert tinytf("info", tmp_path / "run").status == 0


def test_overwriting_never_removes_what_is_trained_on_or_begun_from(
    tinytf: Tinytf, tmp_path: Path, recipe: Path
) -> None:
    run = tmp_path / "run"
    assert tinytf("train", "--recipe", recipe, "--out", run, stdin=CORPUS[0].encode()).status == 0
    before = contents(run)
    ran = tinytf("train", run / "piped" / "0.txt", "--recipe", recipe, "--out", run, "--overwrite")
    assert is_a_clean_error(ran)
    assert "is part of the run that --overwrite removes" in ran.err
    ran = tinytf("train", "--from", run, "--out", run, "--overwrite", stdin=CORPUS[0].encode())
    assert is_a_clean_error(ran)
    assert "begins from" in ran.err
    assert contents(run) == before
