"""The learning-rate range test: which rate trains a model fastest before it harms it."""

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tinytf.errors import TrainingError
from tinytf.model.transformer import Transformer
from tinytf.report import Report, derived
from tinytf.text.corpus import Corpus
from tinytf.text.tokenizer import Tokenizer
from tinytf.training.data.tokens import Stage
from tinytf.training.folder.history import Series, centred_mean
from tinytf.training.metrics import Metrics
from tinytf.training.recipe import Recipe
from tinytf.training.start import rehearsed
from tinytf.training.tuning.losses import measured_loss

_LOWEST, _HIGHEST, _STEPS = 1e-6, 1.0, 100
AROUND = 5
"""Changes on each side of a mean."""
_DIVERGED = 4.0
"""The test ends where a loss is this many times the lowest so far."""
_CLEAR = 2.0
"""The mean change must reach this many standard deviations of single changes around it."""


@dataclass(frozen=True)
class RangeTest(Report):
    """The ``losses`` of batches, in nats per token, each just before a step at the next of ``rates``; (S,) both.

    ``before`` are the losses of the same batches before the first step: that some are harder is no effect of a rate.

    The range test of Smith 2015, "Cyclical Learning Rates for Training Neural Networks", section 3.3, with rates that
    grow exponentially. ``complete`` is false if the loss diverged before the largest rate.
    """

    KIND = "find_lr"
    TABLE = ("losses",)

    recipe: Recipe
    rates: Series
    losses: Series
    before: Series
    complete: bool

    @property
    def changes(self) -> Series:
        """How much more each batch costs than before the first step, in nats per token."""
        changes: Series = self.losses - self.before
        return changes

    @derived
    def smoothed(self) -> Series:
        """The mean of up to AROUND changes on each side."""
        return centred_mean(self.changes, AROUND)

    @property
    def lowest(self) -> int:
        """The index of the lowest mean change."""
        return int(self.smoothed.argmin())

    @derived
    def suggested(self) -> float | None:
        """The rate at which the mean change falls fastest per factor of the rate, before it is lowest.

        None if the loss never falls clearly: by two standard deviations of single changes around the mean.
        """
        up_to = self.smoothed[: self.lowest + 1]
        noise = float((self.changes - self.smoothed)[: self.lowest + 1].std())
        if len(up_to) <= AROUND or not up_to[0] - up_to[-1] > _CLEAR * noise:
            return None
        return float(self.rates[int(np.gradient(up_to).argmin())])

    def fields(self) -> dict[str, Any]:
        lowest = {"lr": float(self.rates[self.lowest]), "change": float(self.smoothed[self.lowest])}
        rows = zip(self.rates.tolist(), self.losses.tolist(), self.before.tolist(), self.smoothed.tolist(), strict=True)
        return {
            "recipe": self.recipe.to_dict(),
            **self.members("suggested", "complete"),
            "lowest": lowest,
            "losses": [
                {"lr": rate, "loss": loss, "before": before, "mean_change": mean} for rate, loss, before, mean in rows
            ],
        }


def find_lr(
    corpus: Corpus,
    recipe: Recipe,
    device: torch.device | str = "cpu",
    *,
    tokenizer: Tokenizer | None = None,
    model: Transformer | None = None,
    on_progress: Stage = lambda *_: None,
) -> RangeTest:
    """Train for some steps with rates from 1e-6 to 1; writes nothing, but trains ``model`` if given.

    Steps are those of ``train`` with the same arguments, apart from their rate. Raises what ``train`` raises before its
    first step.
    """
    rates, losses = np.geomspace(_LOWEST, _HIGHEST, _STEPS), list[float]()
    with rehearsed(corpus, recipe, device, tokenizer, model, on_progress) as loop:
        setup, before = loop.setup, list[float]()
        for step in range(_STEPS):
            on_progress("batches before the range test", step, _STEPS)
            loss = measured_loss(setup.model, [setup.examples.batch(step)], recipe.accumulate)
            before.append(math.nan if loss is None else loss)
        for step, rate in enumerate(rates.tolist()):
            on_progress("steps of the range test", step, _STEPS)
            line = Metrics(step + 1)
            with suppress(TrainingError):
                loop.gradient(line)
            if not math.isfinite(line.loss + line.grad_norm) or (losses and line.loss > _DIVERGED * min(losses)):
                break
            losses.append(line.loss)
            for parameters in loop.optimiser.param_groups:
                parameters["lr"] = rate
            loop.optimiser.step()
    return RangeTest(
        recipe, rates[: len(losses)], np.array(losses), np.array(before[: len(losses)]), len(losses) == _STEPS
    )
