"""Whatever stops a run, no work is lost: killed at any moment, on a disk that fails at any write, under any clock."""

import json
import os
import random
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import covering
import pytest
import torch
from covering import sample
from failing_disk import BROKEN, FULL, TORN, Disk, Fault, failing
from training_runs import CAUSAL, STORY, changed, files_of, metrics_of, stopping_after

from tinytf.checkpoints.run import load_run
from tinytf.checkpoints.run_config import checkpoint_step, checkpoints_of
from tinytf.errors import TinytfError, UsageError
from tinytf.runs.reader import read_history
from tinytf.text.corpus import find_files
from tinytf.training.recipe import Recipe
from tinytf.training.remembered import find_remembered_corpus
from tinytf.training.train import train

TINY = changed(
    CAUSAL, model={**CAUSAL.model, "d_model": 8, "n_layers": 1, "d_ff": 8, "context": 16}, block=8, batch=2, steps=2,
    warmup=1, eval_every=1, save_every=1, keep=1, probe_every=1,
)  # fmt: skip
"""Every kind of file is written, and after the second step a checkpoint removed."""


def survives(run: Path, whole: Path, disk: Disk, recipe: Recipe, *, resume: bool = False) -> bool:
    """Train on a disk, and go on without faults where it failed; then all is as in ``whole``.

    False where the disk never failed. What was said is one line that names the file that could not be written.
    """
    said = None
    with failing(disk):
        try:
            train(STORY, recipe, run, resume=resume)
        except TinytfError as error:
            said = error
    if not disk.failed:
        assert said is None
        return False
    if said is not None:
        name = re.sub(r"\.[0-9a-f]{16}\.part$", "", disk.at.name.removeprefix("."))
        assert name in said.message or name == "speed.jsonl", (said.message, disk)  # that is written without a word
        assert "\n" not in said.message + said.hint
        assert said.hint.startswith("make room") == (disk.kind != BROKEN)
    else:  # a folder or a second name that was made in another way, or how fast it went
        assert disk.at.name == "speed.jsonl" or (disk.kind == BROKEN and disk.failed in ("mkdir", "link"))
    with failing(Disk(disk.folder)):
        train(STORY, recipe, run, resume=True)
    left = files_of(run)
    for name, data in files_of(whole).items():
        assert left[name] == data or name.startswith("checkpoints"), (name, disk)
    assert files_of(checkpoints_of(run)[-1]) == files_of(checkpoints_of(whole)[-1])
    assert not list(run.rglob("*.part"))
    shutil.rmtree(run)
    return True


@pytest.mark.share(4)
@pytest.mark.parametrize(("kind", "least"), [(FULL, 90), (TORN, 20)], ids=str)
@pytest.mark.slow
def test_a_disk_that_fills_at_any_write_costs_no_work(kind: Fault, least: int, tmp_path: Path) -> None:
    """At every third of them, and with --exhaustive at every one."""
    recipe, run, faults = changed(TINY, steps=1), tmp_path / "run", 1
    train(STORY, recipe, tmp_path / "whole")
    while survives(run, tmp_path / "whole", Disk(run, faults, kind), recipe):
        faults += 1 if covering.everything else 3
    assert faults > least


@pytest.mark.slow
def test_a_disk_that_fails_while_a_run_goes_on_costs_no_work(tmp_path: Path) -> None:
    train(STORY, TINY, tmp_path / "whole")
    train(STORY, TINY, tmp_path / "begun", interrupted=stopping_after(1))
    faults, run = 1, tmp_path / "run"
    while True:
        shutil.copytree(tmp_path / "begun", run)
        if not survives(run, tmp_path / "whole", Disk(run, faults, BROKEN), TINY, resume=True):
            break
        faults += 2 if covering.everything else 5
    assert faults > 60


MOMENTS = {"open": 90, "os.fsync": 25, "os.link": 9, "os.mkdir": 9, "os.remove": 40, "os.rename": 40, "os.rmdir": 3,
           "step": 9}  # fmt: skip
"""Kinds of moments, and to how many of them a run is left to come."""


def killed_at(kind: str, count: int, run: Path, recipe: Recipe) -> None:
    """Train in a child of this process, which has all its modules already, until SIGKILL ends it at a chosen moment.

    That is the ``count``-th of its kind, from 1: the end of a step, or a file of the run that is about to be opened,
    flushed, renamed, linked or removed.
    """
    child = os.fork()
    if not child:
        left = iter(range(count - 1, -1, -1))

        def pass_by(what: str) -> None:
            if what == kind and not next(left):
                os.kill(os.getpid(), signal.SIGKILL)

        def audited(event: str, args: tuple) -> None:
            path = str(args[0]) if event in MOMENTS else "/"
            if (str(run) in path or "/" not in path) and "speed.jsonl" not in path:  # that goes by the clock
                pass_by(event)

        try:
            torch.set_num_threads(1)  # threads do not come along into a child
            sys.addaudithook(audited)
            os.fsync = lambda _: pass_by("os.fsync")  # what a killed process wrote is not lost to others
            train(STORY, recipe, run, resume=True, interrupted=lambda: bool(pass_by("step")))
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "it ended by itself"


