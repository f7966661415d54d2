"""A sweep trains a grid of recipes, each as ``train`` would alone, and goes on where it was interrupted."""

import itertools
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tinytf.checkpoints.run_config import checkpoint_step, checkpoints_of
from tinytf.errors import UsageError
from tinytf.text.corpus import find_files
from tinytf.text.weighted import weighted
from tinytf.training.recipe import Recipe
from tinytf.training.sweep import Outcome, _run_with_signals_restored, grid, sweep, values_of
from tinytf.training.train import train
from tinytf_cli.commands.sweep import _begin

RECIPE = Recipe(
    model={"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 16, "context": 32}, tokenizer="char", block=8, batch=2,
    steps=4, warmup=1, eval_every=2, held_out=0.2, sample_tokens=0, probe_every=0,
)  # fmt: skip


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text("The cat sat on the mat. " * 20, "utf-8")
    return tmp_path / "text.txt"


def test_a_grid_is_every_combination_with_its_seeds_by_name() -> None:
    trials = grid(RECIPE.to_dict(), {"lr": (0.1, 0.2), "d_model": (16, 32), "batch": (3,)}, seeds=2)
    assert len({trial.name for trial in trials}) == len(trials) == 8
    assert trials[0].name == "lr-0.1-d_model-16-seed-0"
    found = {(one.recipe.lr, one.recipe.model["d_model"], one.recipe.batch, one.recipe.seed) for one in trials}
    assert found == set(itertools.product((0.1, 0.2), (16, 32), (3,), (0, 1)))


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="such signals are of POSIX")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_run_of_a_sweep_that_is_asked_to_end_leaves_a_checkpoint(name: str, corpus: Path, tmp_path: Path) -> None:
    """A terminal that closes asks every process that was started in it."""

    before = signal.getsignal(getattr(signal, name))
    if before is signal.SIG_IGN:
        pytest.skip("whoever started the tests ignores it, as nohup does, and so would the training")

    def begin(_: Recipe) -> tuple[None, None]:
        signal.raise_signal(getattr(signal, name))
        return None, None

    assert _run_with_signals_restored([corpus], RECIPE, tmp_path / "run", begin, 1) == (False, "")
    assert [checkpoint_step(place) for place in checkpoints_of(tmp_path / "run")] == [1]
    assert signal.getsignal(getattr(signal, name)) is before


def test_values_are_those_of_the_field() -> None:
    assert values_of("lr", "1e-3, 3e-3") == (1e-3, 3e-3)
    assert values_of("n_layers", "1,2") == (1, 2)
    assert values_of("compile", "true,false") == (True, False)
    assert values_of("schedule", "wsd,cosine") == ("wsd", "cosine")


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: values_of("lr", "1e-3,fast"), "'fast' is not a value of lr"),
        (lambda: values_of("batch", "1.5"), "'1.5' is not a value of batch"),
        (lambda: values_of("lr", "1,1"), "lr has a value twice"),
        (lambda: grid(RECIPE.to_dict(), {"lr": (-1.0,)}, 1), "lr -1.0 is not above 0"),
        (lambda: grid(RECIPE.to_dict(), {"n_heads": (3,)}, 1), "n_heads"),
        (lambda: grid(RECIPE.to_dict(), {"seed": tuple(range(20_000))}, 1), "20,000 runs; the limit is 10,000"),
    ],
)
def test_a_grid_that_cannot_be_is_refused_before_anything_is_trained(ask, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ask()


@pytest.mark.slow
def test_runs_are_those_of_train_and_one_that_fails_ends_no_other(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("A dog ran off. " * 30, "utf-8")
    parts = [tmp_path / "text.txt=3", tmp_path / "other.txt"]
    trials = grid(RECIPE.to_dict(), {"lr": (0.01, 1e30)}, seeds=1)
    ended: list[Outcome] = []
    outcomes = sweep(parts, trials, tmp_path / "out", begin=_begin, jobs=2, on_end=ended.append)
    assert {one.trial.name: one.finished for one in outcomes} == {"lr-0.01": True, "lr-1e+30": False}
    assert "at step" in next(one.problem for one in outcomes if not one.finished)
    both = weighted([(find_files([corpus]), 3.0), (find_files([tmp_path / "other.txt"]), 1.0)])
    train(both, trials[0].recipe, tmp_path / "alone")
    ours, alone = tmp_path / "out" / "lr-0.01", tmp_path / "alone"
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (ours / name).read_bytes() == (alone / name).read_bytes()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_an_interrupted_sweep_begins_nothing_more_and_goes_on_later(corpus: Path, tmp_path: Path) -> None:
    trials = grid(RECIPE.to_dict(), {}, seeds=2)
    train(find_files([corpus]), trials[0].recipe, tmp_path / trials[0].name)
    train(find_files([corpus]), trials[1].recipe, tmp_path / trials[1].name, interrupted=lambda: True)
    before = (tmp_path / trials[0].name / "metrics.jsonl").stat().st_mtime_ns
    stopped = sweep([corpus], trials, tmp_path, begin=_begin, jobs=1, interrupted=lambda: True)
    assert [one.trial.name for one in stopped] == ["seed-0"]
    later = sweep([corpus], trials, tmp_path, begin=_begin, jobs=1)
    assert [one.finished for one in later] == [True, True]
    assert (tmp_path / trials[0].name / "metrics.jsonl").stat().st_mtime_ns == before  # it was finished
    train(find_files([corpus]), trials[1].recipe, tmp_path / "alone")
    resumed = tmp_path / trials[1].name / "model.safetensors"
    assert resumed.read_bytes() == (tmp_path / "alone" / "model.safetensors").read_bytes()


def test_ray_that_is_not_installed_is_named(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UsageError, match="Ray is not installed"):
        sweep([corpus], grid(RECIPE.to_dict(), {}, 1), tmp_path / "out", begin=_begin, jobs=1, ray=True)


@pytest.mark.parametrize(("of_torch", "jobs", "each"), [(1, 1, 1), (8, 1, 8), (8, 3, 2), (2, 4, 1)])
def test_the_runs_of_a_sweep_share_the_threads_that_torch_may_use(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_torch: int, jobs: int, each: int
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: of_torch)  # as OMP_NUM_THREADS sets it
    monkeypatch.setattr("tinytf.training.sweep._in_processes", lambda given, *_: calls.extend(given) or ())
    sweep([corpus], grid(RECIPE.to_dict(), {}, 1), tmp_path / "out", begin=_begin, jobs=jobs)
    assert [arguments[-1] for _, arguments in calls] == [each]
