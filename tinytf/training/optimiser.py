"""AdamW with decay for matrices alone, and the learning rate of every step."""

import math
from collections.abc import Callable

import torch
from torch import nn

from tinytf.training.recipe import Recipe


def make_optimiser(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """Fused AdamW (Loshchilov and Hutter 2019); gains and biases do not decay."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.dim() >= 2]
    vectors = [parameter for parameter in trained if parameter.dim() < 2]
    return torch.optim.AdamW(
        [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=recipe.lr,
        betas=(recipe.beta1, recipe.beta2),
        fused=True,
    )


SCHEDULES: dict[str, Callable[[float], float]] = {
    "cosine": lambda progress: 0.5 * (1 + math.cos(math.pi * progress)),
    "linear": lambda progress: 1 - progress,
    "constant": lambda _: 1.0,
}
"""From the progress after the warm-up, 0…1, to the share of the way from ``lr * final_lr`` up to ``lr``."""


def learning_rate(step: int, recipe: Recipe) -> float:
    """Linear warm-up to ``lr``, then by the recipe's schedule towards ``lr * final_lr``; ``step`` counts from 0."""
    if step < recipe.warmup:
        return recipe.lr * (step + 1) / recipe.warmup
    progress = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    low = recipe.lr * recipe.final_lr
    return low + (recipe.lr - low) * SCHEDULES[recipe.schedule](progress)


def clip_factor(norm: float, most: float) -> float:
    """What ``torch.nn.utils.clip_grad_norm_`` multiplies gradients of this global norm by."""
    return min(1.0, most / (norm + 1e-6))
