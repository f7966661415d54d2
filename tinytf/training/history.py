"""What is known of a training run so far, and what follows from it: how far, how fast, the best, a smooth curve."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tinytf.config import ModelConfig
from tinytf.training.samples import Sample

Series: TypeAlias = NDArray[np.float64]
Steps: TypeAlias = NDArray[np.int64]

_BLOCK = 256


@dataclass(frozen=True)
class HeadScores:
    """One measurement of every head: ``scores[kind]`` is (layers, heads); a kind that was not measured is absent."""

    step: int
    scores: Mapping[str, Series]


@dataclass(frozen=True)
class Checkpoint:
    """A model that can be opened; ``step`` is None where nothing says after which step it was written."""

    step: int | None
    path: Path


@dataclass(frozen=True)
class Speed:
    """The lines of speed.jsonl side by side; ``seconds`` count from the start of the process that wrote them."""

    step: Steps
    seconds: Series
    tokens_per_second: Series
    memory_bytes: Series


@dataclass(frozen=True)
class History:
    """A run as far as it has come. ``step``, ``loss``, ``lr`` and ``grad_norm`` have one entry a logged step, (S,).

    What a line lacks is NaN. Where a run was taken up again at an earlier step, only the later lines of a step count.
    ``skipped`` lines were no metrics; a torn last line is not among them, since it may still be being written.
    ``config`` is None as long as there is no checkpoint, ``sample`` as long as there is none.
    """

    directory: Path
    recipe: Mapping[str, Any]
    step: Steps
    loss: Series
    lr: Series
    grad_norm: Series
    held_out: Sequence[tuple[int, float]] = ()
    heads: Sequence[HeadScores] = ()
    milestones: Sequence[tuple[int, str]] = ()
    speed: Speed = field(default_factory=lambda: Speed(np.zeros(0, dtype=np.int64), *[np.zeros(0)] * 3))
    sample: Sample | None = None
    checkpoints: Sequence[Checkpoint] = ()
    config: ModelConfig | None = None
    skipped: int = 0

    @property
    def steps(self) -> int:
        """How many steps the recipe plans."""
        return int(self.recipe["steps"])

    @property
    def last(self) -> int:
        """The last step that was logged; 0 before the first."""
        return int(self.step[-1]) if self.step.size else 0

    @property
    def finished(self) -> bool:
        return self.last >= self.steps

    @cached_property
    def best(self) -> tuple[int, float] | None:
        """Step and value of the lowest held-out loss; the earliest of equals."""
        finite = [point for point in self.held_out if math.isfinite(point[1])]
        return min(finite, key=lambda point: point[1]) if finite else None

    @property
    def memory_bytes(self) -> int | None:
        """What the process held in memory when it last said so."""
        known = self.speed.memory_bytes[np.isfinite(self.speed.memory_bytes)]
        return int(known[-1]) if known.size else None

    @property
    def tokens_per_second(self) -> float | None:
        """The speed that was measured last."""
        known = self.speed.tokens_per_second[np.isfinite(self.speed.tokens_per_second)]
        return float(known[-1]) if known.size else None

    @property
    def seconds_left(self) -> float | None:
        """What the remaining steps take at the pace of the last quarter of the speed lines; None without two of them.

        Only lines of one process are compared: its clock starts at 0.
        """
        if self.finished:
            return 0.0
        step, seconds = self.speed.step, self.speed.seconds
        if step.size < 2:
            return None
        restarts = np.flatnonzero((np.diff(seconds) <= 0) | (np.diff(step) <= 0)) + 1
        first = max(int(restarts[-1]) if restarts.size else 0, step.size - 2 - step.size // 4)
        if step.size - first < 2:
            return None
        pace = float(seconds[-1] - seconds[first]) / float(step[-1] - step[first])
        return pace * (self.steps - self.last) if math.isfinite(pace) else None

    @cached_property
    def smoothed(self) -> tuple[Steps, Series]:
        """Steps with a finite loss, and the loss there smoothed by :func:`smoothed`."""
        finite = np.isfinite(self.loss)
        return self.step[finite], smoothed(self.loss[finite])


def smoothed(values: Series, decay: float = 0.95) -> Series:
    """Exponential moving average with bias correction: mₜ = decay·mₜ₋₁ + (1 − decay)·xₜ from m₀ = 0, over 1 − decayᵗ.

    The correction (Kingma and Ba 2015, section 3) makes the first values means of what there is instead of pulling
    them to 0. ``values`` (S,) are finite. It is computed in blocks of 256, each one product with a triangular matrix.
    """
    size = values.shape[0]
    padded = np.zeros(-(-size // _BLOCK) * _BLOCK)
    padded[:size] = values
    place = np.arange(_BLOCK)
    within = (1 - decay) * np.tril(decay ** np.maximum(0, place[:, None] - place))  # (256, 256)
    parts = padded.reshape(-1, _BLOCK) @ within.T  # (blocks, 256), each as if nothing had come before
    before = np.zeros(len(parts))
    for block in range(1, len(parts)):
        before[block] = parts[block - 1, -1] + decay**_BLOCK * before[block - 1]
    parts += before[:, None] * decay ** (place + 1)
    corrected: Series = parts.reshape(-1)[:size] / (1 - decay ** np.arange(1, size + 1))
    return corrected
