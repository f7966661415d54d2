"""What is wrong with a run, in one line: each fault has a definition with thresholds, and a healthy run has none."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tinytf.training.folder.history import History

_LEAST = 100
"""Steps before anything is said."""
_RISE = 1.0
"""Nats by which the recent loss of a diverged run is above the lowest mean."""
_STUCK = 0.05
"""Nats around ln V within which a model has learned nothing."""
_CLIPPED = 10.0
"""The median gradient of a run that clips too much is so many times the limit."""
_DEAD = 0.9
"""The share of units of a layer without activation."""


@dataclass(frozen=True)
class Verdict:
    """A ``fault`` by name, and a line with its numbers and what to try."""

    fault: str
    text: str


def verdict_of(history: History) -> Verdict | None:
    """The first fault of FAULTS that a run has after its first hundred steps; None for a healthy run."""
    if history.step.size < _LEAST or history.recent_loss is None:
        return None
    for name, text_of in FAULTS.items():
        if text := text_of(history):
            return Verdict(name, text)
    return None


def _uniform(history: History) -> float:
    """ln V, the loss of a model that finds all tokens equally probable; NaN before the first checkpoint."""
    return math.nan if history.config is None else math.log(history.config.vocab_size)


def _diverged(history: History) -> str:
    """The mean of the last losses is a nat above the lowest such mean, or above ln V."""
    recent, lowest = history.recent_loss or math.nan, float(history.averaged[1].min())
    if recent < lowest + _RISE and not recent > _uniform(history) + _STUCK:
        return ""
    return f"diverged: the loss is at {recent:.2f}, after {lowest:.2f}; try a smaller --lr"


def _stuck(history: History) -> str:
    """The mean of the last losses, and no earlier one, differs from ln V by more than rounding and noise."""
    uniform, recent = _uniform(history), history.recent_loss or math.nan
    if not (abs(recent - uniform) <= _STUCK and float(history.averaged[1].min()) >= uniform - _STUCK):
        return ""
    return f"stuck at ln V = {uniform:.2f}: all tokens are equally probable to it; try a larger --lr"


def _below_counts(history: History) -> str:
    """After half of the steps, the last held-out loss is above that of unigram counts."""
    unigram = history.baselines.get("unigram", math.inf)
    if not history.held_out or 2 * history.held_out[-1][0] < history.steps or history.held_out[-1][1] <= unigram:
        return ""
    worse = f"held-out {history.held_out[-1][1]:.2f} is worse than counting tokens, {unigram:.2f}"
    return f"{worse}; try another --lr, or more steps"


def _clipped(history: History) -> str:
    """Each of the last hundred gradients was clipped, and their median is ten times the limit."""
    clip = float(history.recipe.get("clip", math.inf))
    median = float(np.median(history.grad_norm[-_LEAST:]))
    if history.clip_rate != 1.0 or not median > _CLIPPED * clip:
        return ""
    return f"clipped at every step: gradients of {median:.3g} for a limit of {clip:g}; try a smaller --lr"


def _dead(history: History) -> str:
    """Nine in ten units of a layer have no activation at the last measurement."""
    dead = history.health[-1][1].get("dead") if history.health else None
    if dead is None or not np.nanmax(dead) >= _DEAD:
        return ""
    layer = int(np.nanargmax(dead))
    return f"dead units: {100 * float(dead[layer]):.0f} % of those of layer {layer}; try a smaller --lr"


FAULTS: dict[str, Callable[[History], str]] = {
    "diverged": _diverged,
    "stuck at ln V": _stuck,
    "below token counts": _below_counts,
    "clipped at every step": _clipped,
    "dead units": _dead,
}
"""The faults of a run, worst first, each with what says so in words, or empty."""
