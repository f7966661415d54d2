"""The number of threads: tried at the start, said, and the same when a run goes on."""

from pathlib import Path

import pytest
import torch

from tinytf.training.loop import train
from tinytf.training.recipe import Recipe, stored_recipe
from tinytf.training.run.threads import best_threads, threads

STORY = "The cat sat on the mat. " * 30
RECIPE = Recipe(
    model={"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 16, "context": 32, "dropout": 0.1}, tokenizer="char",
    block=16, batch=4, steps=6, warmup=2, eval_every=3, held_out=0.2,
)  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "best"), [({1: 0.02, 4: 0.14}, 1), ({1: 0.02, 4: 0.01}, 4), ({1: 0.19, 4: 0.2}, 4)]
)
def test_the_faster_number_is_taken_and_said(
    seconds: dict[int, float], best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("tinytf.training.run.threads.time.perf_counter", lambda: now[0])

    def step() -> None:
        torch.rand(3)
        now[0] += seconds[torch.get_num_threads()]

    with threads(4):
        random = torch.get_rng_state()
        found, said = best_threads(step)
        assert torch.get_num_threads() == 4
    assert torch.equal(random, torch.get_rng_state())
    assert found == best
    assert said.endswith(f"1 {1000 * seconds[1]:.0f} ms, 4 {1000 * seconds[4]:.0f} ms; the run takes {best}")


def test_a_run_keeps_the_number_that_it_chose(tmp_path: Path) -> None:
    run, seen, notes = tmp_path / "run", list[int](), list[str]()
    asked = iter([False, False, True])
    with threads(2):
        train(STORY, RECIPE, run, lambda *_: seen.append(torch.get_num_threads()), choose_threads=True,
              interrupted=lambda: next(asked), on_note=notes.append)  # fmt: skip
        chosen = stored_recipe(run)
        assert chosen is not None
        assert notes[0].endswith(f"the run takes {chosen.threads}")
        train(STORY, RECIPE, run, lambda *_: seen.append(torch.get_num_threads()), choose_threads=True, resume=True)
        assert torch.get_num_threads() == 2
    assert set(seen) == {chosen.threads}
    train(STORY, Recipe(**{**RECIPE.to_dict(), "threads": chosen.threads}), tmp_path / "whole")
    for name in ("model.safetensors", "metrics.jsonl", "recipe.json"):  # trying has changed nothing
        assert (run / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_the_number_of_a_recipe_is_not_tried(tmp_path: Path) -> None:
    notes: list[str] = []
    with threads(2):
        recipe = Recipe(**{**RECIPE.to_dict(), "threads": 1, "steps": 2, "warmup": 0})
        train(STORY, recipe, tmp_path, choose_threads=True, on_note=notes.append)
    assert notes == []
