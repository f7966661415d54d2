"""Event files, read back by TensorBoard itself: what they say is what the run's own files say."""

import errno
import json
import os
import sys
import threading
from pathlib import Path

import pytest
import training_runs
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer.record_writer import RecordWriter
from training_runs import DROPPING, STORY, changed, stopping_after

from tinytf.errors import TrainingError
from tinytf.files import to_json
from tinytf.runs.reader import read_history, read_samples
from tinytf.training.metrics import Metrics
from tinytf.training.observers import saving as saves
from tinytf.training.observers.tensorboard import EventFiles
from tinytf.training.train import train

RECIPE = changed(training_runs.RECIPE, model=DROPPING, steps=10, probe_every=5)
SCALARS = {"loss", "held_out_loss", "lr", "grad_norm", "tokens_per_second", "seen_loss", "copying", "thorough_loss",
           "gradient_noise/trace", "gradient_noise/square"}  # fmt: skip


def events_of(run: Path) -> EventAccumulator:
    """All that the folder holds; 0 keeps every event."""
    found = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return found


def scalars(events: EventAccumulator, name: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events.Scalars(name)]


def texts(events: EventAccumulator, name: str) -> list[tuple[int, str]]:
    said = events.Tensors(f"{name}/text_summary")
    return [(event.step, event.tensor_proto.string_val[0].decode("utf-8")) for event in said]


def all_scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    events = events_of(run)
    return {name: scalars(events, name) for name in events.Tags()["scalars"] if name != "tokens_per_second"}


def test_events_are_what_the_files_of_the_run_say(tmp_path: Path) -> None:
    train(STORY, RECIPE, tmp_path, tensorboard=True)
    events, history = events_of(tmp_path), read_history(tmp_path)
    heads = {f"{kind}/L{layer}H{head}" for kind in ("entropy", "previous", "duplicate", "induction")
             for layer in range(2) for head in range(2)}  # fmt: skip
    rows = [json.loads(row) for row in (tmp_path / "metrics.jsonl").read_text("ascii").splitlines()]
    health = {(kind, place): value for row in rows for kind, values in row.get("health", {}).items()
              for place, value in enumerate(values)}  # fmt: skip
    names = dict(enumerate(("L0", "L1", "rest")))
    assert {kind for kind, _ in health} == {"gradient_norm", "update_ratio", "rms", "dead"}
    tags = {f"{kind}/{names[place]}": value for (kind, place), value in health.items()}
    assert set(events.Tags()["scalars"]) == SCALARS | heads | set(tags)
    for name, value in tags.items():
        assert scalars(events, name)[-1][1] == pytest.approx(value, rel=1e-3)  # the file has four digits
    for name in ("loss", "lr", "grad_norm"):
        expected = zip(history.step.tolist(), getattr(history, name).tolist(), strict=True)
        assert scalars(events, name) == [(step, pytest.approx(value, rel=1e-6)) for step, value in expected]
    assert scalars(events, "held_out_loss") == [(step, pytest.approx(value)) for step, value in history.held_out]
    speed = [json.loads(row) for row in (tmp_path / "speed.jsonl").read_text("ascii").splitlines()]
    known = [(row["step"], row["tokens_per_second"]) for row in speed if row.get("tokens_per_second") is not None]
    assert scalars(events, "tokens_per_second") == [(step, pytest.approx(value, rel=1e-3)) for step, value in known]
    for step, measured in history.heads[1:]:  # the first scores are of before the first step
        for kind, values in measured.items():
            for layer, head in ((0, 0), (1, 1)):
                told = dict(scalars(events, f"{kind}/L{layer}H{head}"))
                assert told[step] == pytest.approx(values[layer, head], abs=1e-4)
    assert texts(events, "sample") == [
        (one.step, f"    {one.prompt}│{one.text}".replace("\n", "↵"))
        for one in read_samples(tmp_path / "samples.jsonl")[1:]  # the first is from before training
    ]


def test_milestones_are_told_as_text(tmp_path: Path) -> None:

    files = EventFiles()
    files.open(tmp_path / "tensorboard", 0)
    files.step(Metrics(5, 1.0, 0.1, float("inf"), milestones=("L0H1 became one", "L1H0 too")))
    files.end()
    events = events_of(tmp_path)
    assert texts(events, "milestones") == [(5, "L0H1 became one\n\nL1H0 too")]
    assert events.Tags()["scalars"] == ["loss", "lr"]  # what is no number has no place in a chart


def test_a_run_in_parts_has_the_events_of_a_run_in_one_go(tmp_path: Path) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    train(STORY, RECIPE, whole, tensorboard=True)
    train(STORY, RECIPE, run, tensorboard=True, interrupted=stopping_after(9))
    newest = run / "checkpoints" / "step-000009"
    for file in newest.iterdir():
        file.unlink()
    newest.rmdir()  # as if it had been killed before: the events of step 9 are of work that was lost
    train(STORY, RECIPE, run, tensorboard=True, resume=True)
    assert len(list((run / "tensorboard").iterdir())) == 2
    assert all_scalars(run) == all_scalars(whole)
    assert texts(events_of(run), "sample") == texts(events_of(whole), "sample")
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()


def test_events_change_nothing_of_a_run(tmp_path: Path) -> None:
    train(STORY, RECIPE, tmp_path / "with", tensorboard=True)
    train(STORY, RECIPE, tmp_path / "without")
    for name in ("metrics.jsonl", "samples.jsonl", "model.safetensors"):
        assert (tmp_path / "with" / name).read_bytes() == (tmp_path / "without" / name).read_bytes()
    assert not (tmp_path / "without" / "tensorboard").exists()


def test_the_events_of_a_checkpoint_are_on_the_disk_before_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine, seen = saves.save_checkpoint, []

    def saving(run: Path, *others: object) -> Path:
        seen.append(scalars(events_of(run), "loss")[-1][0])
        return genuine(run, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(saves, "save_checkpoint", saving)
    train(STORY, RECIPE, tmp_path, tensorboard=True)
    assert seen == [4, 8, 9]  # the last checkpoint is written before its step is measured
    assert scalars(events_of(tmp_path), "held_out_loss")[-1][0] == 10


def test_without_the_package_it_is_said_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(TrainingError, match="which is not installed") as caught:
        train(STORY, RECIPE, tmp_path / "run", tensorboard=True)
    assert caught.value.hint == 'pip install "tinytf[tensorboard]"'
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_folder_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.json").write_bytes(to_json(RECIPE.to_dict()))
    (tmp_path / "run" / "tensorboard").write_text("mine", "utf-8")
    with pytest.raises(TrainingError, match=r"cannot write to .*tensorboard"):
        train(STORY, RECIPE, tmp_path / "run", tensorboard=True)
    assert json.loads((tmp_path / "run" / "recipe.json").read_text("utf-8"))["steps"] == 10


def test_a_disk_that_fills_up_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    genuine, hook, written = RecordWriter.write, threading.excepthook, []

    def full(self: RecordWriter, data: bytes) -> None:
        written.append(data)
        if len(written) > 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        genuine(self, data)

    monkeypatch.setattr(RecordWriter, "write", full)
    with pytest.raises(TrainingError, match="tensorboard: No space left on device"):
        train(STORY, RECIPE, tmp_path, tensorboard=True)
    assert capfd.readouterr().err == ""
    assert threading.excepthook is hook
