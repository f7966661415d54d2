"""The optimiser that a run is given is AdamW, worked out by hand; losses are measured as the model will be used."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import SIZES, config_of, lively
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from training_runs import CAUSAL, STORY, changed, metrics_of

from tinytf.config import ModelConfig
from tinytf.training.data.examples import NextToken
from tinytf.training.recipe import Recipe
from tinytf.training.train import train
from tinytf.training.tuning.losses import batch_loss, held_out_loss
from tinytf.training.tuning.optimiser import clip_factor, make_optimiser

RECIPE = Recipe(lr=0.01, beta1=0.8, beta2=0.9, weight_decay=0.3)


def by_hand(theta: Tensor, gradients: list[Tensor], decay: float) -> Tensor:
    """Loshchilov and Hutter 2019, algorithm 2, in more digits."""
    theta, m, v = theta.double(), torch.zeros(()), torch.zeros(())
    for step, gradient in enumerate(gradients, 1):
        m = 0.8 * m + 0.2 * gradient.double()
        v = 0.9 * v + 0.1 * gradient.double() ** 2
        moved = (m / (1 - 0.8**step)) / ((v / (1 - 0.9**step)).sqrt() + 1e-8)
        theta = theta * (1 - 0.01 * decay) - 0.01 * moved
    return theta


def test_three_steps_are_those_of_adamw_with_decay_for_matrices_alone() -> None:
    model = lively(ModelConfig.of(**SIZES, norm="rmsnorm", qk_norm=True))
    optimiser = make_optimiser(model, RECIPE)
    drawn = torch.Generator().manual_seed(1)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    gradients = {name: [torch.randn(p.shape, generator=drawn) for _ in range(3)] for name, p in before.items()}
    for step in range(3):
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name][step]
        optimiser.step()
    for name, parameter in model.named_parameters():
        decay = 0.0 if name.endswith("bias") or "norm" in name else 0.3
        expected = by_hand(before[name], gradients[name], decay)
        assert (parameter.detach() - expected).abs().max() < 1e-6, name


@pytest.mark.parametrize("most", [0.01, 1.0, 1e3])
def test_gradients_are_clipped_by_the_factor_of_their_global_norm(most: float) -> None:
    drawn = torch.Generator().manual_seed(2)
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((3, 4), (5,))]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=drawn)
    before = [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]
    norm = math.sqrt(sum(float((one.double() ** 2).sum()) for one in before))
    assert float(clip_grad_norm_(parameters, most)) == pytest.approx(norm, rel=1e-6)
    factor = clip_factor(norm, most)
    assert (factor == 1.0) == (norm <= most)
    assert norm * factor <= most or factor == 1.0
    for parameter, gradient in zip(parameters, before, strict=True):
        assert torch.allclose(parameter.grad, gradient * factor, rtol=1e-5)  # type: ignore[arg-type]


def test_a_run_clips_what_it_steps_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The norm that the metrics have is that before clipping; the optimiser gets no larger one than asked for."""
    stepped, genuine = [], torch.optim.AdamW.step

    def step(self: torch.optim.AdamW, *given: object) -> object:
        every = [one.grad for group in self.param_groups for one in group["params"] if one.grad is not None]
        stepped.append(float(torch.nn.utils.get_total_norm(every)))
        return genuine(self, *given)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    train(STORY, changed(CAUSAL, clip=0.05, steps=3, warmup=1), tmp_path)
    norms = [line["grad_norm"] for line in metrics_of(tmp_path)]
    assert min(norms) > 0.05
    assert stepped == pytest.approx([0.05] * 3, rel=1e-3)


def test_a_run_steps_with_the_rate_of_its_schedule(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rates, genuine = [], torch.optim.AdamW.step

    def step(self: torch.optim.AdamW, *given: object) -> object:
        rates.append({group["lr"] for group in self.param_groups})
        return genuine(self, *given)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    train(STORY, changed(CAUSAL, lr=0.5, final_lr=0.0, steps=4, warmup=2, schedule="linear"), tmp_path)
    assert rates == [{0.25}, {0.5}, {0.5}, {0.25}]


@pytest.mark.parametrize("training", [True, False])
def test_held_out_text_is_measured_without_dropout_and_the_model_goes_on_as_it_was(training: bool) -> None:
    stream = np.random.default_rng(3).integers(0, SIZES["vocab_size"], 200)
    examples = NextToken(stream, stream[:90], Recipe(block=8, batch=4, seed=1), SIZES["vocab_size"])
    model = lively(config_of("gpt2", dropout=0.5))
    with torch.no_grad():
        losses = [(float(batch_loss(model, batch)), batch.targets.numel()) for batch in examples.held_out()]
    model.train(training)
    expected = sum(loss * count for loss, count in losses) / sum(count for _, count in losses)
    assert held_out_loss(model, examples) == pytest.approx(expected, abs=1e-6)
    assert model.training == training
