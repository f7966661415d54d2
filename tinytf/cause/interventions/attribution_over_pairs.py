"""Attribution patching over pairs of prompts: the mean estimate of each head, unit, attention or feed-forward."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.cause.interventions.attribution_patching import (
    STEPS,
    TOKENS,
    BesideExact,
    Runs,
    beside_exact,
    estimates_of,
    require_estimate,
)
from tinytf.cause.interventions.grid import Grid
from tinytf.cause.interventions.patching import exact_sweep
from tinytf.cause.interventions.prediction import contrast
from tinytf.errors import UsageError, at_line
from tinytf.estimate import Estimate, estimates
from tinytf.pairs.pair import EncodedPair, Pairs, pair_set
from tinytf.report import About, Data, Progress, Report, ignore_progress
from tinytf.sentences import percent
from tinytf.steps.table import table_of
from tinytf.tables import Array
from tinytf.text_model import TextModel
from tinytf.trace.record import record_all

_LISTED = 100
"""Sites that are listed with an interval; the map has all."""


@dataclass(frozen=True)
class EstimatedSite(Data):
    """A site, with its mean effect as a share of the mean lead, and that share's 95 % bootstrap interval."""

    LESS: ClassVar = ("layer", "column")

    name: str
    layer: int
    column: int
    recovered: Estimate


@dataclass(frozen=True)
class EstimatedPairs(Report):
    """Estimated effects of patching over ``pairs`` pairs of ``of`` in a set, each site patched at all positions.

    ``recovered`` is a map (layers, heads or units; one column for attention and feed-forwards) of mean effects, each
    as a share of the mean lead, ``clean`` − ``corrupt``, which are means of logit differences. ``strongest`` are the
    sites of the largest shares. ``how`` and ``steps``: see EstimatedSweep. Ctrl-C leaves fewer pairs.
    """

    KIND = "patch_estimate_pairs"
    EVENTS: ClassVar = {"strongest": "site"}

    name: str
    what: str
    how: str
    steps: int
    pairs: int
    of: int
    clean: float
    corrupt: float
    recovered: Tensor
    strongest: tuple[EstimatedSite, ...]
    beside: BesideExact | None

    @property
    def interrupted(self) -> bool:
        return self.pairs < self.of

    def in_a_sentence(self) -> str:
        """The site of the largest mean effect, with its interval, if the clean texts lead by more than the corrupt."""
        pairs = f"{self.pairs:,} pair{'s' if self.pairs > 1 else ''}"
        if not self.clean > self.corrupt:
            return f"Over {pairs}, the answers lead no more after the clean texts than after the corrupt ones."
        site = self.strongest[0]
        share, interval = site.recovered, ""
        if share.low is not None and share.high is not None:
            interval = f" (95 % interval {100 * share.low:.0f} to {100 * share.high:.0f} %)"
        verb = "bring back about" if share.value >= 0 else "take away another"
        words = f"Over {pairs} of {self.name}, {site.name} matters most by gradients: its clean output would"
        return f"{words} {verb} {percent(abs(share.value))} of the mean lead{interval}."

    def stored(self) -> list[Array]:
        """The map of mean shares, (layers, columns)."""
        axis = {"heads": "head", "neurons": "unit"}.get(self.what, "all")
        return [Array.of("recovered", ["layer", axis], self.recovered)]

    def fields(self) -> dict[str, Any]:
        names = ("name", "what", "how", "steps", "pairs", "of", "interrupted", "clean", "corrupt", "strongest")
        return {**self.members(*names), "recovered": self.recovered.tolist(), **self.members("beside")}


