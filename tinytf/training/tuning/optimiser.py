"""AdamW with decay for matrices alone, or Muon beside it, and the learning rate of every step."""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tinytf.errors import UsageError
from tinytf.training.recipe import FREE, Recipe


def make_optimiser(model: nn.Module, recipe: Recipe, *more: nn.Module) -> torch.optim.Optimizer:
    """Fused AdamW (Loshchilov and Hutter 2019), or Muon beside it; gains and biases do not decay, frozen weights stay.

    The parameters of ``more`` modules are trained with the model's. Raises UsageError where nothing is left to train,
    and where torch has no Muon.
    """
    named = [pair for module in (model, *more) for pair in module.named_parameters()]
    trained = {name: parameter for name, parameter in named if parameter.requires_grad}
    if not trained:
        raise UsageError("all weights are frozen, so there is nothing to train", "freeze fewer of them")
    hidden = []
    if recipe.optimiser == "muon":
        if not hasattr(torch.optim, "Muon"):
            raise UsageError(f"torch {torch.__version__} has no Muon", "install torch 2.9 or later")
        hidden = [name for name, one in trained.items() if name.startswith("blocks.") and one.dim() == 2]
    rest = [parameter for name, parameter in trained.items() if name not in hidden]
    adamw = torch.optim.AdamW(
        [
            {"params": [one for one in rest if one.dim() >= 2], "weight_decay": recipe.weight_decay},
            {"params": [one for one in rest if one.dim() < 2], "weight_decay": 0.0},
        ],
        lr=recipe.lr,
        betas=(recipe.beta1, recipe.beta2),
        fused=True,
    )
    return WithMuon([trained[name] for name in hidden], adamw, recipe) if hidden else adamw


class WithMuon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024) for the matrices inside the blocks, AdamW for all else, as one optimiser.

    Updates have the size of AdamW's (Liu et al. 2025), so that one learning rate serves both.
    """

    def __init__(self, matrices: list[nn.Parameter], adamw: torch.optim.AdamW, recipe: Recipe) -> None:
        muon = torch.optim.Muon(
            matrices, lr=recipe.lr, weight_decay=recipe.weight_decay, adjust_lr_fn="match_rms_adamw"
        )
        super().__init__([*muon.param_groups, *adamw.param_groups], {})
        self.parts = (muon, adamw)
        for part in self.parts:  # the groups are shared already
            part.state = self.state

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for part in self.parts:
            part.step()  # type: ignore[no-untyped-call]


def moments_of(group: Mapping[str, Any]) -> tuple[str, ...]:
    """What an optimiser keeps of each parameter of a group."""
    return ("momentum_buffer",) if "ns_steps" in group else ("step", "exp_avg", "exp_avg_sq")


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
