"""The sentence of a run, of several, and of a finished training, from the losses in their files."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from training_runs import RECIPE, STORY, changed

from tinytf.runs.history import History
from tinytf.runs.runs import RunReport, RunsReport, compare_runs
from tinytf.training.train import report_of, train

RECIPE_DATA = {"steps": 30, "lr": 0.1, "model": {"norm": "rms"}}


def run(
    held_out: list[tuple[int, float]], name: str = "a", seen: Sequence[tuple[int, float]] = (), **recipe: object
) -> RunReport:
    numbers = np.linspace(3, 2, 30)
    settings = {**RECIPE_DATA, **recipe}
    history = History(Path(name), settings, np.arange(1, 31), numbers, numbers, numbers, held_out, seen=seen)
    return RunReport(name, Path(name), history)


def test_a_run_says_how_unsure_it_is_at_its_best_and_was_at_first() -> None:
    losses = [(0, math.log(65)), (10, math.log(20)), (20, math.log(12)), (30, math.log(12.1))]
    unsure = "the model is as unsure about text that it did not train on as if it chose among"
    assert run(losses).sentence == f"After 20 steps {unsure} 12 tokens, before training among 65."
    risen = [*losses, (30, math.log(14))]
    seen = [(step, loss - 0.1) for step, loss in losses]
    assert run(risen, seen=[*seen[:3], (30, 2.0)]).sentence.endswith("; since then it has been learning by heart.")
    assert run(risen, seen=[*seen[:3], (30, 2.5)]).sentence.endswith(" 12 tokens, before training among 65.")
    assert run(risen).sentence.endswith(" 12 tokens, before training among 65.")
    assert run(losses[1:3]).sentence == f"After 20 steps {unsure} 12 tokens, at step 10 among 20."
    assert run([(0, math.log(3)), (30, math.log(4))]).sentence == (
        f"After 30 steps {unsure} 4.0 tokens; before training it was among 3.0."
    )
    assert run(losses[:1]).sentence == f"After 0 steps {unsure} 65 tokens."
    assert run([]).sentence == ""
    lost = run([(10, math.log(60)), (30, math.log(80))])
    assert lost.history is not None
    assert replace(lost, history=replace(lost.history, sizes={"vocab_size": 65})).sentence == (
        "After 30 steps the model predicts text that it did not train on worse than a guess among all 65 tokens."
    )
    assert RunReport("a", Path("a"), None, "torn").sentence == ""


def test_several_runs_name_the_best_by_their_order_and_what_they_differ_in() -> None:
    runs = (run([(30, math.log(12))]), run([(30, math.log(13))], "b", lr=0.2, model={"norm": "layer"}))
    found = RunsReport(runs, ())
    assert found.sentence == (
        "Of 2 runs, a predicts text that it did not train on best, as if it chose among 12 tokens; they differ in "
        "lr and norm."
    )
    assert replace(found, by="step").sentence.startswith("Of 2 runs, a has trained longest, 30 steps; ")
    recent = np.exp(np.linspace(3, 2, 30)[-20:].mean())
    assert f"predicts its own text best, as if it chose among {recent:.0f} tokens" in replace(found, by="loss").sentence
    assert replace(found, by="speed").sentence == ""  # not measured
    assert replace(found, runs=runs[:1]).sentence == runs[0].sentence


def test_a_finished_training_says_what_its_run_says_and_without_held_out_text_of_its_first_batch(
    tmp_path: Path,
) -> None:
    recipe = changed(RECIPE, steps=4, probe_every=0, sample_tokens=0)
    found = report_of(tmp_path / "run", recipe, train(STORY, recipe, tmp_path / "run").setup)
    (of_the_run,) = compare_runs([tmp_path / "run"]).runs
    assert found.sentence == of_the_run.sentence != ""
    alone = replace(found, history=replace(found.history, held_out=()), before=math.log(40), after=math.log(9))
    assert alone.sentence == (
        "After 4 steps the model is as unsure about its first batch as if it chose among 9.0 tokens; before, among 40."
    )
