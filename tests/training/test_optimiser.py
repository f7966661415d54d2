"""The optimiser that a run is given is AdamW, worked out by hand; losses are measured as the model will be used."""

import numpy as np
import pytest
import torch
from architectures import SIZES, config_of, lively
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.training.data import NextToken
from tinytf.training.losses import batch_loss, held_out_loss
from tinytf.training.optimiser import make_optimiser
from tinytf.training.recipe import Recipe

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
    model = lively(ModelConfig(**SIZES, norm="rmsnorm", qk_norm=True))
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
