"""A run that branches off from a checkpoint of another goes on as that one would, but for what is asked."""

import io
import json
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
import training_runs
from training_runs import MODEL, STORY, changed, run_once

from tinytf.checkpoints.run import load_run
from tinytf.checkpoints.run_config import CHECKPOINTS
from tinytf.errors import UsageError
from tinytf.runs.branches import tree_of
from tinytf.runs.film import read_film
from tinytf.runs.runs import compare_runs
from tinytf.text.corpus import find_files
from tinytf.training.branch import branch_recipe
from tinytf.training.data.examples import NextToken
from tinytf.training.data.setup import prepare
from tinytf.training.recipe import Recipe
from tinytf.training.train import train
from tinytf.training.tuning.losses import batch_loss
from tinytf_cli.main import run as tinytf

RECIPE = changed(training_runs.RECIPE, model={**MODEL, "n_heads": 4, "n_kv_heads": 2}, keep=9)
trunk = run_once(RECIPE)  # with a checkpoint every 4 steps


def metrics_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]


def weights_of(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_branch_that_changes_nothing_ends_where_its_parent_does(dropout: float, tmp_path: Path) -> None:
    parent, child = tmp_path / "parent", tmp_path / "child"
    train(STORY, changed(RECIPE, model={**RECIPE.model, "dropout": dropout}), parent)
    train(STORY, branch_recipe(parent, 4, (), {}), child)
    assert weights_of(child) == weights_of(parent)
    assert metrics_of(child) == metrics_of(parent)[4:]


def test_a_branch_with_another_learning_rate_differs_after_its_first_step(trunk: Path, tmp_path: Path) -> None:
    train(STORY, branch_recipe(trunk, 8, (), {"lr": 0.01}), tmp_path / "fast")
    ours, theirs = metrics_of(tmp_path / "fast"), metrics_of(trunk)[8:]
    assert [line["loss"] == other["loss"] for line, other in zip(ours, theirs, strict=True)] == [True] + 3 * [False]
    assert json.loads((tmp_path / "fast" / "recipe.json").read_text("utf-8"))["begun_from"] == str(trunk)


def test_a_branch_without_heads_begins_with_them_cut_out_and_never_gets_them_back(trunk: Path, tmp_path: Path) -> None:
    recipe = branch_recipe(trunk, 8, ["L1H2", "L0H*"], {})
    train(STORY, recipe, tmp_path / "cut")
    by_hand = load_run(trunk / CHECKPOINTS / "step-000008")
    with torch.no_grad():
        by_hand.blocks[1].attention.o.weight[:, 8:12] = 0
        by_hand.blocks[0].attention.o.weight.zero_()
    examples = prepare(find_files(STORY), RECIPE, tmp_path / "tokens").examples
    assert isinstance(examples, NextToken)
    expected = float(batch_loss(by_hand, examples.batch(8)).detach())
    assert metrics_of(tmp_path / "cut")[0]["loss"] == pytest.approx(expected, abs=1e-6)
    last = load_run(tmp_path / "cut")
    assert not last.blocks[1].attention.o.weight[:, 8:12].any()
    assert not last.blocks[0].attention.o.weight.any()
    assert last.blocks[1].attention.o.weight[:, :8].all()


def test_a_branch_that_is_stopped_goes_on_to_the_byte(trunk: Path, tmp_path: Path) -> None:
    recipe = branch_recipe(trunk, 4, ["L0H1"], {"seed": 5})
    train(STORY, recipe, tmp_path / "whole")
    train(STORY, recipe, tmp_path / "parts", interrupted=lambda: True)
    train(STORY, recipe, tmp_path / "parts", resume=True)
    assert weights_of(tmp_path / "parts") == weights_of(tmp_path / "whole")
    assert metrics_of(tmp_path / "parts") == metrics_of(tmp_path / "whole")


def test_the_film_of_a_branch_begins_with_what_its_parent_was(trunk: Path, tmp_path: Path) -> None:
    train(STORY, branch_recipe(trunk, 8, (), {"lr": 0.01}), tmp_path / "branch")
    parent, film = read_film(trunk), read_film(tmp_path / "branch")
    assert [frame.step for frame in film.frames] == [8, 12]
    first, before = film.frames[0], parent.at(8)
    for name in ("seen", "unseen", "twice"):
        assert first.loss[name].tobytes() == before.loss[name].tobytes()
        assert first.maps[name].tobytes() == before.maps[name].tobytes()


@pytest.mark.parametrize(
    ("step", "without", "changes", "message"),
    [
        (5, (), {}, "has no checkpoint of step 5; it has: 4, 8, 12"),
        (4, (), {"tokenizer": "bpe"}, "a branch inherits the tokenizer of its parent"),
        (4, ["L9H0"], {}, "there is no layer 9"),
        (4, ["L1"], {}, "--without takes heads, such as L1H2, not 'L1'"),
        (12, (), {}, "the branch begins after step 12, but its recipe has only 12 steps"),
    ],
)
def test_what_cannot_branch_is_refused(step: int, without: list, changes: dict, message: str, trunk: Path) -> None:
    with pytest.raises(UsageError, match=message):
        branch_recipe(trunk, step, without, changes)


def test_runs_draws_the_tree_and_what_each_branch_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(STORY, "utf-8")
    for out, recipe in (
        ("trunk", RECIPE),
        ("fast", lambda: branch_recipe(Path("trunk"), 8, (), {"lr": 0.01})),
        ("late", lambda: branch_recipe(Path("fast"), 12, ["L0H0"], {"steps": 16})),
    ):
        train(find_files([Path("text.txt")]), recipe if isinstance(recipe, Recipe) else recipe(), Path(out))
    nodes = {node.run.name: node for node in tree_of(compare_runs([Path()]).runs)}
    assert [(name, node.depth) for name, node in nodes.items()] == [("trunk", 0), ("fast", 1), ("late", 2)]
    assert nodes["fast"].parent is not None
    assert nodes["fast"].parent.differ == {"lr": 0.01}
    assert nodes["late"].parent is not None
    assert nodes["late"].parent.differ == {"steps": 16, "without": ["L0H0"]}
    shown = io.StringIO()
    with redirect_stdout(shown):
        assert tinytf(["runs", "."]) == 0
    lines = [line.split() for line in shown.getvalue().splitlines()]
    assert any(
        line[:3] == ["late", "step", "12"] and line[-4:] == ["without", "L0H0,", "steps", "16"] for line in lines
    )
