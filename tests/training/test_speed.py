"""Threads and kernel of a run: measured at the start, said, and the same when a run goes on."""

from pathlib import Path

import pytest
import torch
from training_runs import Called

from tinytf.steps import linear
from tinytf.training.recipe import KERNELS, Recipe, stored_recipe
from tinytf.training.train import train
from tinytf.training.tuning.speed import Speed, candidates, fastest

STORY = "The cat sat on the mat. " * 30
RECIPE = Recipe(
    model={"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 16, "context": 32, "dropout": 0.1}, tokenizer="char",
    block=16, batch=4, steps=6, warmup=2, eval_every=3, held_out=0.2,
)  # fmt: skip
WAYS = [Speed(4, "onednn"), Speed(4, "torch"), Speed(1, "onednn"), Speed(1, "torch")]


def test_the_recipe_knows_the_kernels_that_there_are() -> None:
    assert ("auto", *linear.KERNELS) == KERNELS


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ([0.14, 0.14, 0.02, 0.03], WAYS[2]),
        ([0.14, 0.02, 0.05, 0.06], WAYS[1]),
        ([0.200, 0.194, 0.196, 0.198], WAYS[0]),
        ([0.200, 0.186, 0.196, 0.198], WAYS[1]),
        ([0.10, 0.10, 0.10, 0.05], WAYS[3]),
    ],
)
def test_the_fastest_is_taken_and_named_unless_the_default_is_nearly_as_fast(
    seconds: list[float], best: Speed, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("tinytf.training.tuning.speed.time.perf_counter", lambda: now[0])
    took = dict(zip(WAYS, seconds, strict=True))

    def step() -> None:
        torch.rand(3)
        now[0] += took[Speed(torch.get_num_threads(), linear._CHOSEN.get())]

    with Speed(4).used():
        random = torch.get_rng_state()
        chosen, summary = fastest(step, WAYS)
        assert torch.get_num_threads() == 4
    assert torch.equal(random, torch.get_rng_state())
    assert chosen == best
    assert f"1 thread, torch {1000 * seconds[3]:.0f} ms" in summary
    assert summary.endswith(f"The run uses {best.words}")


def test_only_what_is_open_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinytf.training.tuning.speed.has_onednn", lambda: True)
    with Speed(4).used():
        assert candidates(Speed(), "float32") == WAYS
        assert candidates(Speed(2), "float32") == [Speed(2, "onednn"), Speed(2, "torch")]
        assert candidates(Speed(0, "torch"), "float32") == [Speed(4, "torch"), Speed(1, "torch")]
        assert candidates(Speed(), "bfloat16") == [Speed(4), Speed(1)]
        assert candidates(Speed(2, "torch"), "float32") == [Speed(2, "torch")]


def test_the_kernel_is_the_one_that_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "has_onednn", lambda: True)
    monkeypatch.setattr(linear, "product", lambda *_: torch.tensor(1.0))
    x, weight = torch.ones(2048, 64), torch.ones(64, 64)
    with linear.kernel("torch"):
        assert linear.linear(x, weight, None).shape == (2048, 64)
        with linear.kernel(""):
            assert linear.linear(x, weight, None).shape == (2048, 64)
    assert linear.linear(x, weight, None).shape == ()


def test_a_run_keeps_what_it_chose(tmp_path: Path) -> None:
    run, seen, notes = tmp_path / "run", list[tuple[int, str]](), list[str]()
    asked = iter([False, False, True])

    def note_speed(*_: object) -> None:
        seen.append((torch.get_num_threads(), linear._CHOSEN.get()))

    with Speed(2).used():
        more = {"observers": [Called(note_speed)], "choose_speed": True}
        train(STORY, RECIPE, run, interrupted=lambda: next(asked), on_note=notes.append, **more)
        chosen = stored_recipe(run)
        assert chosen is not None
        words = Speed(chosen.threads, chosen.kernel).words
        assert notes[0].endswith(f"The run uses {words}")
        train(STORY, RECIPE, run, resume=True, **more)
        assert torch.get_num_threads() == 2
    usual = linear._CHOSEN.get()
    assert set(seen) == {(chosen.threads, usual if chosen.kernel == "auto" else chosen.kernel)}
    same = Recipe(**{**RECIPE.to_dict(), "threads": chosen.threads, "kernel": chosen.kernel})
    train(STORY, same, tmp_path / "whole")
    for name in ("model.safetensors", "metrics.jsonl", "recipe.json"):  # trying has changed nothing
        assert (run / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_what_a_recipe_says_is_not_tried(tmp_path: Path) -> None:
    notes: list[str] = []
    with Speed(2).used():
        recipe = Recipe(**{**RECIPE.to_dict(), "threads": 1, "kernel": "torch", "steps": 2, "warmup": 0})
        train(STORY, recipe, tmp_path, choose_speed=True, on_note=notes.append)
    assert notes == []
