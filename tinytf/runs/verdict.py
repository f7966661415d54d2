"""What is wrong with a run, in one line: each fault has a definition with thresholds, and a healthy run has none."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tinytf.runs.history import History
from tinytf.sentences import sign_of

_LEAST = 100
"""Steps before anything is said."""
_RISE = 1.0
"""Nats by which the recent loss of a diverged run is above the lowest mean."""
NOISE = 0.05
"""Nats around ln V within which a model has learned nothing."""
_SHIFTED = 0.5
"""Nats by which predictions fit another token better than the next one, if the labels are not those of the next."""
_KNOWN = 0.9
"""The share of held-out passages in the training text from which on the held-out text is nothing new."""
_WORSE = 0.05
"""Nats by which a held-out loss is above that of unigram counts, beyond noise."""
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
    """The first fault of FAULTS that a run has after its first hundred steps; None for a healthy run.

    A loss that is not finite, and has not been since some step, is one of any step.
    """
    finite = np.flatnonzero(np.isfinite(history.loss))
    if history.step.size and (ended := int(finite[-1]) + 1 if finite.size else 0) < history.step.size:
        since = f"the loss is {sign_of(float(history.loss[-1]))} since step {history.step[ended]:,}"
        return Verdict("diverged", f"diverged: {since}")
    if history.step.size < _LEAST or history.recent_loss is None:
        return None
    for name, text_of in FAULTS.items():
        if text := text_of(history):
            return Verdict(name, f"{name}: {text}")
    return None


def _diverged(history: History) -> str:
    """The mean of the last losses is a nat above the lowest such mean, or above ln V and the first one."""
    means, recent = history.averaged[1], history.recent_loss or math.nan
    above = max(history.uniform_loss, float(means[0])) + NOISE
    if not (recent >= float(means.min()) + _RISE or recent > above):
        return ""
    return f"the loss is at {recent:.2f}, after {float(means.min()):.2f}; try a smaller --lr"


def _stuck(history: History) -> str:
    """Neither the mean of the last losses nor an earlier one is below ln V by more than rounding and noise."""
    uniform, lowest = history.uniform_loss, float(history.averaged[1].min())
    if not min(lowest, history.recent_loss or math.nan) >= uniform - NOISE:
        return ""
    return f"a loss of {uniform:.2f} is that of finding all tokens equally probable; try a larger --lr"


def _shifted(history: History) -> str:
    """At the last measurement the predictions fit the token itself, or that after the next one, much better."""
    if not history.shifts:
        return ""
    _, *losses = history.shifts[-1]
    if not fits_another(losses):
        return ""
    itself, following, after = losses
    fits, best = ("the token itself", itself) if itself < after else ("the token after the next one", after)
    return f"its predictions fit {fits} with a loss of {best:.2f}, the next one with {following:.2f}"


def fits_another(losses: Sequence[float]) -> bool:
    """Whether predictions fit the token itself or the one after the next much better than the next; as in a history."""
    itself, following, after = losses
    return min(itself, after) < following - _SHIFTED


def _nothing_new(history: History) -> str:
    """Every batch has the examples of the first, or nine in ten held-out passages occur in the training text."""
    sizes = history.sizes
    if (examples := sizes.get("examples")) and examples == sizes.get("first_examples"):
        return f"each batch brings the same {examples:,} example{'s' * (examples > 1)}"
    passages, known = sizes.get("passages", 0), sizes.get("known_passages", 0)
    if not passages or known < _KNOWN * passages:
        return ""
    return f"{100 * known / passages:.0f} % of the held-out passages are in the training text too"


def _below_counts(history: History) -> str:
    """After half of the steps, the last held-out loss is above that of unigram counts by more than noise."""
    unigram = history.baselines.get("unigram", math.inf)
    if (
        not history.held_out
        or 2 * history.held_out[-1][0] < history.steps
        or history.held_out[-1][1] <= unigram + _WORSE
    ):
        return ""
    worse = f"held-out {history.held_out[-1][1]:.2f} is worse than counting tokens, {unigram:.2f}"
    return f"{worse}; try another --lr, or more steps"


def _clipped(history: History) -> str:
    """Each of the last hundred gradients was clipped, and their median is ten times the limit."""
    clip = float(history.recipe.get("clip", math.inf))
    median = float(np.median(history.grad_norm[-_LEAST:]))
    if history.clip_rate != 1.0 or not median > _CLIPPED * clip:
        return ""
    return f"gradients of {median:.3g} for a limit of {clip:g}; try a smaller --lr, or a larger --clip"


def _dead(history: History) -> str:
    """Nine in ten units of a layer have no activation at the last measurement."""
    dead = history.health[-1][1].get("dead") if history.health else None
    if dead is None or not np.nanmax(dead) >= _DEAD:
        return ""
    layer = int(np.nanargmax(dead))
    return f"{100 * float(dead[layer]):.0f} % of those of layer {layer} have no activation; try a smaller --lr"


def _by_heart(history: History) -> str:
    """The held-out loss has risen by 1 % of its lowest, and that of the training text has fallen meanwhile."""
    return f"{_rise(history)}, and the training text's has fallen; more text helps" if history.by_heart else ""


def _worse(history: History) -> str:
    """The last two held-out losses are 1 % above the lowest, not by learning by heart."""
    before = replace(history, held_out=history.held_out[:-1])
    return f"{_rise(history)}; try a smaller --lr" if history.risen and before.held_out and before.risen else ""


def _rise(history: History) -> str:
    """By how much the held-out loss has risen, and what is kept of the best."""
    step, rise = history.best[0] if history.best else 0, f"{history.risen or 0.0:.3f}"
    if not step:
        return f"held-out is {rise} above that of the model that it began from"
    return f"held-out has risen by {rise} since step {step:,}, whose checkpoint is kept"


FAULTS: dict[str, Callable[[History], str]] = {
    "diverged": _diverged,
    "stuck at ln V": _stuck,
    "labels shifted wrongly": _shifted,
    "data all the same": _nothing_new,
    "below token counts": _below_counts,
    "clipped at every step": _clipped,
    "dead units": _dead,
    "learning by heart": _by_heart,
    "worse again": _worse,
}
"""The faults of a run, worst first, each with what its line says after the name, or empty."""
