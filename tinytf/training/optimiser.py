"""AdamW with decay for matrices alone, and the learning rate of every step."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

from tinytf.errors import UsageError
from tinytf.training.recipe import FREE, Recipe


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
