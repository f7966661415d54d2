"""A run that was stopped, killed or ran out of room goes on as if nothing had been."""

import errno
import hashlib
import json
import os
from pathlib import Path

import pytest
import torch
from covering import sample
from training_runs import CAUSAL, DROPPING, STORY, Called, changed, files_of, metrics_of, stopping_after

import tinytf.training.checkpoint as checkpoints
from tinytf.checkpoints.run import load_run
from tinytf.checkpoints.run_config import checkpoint_step, checkpoints_of
from tinytf.errors import CheckpointError, TrainingError, UsageError
from tinytf.outputs import remedy
from tinytf.training.recipe import Recipe
from tinytf.training.train import train
from tinytf.training.tuning.optimiser import learning_rate

MASKED = Recipe(
    model={**DROPPING, "norm_order": "post", "embed_norm": True}, tokenizer="wordpiece",
    objective="masked", block=16, batch=4, steps=12, warmup=2, eval_every=4, held_out=0.2,
)  # fmt: skip
RECIPES = {
    "next token": CAUSAL,
    "masked": MASKED,
    "in parts": Recipe(**{**CAUSAL.to_dict(), "accumulate": 3}),
    "bfloat16, linear": Recipe(**{**CAUSAL.to_dict(), "dtype": "bfloat16", "schedule": "linear"}),
}


@pytest.mark.share(4)
@sample(
    ("kind", "stops"),
    [*(("next token", stops) for stops in [(3, 3, 3), (4, 8), (6,)]), *((kind, (1, 5)) for kind in RECIPES)],
    every=2,
    ids=str,
)
def test_a_run_in_parts_leaves_every_byte_of_a_run_in_one_go(kind: str, stops: tuple[int, ...], tmp_path: Path) -> None:
    recipe = RECIPES[kind]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    last = train(STORY, recipe, whole).last
    done = 0
    for count in stops:
        torch.manual_seed(99)  # another process begins with other random numbers
        done += count
        stopped = train(STORY, recipe, parts, resume=done > count, interrupted=stopping_after(count)).last
        assert stopped.step == min(done, 12)
    assert train(STORY, recipe, parts, resume=True).last.step in (12, last.step)
    theirs = {name: data for name, data in files_of(parts).items() if not name.startswith("checkpoints/")}
    ours = {name: data for name, data in files_of(whole).items() if not name.startswith("checkpoints/")}
    assert theirs == ours
    newest = [files_of(checkpoints_of(run)[-1]) for run in (whole, parts)]
    assert newest[0] == newest[1]


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    train(STORY, CAUSAL, tmp_path)
    before = files_of(tmp_path)
    assert train(STORY, CAUSAL, tmp_path, resume=True).last.step == 12
    assert files_of(tmp_path) == before


def test_the_last_checkpoints_and_the_best_are_kept(tmp_path: Path) -> None:
    recipe = changed(CAUSAL, steps=30, eval_every=5, keep=2, lr=1e-2)
    train(STORY, recipe, tmp_path)
    lines = [line for line in metrics_of(tmp_path) if "held_out_loss" in line]
    best = min(lines, key=lambda line: line["held_out_loss"])["step"]
    assert [checkpoint_step(place) for place in checkpoints_of(tmp_path)] == sorted({best, 25, 30})
    for place in checkpoints_of(tmp_path):
        load_run(place)
    kept = json.loads((checkpoints_of(tmp_path)[-1] / "training.json").read_text("utf-8"))
    before = min(lines[:-1], key=lambda line: line["held_out_loss"])["step"]
    assert (kept["best_step"], kept["pending"]["step"]) == (before, 30)  # it was saved before it was measured


def test_checkpoints_can_be_written_more_often_than_losses_are_measured(tmp_path: Path) -> None:
    train(STORY, changed(CAUSAL, save_every=3, keep=9), tmp_path)
    assert [checkpoint_step(place) for place in checkpoints_of(tmp_path)] == [3, 6, 9, 12]


