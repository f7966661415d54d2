"""SIGKILL at every open, write, flush, rename and removal: what stood before stands, or what is there is whole and new.

Each case runs in a child of this process, killed at the first such call, then from the same beginning at the second,
and so on until one ends by itself. The system keeps what was written, as it does when a process is killed.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from failing_disk import KILLED, Disk, failing
from training_runs import CAUSAL, STORY, changed, files_of

from tinytf.checkpoints.run import load_run
from tinytf.checkpoints.run_config import checkpoints_of
from tinytf.text.corpus import find_files
from tinytf.training import cache, sweep
from tinytf.training.loop import train
from tinytf.training.reader import read_history
from tinytf_cli.learn import Place
from tinytf_cli.main import run
from tinytf_cli.repl import history
from tinytf_cli.repl.history import FileHistory

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
TINY = changed(
    CAUSAL, model={**CAUSAL.model, "d_model": 8, "n_layers": 1, "n_heads": 1, "d_ff": 8, "context": 16}, block=8,
    batch=2, steps=2, warmup=1, eval_every=1, save_every=1, keep=1, probe_every=1,
)  # fmt: skip


def ended(folder: Path, count: int, work: Callable[[], Any]) -> bool:
    """Whether some work comes to its end in a child that is killed at its ``count``-th operation below a folder."""
    child = os.fork()
    if not child:
        status = 1
        try:
            torch.set_num_threads(1)  # threads do not come along into a child
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
            with failing(Disk(folder, count, KILLED)):
                work()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, f"it failed before it was killed, at {count}"
    return not os.WIFSIGNALED(status)


@pytest.fixture
def share(request: pytest.FixtureRequest) -> int:
    """Of long work, one call in so many; with --hostile above its default, every one."""
    return 1 if request.config.getoption("--hostile") > 500 else 4


def killed(folder: Path, work: Callable[[], Any], share: int = 1) -> Iterator[int]:
    """The number of each operation below a folder after the work was killed at it; the folder is new every time."""
    before, count = folder.with_name("before"), 0
    shutil.copytree(folder, before, symlinks=True)
    while True:
        count += share
        if ended(folder, count, work):
            return
        yield count
        shutil.rmtree(folder)
        shutil.copytree(before, folder, symlinks=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "at").mkdir()
    return tmp_path / "at"


def finished(place: Path) -> dict[str, bytes]:
    """What a run has in the end, but how fast it was."""
    return {name: data for name, data in files_of(place).items() if "speed" not in name and ".lock" not in name}


def test_a_run_is_as_if_it_had_not_been_killed(folder: Path, tmp_path: Path, share: int) -> None:
    (folder / "letter.txt").write_text("mine", "utf-8")
    train(STORY, TINY, tmp_path / "whole")
    whole, count = finished(tmp_path / "whole"), 0
    for count in killed(folder, lambda: train(STORY, TINY, folder / "run"), share):
        for place in checkpoints_of(folder / "run"):
            load_run(place)
        if count % 8 == 0:
            train(STORY, TINY, folder / "run", resume=(folder / "run" / "recipe.json").exists())
            left = finished(folder / "run")
            assert {name.split("/")[0] for name in left} == {name.split("/")[0] for name in whole}
            assert [name for name in whole if left[name] != whole[name]] == [], count
        assert (folder / "letter.txt").read_text("utf-8") == "mine"
    assert count > 120


def test_a_sweep_goes_on(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: int) -> None:
    def one_by_one(calls: Any, jobs: int, on_begin: Any, interrupted: Any) -> Iterator[sweep.Outcome]:
        for trial, (corpus, recipe, out, *_) in calls:
            last = train(find_files(corpus), recipe, out, resume=sweep.is_run(out))
            yield sweep.Outcome(trial, last.step >= recipe.steps)

    monkeypatch.setattr(sweep, "_in_processes", one_by_one)
    (tmp_path / "text.txt").write_text(STORY, "utf-8")
    recipe = replace(TINY, steps=1, probe_every=0)
    trials = sweep.grid(recipe, {"lr": (1e-3, 2e-3)}, 1)

    def go(out: Path) -> None:
        sweep.sweep([tmp_path / "text.txt"], trials, out, begin=lambda _: (None, None), jobs=1)

    go(tmp_path / "whole")
    whole = {trial.name: finished(tmp_path / "whole" / trial.name) for trial in trials}
    count = 0
    for count in killed(folder, lambda: go(folder / "sweep"), share):
        if count % 8 == 0:
            go(folder / "sweep")
            for trial in trials:
                assert read_history(folder / "sweep" / trial.name).finished
                assert finished(folder / "sweep" / trial.name) == whole[trial.name], count
    assert count > 120


OUTPUTS = {
    "recording": ("trace", "The cat", "-o", "{}/kept.safetensors"),
    "table": ("tokens", "The cat", "-o", "{}/kept.csv"),
    "redirected": ("repl", "-c", "tokens 'The cat' > {}/kept.txt"),
    "session": ("repl", "-c", "show dims", "-c", "save --force {}/kept.session"),
}


@pytest.mark.parametrize("case", OUTPUTS)
def test_an_output_is_the_old_or_the_new_one(folder: Path, case: str) -> None:
    words = [word.format(folder) for word in OUTPUTS[case]]
    name = "kept" + Path(words[-1]).suffix
    assert run(words) == 0
    new = (folder / name).read_bytes()
    (folder / name).write_bytes(b"what was there")
    seen = set()
    for _ in killed(folder, lambda: run(words)):
        seen.add((folder / name).read_bytes())
        assert all(path.name == name or path.name.endswith(".part") for path in folder.iterdir())
        assert run(words) == 0
        assert (folder / name).read_bytes() == new
    assert seen <= {b"what was there", new}
    assert b"what was there" in seen


def test_an_export_is_whole_or_no_model(folder: Path, tmp_path: Path) -> None:
    train(STORY, replace(TINY, steps=1, tokenizer="bpe", vocab_size=290), tmp_path / "run")
    words = ["export", str(tmp_path / "run"), str(folder / "model"), "--to", "huggingface"]
    for _ in killed(folder, lambda: run(words)):
        there = sorted(path.name for path in (folder / "model").iterdir()) if (folder / "model").exists() else []
        again = run(words)
        assert again == (2 if there else 0)
        if "config.json" in there:
            assert run(["info", str(folder / "model")]) == 0
        elif there:
            assert run(["info", str(folder / "model")]) == 1


def test_the_history_keeps_its_lines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "KEPT", 4)
    path, lines = folder / "history", [f"line {number}" + "x" * 20 for number in range(9)]
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    for _ in killed(folder, lambda: FileHistory(path).append_string("new")):
        left = path.read_text("utf-8").splitlines()
        assert left[: len(lines)] == lines or left == [*lines[-3:], "new"]
        assert all("new".startswith(line) for line in left[len(lines) :])
        FileHistory(path).append_string("next")
        assert path.read_text("utf-8").splitlines()[-1].endswith("next")


def test_the_place_in_the_lessons_is_the_old_or_the_new_one(folder: Path) -> None:
    place = Place(folder / "learn.json")
    place.write(3)
    for _ in killed(folder, lambda: place.write(7)):
        assert place.read(23) in (3, 7)


def test_tokens_are_never_taken_from_half_a_cache(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: int
) -> None:
    monkeypatch.setenv("TINYTF_CACHE", str(folder))
    monkeypatch.setattr(cache, "LEAST", 1)
    recipe = replace(TINY, steps=1, save_every=0, probe_every=0)
    monkeypatch.setattr(cache, "MOST", 1)  # so that entries are removed too
    train(STORY, recipe, tmp_path / "whole")
    whole = finished(tmp_path / "whole")
    shutil.rmtree(folder / cache.FOLDER)
    for count in killed(folder, lambda: train(STORY, recipe, tmp_path / "run", overwrite=True), share):
        if count % 8 == 0:
            train(STORY, recipe, tmp_path / f"after-{count}")
            assert finished(tmp_path / f"after-{count}") == whole
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
