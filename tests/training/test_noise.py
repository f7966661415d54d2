"""The noise of the gradient: against per-example gradients by torch.func, over every batch that can be drawn."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import config_of
from torch.func import functional_call, grad
from torch.nn.functional import cross_entropy
from training_runs import RECIPE, STORY, changed, metrics_of

from tinytf.model.transformer import Transformer
from tinytf.runs.reader import read_history
from tinytf.training.data.examples import IGNORED, Batch
from tinytf.training.recipe import Recipe
from tinytf.training.train import train
from tinytf.training.tuning.losses import BatchLoss
from tinytf.training.tuning.noise import gradient_noise

EXAMPLES = 3


def some_model() -> tuple[Transformer, torch.Tensor]:
    """A small model, and three examples of seven tokens."""
    torch.manual_seed(0)
    model = Transformer.initialised(config_of("gpt2", d_model=8, d_ff=8, n_layers=1, n_heads=2), seed=1).train()
    return model, torch.randint(0, model.config.vocab_size, (EXAMPLES, 7))


def of_all_examples(model: Transformer, ids: torch.Tensor) -> tuple[float, float]:
    """tr(Σ) and |G|² of the examples, each as often as the others."""
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(weights: dict[str, torch.Tensor], example: torch.Tensor) -> torch.Tensor:
        logits = functional_call(model, weights, (example[None, :-1],))
        return cross_entropy(logits[0], example[1:])

    rows = [torch.cat([g.flatten() for g in grad(loss)(weights, example).values()]) for example in ids]
    gradients = torch.stack(rows).double().numpy()
    return float(gradients.var(axis=0).sum()), float(np.square(gradients.mean(axis=0)).sum())


@pytest.mark.parametrize(("batch", "accumulate"), [(2, 1), (3, 1), (4, 4)])
def test_over_all_batches_both_estimates_are_right(batch: int, accumulate: int) -> None:
    model, ids = some_model()
    recipe, loss = Recipe(batch=batch, accumulate=accumulate), BatchLoss(model)
    estimates = []
    for rows in itertools.product(range(EXAMPLES), repeat=batch):
        chosen = ids[list(rows)]
        noise = gradient_noise(loss, Batch(chosen[:, :-1], chosen[:, 1:], None), recipe)
        estimates.append((noise.trace, noise.square))
    assert np.mean(estimates, axis=0) == pytest.approx(of_all_examples(model, ids), rel=1e-4)


def test_a_half_without_targets_has_no_estimate() -> None:
    model, ids = some_model()
    targets = ids[:2, 1:].clone()
    targets[1] = IGNORED
    assert gradient_noise(BatchLoss(model), Batch(ids[:2, :-1], targets, None), Recipe(batch=2)) is None


def test_a_run_measures_it_before_clipping_whatever_the_parts(tmp_path: Path) -> None:
    first = []
    for name, changes in {"whole": {}, "parts": {"accumulate": 3, "clip": 1e-3}}.items():
        train(STORY, changed(RECIPE, steps=1, warmup=0, probe_every=1, sample_tokens=0, **changes), tmp_path / name)
        first.append(metrics_of(tmp_path / name)[0]["noise"])
    assert first[0]["trace"] > 0
    assert first[1] == pytest.approx(first[0], rel=2e-3)


def test_a_batch_of_one_has_none_and_the_run_says_so(tmp_path: Path) -> None:
    notes: list[str] = []
    train(
        STORY,
        changed(RECIPE, steps=1, warmup=0, batch=1, probe_every=1, sample_tokens=0),
        tmp_path,
        on_note=notes.append,
    )
    assert "the noise of the gradient is not measured: a batch of one example cannot be halved" in notes
    assert not any("noise" in row for row in metrics_of(tmp_path))


def test_the_scale_is_the_ratio_of_the_means_of_ten_measurements(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text(json.dumps({"steps": 50, "batch": 4}))
    estimates = [(-1.0, 2.0), *((float(step), step / 2 + 1) for step in range(1, 12))]
    line = {"loss": 1.0, "lr": 1.0, "grad_norm": 1.0}
    rows = [{"step": step, **line, "noise": {"trace": trace, "square": square}}
            for step, (square, trace) in enumerate(estimates, 1)]  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    history = read_history(tmp_path)
    scales = [scale for _, scale in history.noise_scale]
    assert math.isnan(scales[0])  # a negative |G|²
    assert math.isnan(scales[1])  # the mean of -1 and 1
    assert scales[-1] == pytest.approx(sum(step / 2 + 1 for step in range(2, 12)) / sum(range(2, 12)))
    assert history.batch_gain == pytest.approx(4 / (4 + scales[-1]))
