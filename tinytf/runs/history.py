"""The history of a training run so far: progress, speed, the best loss, means of losses."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tinytf.config import ModelConfig

Series: TypeAlias = NDArray[np.float64]
Steps: TypeAlias = NDArray[np.int64]

AROUND = 20
MEANS_LABEL = f"means of up to {2 * AROUND + 1} steps"
"""Steps on each side of a mean of losses (fewer near the ends), and a label of such means."""
_RECENT = 100
_NOISE_MEAN = 10
SPIKE_WINDOW = 50
"""The number of earlier losses that a loss is compared with."""
_DEVIATIONS, _NORMAL, _RISE = 8.0, 1.4826, 1.1
"""A spike is this many deviations, of 1.4826 MAD as in a normal distribution, and this factor above the median."""
NAMES = {
    "previous": "a previous-token head",
    "duplicate": "a duplicate-token head",
    "induction": "an induction head",
}
"""Names for heads with a high score, by kind."""


@dataclass(frozen=True)
class Sample:
    """The ``text`` with which the model after ``step`` steps continued ``prompt``."""

    step: int
    prompt: str
    text: str


@dataclass(frozen=True)
class Spike:
    """A step whose ``loss`` is far above the ``usual`` one, the median of the steps before it."""

    step: int
    loss: float
    usual: float


@dataclass(frozen=True)
class Thorough:
    """A held-out ``loss`` in nats per token over many ``batches``, and of two stacks the share of ``exact`` targets.

    No verdict reads it: more batches are another text, whose loss cannot be compared with that of the few.
    """

    loss: float
    batches: int
    exact: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class SavedModel:
    """A model that can be opened; ``step`` is None if unknown."""

    step: int | None
    path: Path


@dataclass(frozen=True)
class Speed:
    """The lines of speed.jsonl side by side; ``seconds`` count from the start of the process that wrote them.

    The work per token and the peak speed of the machine are None before they are measured.
    """

    step: Steps
    seconds: Series
    tokens_per_second: Series
    memory_bytes: Series
    flops_per_token: float | None = None
    peak_flops: float | None = None

    @property
    def begins(self) -> list[int]:
        """The index of the first line of each process, whose clock starts at 0."""
        restarts = (np.diff(self.seconds) <= 0) | (np.diff(self.step) <= 0)
        return [0, *(np.flatnonzero(restarts) + 1).tolist()]


@dataclass(frozen=True)
class History:
    """A run so far. ``step``, ``loss``, ``lr`` and ``grad_norm`` have one entry per logged step, (S,).

    A value missing from a line is NaN. After a resume from an earlier step, only the later lines of a step count.
    ``held_out`` are losses of the same few batches at every step, ``thorough`` of many more at the end of the run, and
    before it where it began from a model. ``exact`` are shares of held-out targets that are translated exactly, of
    models of two stacks. ``seen`` are losses of the training text in evaluation mode, ``copying`` gains on repeated
    random tokens, and ``updates`` ratios of update and weights by matrix, each with its step; ``noise`` are a step,
    tr(Σ) and |G|² of the gradient, as in ``Noise``, and ``shifts`` a step and losses by the shift of the labels, from
    none to two. Older runs have none of these. ``heads`` are scores by their kind, (layers, heads) each, and
    ``experts`` the ``shares`` of choices, (layers with experts, experts), with the step of their measurement, from 0:
    before the first step. ``skipped`` counts lines that are not metrics, without a torn last line, which may still be
    incomplete. ``config`` is None before the first checkpoint. ``baselines`` are held-out losses of unigram and bigram
    counts. ``stopped`` says why the run ended before its last step.
    """

    directory: Path
    recipe: Mapping[str, Any]
    step: Steps
    loss: Series
    lr: Series
    grad_norm: Series
    held_out: Sequence[tuple[int, float]] = ()
    thorough: Sequence[tuple[int, Thorough]] = ()
    exact: Sequence[tuple[int, float]] = ()
    seen: Sequence[tuple[int, float]] = ()
    copying: Sequence[tuple[int, float]] = ()
    updates: Sequence[tuple[int, Mapping[str, float]]] = ()
    noise: Sequence[tuple[int, float, float]] = ()
    shifts: Sequence[tuple[int, float, float, float]] = ()
    heads: Sequence[tuple[int, Mapping[str, Series]]] = ()
    milestones: Sequence[tuple[int, str]] = ()
    health: Sequence[tuple[int, Mapping[str, Series]]] = ()
    experts: Sequence[tuple[int, Mapping[str, Series]]] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    baselines: Mapping[str, float] = field(default_factory=dict)
    speed: Speed = field(
        default_factory=lambda: Speed(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0), np.zeros(0))
    )
    samples: Sequence[Sample] = ()
    checkpoints: Sequence[SavedModel] = ()
    config: ModelConfig | None = None
    parameters: int | None = None
    skipped: int = 0
    stopped: str | None = None

    @property
    def steps(self) -> int:
        """Steps that the recipe plans."""
        return int(self.recipe["steps"])

    @property
    def planned(self) -> int | None:
        """Steps that the recipe plans; None for a watched loop that did not say how many it takes."""
        return self.steps if self.recipe.get("planned", True) else None

    @property
    def sample(self) -> Sample | None:
        """The latest sample; None before the first."""
        return self.samples[-1] if self.samples else None

    @property
    def last(self) -> int:
        """The last step that was logged; 0 before the first."""
        return int(self.step[-1]) if self.step.size else 0

    @property
    def finished(self) -> bool:
        return self.last >= self.steps or self.stopped is not None

    @cached_property
    def best(self) -> tuple[int, float] | None:
        """Step and value of the lowest held-out loss; the earliest of equals."""
        finite = [point for point in self.held_out if math.isfinite(point[1])]
        return min(finite, key=lambda point: point[1]) if finite else None

    @property
    def step_tokens(self) -> int:
        """Tokens per step, on average; batch × block for runs that did not count them."""
        return self.sizes.get("step_tokens") or int(self.recipe.get("batch", 0)) * int(self.recipe.get("block", 0))

    @property
    def epochs(self) -> float | None:
        """How often the text has been seen; None if its length is unknown."""
        tokens = self.sizes.get("tokens", 0)
        return self.last * self.step_tokens / tokens if tokens and self.step_tokens else None

    def bits_per_byte(self, loss: float) -> float | None:
        """Convert a held-out loss from nats per token to bits per byte, which can be compared across tokenizers.

        None if the bytes of the text are unknown, as for some objectives.
        """
        tokens, size = self.sizes.get("held_out_tokens", 0), self.sizes.get("held_out_bytes", 0)
        return loss / math.log(2) * tokens / size if tokens and size else None

    @property
    def uniform_loss(self) -> float:
        """ln V, the loss of a model that finds all tokens equally probable; NaN where V is not known (yet)."""
        size = self.sizes.get("vocab_size") if self.config is None else self.config.vocab_size
        return math.log(size) if size else math.nan

    @property
    def clip_rate(self) -> float | None:
        """The share of the last 100 steps or fewer whose gradients were clipped; None if there is none, or no limit."""
        norms, limit = self.grad_norm[-_RECENT:], self.recipe.get("clip")
        return float(np.mean(norms > float(limit))) if norms.size and limit is not None else None

    @property
    def gaps(self) -> Sequence[tuple[int, float]]:
        """The steps where both were measured, and the held-out loss minus the loss of the training text there."""
        seen = dict(self.seen)
        return [(step, held_out - seen[step]) for step, held_out in self.held_out if step in seen]

    @property
    def noise_scale(self) -> Sequence[tuple[int, float]]:
        """The simple noise scale tr(Σ) / |G|² in examples at each step where it was measured, before clipping.

        Both are means of the last ten measurements, since a ratio of single ones is biased (McCandlish et al. 2018,
        appendix A.1). NaN where the mean of |G|² is not positive, because noise hides it.
        """
        scales = []
        recent: deque[tuple[float, float]] = deque(maxlen=_NOISE_MEAN)
        for step, *estimates in self.noise:
            recent.append((estimates[0], estimates[1]))
            trace, square = np.mean(recent, axis=0)
            scales.append((step, float(trace / square) if square > 0 else math.nan))
        return scales

    @property
    def batch_gain(self) -> float | None:
        """How much of the gain of a noiseless step this batch gets, by the last noise scale: 1 / (1 + noise / batch).

        McCandlish et al. 2018, section 2.2, for plain gradient descent at its best rate. None if the scale is unknown.
        """
        scale = self.noise_scale[-1][1] if self.noise else math.nan
        return 1 / (1 + scale / int(self.recipe["batch"])) if math.isfinite(scale) else None

    @property
    def risen(self) -> float | None:
        """The rise of the held-out loss since its lowest, in nats; None unless it is more than 1 % of the lowest."""
        if self.best is None or self.held_out[-1][0] <= self.best[0]:
            return None
        rise = self.held_out[-1][1] - self.best[1]
        return rise if rise > 0.01 * self.best[1] else None

    @property
    def by_heart(self) -> bool:
        """Whether it learns by heart: the held-out loss has ``risen``, and that of the training text fallen meanwhile.

        False where the loss of the training text was not measured at both steps.
        """
        if self.risen is None or self.best is None:
            return False
        seen = dict(self.seen)
        return seen.get(self.held_out[-1][0], math.inf) < seen.get(self.best[0], -math.inf)

    @cached_property
    def spikes(self) -> Sequence[Spike]:
        """The steps where the loss jumped far above the 50 before, measured by their median and MAD, in order."""
        finite = np.isfinite(self.loss)
        step, loss = self.step[finite], self.loss[finite]
        rows = np.flatnonzero(loss[1:] > _RISE * loss[:-1]) + 1  # a jump; staying high after it is not a spike
        rows = rows[rows >= SPIKE_WINDOW]
        if not rows.size:
            return []
        windows = sliding_window_view(loss, SPIKE_WINDOW)[rows - SPIKE_WINDOW].T  # (50, rows)
        usual, high = np.median(windows, axis=0), loss[rows] > spike_level(windows)
        return [
            Spike(int(step[row]), float(loss[row]), float(middle))
            for row, middle in zip(rows[high], usual[high], strict=True)
        ]

    @property
    def memory_bytes(self) -> int | None:
        """Memory of the process at the last measurement."""
        measured = self.speed.memory_bytes[np.isfinite(self.speed.memory_bytes)]
        return int(measured[-1]) if measured.size else None

    @property
    def tokens_per_second(self) -> float | None:
        """Speed of the last process: the latest measurement, or the median once finished, since the last line is short.

        Counts the steps alone, not what happens between them, such as measuring the held-out text.
        """
        speeds = self.speed.tokens_per_second[self.speed.begins[-1] :] if self.speed.step.size else np.zeros(0)
        speeds = speeds[np.isfinite(speeds)]
        return None if not speeds.size else float(np.median(speeds) if self.finished else speeds[-1])

    @property
    def mfu(self) -> float | None:
        """The model's own operations per second as a share of the peak of this machine.

        The peak is a matrix product, or the run's own best if that was faster.
        """
        speed, tokens = self.speed, self.tokens_per_second
        if tokens is None or speed.flops_per_token is None or not speed.peak_flops:
            return None
        peak = speed.tokens_per_second[np.isfinite(speed.tokens_per_second)].max() * speed.flops_per_token
        return float(tokens * speed.flops_per_token / max(speed.peak_flops, peak))

    @property
    def elapsed(self) -> float | None:
        """Seconds that all processes of this run took, without work that was lost; None before the first line."""
        speed = self.speed
        if not speed.step.size:
            return None
        ends = [*(first - 1 for first in speed.begins[1:]), -1]
        return float(np.nansum([speed.seconds[end] for end in ends]))

    @property
    def seconds_left(self) -> float | None:
        """Seconds for the remaining steps at the pace of the last quarter of speed lines; None before there are two.

        None too where nobody knows how many remain.

        Only lines of one process are compared, since its clock starts at 0.
        """
        if self.finished:
            return 0.0
        if self.planned is None:
            return None
        step, seconds = self.speed.step, self.speed.seconds
        if step.size < 2:
            return None
        first = max(self.speed.begins[-1], step.size - 2 - step.size // 4)
        if step.size - first < 2:
            return None
        pace = float(seconds[-1] - seconds[first]) / float(step[-1] - step[first])
        return pace * (self.steps - self.last) if math.isfinite(pace) else None

    @cached_property
    def averaged(self) -> tuple[Steps, Series]:
        """Steps with a finite loss, and the ``centred_mean`` of the losses there."""
        finite = np.isfinite(self.loss)
        return self.step[finite], centred_mean(self.loss[finite])

    @property
    def recent_loss(self) -> float | None:
        """The mean of the last AROUND finite losses; None if there are none."""
        finite = self.loss[np.isfinite(self.loss)][-AROUND:]
        return float(finite.mean()) if finite.size else None


def spike_level(windows: Series) -> Series:
    """The value above which a number after those of ``windows`` (50, …) is unusual."""
    usual = np.median(windows, axis=0)
    spread = _NORMAL * np.median(np.abs(windows - usual), axis=0)
    level: Series = np.maximum(_RISE * usual, usual + _DEVIATIONS * spread)
    return level


def is_spike(losses: Series) -> bool:
    """Whether the last loss jumped far above those before it."""
    return bool(losses[-1] > _RISE * losses[-2] and losses[-1] > spike_level(losses[:-1]))


def centred_mean(values: Series, around: int = AROUND) -> Series:
    """The mean of each of the finite ``values`` (S,) and ``around`` values on both sides, equally fewer near an end.

    Such a mean neither lags nor leaves the range of the values in it.
    """
    size = len(values)
    position = np.arange(size)
    side = np.minimum(around, np.minimum(position, size - 1 - position))
    total = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    means: Series = (total[position + side + 1] - total[position - side]) / (2 * side + 1)
    return means
