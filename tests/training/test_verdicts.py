"""What is said of a run depends on its training alone, not on how much was measured after it."""

from pathlib import Path

import pytest
from training_runs import CAUSAL, STORY, changed, stopping_after

from tinytf.model.transformer import Transformer
from tinytf.runs.history import History
from tinytf.runs.reader import read_history
from tinytf.runs.runs import RunReport, compare_runs
from tinytf.training.observers import held_out
from tinytf.training.train import train

LONG = changed(CAUSAL, block=4, batch=1, held_out=0.5, steps=6, eval_every=2, patience=9, keep=1)


def verdicts(run: Path) -> dict[str, object]:
    """Everything that is said of a run from its held-out losses."""
    history: History = read_history(run)
    names = ("held_out", "best", "risen", "by_heart", "gaps", "exact", "stopped")
    said = {name: getattr(history, name) for name in names}
    kept = sorted(path.name for path in (run / "checkpoints").iterdir())
    return {**said, "sentence": RunReport("run", run, history).in_a_sentence(), "kept": kept}


@pytest.mark.parametrize("begun", [False, True], ids=["a new model", "from a model"])
def test_no_verdict_changes_with_the_number_of_batches_of_the_last_measurement(
    begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(batches: int, name: str, interrupt: bool = False) -> Path:
        monkeypatch.setattr(held_out, "thorough_batches", lambda _: batches)
        recipe = changed(LONG, begun_from="somewhere" if begun else "")
        out = tmp_path / name

        def begin(**more: object) -> None:
            model = Transformer.initialised(recipe.model_config(len(set(STORY))), 3) if begun else None
            train(STORY, recipe, out, model=model, **more)

        begin(**({"interrupted": stopping_after(3)} if interrupt else {}))
        if interrupt:
            begin(resume=True)
        return out

    few, many, resumed = run(8, "few"), run(30, "many"), run(30, "resumed", interrupt=True)
    assert verdicts(few) == verdicts(many) == verdicts(resumed)
    few_losses, many_losses = (read_history(path).thorough for path in (few, many))
    assert [measured.batches for _, measured in many_losses] == [30] * len(many_losses)
    assert [step for step, _ in many_losses] == ([0, 6] if begun else [6])
    assert few_losses[-1][1].loss == read_history(few).held_out[-1][1] != many_losses[-1][1].loss
    ranked = compare_runs([tmp_path], by="held-out").runs
    assert len({run.history.best for run in ranked if run.history}) == 1


def test_a_text_without_blank_lines_has_held_out_text_and_one_of_which_nothing_is_held_out_says_so(
    tmp_path: Path,
) -> None:
    recipe = changed(CAUSAL, tokenizer="bpe", block=8, steps=2, eval_every=1, held_out=0.2)
    notes: list[str] = []
    train("The cat sat on the mat. " * 40, recipe, tmp_path / "one", on_note=notes.append)
    assert "the text is held out from the middle of a document on" in "".join(notes)
    assert [step for step, _ in read_history(tmp_path / "one").held_out] == [1, 2]
    train(STORY, recipe, tmp_path / "many", on_note=(said := []).append)
    assert not any("held out" in note for note in said)
    train("The cat sat on the mat. " * 40, changed(recipe, held_out=0.0), tmp_path / "none", on_note=said.append)
    assert said[-1] == "nothing is held out, so that no held-out loss is measured"