def test_checkpoints_come_by_the_clock_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]  # seconds
    monkeypatch.setattr("tinytf.training.observers.saving.time.monotonic", lambda: now[0])
    recipe = changed(CAUSAL, save_every=100, save_minutes=1, keep=9)
    train(STORY, recipe, tmp_path, observers=[Called(lambda *_: now.append(now.pop() + 25))])
    assert [checkpoint_step(place) for place in checkpoints_of(tmp_path)] == [4, 7, 10, 12]


@pytest.mark.share(4)
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_a_resumed_run_may_take_more_steps_and_says_what_that_changes(schedule: str, tmp_path: Path) -> None:
    recipe, notes = changed(CAUSAL, schedule=schedule), list[str]()
    train(STORY, recipe, tmp_path / "run", interrupted=stopping_after(6))
    longer = changed(recipe, steps=20, keep=9)
    train(STORY, longer, tmp_path / "run", resume=True, on_note=notes.append)
    assert notes[:2] == ["steps is 20 from step 7 on, and was 12", "keep is 9 from step 7 on, and was 2"]
    train(STORY, longer, tmp_path / "whole")
    steady = metrics_of(tmp_path / "run") == metrics_of(tmp_path / "whole")
    assert steady == (schedule == "constant") == (len(notes) == 2)
    assert metrics_of(tmp_path / "run")[6]["lr"] == learning_rate(6, longer)
    with pytest.raises(UsageError, match="has done 20 steps, but the recipe asks for 5"):
        train(STORY, changed(longer, steps=5), tmp_path / "run", resume=True)


def test_lines_of_work_that_was_lost_are_written_again_and_a_torn_one_is_not_kept(tmp_path: Path) -> None:
    train(STORY, CAUSAL, tmp_path / "whole")
    train(STORY, CAUSAL, tmp_path / "run", interrupted=stopping_after(4))
    with (tmp_path / "run" / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 5, "loss": 1.0}\n{"step": 6, "lo')
    train(STORY, CAUSAL, tmp_path / "run", resume=True)
    assert metrics_of(tmp_path / "run") == metrics_of(tmp_path / "whole")


@pytest.mark.parametrize(("name", "of"), [("metrics.jsonl", 6), ("samples.jsonl", 1)])
def test_lost_lines_are_said_and_the_run_goes_on(name: str, of: int, tmp_path: Path) -> None:
    train(STORY, CAUSAL, tmp_path / "whole")
    run, notes = tmp_path / "run", list[str]()
    train(STORY, CAUSAL, run, interrupted=stopping_after(6))
    (run / name).unlink()
    train(STORY, CAUSAL, run, resume=True, on_note=notes.append)
    assert notes == [f"{run / name} has 0 of {of} lines; the rest are lost"]
    assert metrics_of(run)[-6:] == metrics_of(tmp_path / "whole")[-6:]


def test_a_damaged_line_is_left_out_and_those_after_it_stay(tmp_path: Path) -> None:
    train(STORY, CAUSAL, tmp_path, interrupted=stopping_after(6))
    lines = (tmp_path / "metrics.jsonl").read_text("utf-8").splitlines(keepends=True)
    wrong = ['{"step": -5}\n', '{"step": "x"}\n', '{"step": null}\n', "\xff\n"]
    (tmp_path / "metrics.jsonl").write_text("".join([lines[0], *wrong, *lines[2:]]), "utf-8")
    notes: list[str] = []
    train(STORY, CAUSAL, tmp_path, resume=True, on_note=notes.append)
    assert notes == [f"{tmp_path / 'metrics.jsonl'} has 5 of 6 lines; the rest are lost"]
    assert [line["step"] for line in metrics_of(tmp_path)] == [1, *range(3, 13)]


def test_another_recipe_text_or_run_is_refused(tmp_path: Path) -> None:
    train(STORY, CAUSAL, tmp_path / "run", interrupted=stopping_after(4))
    before = files_of(tmp_path / "run")
    with pytest.raises(UsageError, match=r"started with lr 0.003, not 0.5"):
        train(STORY, changed(CAUSAL, lr=0.5), tmp_path / "run", resume=True)
    with pytest.raises(UsageError, match="was trained on another text"):
        train(STORY + " More.", CAUSAL, tmp_path / "run", resume=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("Dear", "utf-8")
    with pytest.raises(UsageError, match="no run in"):
        train(STORY, CAUSAL, tmp_path / "mine", resume=True)
    assert files_of(tmp_path / "run") == before


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "training.json", "tokenizer.json"])
def test_a_damaged_checkpoint_is_named(name: str, tmp_path: Path) -> None:
    train(STORY, CAUSAL, tmp_path, interrupted=stopping_after(4))
    damaged = checkpoints_of(tmp_path)[-1] / name
    data = damaged.read_bytes()
    damaged.unlink()  # the run's own model is the same file under a second name
    damaged.write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError, match=name):
        train(STORY, CAUSAL, tmp_path, resume=True)


