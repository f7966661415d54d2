"""Questions that change the runs of pairs: every head, feed-forward or layer ablated, or patched from the clean run."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from tinytf.cause.interventions.controls import (
    CONTROLS,
    changes_in,
    has_directions,
    logits_of_sets,
    random_directions,
    random_sets,
    require_controls,
)
from tinytf.cause.interventions.grid import COLUMNS, PROJECTED, Grid
from tinytf.cause.interventions.hooks import HookPoint, Intervention, hook_points, logits_with
from tinytf.cause.interventions.patch import Runs
from tinytf.cause.interventions.prediction import Contrast, first_different
from tinytf.cause.interventions.site_effects import STEPS, Estimating, site_effects
from tinytf.cause.interventions.sweep import Interventions, logits_of_rows
from tinytf.cause.interventions.values import ABLATIONS, HookValues, Reference, values_for
from tinytf.cause.over_pairs.report import OverPairs, Quantity, Row
from tinytf.cause.over_pairs.running import Measured, PairRun, Question, ask
from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.metric import Answer, Asked, Measure, MetricFunction
from tinytf.nearest import did_you_mean
from tinytf.pairs.pair import EncodedPair, Pairs, pair_set
from tinytf.report import Progress, ignore_progress
from tinytf.steps.table import table_of
from tinytf.text_model import TextModel
from tinytf.trace.trace import Trace

Groups = Mapping[str, tuple[HookPoint, ...]]
"""Hook points that are changed together, by name."""
ABLATED = ("heads", "ffn", "layers")
PATCHED = ("residual", "heads", "queries", "keys", "values", "attn", "ffn")
_NAMED = 6
"""The most steps that a row names."""
_AHEAD = Quantity("ahead", "share of the pairs in which the answer is then ahead of versus")


def _groups(config: ModelConfig, over: str | None, at: str | Sequence[str], known: Sequence[str]) -> Groups:
    """Each step of a sweep by itself, or all steps of ``at`` together. Raises UsageError for both, or neither."""
    table, layers = table_of(config), range(config.n_layers)
    if bool(at) == (over is not None):
        raise UsageError("choose steps, or a sweep over all of a kind", 'at="L0H1", or sweep="heads"')
    if over is None:
        points = hook_points(at, table)
        return {" + ".join(map(str, points)) if len(points) <= _NAMED else f"{len(points)} steps": points}
    if over not in known:
        raise UsageError(f"there is no sweep over {over!r} with pairs", did_you_mean(over, known))
    if over == "layers":
        return {f"L{layer}": hook_points(f"L{layer}", table) for layer in layers}
    return _sites(Grid.of(over, table, None))


def _sites(grid: Grid) -> Groups:
    """Every site of a grid by itself."""
    return {grid.name(*place): (grid.point(*place),) for place in grid.places()}


def _named(groups: Groups, over: str | None) -> str:
    """What is changed, in words."""
    each = {"heads": "each head", "ffn": "each feed-forward", "attn": "each attention", "layers": "each layer",
            "residual": "the stream into each layer", "neurons": "each unit of the feed-forwards",
            **{over: f"the {over} of each head" for over in PROJECTED}}  # fmt: skip
    return next(iter(groups)) if over is None else each[over]


class _Random(NamedTuple):
    """What random controls are; ``seed`` draws the directions of those that change the same steps, None for others."""

    words: str = ""
    seed: int | None = None


def _with_controls(model: TextModel, groups: Groups, over: str | None, count: int, seed: int) -> tuple[Groups, _Random]:
    """The only group and random ones of its kind, and what these are; the groups of a sweep stay as they are."""
    require_controls(count)
    if over is not None or not count:
        return groups, _Random()
    (points,) = groups.values()
    what, sets = random_sets(points, table_of(model.config), count, seed)
    if not sets and has_directions(points, table_of(model.config)):
        again = {f"direction {number}, seed {seed}": points for number in range(count)}
        return {**groups, **again}, _Random(changes_in(count), seed)
    return {**groups, **{" + ".join(map(str, one)): one for one in sets}}, _Random(what if sets else "")


class _Changed(Question):
    """A question about runs with interventions: ``groups`` are the hook points of each row, and of random controls."""

    runs_again = True
    groups: Groups
    measured: Measure
    seed: int | None = None
    """What draws the directions of controls that change the same steps."""

    @abstractmethod
    def interventions(self, run: PairRun) -> Sequence[Interventions]:
        """The interventions of each row; empty for a row that changes nothing."""

    @abstractmethod
    def changed_run(self, run: PairRun) -> tuple[Trace, float]:
        """The run that is changed, and the metric in it."""

    def rows(self, run: PairRun) -> tuple[Row, ...]:
        return tuple(
            Row(name, points[0].layer, next(iter(points[0].columns), points[0].head)) if self.sweep else Row(name)
            for name, points in self.groups.items()
        )

    def measure(self, run: PairRun) -> Measured:
        trace, plain = self.changed_run(run)
        of_rows = self.interventions(run)
        leads = torch.full((len(of_rows),), plain, dtype=torch.float64)
        if not self.sweep:  # all steps of one row may be in several layers
            first, *others = of_rows
            if self.seed is not None:
                others = random_directions(trace, first, len(others), self.seed + run.pair.pair.number)
            of_others = logits_of_sets(trace, others, run.metric.positions)
            rows = [logits_with(trace, first, run.metric.positions), *of_others]
            leads = torch.cat([run.lead(logits[None]) for logits in rows])
        else:
            chosen = torch.tensor([row for row, interventions in enumerate(of_rows) if interventions])
            changing = [of_rows[row] for row in chosen.tolist()]
            for numbers, logits in logits_of_rows(
                trace, changing, range(len(changing)), run.metric.positions, ignore_progress
            ):
                leads[chosen[numbers]] = run.lead(logits)
        ahead = [(leads > 0).double()] if self.measured.is_lead else []
        return Measured(torch.stack((leads - plain, *ahead)))

    def alone(self, run: PairRun, row: int) -> float:
        trace, plain = self.changed_run(run)
        return float(run.lead(logits_with(trace, self.interventions(run)[row], run.metric.positions)[None])) - plain


def _from(run: PairRun) -> tuple[int, ...] | None:
    """The positions from the first token that differs on, before which both runs are equal; None for all of them."""
    clean, corrupt = run.clean.encoding.ids, run.corrupt.encoding.ids
    return None if run.clean.config.looks_ahead else tuple(range(first_different(clean, corrupt), len(clean)))


class _Ablate(_Changed):
    asked = "ablate"

    def __init__(
        self,
        measured: Measure,
        groups: Groups,
        over: str | None,
        how: str,
        values: HookValues | None,
        random: _Random,
    ) -> None:
        self.measured, self.groups, self.sweep, self.values = measured, groups, over, values
        self.random_sets, self.seed = random
        self.even = values is None
        source = "" if values is None else values.source
        replacement = {"zero": "set to zero", "mean": f"set to the {source}"}.get(how, "given its corrupt values")
        self.words = f"the clean text, with {_named(groups, over)} {replacement}"
        self.key = ([list(groups), how], *(values.of.values() if values is not None else ()))

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        of, unit = self.measured, f", in{self.measured.in_unit}," if self.measured.in_unit else ""
        change = Quantity("change", f"change of {of.words}{unit} after the clean text", signed=True)
        return (change, _AHEAD) if of.is_lead else (change,)

    def changed_run(self, run: PairRun) -> tuple[Trace, float]:
        return run.clean, run.clean_lead

    def interventions(self, run: PairRun) -> Sequence[Interventions]:
        if self.values is not None:
            return [tuple(Intervention(p, self.values.of[p]) for p in points) for points in self.groups.values()]
        positions = _from(run)
        return [
            tuple(Intervention(point, point.value(run.corrupt), positions) for point in points)
            for points in self.groups.values()
        ]


def ablate_over(
    model: TextModel,
    pairs: Pairs,
    at: str | Sequence[str] = (),
    *,
    sweep: str | None = None,
    metric: str | MetricFunction | None = None,
    answer: Answer = None,
    how: str = "zero",
    reference: Reference | str | Path | None = None,
    controls: int = CONTROLS,
    seed: int = 0,
    where: Sequence[str] = (),
    resume: Path | None = None,
    on_progress: Progress = ignore_progress,
) -> OverPairs:
    """``ablate`` in the clean text of each pair: the change of a metric, by default of the answer's lead in logits.

    The steps of ``at`` are ablated together, or with ``sweep`` every head (``heads``), feed-forward (``ffn``) or layer
    (``layers``) alone. ``how`` is ``zero``, ``mean`` (over ``reference``, by default the model's own corpus), or
    ``resample``, the values of the pair's corrupt run. An interrupt ends it with the pairs so far; the file ``resume``
    keeps them. ``metric`` is as in ``patch``, with each pair's own answer, or one ``answer`` for all pairs, such as a
    set of words. ``controls`` random sets of as many heads, experts or units as ``at`` names, of the same layers, are
    ablated beside, drawn by ``seed``, or whole steps changed by as much in random directions. ``pairs`` and ``where``
    are as in ``attribute_over``.

    Raises UsageError like PairSet and ``ablate``, for neither or both of ``at`` and ``sweep``, and with ``resample``
    for texts with different numbers of tokens; AddressError for a step that cannot be ablated.
    """
    if how not in ABLATIONS:
        raise UsageError(f"there is no way to ablate {how!r}", did_you_mean(how, ABLATIONS))
    if how != "mean" and reference is not None:
        raise UsageError("over pairs, only a mean takes other texts", "resample takes each pair's corrupt run")
    chosen = pair_set(pairs, where)
    groups, random = _with_controls(model, _groups(model.config, sweep, at, ABLATED), sweep, controls, seed)
    wanted = Asked.of(model, metric, answer)
    encoded = chosen.encoded(model, even=how == "resample" or wanted.reads_text, metric=metric, answer=answer)
    points = [point for group in groups.values() for point in group]
    values = None if how == "resample" else values_for(model, points, how, reference)
    question = _Ablate(wanted.measure(), groups, sweep, how, values, random)
    return ask(model, question, chosen, encoded, where, on_progress, resume)


def _share(measured: Measure, name: str, meaning: str, each: str = "moved") -> Quantity:
    of = "the lead" if measured.is_lead else measured.effect
    return Quantity(name, f"share of {of} that {meaning}", signed=True, ratio=True, each=each)


class _Patch(_Changed):
    asked = "patch"
    even = True

    def __init__(
        self, measured: Measure, groups: Groups, over: str | None, encoded: Sequence[EncodedPair], random: _Random
    ) -> None:
        self.measured, (self.random_sets, self.seed) = measured, random
        lengths = {len(pair.clean.ids) for pair in encoded}
        self.groups, self.sweep = groups, over
        self.by_position = over is not None and over not in COLUMNS
        self.aligned = list(range(*lengths)) if self.by_position and len(lengths) == 1 else []
        if self.aligned:
            tokens = zip(*([token.shown for token in pair.corrupt.tokens] for pair in encoded), strict=True)
            self.columns = tuple(
                f"{position} {shown[0] if len(set(shown)) == 1 else '…'}" for position, shown in enumerate(tokens)
            )
        where = "at all positions"
        if self.by_position:
            where = "at each position" if self.aligned else "at the predicting token, as the texts differ in length"
        self.words = f"the corrupt text, run with the clean values of {_named(groups, over)}, {where}"
        self.key = ([list(groups), self.by_position, self.aligned],)

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        meaning = "the clean run brings back: 1 is the clean run, 0 the corrupt one"
        return (_share(self.measured, "recovered", meaning), *([_AHEAD] if self.measured.is_lead else []))

    def rows(self, run: PairRun) -> tuple[Row, ...]:
        if not self.aligned:
            return super().rows(run)
        return tuple(
            Row(f"{name} at {position}", points[0].layer, position)
            for name, points in self.groups.items()
            for position in self.aligned
        )

    def changed_run(self, run: PairRun) -> tuple[Trace, float]:
        return run.corrupt, run.corrupt_lead

    def interventions(self, run: PairRun) -> Sequence[Interventions]:
        positions = _from(run)
        if not self.by_position:
            return [
                tuple(Intervention(point, point.value(run.clean), positions) for point in points)
                for points in self.groups.values()
            ]
        rows: list[Interventions] = []
        for (point,) in self.groups.values():
            value = point.value(run.clean)
            for position in self.aligned or [run.position]:
                differs = positions is None or position in positions
                rows.append((Intervention(point, value, (position,)),) if differs else ())
        return rows


def patch_over(
    model: TextModel,
    pairs: Pairs,
    at: str | Sequence[str] = (),
    *,
    sweep: str | None = None,
    metric: str | MetricFunction | None = None,
    answer: Answer = None,
    controls: int = CONTROLS,
    seed: int = 0,
    where: Sequence[str] = (),
    resume: Path | None = None,
    on_progress: Progress = ignore_progress,
) -> OverPairs:
    """``patch`` the corrupt text of each pair with clean activations: the share of the answer's lead that comes back.

    The steps of ``at`` are patched together at all positions, or with ``sweep`` each head (``heads``), its ``queries``,
    ``keys`` or ``values``, or the stream (``residual``), attention (``attn``) or feed-forward (``ffn``) of each layer
    alone: at each position if all texts have the same number of tokens, otherwise at the predicting token. The share is
    Σ (patched − corrupt) / Σ (clean − corrupt) over all pairs, of leads in logits or of another ``metric``; it,
    ``controls`` and ``seed`` are as in ``ablate_over``. An interrupt ends it with the pairs so far; the file ``resume``
    keeps them. ``pairs`` and ``where`` are as in ``attribute_over``.

    Raises UsageError like PairSet, for texts of a pair with different numbers of tokens, for neither or both of ``at``
    and ``sweep``; AddressError for a step that cannot be patched.
    """
    chosen = pair_set(pairs, where)
    groups, random = _with_controls(model, _groups(model.config, sweep, at, PATCHED), sweep, controls, seed)
    encoded = chosen.encoded(model, metric=metric, answer=answer)
    measured = Asked.of(model, metric, answer).measure()
    return ask(model, _Patch(measured, groups, sweep, encoded, random), chosen, encoded, where, on_progress, resume)


class _Estimate(_Patch):
    asked = "patch_estimate"

    def __init__(self, measured: Measure, grid: Grid, estimating: Estimating, exact: bool) -> None:
        self.measured, self.grid, self.estimating, self.exact = measured, grid, estimating, exact
        self.groups, self.sweep, self.by_position, self.aligned = _sites(grid), grid.over, False, []
        self.words = f"{_named(self.groups, grid.over)} at all positions: {estimating.words}"
        self.key = ([grid.over, *estimating, exact],)

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        meaning, exact = (
            "the clean run would bring back, by gradients: 1 is the clean run",
            "exact patching brings back",
        )
        if self.estimating.gives_sizes:
            meaning, exact = "the clean run would move, up or down, by gradients", "exact patching moves, up or down"
        estimated = _share(self.measured, "estimated", meaning, "estimate")
        both = (estimated, _share(self.measured, "exact", exact))[: 1 + self.exact]
        return tuple(replace(quantity, signed=not self.estimating.gives_sizes) for quantity in both)

    def measure(self, run: PairRun) -> Measured:
        contrast = Contrast(run.metric, run.position, run.clean_lead, run.corrupt_lead)
        effects = site_effects(Runs(run.clean, run.corrupt, contrast), self.grid, self.estimating).sites
        values = torch.stack([effects[place] for place in self.grid.places()])[None]
        if self.exact:
            exact = super().measure(run).values[:1]
            values = torch.cat((values, exact.abs() if self.estimating.gives_sizes else exact))
        return Measured(values)

    def alone(self, run: PairRun, row: int) -> float:
        return float(self.measure(run).values[0, row])


def patch_estimate_pairs(
    model: TextModel,
    pairs: Pairs,
    over: str = "heads",
    *,
    how: str = "gradient",
    steps: int = STEPS,
    qk_correction: bool = False,
    exact: bool = False,
    metric: str | MetricFunction | None = None,
    answer: Answer = None,
    where: Sequence[str] = (),
    resume: Path | None = None,
    on_progress: Progress = ignore_progress,
) -> OverPairs:
    """``patch_estimate`` of each pair, for every sweep of it but ``residual``, each site at all positions.

    Over all pairs the share, of the ``metric``, is that of ``patch_over``; with ``exact``, exact patching of the same
    sites stands beside it. An interrupt ends it with the pairs so far; the file ``resume`` keeps them. ``pairs`` and
    ``where`` are as in ``attribute_over``. Raises the errors of ``patch_estimate`` and ``patch_over``.
    """
    estimating = Estimating(how, steps, qk_correction)
    estimating.require(model, over)
    if over == "residual":
        raise UsageError(
            "the whole stream of a layer patched is the clean run, and positions differ between pairs",
            "sweep heads, attn, ffn or neurons",
        )
    wanted = Asked.of(model, metric, answer)
    wanted.require_gradient()
    question = _Estimate(wanted.measure(), Grid.of(over, table_of(model.config), None), estimating, exact)
    chosen = pair_set(pairs, where)
    encoded = chosen.encoded(model, metric=metric, answer=answer)
    return ask(model, question, chosen, encoded, where, on_progress, resume)
