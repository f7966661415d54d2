"""What a run watches beside its loss: recomputed by numpy from its checkpoints, and without a trace in the training."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from training_runs import CAUSAL, STORY, changed, metrics_of, run_once

from tinytf.checkpoints.run import load_run
from tinytf.look.heads.measures import repeated_tokens
from tinytf.runs.reader import read_history
from tinytf.training.recipe import FEW_BATCHES, Recipe
from tinytf.training.train import train
from tinytf.training.tuning.losses import seen_batches

WATCHED = changed(CAUSAL, steps=8, keep=9, save_every=1, probe_every=4, lr=1e-2, repeats_first=2)
run = run_once(WATCHED)


def nats(model, ids: np.ndarray) -> np.ndarray:
    """The loss of each next token of ids (B, T + 1)."""
    logits = model.eval()(torch.from_numpy(ids[:, :-1])).detach().double().numpy()
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return -np.take_along_axis(log_p, ids[:, 1:, None], axis=-1)[..., 0]


@pytest.mark.parametrize("step", [4, 8])
def test_the_loss_of_the_training_text_is_that_of_the_first_windows_without_dropout(run: Path, step: int) -> None:
    tokens = np.fromfile(run / "tokens" / "train.bin", dtype="<u2").astype(np.int64)
    starts = np.random.default_rng([WATCHED.seed, 0]).integers(0, len(tokens) - WATCHED.block, WATCHED.batch)
    windows = tokens[starts[:, None] + np.arange(WATCHED.block + 1)]
    model = load_run(run / "checkpoints" / f"step-{step:06d}")
    assert dict(read_history(run).seen)[step] == pytest.approx(nats(model, windows).mean(), abs=1e-5)


def test_the_gap_is_held_out_minus_training_text_and_older_runs_have_none(run: Path) -> None:
    history = read_history(run)
    rows = [row for row in metrics_of(run) if row["step"] in (4, 8)]
    assert history.gaps == [(row["step"], row["held_out_loss"] - row["seen_loss"]) for row in rows]
    assert replace(history, seen=()).gaps == []


@pytest.mark.parametrize("every", [1, 4, 50, 100, 250, 1000])
def test_measuring_the_training_text_costs_at_most_a_fiftieth_of_the_steps(every: int) -> None:
    batches = seen_batches(Recipe(eval_every=every))
    assert 1 <= batches <= FEW_BATCHES
    assert batches == 1 or batches / (3 * every) <= 0.02


@pytest.mark.parametrize("step", [4, 8])
def test_copying_is_how_much_less_the_second_copy_costs(run: Path, step: int) -> None:
    model = load_run(run / "checkpoints" / f"step-{step:06d}")
    length = WATCHED.block // 2
    ids = repeated_tokens(model.config.vocab_size, length, 4, WATCHED.seed).numpy()
    losses = nats(model, ids)  # of the tokens 1 …
    expected = losses[:, : length - 1].mean() - losses[:, length:].mean()
    assert dict(read_history(run).copying)[step] == pytest.approx(expected, abs=1e-5)


def test_update_ratios_are_those_of_the_matrices_in_the_checkpoints(run: Path) -> None:
    (_, ratios), _ = read_history(run).updates
    before, after = (load_run(run / "checkpoints" / f"step-00000{step}") for step in (3, 4))
    names = {name for name, parameter in before.named_parameters() if parameter.dim() > 1}
    assert set(ratios) == names
    for name in names:
        old, new = (model.get_parameter(name).detach().double().numpy() for model in (before, after))
        assert ratios[name] == pytest.approx(np.linalg.norm(new - old) / np.linalg.norm(old), rel=2e-3)


def test_what_is_watched_changes_no_loss_and_no_weight(run: Path, tmp_path: Path) -> None:
    blind = changed(WATCHED, eval_every=8, save_every=8, probe_every=0, sample_tokens=0)
    train(STORY, blind, tmp_path)
    for name in ("loss", "grad_norm"):
        assert [row[name] for row in metrics_of(run)] == [row[name] for row in metrics_of(tmp_path)]
    assert (run / "model.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()


def test_every_measurement_is_in_the_metrics(run: Path) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text("ascii").splitlines()]
    assert [row["step"] for row in rows if "seen_loss" in row] == [4, 8]
    assert [row["step"] for row in rows if math.isfinite(row.get("copying", math.nan))] == [4, 8]
