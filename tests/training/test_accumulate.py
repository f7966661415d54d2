"""A batch in parts: whatever is computed of a run, no more rows than a part pass the model at once."""

import json
from pathlib import Path

import pytest
import torch
from training_runs import CAUSAL, STORY, changed, files_of, metrics_of

from tinytf.errors import CheckpointError
from tinytf.model.transformer import Transformer
from tinytf.text.corpus import find_files
from tinytf.training.data.examples import Batch
from tinytf.training.observers import held_out
from tinytf.training.plan import plan
from tinytf.training.train import report_of, train
from tinytf.training.tuning.losses import BatchLoss, backward, measured_loss
from tinytf.training.tuning.processes import Processes

RECIPE = changed(CAUSAL, batch=6, accumulate=3, steps=3, warmup=1, eval_every=2, probe_every=0, sample_tokens=0)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """How many rows each pass has, and whether it keeps a graph."""
    seen, hidden = [], Transformer.hidden

    def watched(self: Transformer, ids: torch.Tensor, **more: object) -> torch.Tensor:
        found = hidden(self, ids, **more)
        seen.append((len(ids), found.requires_grad))
        return found

    monkeypatch.setattr(Transformer, "hidden", watched)
    return seen


def test_a_run_its_report_and_its_plan_pass_the_model_in_parts(rows: list[tuple[int, bool]], tmp_path: Path) -> None:
    setup = train(STORY, RECIPE, tmp_path / "run").setup
    assert {one for one in rows if one[0] > 1} == {(2, True), (2, False)}  # steps, and the held-out text
    rows.clear()
    report_of(tmp_path / "run", RECIPE, setup)
    assert {one for one in rows if one[0] > 1} == {(2, False)}
    rows.clear()
    plan(find_files(STORY, RECIPE.reading), RECIPE, tmp_path / "planned")
    assert set(rows) == {(2, True)}


def test_parts_have_the_loss_and_gradient_of_the_whole(tmp_path: Path) -> None:
    setup = train(STORY, changed(RECIPE, steps=1), tmp_path / "run").setup
    model, batch = setup.model, setup.examples.batch(0)
    found = []
    for accumulate in (1, 3, 6):
        model.zero_grad()
        loss = backward(BatchLoss(model), batch, changed(RECIPE, accumulate=accumulate))
        assert measured_loss(model, [batch], accumulate) == pytest.approx(loss, abs=1e-6)
        found.append((loss, torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])))
    for loss, gradient in found[1:]:
        assert loss == pytest.approx(found[0][0], abs=1e-6)
        assert torch.allclose(gradient, found[0][1], atol=1e-6)


@pytest.mark.parametrize(("size", "processes", "count"), [(6, 1, 4), (5, 2, 3), (1, 2, 1), (7, 3, 2), (2, 4, 2)])
def test_processes_share_every_row_in_as_many_parts_each(size: int, processes: int, count: int) -> None:
    ids = torch.arange(size)[:, None]
    parts = [Processes(rank, processes).parts(Batch(ids, ids, None), count) for rank in range(processes)]
    assert len({len(one) for one in parts}) == 1
    assert all(len(part.ids) for one in parts for part in one)
    shared = torch.cat([part.targets for one in parts for part in one]).flatten()
    assert sorted(shared[shared >= 0].tolist()) == list(range(size))


@pytest.mark.parametrize(
    "pending",
    [{"x": 1}, {"step": 3}, {"step": "3", "loss": 1.0, "lr": 1.0, "grad_norm": 1.0},
     {"step": 2, "loss": 1.0, "lr": 1.0, "grad_norm": 1.0}, {"step": 3, "loss": "a", "lr": 1.0, "grad_norm": 1.0},
     {"step": 3, "loss": 1.0, "lr": 1.0, "grad_norm": 1.0, "heads": 7},
     {"step": 3, "loss": 1.0, "lr": 1.0, "grad_norm": 1.0, "heads": {"entropy": ["ab"]}},
     {"step": 3, "loss": 1.0, "lr": 1.0, "grad_norm": 1.0, "health": {"gradient_norm": ["x"], "update_ratio": []}},
     {"step": 3, "loss": 1.0, "lr": 1.0, "grad_norm": 1.0, "milestones": [7]}],
)  # fmt: skip
def test_what_is_no_line_of_metrics_is_said_to_be_none(pending: dict[str, object], tmp_path: Path) -> None:
    train(STORY, RECIPE, tmp_path)
    place = tmp_path / "checkpoints/step-000003"
    told = json.loads((place / "training.json").read_text("utf-8"))
    (place / "training.json").write_text(json.dumps({**told, "pending": pending}), "utf-8")
    (place / "SHA256SUMS").unlink()
    with pytest.raises(CheckpointError, match=r"'pending' of training\.json is not a line of metrics"):
        train(STORY, RECIPE, tmp_path, resume=True)


def test_a_run_that_is_ended_in_its_last_measurement_is_saved_and_measured_by_resume(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recipe = changed(RECIPE, probe_every=3, sample_tokens=4)
    train(STORY, recipe, tmp_path / "whole")
    measured, calls = held_out.held_out_loss, []

    def ended(*given: object, **more: object) -> float | None:
        calls.append(given)
        if len(calls) == 2:  # the first is of step 2
            raise KeyboardInterrupt
        return measured(*given, **more)

    monkeypatch.setattr(held_out, "held_out_loss", ended)
    with pytest.raises(KeyboardInterrupt):
        train(STORY, recipe, tmp_path / "run")
    monkeypatch.undo()
    assert [line["step"] for line in metrics_of(tmp_path / "run")] == [1, 2]
    assert (tmp_path / "run/checkpoints/step-000003").is_dir()
    told = train(STORY, recipe, tmp_path / "run", resume=True).last
    assert told.held_out_loss == metrics_of(tmp_path / "whole")[-1]["held_out_loss"]
    assert files_of(tmp_path / "run") == files_of(tmp_path / "whole")
