"""The learning-rate range test: which rate trains a model fastest before it harms it."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tinytf.model.transformer import Transformer
from tinytf.report import Report, derived
from tinytf.text.corpus import Corpus
from tinytf.text.tokenizer import Tokenizer
from tinytf.training.data.tokens import Stage
from tinytf.training.folder.history import Series, centred_mean
from tinytf.training.recipe import Recipe
from tinytf.training.rehearsal import rehearse

_LOWEST, _HIGHEST, _STEPS = 1e-6, 1.0, 100
AROUND = 5
"""Losses on each side of a mean."""
_DIVERGED = 4.0
"""The test ends where a loss is this many times the lowest so far."""
_CLEAR = 2.0
"""The mean loss must fall by this many standard deviations of single losses around it."""


@dataclass(frozen=True)
class RangeTest(Report):
    """The ``losses`` of batches, in nats per token, each before a step with a larger rate of ``rates``; (S,) both.

    The range test of Smith 2015, "Cyclical Learning Rates for Training Neural Networks", section 3.3, with rates that
    grow exponentially. ``complete`` is false if the loss diverged before the largest rate.
    """

    KIND = "range_test"
    TABLE = ("losses",)

    recipe: Recipe
    rates: Series
    losses: Series
    complete: bool

    @derived
    def smoothed(self) -> Series:
        """The mean of up to AROUND losses on each side."""
        return centred_mean(self.losses, AROUND)

    @property
    def lowest(self) -> int:
        """The index of the lowest mean loss."""
        return int(self.smoothed.argmin())

    @derived
    def suggested(self) -> float | None:
        """The rate at which the mean loss falls fastest per factor of the rate, before it is lowest.

        None if the loss never falls clearly: by two standard deviations of single losses around the mean.
        """
        up_to = self.smoothed[: self.lowest + 1]
        noise = float((self.losses - self.smoothed)[: self.lowest + 1].std())
        if len(up_to) <= AROUND or not up_to[0] - up_to[-1] > _CLEAR * noise:
            return None
        return float(self.rates[int(np.gradient(up_to).argmin())])

    def fields(self) -> dict[str, Any]:
        lowest = {"lr": float(self.rates[self.lowest]), "loss": float(self.smoothed[self.lowest])}
        rows = zip(self.rates.tolist(), self.losses.tolist(), self.smoothed.tolist(), strict=True)
        return {
            "recipe": self.recipe.to_dict(),
            **self.members("suggested", "complete"),
            "lowest": lowest,
            "losses": [{"lr": rate, "loss": loss, "mean": mean} for rate, loss, mean in rows],
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
    with rehearse(corpus, recipe, device, tokenizer, model, on_progress) as rehearsal:
        for step, rate in enumerate(rates.tolist()):
            on_progress("steps of the range test", step, _STEPS)
            loss, norm = rehearsal.gradient(step)
            if not math.isfinite(loss + norm) or (losses and loss > _DIVERGED * min(losses)):
                break
            losses.append(loss)
            for parameters in rehearsal.optimiser.param_groups:
                parameters["lr"] = rate
            rehearsal.optimiser.step()
    return RangeTest(recipe, rates[: len(losses)], np.array(losses), len(losses) == _STEPS)
