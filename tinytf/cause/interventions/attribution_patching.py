"""Attribution patching: the effect of every patch estimated from gradients, instead of a run for each patch.

The estimate of a patch is (clean − corrupt activation) · gradient of the logit difference: one backward pass for all
sites together (Nanda 2023; Syed et al. 2023, arXiv:2310.10348). Shapes: P points on a line, B pairs, T tokens.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tinytf.cause.interventions.grid import Grid
from tinytf.cause.interventions.hooks import Change, HookPoint, changed, logits_with
from tinytf.cause.interventions.patching import PatchSweep, exact_sweep, grid_of, runs_of
from tinytf.cause.interventions.prediction import Contrast
from tinytf.errors import UsageError
from tinytf.estimate import rank_correlation
from tinytf.model.batches import typed
from tinytf.model.transformer import Transformer, evaluating
from tinytf.nearest import did_you_mean
from tinytf.report import About, Data, Progress, Verified, ignore_progress
from tinytf.sentences import percent
from tinytf.steps.table import table_of
from tinytf.text_model import TextModel
from tinytf.tolerance import Coarse, TwoResults, compare
from tinytf.trace.trace import Text, Trace

ESTIMATES = ("gradient", "integrated")
STEPS = 10
"""The points of an integrated gradient, by default."""
TOKENS = 1024
"""Tokens in a batch; the activations of all of them are kept for the backward pass."""


@dataclass(frozen=True)
class BesideExact(Data):
    """Estimates beside exact patching of the same sites, in shares of the lead.

    ``recovered`` is the exact map, NaN where nothing was run. ``rank_correlation`` is Spearman's over the ``sites``
    that were, of shares rounded to a hundred-thousandth, below which rounding decides; None for fewer than three sites.
    ``worst`` is where the two disagree most. The seconds are what each took beyond recording the texts.
    """

    sites: int
    rank_correlation: float | None
    worst: str
    worst_estimated: float
    worst_exact: float
    seconds: float
    exact_seconds: float
    recovered: Tensor


@dataclass(frozen=True)
class EstimatedSweep(PatchSweep):
    """A sweep whose ``differences`` are estimates by ``how``: the corrupt run's plus (clean − corrupt) · gradient.

    ``gradient`` takes the gradient at the corrupt run; ``integrated`` the mean of the gradients at ``steps`` points of
    the straight line between the embeddings of both texts. ``added_up`` is the sum of the estimates for the embeddings
    of all positions as a share of the lead, which is 1 for an exact integral.
    """

    KIND = "patch_estimate"

    how: str
    steps: int
    added_up: float
    beside: BesideExact | None

    def in_a_sentence(self) -> str:
        """The patch of the largest estimate, and how exact patching ranks the sites, if it was asked."""
        layer, column, most = self.strongest(1)[0]
        share = f"bring back about {percent(most)}" if most >= 0 else f"take another {percent(-most)} away"
        moved = f"moves {self.lead} most: it would {share}"
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
    answer: str | int | None = None,
    versus: str | int | None = None,
    positions: Sequence[int] | None = None,
    exact: bool = False,
    resume: Path | None = None,
    on_progress: Progress = ignore_progress,
) -> EstimatedSweep:
    """Estimate every patch of ``patch_sweep`` from gradients, without running it.

    ``gradient`` multiplies (clean − corrupt) by the gradient at the corrupt run; ``integrated`` by the mean gradient at
    ``steps`` midpoints of the line between the embeddings of both texts (Hanna et al. 2024, arXiv:2403.17806). With
    ``exact``, exact patching runs too and is compared. Raises the errors of ``patch_sweep``, and UsageError for
    another ``how``.
    """
    require_estimate(how, steps, model)
    source, target, followed = runs_of(model, clean, corrupt, answer, versus)
    grid = grid_of(source, target, over, positions)
    start = time.perf_counter()
    (estimate,) = estimates_of([Runs(source, target, followed)], grid, how, steps)
    seconds = time.perf_counter() - start
    beside, checks = None, [_verify_point(target, followed, estimate.logits)] if how == "gradient" else []
    if exact:
        start = time.perf_counter()
        differences, check = exact_sweep(source, target, followed, grid, resume, on_progress)
        exact_seconds = time.perf_counter() - start
        checks.append(check)
        shares = followed.normalised(estimate.effects + followed.corrupt)
        beside = beside_exact(grid, shares, followed.normalised(differences), seconds, exact_seconds)
    return EstimatedSweep(
        contrast=followed,
        checks=tuple(checks),
        texts=(source.encoding, target.encoding),
        what=over,
        differences=estimate.effects + followed.corrupt,
        patches=grid.sites,
        first=grid.first,
        positions=grid.positions,
        how=how,
        steps=steps if how == "integrated" else 1,
        added_up=estimate.added_up,
        beside=beside,
        about=About(model),
    )


class Runs(NamedTuple):
    """The clean and the corrupt run of a pair of texts, and the logit difference that is followed."""

    clean: Trace
    corrupt: Trace
    contrast: Contrast


class Estimate(NamedTuple):
    """The estimated effect of each site on the logit difference (layers, columns), float64; NaN for absent sites.

    ``added_up``: see EstimatedSweep; ``logits`` (V,) are those of the first point of the line.
    """

    effects: Tensor
    added_up: float
    logits: Tensor


def require_estimate(how: str, steps: int, model: TextModel) -> None:
    """Raise UsageError for another estimate, for too few steps, and where the line between two texts has no meaning."""
    if how not in ESTIMATES:
        raise UsageError(f"there is no estimate {how!r}", did_you_mean(how, ESTIMATES))
    if steps < 1:
        raise UsageError(f"an integral of {steps} steps is no integral", f"take one or more, such as {STEPS}")
    if how == "integrated" and any(layer is None for _, layer in table_of(model.config).carried.values()):
        raise UsageError(
            "layers of this model take embeddings beside the stream, so there is no line between two texts",
            "estimate by the gradient",
        )


def estimates_of(runs: Sequence[Runs], grid: Grid, how: str, steps: int) -> list[Estimate]:
    """The estimate of each pair, whose texts all have one length; the points of all lines run in batches."""
    model, points = runs[0].corrupt.model, [0.0] if how == "gradient" else [(k + 0.5) / steps for k in range(steps)]
    embedded, length = model.embed.rows[-1].name, len(runs[0].corrupt.tokens)
    sites = [HookPoint(step, layer) for layer, step in enumerate(grid.steps) if step]
    lines = [tuple(trace.step(embedded) for trace in (pair.corrupt, pair.clean)) for pair in runs]
    sums: dict[tuple[int, HookPoint | None], Tensor] = {}
    first_logits: dict[int, Tensor] = {}
    rows = [(number, point) for number in range(len(runs)) for point in points]
    at_once = max(1, TOKENS // length)
    for batch in (rows[first : first + at_once] for first in range(0, len(rows), at_once)):
        inputs = torch.stack([lines[i][0] + point * (lines[i][1] - lines[i][0]) for i, point in batch])
        logits, gradients = _gradients(model, [runs[i] for i, _ in batch], inputs, sites)
        for row, (i, _) in enumerate(batch):
            first_logits.setdefault(i, logits[row])
            for site, gradient in gradients.items():
                added = gradient[row].double() / len(points)
                sums[i, site] = sums[i, site] + added if (i, site) in sums else added
    return [_estimate(pair, grid, sites, i, sums, first_logits[i]) for i, pair in enumerate(runs)]


def _estimate(
    pair: Runs,
    grid: Grid,
    sites: Sequence[HookPoint],
    number: int,
    gradients: Mapping[tuple[int, HookPoint | None], Tensor],
    logits: Tensor,
) -> Estimate:
    """The estimate of a pair from the mean gradients of its sites and (None) of its embeddings."""

    def times_change(site: HookPoint | None, values: Sequence[Tensor]) -> Tensor:
        clean, corrupt = (value.double() for value in values)
        return (clean - corrupt) * gradients[number, site]

    effects, traces = grid.filled(0.0), (pair.clean, pair.corrupt)
    for site in sites:
        summed = grid.summed(times_change(site, [site.value(trace) for trace in traces]))
        effects[site.layer, : len(summed)] = summed
    embedded = times_change(None, [trace.step(trace.model.embed.rows[-1].name) for trace in traces])
    lead = pair.contrast.clean - pair.contrast.corrupt
    return Estimate(effects, float(embedded.sum()) / lead, logits)


def _gradients(
    model: Transformer, runs: Sequence[Runs], inputs: Tensor, sites: Sequence[HookPoint]
) -> tuple[Tensor, dict[HookPoint | None, Tensor]]:
    """Logits (B, V) at the followed positions, and the gradients of each row's logit difference at the sites.

    ``inputs`` (B, T, C) stand for the embeddings, whose gradient goes by None.
    """
    values: dict[HookPoint | None, Tensor] = {}

    def keep(site: HookPoint) -> Change:
        def kept(tensor: Tensor) -> Tensor:
            values[site] = tensor
            return tensor

        return kept

    device = inputs.device
    ids = torch.tensor([pair.corrupt.encoding.ids for pair in runs], device=device)
    types = typed([pair.corrupt.encoding.types for pair in runs], device)
    rows = torch.arange(len(runs), device=device)
    positions, answers, others = (
        torch.tensor([getattr(pair.contrast, name) for pair in runs], device=device)
        for name in ("position", "answer", "versus")
    )
    with torch.inference_mode(False), torch.enable_grad(), evaluating(model), _constant_weights(model):
        values[None] = inputs.clone().requires_grad_()
        embedding = model.embed.register_forward_hook(lambda module, args, result: values[None])
        try:
            with changed(model, [(site, keep(site)) for site in sites]):
                hidden = model.hidden(ids, token_types=types)  # (B, T, C)
        finally:
            embedding.remove()
        logits = model.unembed(hidden[rows, positions])  # (B, V)
        lead = (logits[rows, answers].double() - logits[rows, others].double()).sum()
        gradients = torch.autograd.grad(lead, list(values.values()), allow_unused=True, materialize_grads=True)
    return logits.detach(), dict(zip(values, gradients, strict=True))


@contextmanager
def _constant_weights(model: Transformer) -> Iterator[None]:
    """Take no gradients of parameters inside the ``with`` block: they would take a third of the time."""
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in learned:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in learned:
            parameter.requires_grad_(True)


def _verify_point(corrupt: Trace, followed: Contrast, logits: Tensor) -> Verified:
    """Verify that the run with gradients gives the logits of the recorded run."""
    claim, plain = "the run with gradients gives the corrupt run's logits", corrupt.logits_at(followed.position)

    def again() -> TwoResults:
        return TwoResults("logits", claim, logits_with(corrupt, [], followed.position), plain)

    ways = TwoResults("logits", claim, logits, plain)
    comparison = compare(ways, plain.dtype, Coarse(corrupt.model.parameters()), again)
    return Verified(claim, comparison.difference, comparison.allowed)


def beside_exact(grid: Grid, estimated: Tensor, exact: Tensor, seconds: float, exact_seconds: float) -> BesideExact:
    """Compare estimated with exact shares (layers, columns), at the sites that were run."""
    places = [place for place in grid.places() if not exact[place].isnan()]
    pairs = [(float(estimated[place]), float(exact[place])) for place in places]
    worst = max(range(len(places)), key=lambda number: abs(pairs[number][0] - pairs[number][1]))
    rounded = ([round(share, 5) for share in shares] for shares in zip(*pairs, strict=True))
    return BesideExact(
        sites=len(places),
        rank_correlation=rank_correlation(*rounded),
        worst=grid.name(*places[worst]),
        worst_estimated=pairs[worst][0],
        worst_exact=pairs[worst][1],
        seconds=seconds,
        exact_seconds=exact_seconds,
        recovered=exact,
    )