FILES = ("model.safetensors", "optimizer.safetensors", "training.json", "tokenizer.json", "config.json")


def damage(path: Path, data: bytes) -> None:
    """Other bytes in a file of a checkpoint alone: the run's own model is the same file under a second name."""
    path.unlink()
    path.write_bytes(data)


@sample("name", FILES)
def test_a_run_goes_on_from_the_whole_checkpoint_beside_a_damaged_one(name: str, tmp_path: Path) -> None:
    run, notes = tmp_path / "run", list[str]()
    train(STORY, CAUSAL, tmp_path / "whole")
    train(STORY, CAUSAL, run, interrupted=stopping_after(6))
    path = checkpoints_of(run)[-1] / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1  # one bit
    damage(path, bytes(data))
    train(STORY, CAUSAL, run, resume=True, on_note=notes.append)
    (said,) = notes
    assert str(path) in said
    assert said.endswith("the run continues from the checkpoint of step 4")
    assert (run / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert metrics_of(run) == metrics_of(tmp_path / "whole")


def test_a_checkpoint_is_checked_by_sha256sum_too(tmp_path: Path) -> None:
    train(STORY, CAUSAL, tmp_path, interrupted=stopping_after(1))
    place = checkpoints_of(tmp_path)[-1]
    said = dict(reversed(line.split("  ")) for line in (place / "SHA256SUMS").read_text("ascii").splitlines())
    assert said == {name: hashlib.sha256((place / name).read_bytes()).hexdigest() for name in FILES}


def test_a_checkpoint_without_checksums_is_opened_as_before(tmp_path: Path) -> None:
    train(STORY, CAUSAL, tmp_path, interrupted=stopping_after(4))
    (checkpoints_of(tmp_path)[-1] / "SHA256SUMS").unlink()
    assert train(STORY, CAUSAL, tmp_path, resume=True).last.step == 12


def test_damaged_checkpoints_do_not_push_out_whole_ones(tmp_path: Path) -> None:
    train(STORY, changed(CAUSAL, eval_every=12, save_every=2), tmp_path, interrupted=stopping_after(8))
    damage(checkpoints_of(tmp_path)[-1] / "config.json", b"{}")
    train(STORY, changed(CAUSAL, eval_every=12, save_every=2), tmp_path, resume=True, interrupted=stopping_after(1))
    assert [checkpoint_step(place) for place in checkpoints_of(tmp_path)] == [6, 7]


def test_room_is_asked_for_only_where_it_is_missing() -> None:
    hints = [remedy(OSError(number, ""), "continue with --resume") for number in (errno.ENOSPC, errno.EROFS)]
    assert hints == ["make room, then continue with --resume", "continue with --resume"]


def test_a_full_disk_is_one_error_and_the_last_checkpoint_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = checkpoints.write_state

    def full(path: Path, data: bytes) -> None:
        if path.name == "optimizer.safetensors" and ".step-000008" in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        genuine(path, data)

    monkeypatch.setattr(checkpoints, "write_state", full)
    with pytest.raises(TrainingError, match="step-000008: No space left on device; the checkpoint of step 4 is intact"):
        train(STORY, CAUSAL, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000004"]
    monkeypatch.undo()
    train(STORY, CAUSAL, tmp_path / "run", resume=True)
    train(STORY, CAUSAL, tmp_path / "whole")
    assert metrics_of(tmp_path / "run") == metrics_of(tmp_path / "whole")


def test_a_schedule_is_what_it_says() -> None:
    for schedule, half_way in (("cosine", 0.55), ("linear", 0.55), ("constant", 1.0)):
        recipe = Recipe(lr=1.0, final_lr=0.1, warmup=10, steps=110, schedule=schedule)
        assert learning_rate(4, recipe) == pytest.approx(0.5)
        assert learning_rate(60, recipe) == pytest.approx(half_way)
    assert learning_rate(35, Recipe(lr=1.0, final_lr=0.0, warmup=10, steps=110, schedule="linear")) == 0.75


@pytest.mark.slow
def test_a_batch_in_parts_is_the_batch_in_one(tmp_path: Path) -> None:
    without = {**CAUSAL.model, "dropout": 0.0}
    for name, parts in (("one", 1), ("three", 3), ("four", 4)):
        train(STORY, changed(CAUSAL, model=without, accumulate=parts), tmp_path / name)
    one = [line["loss"] for line in metrics_of(tmp_path / "one")]
    for name in ("three", "four"):
        assert [line["loss"] for line in metrics_of(tmp_path / name)] == pytest.approx(one, abs=1e-5)


def test_what_heads_do_is_measured_without_changing_what_is_learned(tmp_path: Path) -> None:
    for name, every in (("never", 0), ("often", 2)):
        train(STORY, changed(CAUSAL, probe_every=every), tmp_path / name)
    assert (tmp_path / "never" / "model.safetensors").read_bytes() == (
        tmp_path / "often" / "model.safetensors"
    ).read_bytes()
    measured = [line for line in metrics_of(tmp_path / "often") if "heads" in line]
    assert [line["step"] for line in measured] == [2, 4, 6, 8, 10, 12]
    assert [len(row) for row in measured[0]["heads"]["induction"]] == [2, 2]
    assert all("heads" not in line for line in metrics_of(tmp_path / "never"))
    losses = [[line["loss"] for line in metrics_of(tmp_path / name)] for name in ("never", "often")]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_milestones_are_the_same_after_going_on(tmp_path: Path) -> None:
    recipe = changed(CAUSAL, probe_every=1, model={**CAUSAL.model, "positions": "rotary"})
    train(STORY, recipe, tmp_path / "whole")
    train(STORY, recipe, tmp_path / "run", interrupted=stopping_after(5))
    train(STORY, recipe, tmp_path / "run", resume=True)
    assert metrics_of(tmp_path / "run") == metrics_of(tmp_path / "whole")


@pytest.mark.share(4)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": "2"}, "step is '2', and has to be a whole number"),
        ({"step": -5}, "step -5 is below 0"),
        ({"step": None}, "step is None, and has to be a whole number"),
        ({"step": 7}, "training.json is of step 7, but its folder is step-000004"),
        ({"best": "low"}, "best is 'low', and has to be a number"),
        ({"best": float("nan")}, "best nan is not a finite number"),
        ({"stpe": 2}, "training has no field 'stpe'"),
        ({"milestones": {"previous": 3}}, "milestones is {'previous': 3}, and has to be an object of objects"),
    ],
)
def test_a_checkpoint_that_says_nonsense_of_its_training_is_refused_by_field(tmp_path, change, message):
    train(STORY, CAUSAL, tmp_path, interrupted=stopping_after(4))
    path = checkpoints_of(tmp_path)[-1] / "training.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **change}), "utf-8")
    with pytest.raises(CheckpointError) as caught:
        train(STORY, CAUSAL, tmp_path, resume=True)
    assert message in caught.value.message
