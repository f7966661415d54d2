"""A run that goes on, begins anew, and what of it is removed with it."""

import json
import shutil
import signal
import sys
from pathlib import Path

import pytest
from driving import CORPUS, Stream, Tinytf, is_a_clean_error, streams
from filelock import FileLock

import tinytf.training.loop as the_loop
from tinytf_cli.main import run


def test_control_c_ends_after_the_step_with_a_checkpoint_and_resume_goes_on(
    tinytf: Tinytf, tmp_path: Path, recipe: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine, calls = the_loop.clip, []

    def interrupted(*arguments: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return genuine(*arguments)

    given = ("train", corpus, "--recipe", recipe, "--steps", "6")
    assert tinytf(*given, "--out", tmp_path / "whole").status == 0
    monkeypatch.setattr(the_loop, "clip", interrupted)
    ran = tinytf(*given, "--out", tmp_path / "run")
    assert ran.status == 130
    assert "stopped" in ran.err
    assert f"at step 3 of 6; tinytf train --resume {tmp_path / 'run'} continues" in ran.err
    assert f"tinytf train --resume {tmp_path / 'run'}\n" in ran.out
    kept = sorted(place.name for place in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["step-000002", "step-000003"]
    monkeypatch.undo()
    assert tinytf("train", "--resume", tmp_path / "run").status == 0  # as it is told above
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    again = tinytf("train", corpus, "--out", tmp_path / "run", "--resume")
    assert again.status == 0
    assert "--resume" not in again.out
    nowhere = tinytf("train", "--resume", tmp_path / "no run")
    assert is_a_clean_error(nowhere)
    assert f"there is no run {tmp_path / 'no run'}" in nowhere.err


def test_a_resumed_run_keeps_what_it_was_begun_with(tinytf: Tinytf, tmp_path: Path, recipe: Path, corpus: Path) -> None:
    out = tmp_path / "run"
    assert tinytf("train", corpus, "--recipe", recipe, "--out", out).status == 0
    ran = tinytf("train", corpus, "--out", out, "--resume", "--lr", "0.5")
    assert is_a_clean_error(ran)
    assert "was started with lr 0.012, not 0.5" in ran.err
    assert is_a_clean_error(tinytf("train", corpus, "--out", out, "--resume", "--overwrite"))
    assert is_a_clean_error(tinytf("train", corpus, "--out", out, "--resume", "--d-model", "16"))
    assert tinytf("train", corpus, "--out", out, "--resume", "--d-model", "8", "--steps", "2").status == 0


def test_overwrite_begins_anew_and_leaves_what_is_not_its_own(
    tinytf: Tinytf, tmp_path: Path, recipe: Path, corpus: Path
) -> None:
    out = tmp_path / "run"
    assert tinytf("train", corpus, "--recipe", recipe, "--out", out).status == 0
    (out / "notes.txt").write_text("mine", "utf-8")
    assert tinytf("train", corpus, "--recipe", recipe, "--out", out, "--overwrite", "--seed", "4").status == 0
    assert json.loads((out / "recipe.json").read_text("utf-8"))["seed"] == 4
    assert (out / "notes.txt").read_text("utf-8") == "mine"


def test_a_run_goes_on_with_the_files_that_it_was_begun_with(
    tinytf: Tinytf, tmp_path: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for name in ("b", "a"):
        (texts / f"{name}.txt").write_text(CORPUS[0] + name, "utf-8")
    monkeypatch.chdir(texts)
    given = ("train", "../texts", "b.txt", "--recipe", recipe)
    assert tinytf(*given, "--out", tmp_path / "whole").status == 0
    assert tinytf(*given, "--out", tmp_path / "run").status == 0
    shutil.rmtree(tmp_path / "run" / "checkpoints")  # as if it had been killed before the first one
    (texts / "c.txt").write_text("a file that came later", "utf-8")
    monkeypatch.chdir(tmp_path)
    assert tinytf("train", "--resume", "--out", "run").status == 0
    for name in ("metrics.jsonl", "model.safetensors", "corpus.json"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_text_that_is_gone_has_changed_or_was_never_a_file_is_said(
    tinytf: Tinytf, tmp_path: Path, recipe: Path, corpus: Path
) -> None:
    out = tmp_path / "run"
    assert tinytf("train", corpus, "--recipe", recipe, "--out", out).status == 0
    text = corpus.read_text("utf-8")
    corpus.write_text(text + " And more.", "utf-8")
    ran = tinytf("train", "--resume", "--out", out)
    assert is_a_clean_error(ran)
    assert f"{corpus} is no longer what {out} was started with" in ran.err
    corpus.unlink()
    ran = tinytf("train", "--resume", "--out", out)
    assert is_a_clean_error(ran)
    assert f"{corpus}, which {out} was started with, no longer exists" in ran.err
    assert tinytf("train", "-", "--resume", "--out", out, stdin=text.encode()).status == 0
    (out / "corpus.json").write_text("{}", "utf-8")
    assert is_a_clean_error(tinytf("train", "--resume", "--out", out), 1)


def test_a_run_keeps_the_text_of_a_pipe_to_go_on_with_wherever_it_is_moved(
    tinytf: Tinytf, tmp_path: Path, recipe: Path
) -> None:
    out, moved = tmp_path / "run", tmp_path / "moved"
    assert tinytf("train", "--recipe", recipe, "--out", out, stdin=CORPUS[0].encode()).status == 0
    model = (out / "model.safetensors").read_bytes()
    out.rename(moved)
    shutil.rmtree(moved / "checkpoints")  # as if it had been killed before the first one
    assert tinytf("train", "--resume", "--out", moved, stdin=b"").status == 0
    assert (moved / "model.safetensors").read_bytes() == model


def test_a_run_is_only_removed_when_the_new_one_can_begin_and_nobody_trains_it(
    tinytf: Tinytf, tmp_path: Path, recipe: Path, corpus: Path
) -> None:
    out = tmp_path / "run"
    assert tinytf("train", corpus, "--recipe", recipe, "--out", out).status == 0
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    assert is_a_clean_error(tinytf("train", "--recipe", recipe, "--out", out, "--overwrite", stdin=b"ab"), 1)
    with FileLock(out / ".lock"):
        ran = tinytf("train", corpus, "--recipe", recipe, "--out", out, "--overwrite")
    assert is_a_clean_error(ran)
    assert "another process trains" in ran.err
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    assert (out / "checkpoints").is_dir()


def test_a_run_that_is_not_there_cannot_go_on_unless_it_was_killed_before_it_began(
    tinytf: Tinytf, tmp_path: Path, recipe: Path, corpus: Path
) -> None:
    ran = tinytf("train", "--resume", "--out", tmp_path / "none", stdin=b"")
    assert is_a_clean_error(ran)
    assert "there is no run in" in ran.err
    (tmp_path / "killed" / "tokens").mkdir(parents=True)
    assert tinytf("train", corpus, "--recipe", recipe, "--out", tmp_path / "killed", "--resume").status == 0


@pytest.mark.parametrize("screen", [True, False])
def test_a_run_that_does_not_know_its_text_reads_none_unasked(
    tinytf: Tinytf, tmp_path: Path, recipe: Path, screen: bool
) -> None:
    out, err, text = tmp_path / "run", Stream(), Stream(CORPUS[0].encode(), screen=screen)
    assert tinytf("train", "--recipe", recipe, "--out", out, stdin=CORPUS[0].encode()).status == 0
    (out / "corpus.json").unlink()
    with streams(stdin=text, stdout=Stream(), stderr=err):
        assert run(["train", "--resume", "--out", str(out)]) == 2
        assert text.read() == CORPUS[0]
    assert f"{out} does not know where its text is" in err.got().decode()
    assert tinytf("train", "-", "--resume", "--out", out, stdin=CORPUS[0].encode()).status == 0


@pytest.mark.parametrize("after", ["the lock", "the corpus", "a piped text"])
def test_a_run_that_was_killed_before_its_recipe_is_begun_again(
    tinytf: Tinytf, tmp_path: Path, recipe: Path, after: str
) -> None:
    out = tmp_path / "run"
    given = ("train", "--recipe", recipe, "--out", out)
    assert tinytf(*given, stdin=CORPUS[0].encode()).status == 0
    kept = {"the lock": (), "the corpus": ("corpus.json", "piped"), "a piped text": ("piped",)}[after]
    for path in out.iterdir():
        if path.name not in (".lock", "tokens", *kept):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    ran = tinytf("train", "--resume", "--out", out, stdin=b"another text")
    assert is_a_clean_error(ran)
    assert "there is no run in" in ran.err
    assert tinytf(*given, stdin=CORPUS[0].encode()).status == 0


def test_event_files_are_written_where_they_are_asked_for_and_go_with_the_run(
    tinytf: Tinytf, tmp_path: Path, recipe: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("train", corpus, "--recipe", recipe, "--out", tmp_path / "run")
    assert tinytf(*given, "--tensorboard").status == 0
    assert [path.name.split(".")[2] for path in (tmp_path / "run" / "tensorboard").iterdir()] == ["tfevents"]
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    ran = tinytf(*given, "--tensorboard", "--overwrite")
    assert is_a_clean_error(ran, 1)
    assert 'pip install "tinytf[tensorboard]"' in ran.err
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    assert tinytf(*given, "--overwrite").status == 0
    assert not (tmp_path / "run" / "tensorboard").exists()
