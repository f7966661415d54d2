"""AdamW with weight decay for matrices only, and the learning rate of every step."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

from tinytf.errors import UsageError
from tinytf.training.recipe import FREE, Recipe


def make_optimiser(model: nn.Module, recipe: Recipe, *others: nn.Module) -> torch.optim.Optimizer:
    """Fused AdamW (Loshchilov and Hutter 2019); gains and biases do not decay, frozen weights stay.

    The parameters of the ``others`` are trained too. Raises UsageError if nothing is left to train.
    """
    trained = [parameter for module in (model, *others) for parameter in module.parameters() if parameter.requires_grad]
    if not trained:
        raise UsageError("all weights are frozen, so there is nothing to train", "freeze fewer of them")
    return torch.optim.AdamW(
        [
            {
                "params": [parameter for parameter in trained if parameter.dim() >= 2],
                "weight_decay": recipe.weight_decay,
            },
            {"params": [parameter for parameter in trained if parameter.dim() < 2], "weight_decay": 0.0},
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
"""Maps progress after the warm-up, 0…1, to a fraction: 1 is ``lr``, 0 is ``lr * final_lr``."""


def learning_rate(step: int, recipe: Recipe) -> float:
    """Linear warm-up to ``lr``, then by the recipe's schedule towards ``lr * final_lr``; ``step`` counts from 0."""
    if step < recipe.warmup:
        return recipe.lr * (step + 1) / recipe.warmup
    progress = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    low = recipe.lr * recipe.final_lr
    return low + (recipe.lr - low) * SCHEDULES[recipe.schedule](progress)


def describe_changes(run: Path, earlier: Recipe, recipe: Recipe, done: int) -> Iterator[str]:
    """Describe what changes in a run after ``done`` steps, a line for each change.

    Raises UsageError if the recipe has fewer steps than are done.
    """
    if recipe.steps < done:
        raise UsageError(
            f"{run} has done {done:,} steps, but the recipe asks for {recipe.steps:,}", "give at least as many"
        )
    for name in FREE:
        old, new = getattr(earlier, name), getattr(recipe, name)
        if old != new:
            yield f"{name} is {new:,} from step {done + 1:,} on, and was {old:,}"
    if any(learning_rate(step, earlier) != learning_rate(step, recipe) for step in range(done)):
        old, new = learning_rate(min(done, earlier.steps - 1), earlier), learning_rate(done, recipe)
        yield f"the learning rate, {old:.2e} by the schedule of {earlier.steps:,} steps, goes on from {new:.2e}"


def clip_factor(norm: float, max_norm: float) -> float:
    """The factor by which ``torch.nn.utils.clip_grad_norm_`` scales gradients of this global norm."""
    return min(1.0, max_norm / (norm + 1e-6))
