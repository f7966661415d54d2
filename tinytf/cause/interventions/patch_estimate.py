"""Attribution patching: the effect of every patch estimated from gradients, instead of a run for each patch.

The estimate of a patch is (clean − corrupt activation) · gradient of the metric: one backward pass for all
sites together (Nanda 2023; Syed et al. 2023, arXiv:2310.10348). Shapes: P points on a line, B pairs, T tokens.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from tinytf.cause.interventions.grid import Grid
from tinytf.cause.interventions.hooks import Change, HookPoint, changed, logits_with
from tinytf.cause.interventions.patch import (
    NOTHING,
    PatchSweep,
    Runs,
    brings_back,
    exact_sweep,
    grid_of,
    is_nothing,
    runs_of,
)
from tinytf.cause.interventions.prediction import compared, logits_at
from tinytf.cause.interventions.sweep import verify_logits
from tinytf.errors import UsageError
from tinytf.estimate import rank_correlation
from tinytf.metric import Answer, Asked, MetricFunction
from tinytf.model.batches import typed
from tinytf.model.transformer import Transformer, evaluating
from tinytf.model.turn import using
from tinytf.nearest import did_you_mean
from tinytf.report import About, Data, Progress, Verified, ignore_progress
from tinytf.steps.table import table_of
from tinytf.text_model import TextModel
from tinytf.trace.trace import Text

ESTIMATES = ("gradient", "integrated")
STEPS = 10
"""The points of an integrated gradient, by default."""
TOKENS = 1024
"""Tokens in a batch; the activations of all of them are kept for the backward pass."""


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
    the straight line between the embeddings of both texts. ``added_up`` is the sum of the estimates for the embeddings
    of all positions as a share of the lead, which is 1 for an exact integral.
    """

    KIND = "patch_estimate"

    how: str
    steps: int
    added_up: float
    beside: BesideExact | None

    @property
    def exact_sites(self) -> int:
        """How many sites exact patching runs: those before ``first`` are the same in both texts."""
        return self.patches - int((~self.values[:, : self.first].isnan()).sum())

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the exact sweep."""
        return self.beside is not None and self.beside.sites < self.exact_sites

    def claim(self) -> str:
        """The patch of the largest estimate, and how exact patching ranks the sites, if it ran."""
        layer, column, most = self.strongest(1)[0]
        if is_nothing(most):
            return f"Estimated by gradients, no patch {NOTHING} {self.lead}."
        metric = self.contrast.metric
        moved = f"moves {metric.words} most: it would {brings_back(most, '')}{metric.of_it}"
        words = f"Estimated by gradients, {self.clean_site(layer, column)} {moved}"
        if self.beside is None or self.beside.rank_correlation is None:
            return f"{words}."
        ranked = f"its ranking of {self.beside.sites:,} sites correlates with that of exact patching at"
        return f"{words}; {ranked} {self.beside.rank_correlation:.2f}."

    def fields(self) -> dict[str, Any]:
        return {**self.members("how", "steps"), **super().fields(), **self.members("added_up", "beside")}


def patch_estimate(
    model: TextModel,
    clean: Text,
    corrupt: Text,
    over: str = "heads",
    *,
    how: str = "gradient",
    steps: int = STEPS,
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
    ``steps`` midpoints of the line between the embeddings of both texts (Hanna et al. 2024, arXiv:2403.17806). With
    ``exact``, exact patching runs too and is compared. Raises the errors of ``patch_sweep``, and UsageError for
    another ``how`` and for a metric without a gradient.
    """
    require_estimate(how, steps, model)
    asked = Asked.of(model, metric, answer, versus)
    asked.require_gradient()
    runs = runs_of(model, clean, corrupt, asked)
    followed, grid = runs.contrast, grid_of(runs, over, positions)
    start = time.perf_counter()
    effects = estimate_of(runs, grid, how, steps)
    seconds = time.perf_counter() - start
    values = effects.sites + followed.corrupt
    beside, checks = None, [_verify_point(runs, effects.logits)] if how == "gradient" else []
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
            [float(recovered[place]) for place in ran],
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
        how=how,
        steps=steps if how == "integrated" else 1,
        added_up=effects.embeddings / (followed.clean - followed.corrupt),
        beside=beside,
        about=About(model),
    )