@pytest.mark.exhaustive
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_run_that_is_killed_again_and_again_goes_on_and_loses_nothing(tmp_path: Path) -> None:
    """At drawn moments, of loading, steps and checkpoints alike; then the whole is compared byte by byte.

    16 times, each kind of moment twice; with --exhaustive 100 times.
    """
    moments, run = random.Random(7), tmp_path / "run"
    recipe = changed(TINY, steps=3000, save_every=2, eval_every=50, probe_every=50, keep=2, schedule="constant")
    run.mkdir()
    train(STORY, changed(recipe, steps=2), tmp_path / "first")  # so that no child imports anything
    kills = 100 if covering.everything else 2 * len(MOMENTS)
    reached, kinds = [], [*MOMENTS] * -(-kills // len(MOMENTS))
    moments.shuffle(kinds)
    for kind in kinds[:kills]:
        killed_at(kind, moments.randint(1, MOMENTS[kind]), run, recipe)
        for place in checkpoints_of(run):
            load_run(place)
        reached.append(max(map(checkpoint_step, checkpoints_of(run)), default=0))
    assert reached == sorted(reached)
    assert len(set(reached)) > 0.3 * kills
    short = changed(recipe, steps=reached[-1] + 4)
    train(STORY, short, run, resume=True)
    train(STORY, short, tmp_path / "whole")
    assert metrics_of(run) == metrics_of(tmp_path / "whole")
    assert (run / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert files_of(checkpoints_of(run)[-1]) == files_of(checkpoints_of(tmp_path / "whole")[-1])
    assert not list(run.rglob("*.part"))
    assert not list(run.rglob("*.old"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_run_killed_between_its_last_checkpoint_and_its_end_ends_with_that_model(tmp_path: Path) -> None:
    train(STORY, TINY, tmp_path / "whole")
    links_of_a_checkpoint = 3
    killed_at("os.link", links_of_a_checkpoint * TINY.steps - 1, tmp_path / "run", TINY)
    assert checkpoint_step(checkpoints_of(tmp_path / "run")[-1]) == TINY.steps
    train(STORY, TINY, tmp_path / "run", resume=True)
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def torn_in_half(path: Path) -> None:
    data = path.read_bytes()
    path.unlink()  # the run's own model is the same file under a second name
    path.write_bytes(data[: len(data) // 2])


@pytest.mark.share(4)
@pytest.mark.parametrize("tear", [torn_in_half, Path.unlink], ids=["torn", "lost"])
@sample("name", ["config.json", "model.safetensors", "optimizer.safetensors", "training.json"], every=2)
def test_a_torn_newest_checkpoint_is_passed_over_and_said(name: str, tear, tmp_path: Path) -> None:
    recipe, run, notes = changed(TINY, steps=4, keep=2), tmp_path / "run", list[str]()
    train(STORY, recipe, tmp_path / "whole")
    train(STORY, recipe, run, interrupted=stopping_after(3))
    tear(checkpoints_of(run)[-1] / name)
    train(STORY, recipe, run, resume=True, on_note=notes.append)
    (said,) = notes
    assert name in said
    assert said.endswith("the run continues from the checkpoint of step 2")
    assert (run / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert metrics_of(run) == metrics_of(tmp_path / "whole")


def test_a_changed_text_is_refused_and_the_run_goes_on_with_the_old_one(tmp_path: Path) -> None:
    text, run = tmp_path / "text.txt", tmp_path / "run"
    text.write_text(STORY, "utf-8")
    train(find_files([text]), TINY, tmp_path / "whole")
    train(find_files([text]), TINY, run, interrupted=stopping_after(1))
    before = files_of(run)
    text.write_text(f"{STORY}\n\nMore.", "utf-8")
    with pytest.raises(UsageError, match=r"text\.txt is no longer what .* was started with"):
        find_remembered_corpus(run, TINY.reading)
    with pytest.raises(UsageError, match="was trained on another text"):
        train(find_files([text]), TINY, run, resume=True)
    assert files_of(run) == before
    text.write_text(STORY, "utf-8")
    known = find_remembered_corpus(run, TINY.reading)
    assert known is not None
    train(known, TINY, run, resume=True)
    assert (run / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


@pytest.mark.share(6)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("how", [{"resume": True}, {"overwrite": True}, {}], ids=["resume", "overwrite", "anew"])
def test_a_second_trainer_of_a_folder_is_refused(how: dict[str, bool], tmp_path: Path) -> None:
    train(STORY, TINY, tmp_path / "whole")
    run, (ours, theirs) = tmp_path / "run", os.pipe()
    child = os.fork()
    if not child:
        try:
            torch.set_num_threads(1)
            # it waits in its first step until it is killed
            train(STORY, TINY, run, interrupted=lambda: bool(os.write(theirs, b"1") and signal.pause()))
        finally:
            os._exit(1)
    try:
        assert os.read(ours, 1) == b"1"
        with pytest.raises(UsageError, match=r"another process trains|holds a run already"):
            train(STORY, TINY, run, **how)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    train(STORY, TINY, run, resume=True)
    assert (run / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


def test_a_clock_that_jumps_by_days_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = changed(TINY, steps=30, save_every=100, eval_every=30, save_minutes=60, keep=99, probe_every=0)
    train(STORY, recipe, tmp_path / "whole")
    jumps, now = random.Random(3), [1e9]  # seconds

    def clock() -> float:
        now[0] += jumps.choice([0.01] * 40 + [86_400, -86_400])
        return now[0]

    monkeypatch.setattr(time, "time", clock)
    monkeypatch.setattr(time, "monotonic", clock)
    train(STORY, recipe, tmp_path / "run")
    monkeypatch.undo()
    assert len(checkpoints_of(tmp_path / "run")) > len(checkpoints_of(tmp_path / "whole")) == 1
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()
    assert metrics_of(tmp_path / "run") == metrics_of(tmp_path / "whole")
    rows = [json.loads(line) for line in (tmp_path / "run" / "speed.jsonl").read_text("utf-8").splitlines()]
    assert all(value >= 0 for row in rows for value in row.values())
    assert read_history(tmp_path / "run").elapsed >= 0
