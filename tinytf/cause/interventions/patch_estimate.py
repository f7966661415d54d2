"""Attribution patching: the effect of every patch estimated from gradients, instead of a run for each patch.

The estimate of a patch is (clean − corrupt activation) · gradient of the metric: one backward pass for all
sites together (Nanda 2023; Syed et al. 2023, arXiv:2310.10348); ``site_effects`` has its corrections.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from tinytf.cause.interventions.hooks import logits_with
from tinytf.cause.interventions.patch import (
    NOTHING,
    PatchSweep,
    Runs,
    brings_back,
    exact_sweep,
    grid_of,
    is_nothing,
    runs_of,
    texts_of,
)
from tinytf.cause.interventions.prediction import compared, logits_at
from tinytf.cause.interventions.site_effects import STEPS, Estimating, site_effects
from tinytf.cause.interventions.sweep import verify_logits
from tinytf.estimate import rank_correlation
from tinytf.metric import Answer, Asked, MetricFunction
from tinytf.report import About, Data, Progress, Verified, ignore_progress
from tinytf.sentences import listed, percent
from tinytf.text_model import TextModel
from tinytf.trace.trace import Text

MOST, MARGIN = 0.05, 1.25
"""Of an estimate that is said to be the most: the least share of the lead, and the least ratio to the next one."""


def is_most(share: float, next_share: float) -> bool:
    """Whether the largest estimate is said to be the most; docs/patching.md says how often exact patching agrees."""
    return abs(share) >= max(MOST, MARGIN * abs(next_share))


@dataclass(frozen=True)
class Agreement(Data):
    """Estimates beside exact patching of the same sites, in shares of the lead.

    ``rank_correlation`` is Spearman's over the ``sites``, of shares rounded to a hundred-thousandth, below which
    rounding decides; None for fewer than three sites, or where all of one side are equal. ``worst`` is where the two
    disagree most.
    """

    sites: int
    rank_correlation: float | None
    worst: str
    worst_estimated: float
    worst_exact: float

    @classmethod
    def of(cls, names: Sequence[str], estimated: Sequence[float], exact: Sequence[float], **members: Any) -> Self:
        """The agreement of two shares for each of ``names``."""
        worst = max(range(len(names)), key=lambda number: abs(estimated[number] - exact[number]))
        rounded = ([round(share, 5) for share in shares] for shares in (estimated, exact))
        return cls(
            sites=len(names),
            rank_correlation=rank_correlation(*rounded),
            worst=names[worst],
            worst_estimated=estimated[worst],
            worst_exact=exact[worst],
            **members,
        )


@dataclass(frozen=True)
class BesideExact(Agreement):
    """The agreement with a sweep: ``recovered`` is the exact map, NaN where nothing was run.

    The seconds are what each took beyond recording the texts.
    """

    seconds: float
    exact_seconds: float
    recovered: Tensor


@dataclass(frozen=True)
class EstimatedSweep(PatchSweep):
    """A sweep whose ``values`` are estimates by ``how``: the corrupt run's plus (clean − corrupt) · gradient.

    ``gradient`` takes the gradient at the corrupt run; ``integrated`` the mean of the gradients at ``steps`` points of
    the straight line between the embeddings of both texts; ``grad-drop`` the mean size of the estimates without each
    other layer, so that its shares have no sign. With ``qk_correction`` the change is that of the attention weights,
    but in the layers ``uncorrected``. ``added_up`` is the sum of the estimates for the embeddings of all positions,
    with every layer, as a share of the lead, which is 1 for an exact integral.
    """

    KIND = "patch_estimate"

    how: str
    steps: int
    qk_correction: bool
    uncorrected: tuple[int, ...]
    added_up: float
    beside: BesideExact | None

    @property
    def estimating(self) -> Estimating:
        """How the effects were estimated."""
        return Estimating(self.how, self.steps, self.qk_correction)

    @property
    def exact_sites(self) -> int:
        """How many sites exact patching runs: those before ``first`` are the same in both texts."""
        return self.patches - int((~self.values[:, : self.first].isnan()).sum())

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the exact sweep."""
        return self.beside is not None and self.beside.sites < self.exact_sites

    def claim(self) -> str:
        """The patch of the largest estimate, if it is clearly the most, and how exact patching ranks the sites."""
        largest = self.strongest(2)
        layer, column, most = largest[0]
        if is_nothing(most):
            return f"Estimated by gradients, no patch {NOTHING} {self.lead}."
        metric = self.contrast.metric
        would = f"it would {brings_back(most, '')}{metric.of_it}"
        if self.estimating.gives_sizes:
            would = f"by {percent(most)} of it, up or down"
        words = f"Estimated by gradients, {self.clean_site(layer, column)} moves {metric.words} most: {would}"
        if not is_most(most, largest[-1][2] if len(largest) > 1 else 0.0):
            sizes = listed([f"{self.clean_site(row, at, of='')} ({percent(abs(share))})" for row, at, share in largest])
            words = f"Estimated by gradients, no patch clearly moves {metric.words} most; by size, {sizes} come first"
        if self.beside is None or self.beside.rank_correlation is None:
            return f"{words}."
        ranked = f"its ranking of {self.beside.sites:,} sites correlates with that of exact patching at"
        return f"{words}; {ranked} {self.beside.rank_correlation:.2f}."

    def fields(self) -> dict[str, Any]:
        how = self.members("how", "steps", "qk_correction", "uncorrected")
        return {**how, **super().fields(), **self.members("added_up", "beside")}


