"""AdamW with weight decay for matrices alone, and the learning rate of every step."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

from tinytf.errors import UsageError
from tinytf.training.recipe import FREE, Recipe


def make_optimiser(model: nn.Module, recipe: Recipe, *more: nn.Module) -> torch.optim.Optimizer:
    """Fused AdamW (Loshchilov and Hutter 2019); gains and biases do not decay, frozen weights stay.

    The parameters of ``more`` modules are trained with the model's. Raises UsageError where nothing is left to train.
    """
    trained = [one for module in (model, *more) for one in module.parameters() if one.requires_grad]
    if not trained:
        raise UsageError("all weights are frozen, so there is nothing to train", "freeze fewer of them")
    return torch.optim.AdamW(
        [
            {"params": [one for one in trained if one.dim() >= 2], "weight_decay": recipe.weight_decay},
            {"params": [one for one in trained if one.dim() < 2], "weight_decay": 0.0},
        ],
        lr=recipe.lr,
        betas=(recipe.beta1, recipe.beta2),
        fused=True,
    )


SCHEDULES: dict[str, Callable[[float], float]] = {
    "cosine": lambda progress: 0.5 * (1 + math.cos(math.pi * progress)),
    "linear": lambda progress: 1 - progress,
    "constant": lambda _: 1.0,
    # Warm-up, stable, decay: the last fifth falls by 1 − √ of the way (Hägele et al. 2024).
    "wsd": lambda progress: 1 - math.sqrt(max(0.0, progress - 0.8) / 0.2),
}
"""From the progress after the warm-up, 0…1, to the share of the way from ``lr * final_lr`` up to ``lr``."""


def learning_rate(step: int, recipe: Recipe) -> float:
    """Linear warm-up to ``lr``, then by the recipe's schedule towards ``lr * final_lr``; ``step`` counts from 0."""
    if step < recipe.warmup:
        return recipe.lr * (step + 1) / recipe.warmup
    progress = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    low = recipe.lr * recipe.final_lr
    return low + (recipe.lr - low) * SCHEDULES[recipe.schedule](progress)


def changes_of(run: Path, before: Recipe, recipe: Recipe, done: int) -> Iterator[str]:
    """What a run does otherwise after ``done`` steps than it began, a line each.

    Raises UsageError for fewer steps than are done.
    """
    if recipe.steps < done:
        raise UsageError(f"{run} has done {done:,} steps, and {recipe.steps:,} are asked for", "give at least as many")
    for name in FREE:
        old, new = getattr(before, name), getattr(recipe, name)
        if old != new:
            yield f"{name} is {new:,} from step {done + 1:,} on, and was {old:,}"
    if any(learning_rate(step, before) != learning_rate(step, recipe) for step in range(done)):
        old, new = learning_rate(min(done, before.steps - 1), before), learning_rate(done, recipe)
        yield f"the learning rate, {old:.2e} by the schedule of {before.steps:,} steps, goes on from {new:.2e}"


def clip_factor(norm: float, most: float) -> float:
    """What ``torch.nn.utils.clip_grad_norm_`` multiplies gradients of this global norm by."""
    return min(1.0, most / (norm + 1e-6))
