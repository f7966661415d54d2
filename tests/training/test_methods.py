"""Ways to train: frozen weights, a schedule with a decay at its end, less memory, an early end."""

import json
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import training_runs
from covering import sample
from training_runs import DROPPING, STORY

from tinytf.checkpoints.run import load_run
from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.runs.reader import read_history
from tinytf.text.corpus import find_files
from tinytf.training.data.setup import prepare
from tinytf.training.recipe import Recipe
from tinytf.training.train import train
from tinytf.training.tuning.optimiser import learning_rate

RECIPE = training_runs.changed(training_runs.RECIPE, model=DROPPING)
changed = partial(training_runs.changed, RECIPE)


def first_model(recipe: Recipe, folder: Path) -> Transformer:
    """The model before its first step."""
    return prepare(find_files(STORY), recipe, folder / "tokens").model


def test_what_is_begun_from_is_measured_on_the_held_out_text_before_the_first_step(tmp_path: Path) -> None:
    setup = prepare(find_files(STORY), RECIPE, tmp_path / "tokens")
    kept = torch.from_numpy(np.fromfile(tmp_path / "tokens" / "held_out.bin", dtype=np.uint16).astype(np.int64))
    windows = kept[: (len(kept) - 1) // 16 * 16 + 1].unfold(0, 17, 16)  # all that have a whole block
    with torch.no_grad():
        logits = setup.model.eval()(windows[:, :-1]).double()
    by_hand = -logits.log_softmax(-1).gather(-1, windows[:, 1:, None]).mean()
    recipe = changed(begun_from="base")
    train(STORY, recipe, tmp_path / "run", model=setup.model.train(), tokenizer=setup.tokenizer)
    assert read_history(tmp_path / "run").held_out[0] == (0, pytest.approx(float(by_hand), abs=1e-5))


def test_wsd_is_level_and_falls_in_its_last_fifth() -> None:
    recipe = Recipe(lr=1.0, final_lr=0.0, warmup=10, steps=110, schedule="wsd")
    assert [learning_rate(step, recipe) for step in (9, 10, 50, 90)] == [1.0] * 4
    assert learning_rate(100, recipe) == pytest.approx(1 - math.sqrt(0.5))
    longer = Recipe(lr=1.0, final_lr=0.0, warmup=10, steps=1000, schedule="wsd")
    assert all(learning_rate(step, recipe) == learning_rate(step, longer) for step in range(90))


def test_recomputing_activations_changes_no_bit(tmp_path: Path) -> None:
    for name, flag in (("kept", False), ("again", True)):
        train(STORY, changed(recompute=flag), tmp_path / name)
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("kept", "again")]
    assert models[0] == models[1]


def test_recomputing_keeps_only_what_goes_into_the_blocks(tmp_path: Path) -> None:
    kept = {}
    for flag in (False, True):
        recipe = changed(recompute=flag, steps=1, warmup=0, held_out=0.0)
        sizes: list[int] = []

        def pack(tensor: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            train(STORY, recipe, tmp_path / str(flag))
        kept[flag] = sum(sizes)
    assert kept[True] < kept[False]


@sample(
    ("address", "frozen"),
    [
        ("L0", "blocks.0."),
        ("L0-1", "blocks."),
        ("L1.attn", "blocks.1.attention."),
        ("L*.ffn", "ffn."),
        ("L0.q", "blocks.0.attention.q."),
        ("embed", "embed."),
        ("L1.norm1", "blocks.1.norm1."),
    ],
)
def test_frozen_weights_stay_and_all_others_move(address: str, frozen: str, tmp_path: Path) -> None:
    recipe = changed(freeze=(address,))
    before = first_model(recipe, tmp_path)
    train(STORY, recipe, tmp_path / "run")
    after = dict(load_run(tmp_path / "run").named_parameters())
    for name, weight in before.named_parameters():
        assert torch.equal(weight, after[name]) == (frozen in name), name


@pytest.mark.parametrize(
    ("addresses", "message"),
    [
        (["L9"], "there is no layer 9"),
        (["L0.scores"], "has no weights to freeze"),
        (["L0H1"], "--freeze takes whole matrices"),
        (["L*", "embed", "final.norm"], "all weights are frozen"),
    ],
)
def test_what_cannot_be_frozen_is_refused(addresses: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        train(STORY, changed(freeze=tuple(addresses)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_with_frozen_weights_goes_on_to_the_byte(tmp_path: Path) -> None:
    recipe, asked = changed(freeze=("L0",)), iter([False] * 4 + [True] * 9)
    train(STORY, recipe, tmp_path / "whole")
    train(STORY, recipe, tmp_path / "parts", interrupted=lambda: next(asked))
    train(STORY, recipe, tmp_path / "parts", resume=True)
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert models[0] == models[1]


def test_a_recipe_of_before_may_name_adamw_and_nothing_else() -> None:
    assert Recipe.from_dict({**RECIPE.to_dict(), "optimiser": "adamw"}) == RECIPE
    with pytest.raises(UsageError, match="there is no optimiser 'muon'"):
        Recipe.from_dict({**RECIPE.to_dict(), "optimiser": "muon"})


def test_a_run_ends_when_held_out_no_longer_falls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = [3.0, 2.0, 2.5, 2.25, 2.125]
    monkeypatch.setattr("tinytf.training.observers.held_out.held_out_loss", lambda *_, **more: losses.pop(0))
    last = train(STORY, changed(steps=100, patience=2), tmp_path).last
    assert last.step == 16
    assert last.stopped == "held-out has been above 2.0000, at step 8, 2 times in a row"
    history = read_history(tmp_path)
    assert history.finished
    assert history.stopped == last.stopped
    before = (tmp_path / "metrics.jsonl").read_bytes()
    assert train(STORY, changed(steps=100, patience=2), tmp_path, resume=True).last.stopped == last.stopped
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    asked = iter([False, False, False, True])
    patient = changed(steps=100, patience=9)
    assert train(STORY, patient, tmp_path, resume=True, interrupted=lambda: next(asked)).last.step == 20
    assert not read_history(tmp_path).finished
    assert json.loads((tmp_path / "recipe.json").read_text("utf-8"))["patience"] == 9
