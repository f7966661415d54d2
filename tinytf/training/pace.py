"""How far the steps of a run go: the learning rate of each, and what clipping does to a gradient."""

from dataclasses import dataclass

import numpy as np

from tinytf.training.recipe import Recipe
from tinytf.training.tuning.optimiser import clip_factor, learning_rate

_POINTS = 512
"""The largest number of steps whose learning rate is listed."""
_NORMS = 200
"""The number of gradient norms whose clipping is shown."""


@dataclass(frozen=True)
class Pace:
    """The learning rates of a recipe, and its clipping of a gradient with the global norm ``gradient_norm``.

    The norm is None where there is no gradient.
    """

    recipe: Recipe
    gradient_norm: float | None

    @property
    def schedule(self) -> list[tuple[int, float]]:
        """Steps (from 1) with their learning rates."""
        count = self.recipe.steps
        steps = np.unique(np.linspace(0, count - 1, min(count, _POINTS)).round().astype(int)).tolist()
        return [(step + 1, learning_rate(step, self.recipe)) for step in steps]

    @property
    def clipped_by(self) -> float:
        """The factor that clips the gradient; 1 where there is none."""
        return clip_factor(self.gradient_norm or 0.0, self.recipe.clip)

    @property
    def clipping(self) -> list[tuple[float, float]]:
        """Gradient norms, beyond that of the gradient and twice the limit, each with the factor that clips it."""
        limit = self.recipe.clip
        norms = np.linspace(0, 1.25 * max(self.gradient_norm or 0.0, 2 * limit), _NORMS).tolist()
        return [(norm, clip_factor(norm, limit)) for norm in norms]