def patch_estimate(
    model: TextModel,
    clean: Text,
    corrupt: Text,
    over: str = "heads",
    *,
    how: str = "gradient",
    steps: int = STEPS,
    qk_correction: bool = False,
    answer: Answer = None,
    versus: Answer = None,
    metric: str | MetricFunction | None = None,
    positions: Sequence[int] | None = None,
    exact: bool = False,
    resume: Path | None = None,
    on_progress: Progress = ignore_progress,
) -> EstimatedSweep:
    """Estimate every patch of ``patch_sweep`` from gradients, without running it.

    ``gradient`` multiplies (clean − corrupt) by the gradient at the corrupt run; ``integrated`` by the mean gradient at
    ``steps`` midpoints of the line between the embeddings of both texts (Hanna et al. 2024, arXiv:2403.17806).
    ``grad-drop`` averages the sizes of estimates whose gradient leaves out what one layer adds to the stream, over all
    layers but the site's own, so that a direct effect and one through a layer cannot cancel. With ``qk_correction``,
    the softmax is computed again with each patched query or key, and the change of its weights is multiplied by their
    gradient: both together are AtP* (Kramár et al. 2024, arXiv:2403.00745). With ``exact``, exact patching runs too and
    is compared, by its sizes where the estimates are sizes. Raises the errors of ``patch_sweep``, and UsageError for
    another ``how``, for a correction of anything but queries and keys, and for a metric without a gradient.
    """
    estimating = Estimating(how, steps if how == "integrated" else 1, qk_correction)
    Estimating(how, steps, qk_correction).require(model, over)
    asked = Asked.of(model, metric, answer, versus)
    asked.require_gradient()
    runs = runs_of(model, clean, corrupt, asked)
    followed, grid = runs.contrast, grid_of(runs, over, positions)
    start = time.perf_counter()
    effects = site_effects(runs, grid, estimating)
    seconds = time.perf_counter() - start
    lead = followed.clean - followed.corrupt
    values = followed.corrupt + effects.sites * (lead / abs(lead) if estimating.gives_sizes else 1.0)
    beside, checks = None, [_verify_point(runs, effects.logits)] if how != "integrated" else []
    if exact:
        start = time.perf_counter()
        exact_values, check = exact_sweep(runs, grid, resume, on_progress)
        exact_seconds = time.perf_counter() - start
        checks.append(check)
        shares, recovered = followed.normalised(values), followed.normalised(exact_values)
        ran = [place for place in grid.places() if not recovered[place].isnan()]
        beside = BesideExact.of(
            [grid.name(*place) for place in ran],
            [float(shares[place]) for place in ran],
            [abs(float(recovered[place])) if estimating.gives_sizes else float(recovered[place]) for place in ran],
            seconds=seconds,
            exact_seconds=exact_seconds,
            recovered=recovered,
        )
    return EstimatedSweep(
        contrast=followed,
        checks=tuple(checks),
        texts=(runs.clean.encoding, runs.corrupt.encoding),
        differing=compared(runs.clean, runs.corrupt),
        what=over,
        values=values,
        patches=grid.sites,
        first=grid.first,
        positions=grid.positions,
        stack=grid.stack,
        swept=texts_of(runs, grid.stack),
        how=how,
        steps=estimating.steps,
        qk_correction=qk_correction,
        uncorrected=effects.uncorrected,
        added_up=effects.embeddings / lead,
        beside=beside,
        about=About(model),
    )


def _verify_point(runs: Runs, logits: Tensor) -> Verified:
    """Verify that the run with gradients gives the logits of the recorded run."""
    corrupt, read = runs.corrupt, runs.contrast.read
    return verify_logits(
        "the run with gradients gives the corrupt run's logits",
        corrupt.model,
        logits,
        lambda: logits_with(corrupt, [], read),
        recorded=logits_at(corrupt, read),
    )