def patch_estimate_pairs(
    model: TextModel,
    pairs: Pairs,
    over: str = "heads",
    *,
    how: str = "gradient",
    steps: int = STEPS,
    exact: bool = False,
    seed: int = 0,
    on_progress: Progress = ignore_progress,
) -> EstimatedPairs:
    """The mean of ``patch_estimate`` over pairs, or a table of them, for ``heads``, ``neurons``, ``attn`` or ``ffn``.

    Each site is patched at all positions, since texts differ in length. The pairs run in batches of one length; Ctrl-C
    ends with those so far. ``seed`` draws the bootstrap. Raises the errors of ``patch_estimate`` and ``PairSet``.
    """
    require_estimate(how, steps, model)
    chosen = pair_set(pairs)
    if over == "residual":
        raise UsageError(
            "the whole stream of a layer patched is the clean run, and positions differ between pairs",
            "sweep heads, attn, ffn or neurons",
        )
    grid = Grid.of(over, table_of(model.config), None)
    encoded = chosen.encoded(model)
    effects: dict[int, Tensor] = {}
    exact_effects: dict[int, Tensor] = {}
    leads: dict[int, tuple[float, float]] = {}
    seconds = exact_seconds = 0.0
    try:
        for numbers, runs in _batches(model, chosen.name, encoded):
            start = time.perf_counter()
            found = [estimate.effects for estimate in estimates_of(runs, grid, how, steps)]
            seconds += time.perf_counter() - start
            start = time.perf_counter()
            measured = [exact_sweep(*pair, grid, None, ignore_progress)[0] for pair in runs] if exact else []
            exact_seconds += time.perf_counter() - start
            if any(bool((row.isnan() & ~grid.filled(0.0).isnan()).any()) for row in measured):
                raise KeyboardInterrupt  # which ended the last sweep
            ends = [pair.contrast.corrupt for pair in runs]
            exact_effects |= {n: row - end for n, row, end in zip(numbers, measured, ends, strict=exact)}
            leads |= {n: (pair.contrast.clean, pair.contrast.corrupt) for n, pair in zip(numbers, runs, strict=True)}
            effects |= dict(zip(numbers, found, strict=True))
            on_progress(len(effects), len(encoded))
    except KeyboardInterrupt:
        if not effects:
            raise
    order = sorted(effects)
    clean, corrupt = (sum(leads[number][side] for number in order) / len(order) for side in (0, 1))
    shares = torch.stack([effects[number] for number in order]) / (clean - corrupt)  # (N, layers, columns)
    mean = shares.mean(0)
    beside = None
    if exact:
        exact_mean = torch.stack([exact_effects[number] for number in order]).mean(0) / (clean - corrupt)
        beside = beside_exact(grid, mean, exact_mean, seconds, exact_seconds)
    return EstimatedPairs(
        name=chosen.name,
        what=over,
        how=how,
        steps=steps if how == "integrated" else 1,
        pairs=len(order),
        of=len(encoded),
        clean=clean,
        corrupt=corrupt,
        recovered=mean,
        strongest=_strongest(grid, shares, seed),
        beside=beside,
        about=About(model),
    )


def _batches(model: TextModel, name: str, encoded: Sequence[EncodedPair]) -> Iterator[tuple[list[int], list[Runs]]]:
    """Yield numbers of pairs whose texts have one length, with their runs, as many as fit a batch."""
    order = sorted(range(len(encoded)), key=lambda number: len(encoded[number].clean.ids))
    while order:
        length = len(encoded[order[0]].clean.ids)
        batch = [n for n in order[: max(1, TOKENS // (2 * length))] if len(encoded[n].clean.ids) == length]
        order = order[len(batch) :]
        texts = [text for n in batch for text in (encoded[n].clean, encoded[n].corrupt)]
        traces = record_all(model.transformer, texts, model.tokenizer.mask_id)
        runs = []
        for n, clean, corrupt in zip(batch, traces[::2], traces[1::2], strict=True):
            with at_line(encoded[n].pair.number, name):
                followed = contrast(clean, corrupt, encoded[n].answer, encoded[n].versus)
            runs.append(Runs(clean, corrupt, followed))
        yield batch, runs


def _strongest(grid: Grid, shares: Tensor, seed: int) -> tuple[EstimatedSite, ...]:
    """The sites of the largest mean shares, with intervals; shares (N, layers, columns)."""
    mean = shares.mean(0)
    places = sorted(grid.places(), key=lambda place: -abs(float(mean[place])))[:_LISTED]
    columns = torch.stack([shares[:, layer, column] for layer, column in places], dim=1)  # (N, sites)
    found = estimates(columns, torch.ones(len(shares), dtype=torch.float64), seed)
    return tuple(
        EstimatedSite(grid.name(*place), *place, estimate) for place, estimate in zip(places, found, strict=True)
    )
