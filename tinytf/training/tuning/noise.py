"""The noise of the gradient: how much the gradients of single examples differ, against their mean."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from tinytf.training.data.examples import IGNORED, Batch
from tinytf.training.recipe import Recipe
from tinytf.training.tuning.losses import backward
from tinytf.training.tuning.processes import Processes


@dataclass(frozen=True)
class Noise:
    """Unbiased estimates from one batch; their ratio, averaged over steps, is the simple noise scale in examples.

    ``trace`` is tr(Σ), the variance of the gradient of one example, summed over all weights. ``square`` is |G|², of the
    mean gradient over all examples; the estimate is negative where noise hides it.
    """

    trace: float
    square: float

    def to_dict(self) -> dict[str, float]:
        """Plain JSON data, four significant digits each."""
        return {name: float(f"{value:.4g}") for name, value in vars(self).items()}


def why_no_noise(recipe: Recipe, group: Processes) -> str | None:
    """Why the noise of the gradient is not measured; None where it is."""
    if recipe.batch < 2:
        return "a batch of one example cannot be halved"
    return "several processes train this run" if group.count > 1 else None


def gradient_noise(loss: nn.Module, batch: Batch, recipe: Recipe) -> Noise | None:
    """The noise of the gradient before clipping, from those of both halves of a batch (McCandlish et al. 2018, A.1).

    With gradients g and h of b and c examples, tr(Σ) is |g − h|² / (1/b + 1/c) and |G|² is g · h: for equal halves, A.1
    with the half as the small batch. Examples count by their targets, as in the loss. ``loss`` is a BatchLoss. Costs
    the forward and backward pass of a step, in parts as small; leaves no gradient, and the random state unchanged. None
    if a half has no target, or if a number is not finite.
    """
    halves = batch[0::2], batch[1::2]
    targets = [int((half.targets != IGNORED).sum()) for half in halves]
    if not all(targets):
        return None
    device = next(loss.parameters()).device
    in_parts = replace(recipe, accumulate=-(-recipe.accumulate // 2))
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        first, second = (_gradient(loss, half, in_parts) for half in halves)
    pairs = [(first[name], second[name]) for name in first]
    distance = sum(float((g - h).float().square().sum()) for g, h in pairs)
    sizes = [len(batch.ids) * count / sum(targets) for count in targets]
    trace = distance / sum(1 / size for size in sizes)
    square = sum(float((g.float() * h.float()).sum()) for g, h in pairs)
    return Noise(trace, square) if math.isfinite(trace) and math.isfinite(square) else None


def _gradient(loss: nn.Module, batch: Batch, recipe: Recipe) -> dict[str, Tensor]:
    """The gradient of the mean loss of a batch, by parameter; zero where the loss does not depend on one."""
    trained = {name: parameter for name, parameter in loss.named_parameters() if parameter.requires_grad}
    loss.zero_grad()
    backward(loss, batch, recipe)
    gradients = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in trained.items()
    }
    loss.zero_grad()
    return gradients