class SiteEffects(NamedTuple):
    """Estimated effects on the metric of ``sites`` (layers, columns), float64; NaN for absent ones.

    ``embeddings`` is that of all embeddings together; ``logits`` (P, V) are those of the line's first point.
    """

    sites: Tensor
    embeddings: float
    logits: Tensor


def require_estimate(how: str, steps: int, model: TextModel) -> None:
    """Raise UsageError for another estimate, for too few steps, and where the line between two texts has no meaning."""
    if how not in ESTIMATES:
        raise UsageError(f"there is no estimate {how!r}", did_you_mean(how, ESTIMATES))
    if steps < 1:
        raise UsageError(f"an integral takes at least one point, and not {steps}", f"such as {STEPS}")
    if how == "integrated" and table_of(model.config).reads_text:
        raise UsageError(
            "layers of this model take embeddings beside the stream, so there is no line between two texts",
            "estimate by the gradient",
        )


def estimate_of(runs: Runs, grid: Grid, how: str, steps: int) -> SiteEffects:
    """The estimated effects in a pair of texts; the points of its line run in batches."""
    model, points = runs.corrupt.model, [0.0] if how == "gradient" else [(k + 0.5) / steps for k in range(steps)]
    embedded = model.embed.rows[-1].name
    corrupt, clean = (trace.step(embedded) for trace in (runs.corrupt, runs.clean))
    sites = [HookPoint(step, layer) for layer, step in enumerate(grid.steps) if step]
    sums: dict[HookPoint | None, Tensor] = {}
    first_logits: Tensor | None = None
    at_once = max(1, TOKENS // len(corrupt))
    for batch in (points[first : first + at_once] for first in range(0, len(points), at_once)):
        inputs = torch.stack([corrupt + point * (clean - corrupt) for point in batch])
        logits, gradients = _gradients(runs, inputs, sites)
        first_logits = logits[0] if first_logits is None else first_logits
        for site, gradient in gradients.items():
            sums[site] = sums.get(site, 0.0) + gradient.double().sum(0)
    assert first_logits is not None

    def times_change(site: HookPoint | None, clean: Tensor, corrupt: Tensor) -> Tensor:
        return (clean.double() - corrupt.double()) * sums[site] / len(points)

    effects = grid.filled(0.0)
    for site in sites:
        summed = grid.summed(times_change(site, site.value(runs.clean), site.value(runs.corrupt)))
        effects[site.layer, : len(summed)] = summed
    return SiteEffects(effects, float(times_change(None, clean, corrupt).sum()), first_logits)


def _gradients(runs: Runs, inputs: Tensor, sites: Sequence[HookPoint]) -> tuple[Tensor, dict[HookPoint | None, Tensor]]:
    """Logits (B, P, V) at the positions read, and the gradients of each row's metric at the sites.

    ``inputs`` (B, T, C) stand for the embeddings, whose gradient goes by None.
    """
    values: dict[HookPoint | None, Tensor] = {}

    def keep(site: HookPoint) -> Change:
        def kept(tensor: Tensor) -> Tensor:
            values[site] = tensor
            return tensor

        return kept

    model, text, followed = runs.corrupt.model, runs.corrupt.encoding, runs.contrast
    ids = torch.tensor([text.ids], device=inputs.device).expand(len(inputs), -1)
    types = typed([text.types] * len(inputs), inputs.device)
    with torch.inference_mode(False), torch.enable_grad(), evaluating(model), _constant_weights(model):
        values[None] = inputs.clone().requires_grad_()
        embedding = model.embed.register_forward_hook(lambda module, args, result: values[None])
        try:
            with changed(model, [(site, keep(site)) for site in sites]):
                hidden = model.hidden(ids, token_types=types)  # (B, T, C)
        finally:
            embedding.remove()
        logits = model.unembed(hidden[:, list(followed.read)])  # (B, P, V)
        value = followed.metric.of(logits).sum()
        gradients = torch.autograd.grad(value, list(values.values()), allow_unused=True, materialize_grads=True)
    return logits.detach(), dict(zip(values, gradients, strict=True))


@contextmanager
def _constant_weights(model: Transformer) -> Iterator[None]:
    """Take no gradients of parameters inside the ``with`` block: they would take a third of the time."""
    with using(model):
        learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
        try:
            for parameter in learned:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter in learned:
                parameter.requires_grad_(True)


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
