"""Activation patching: run the corrupt text with activations of the clean one (Meng et al. 2022).

How much of the clean run's metric comes back, such as its logit difference, shows what those activations carry (Wang et
al. 2022).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from tinytf.cause.interventions.controls import (
    CONTROLS,
    Control,
    logits_of_sets,
    or_directions,
    random_sets,
    require_controls,
)
from tinytf.cause.interventions.grid import COLUMNS, Grid
from tinytf.cause.interventions.hooks import HookPoint, Intervention, logits_with, point_names, points_of
from tinytf.cause.interventions.prediction import (
    Choice,
    Contrast,
    choices,
    compared,
    contrast,
    first_different,
    log_probabilities,
    metric_data,
    require_even,
    same,
)
from tinytf.cause.interventions.sweep import Interventions, sweep
from tinytf.config import ENC
from tinytf.errors import UsageError
from tinytf.metric import Answer, Asked, MetricFunction
from tinytf.report import About, Progress, Report, Verified, ignore_progress, text_data
from tinytf.sentences import from_where_on, listed, percent
from tinytf.steps.table import table_of
from tinytf.tables import Array
from tinytf.text.tokenizer import Encoding
from tinytf.text_model import TextModel
from tinytf.trace.trace import Text, Trace

NOTHING = "brings back or takes away as much as 0.1 % of"
"""What no patch of a sweep does if the largest share reads as less."""


def is_nothing(share: float) -> bool:
    """Whether a share of the lead reads as less than 0.1 %."""
    return abs(share) < 0.0005


def brings_back(share: float, ending: str = "s", size: str = "") -> str:
    """``brings back 71 %`` or ``takes away another 3 %``; ``ending`` is the verb's, ``size`` other words for 71 %."""
    if is_nothing(share):
        return f"neither bring{ending} back nor take{ending} away as much as 0.1 %"
    return f"{f'bring{ending} back' if share > 0 else f'take{ending} away another'} {size or percent(abs(share))}"


class Runs(NamedTuple):
    """The clean and the corrupt run of a pair of texts, and the metric that is followed."""

    clean: Trace
    corrupt: Trace
    contrast: Contrast


@dataclass(frozen=True)
class PatchedRun(Report):
    """A run of the corrupt text with clean activations, measured by a ``contrast``; ``texts`` are clean and corrupt.

    ``differing`` are the texts in which the two runs differ: the same, or the sources of one target.
    """

    contrast: Contrast
    checks: tuple[Verified, ...]
    texts: tuple[Encoding, ...] = field(repr=False)
    differing: tuple[Encoding, ...] = field(repr=False)

    @property
    def lead(self) -> str:
        """What is followed, in words."""
        return self.contrast.metric.effect

    def in_a_sentence(self) -> str:
        """How much of the effect comes back, if the clean text has more of a lead and no sweep was interrupted."""
        if self.interrupted:
            return ""
        if self.contrast.metric.is_lead and self.contrast.clean < self.contrast.corrupt:
            return f"T{self.lead[1:]} is smaller after the clean text than after the corrupt one."
        return self.claim()

    def claim(self) -> str:
        """The sentence of a run whose clean text has more of the lead."""
        raise NotImplementedError

    def compared(self) -> dict[str, Any]:
        """Both texts, and the metric with the tokens that it is about."""
        clean, corrupt = map(text_data, self.texts)
        sources = [] if self.differing == self.texts else [text_data(source) for source in self.differing]
        followed = {**self.contrast.to_dict(), **metric_data(self, self.contrast.metric)}
        return {"clean": clean, "corrupt": corrupt, "sources": sources, "contrast": followed}


@dataclass(frozen=True)
class OnePatch(PatchedRun):
    """One patched run, at ``positions`` (None: all).

    ``value`` is the metric in that run, by default a difference of logits. ``choices`` are probabilities in the
    corrupt run (``before``) and in the patched one (``after``).
    """

    EVENTS: ClassVar = {"choices": "choice", "checks": "check"}

    positions: tuple[int, ...] | None
    value: float
    choices: tuple[Choice, ...]

    @classmethod
    def of(cls, model: TextModel, runs: Runs, logits: Tensor, top: int, **members: Any) -> Self:
        """The report of a run with the ``logits`` (P, V) that are read; ``members`` are those of its class."""
        clean, corrupt, followed = runs
        before = log_probabilities(corrupt.logits_at(followed.position))
        return cls(
            contrast=followed,
            texts=(clean.encoding, corrupt.encoding),
            differing=compared(clean, corrupt),
            value=followed.of(logits[None])[0],
            choices=choices(before, log_probabilities(followed.predicted(logits)), top, followed.metric.followed),
            about=About(model),
            **members,
        )

    @property
    def recovered(self) -> float:
        """The metric scaled so that the clean run has 1 and the corrupt run 0."""
        return self.contrast.normalised(self.value)

    def moved(self, several: bool) -> str:
        """What one part or ``several`` of the clean run do to the lead, in words."""
        return f"of the clean run {brings_back(self.recovered, '' if several else 's')} of {self.lead}"

    def stored(self) -> list[Array]:
        """``recovered``, and the metric under its name, each a tensor of one number."""
        numbers = {"recovered": self.recovered, self.contrast.metric.name: self.value}
        return [Array.of(name, (), torch.tensor(number)) for name, number in numbers.items()]

    def measured(self, patched: dict[str, Any]) -> dict[str, Any]:
        """The data of the report, with what was ``patched``."""
        choices = [{**vars(choice), self.outcome: self.shown(choice.id)} for choice in self.choices]
        numbers = self.members("positions", "value", "recovered")
        return {**self.compared(), **patched, **numbers, "choices": choices, **self.members("checks")}


@dataclass(frozen=True)
class Patched(OnePatch):
    """The corrupt run with the clean activations of all ``sites``.

    ``control`` has the share recovered beside random heads, experts or units of the same layers; None for other sites.
    """

    KIND = "patch"

    sites: tuple[HookPoint, ...]
    control: Control | None

    def claim(self) -> str:
        names = point_names(self.sites)
        sites = listed(names) if len(names) <= 3 else f"these {len(names)}"
        return f"{sites} {self.moved(len(names) > 1)}."

    def fields(self) -> dict[str, Any]:
        return self.measured({"at": [str(site) for site in self.sites], **self.members("control")})


@dataclass(frozen=True)
class PatchSweep(PatchedRun):
    """Each patch of a sweep alone: the metric as (layers, positions), (layers, heads) or (layers, units).

    The addresses of the stack that is swept begin with ``stack``, and its clean and corrupt text are ``swept``.
    A key or value that heads share is in the column of the first of them. Heads and units are patched at ``positions``
    (None: all).

    In a decoder the positions before ``first``, where the texts begin to differ, were not run: clean and corrupt
    activations are the same there. Patches not run before an interrupt are NaN. ``control`` has the share of the
    strongest beside those of the other patches that were run.
    """

    KIND = "patch_sweep"
    EVENTS: ClassVar = {"layers": "layer", "checks": "check"}

    what: str
    values: Tensor
    patches: int
    first: int
    positions: tuple[int, ...] | None
    stack: str
    swept: tuple[Encoding, ...] = field(repr=False)

    @property
    def axis(self) -> str:
        """What a column of the map is."""
        return COLUMNS.get(self.what, "position")

    def site(self, layer: int, column: int) -> str:
        """The address of a patch of heads, of their queries, keys or values, or of units."""
        assert self.about is not None
        model: Any = self.about.model
        config = model.config.stacks[self.stack]
        return Grid.of(self.what, table_of(config), None, stack=self.stack).name(layer, column)

    def clean_site(self, layer: int, column: int, of: str = " of the clean run") -> str:
        """A patch in words, such as ``L3 of the clean run at 4 ·cat``."""
        if self.what in COLUMNS:
            return f"{self.site(layer, column)}{of}"
        tokens = self.swept[0].tokens
        shown = f" {tokens[column].shown}" if column < len(tokens) else ""
        return f"{self.stack}L{layer}{of} at {column}{shown}"

    def claim(self) -> str:
        """Where the lead is brought back: up to which layer where the texts differ, and from which at the prediction.

        At least half of it, in all of these layers; for other sweeps, the patch that moves it most.
        """
        layer, at, most = self.strongest(1)[0]
        if is_nothing(most):
            return f"No patch {NOTHING} {self.lead}."
        metric = self.contrast.metric
        moved = f"moves {metric.words} most: it {brings_back(most)}{metric.of_it}."
        strongest = f"{self.clean_site(layer, at)} {moved}"
        if self.what != "residual" or self.stack:
            return strongest
        start, end, tokens = self.first, self.contrast.position, self.texts[0].tokens
        moved = where_it_moves(self.recovered, (start, end), (tokens[start].shown, tokens[end].shown))
        if not moved:
            return strongest
        return f"What decides {self.lead} is {moved}: patched there, at least half of it comes back."

    def itemised(self) -> dict[str, Any]:
        """The data with one item a layer, with its row of the map."""
        data = self.to_dict()
        maps = zip(data.pop("value"), data.pop("recovered"), strict=True)
        rows = [
            {"layer": layer, "value": value, "recovered": recovered} for layer, (value, recovered) in enumerate(maps)
        ]
        return {**data, "layers": rows}

    def stored(self) -> list[Array]:
        """The maps of ``recovered`` and of the metric, under its name: (layers, positions, heads or units)."""
        return self.arrays()

    def arrays(self) -> list[Array]:
        axes = ["layer", self.axis]
        return [Array.of("recovered", axes, self.recovered), Array.of(self.contrast.metric.name, axes, self.values)]

    def label(self, axis: str, place: int) -> str:
        """Name a position by the token of the corrupt text, which is the text that is run."""
        return f"{place} {self.swept[1].tokens[place].shown}" if axis == "position" else super().label(axis, place)

    @property
    def recovered(self) -> Tensor:
        """The metric scaled so that the clean run has 1 and the corrupt run 0; float64."""
        return self.contrast.normalised(self.values)

    @property
    def control(self) -> Control | None:
        return Control.of_sweep("patches", self.recovered[:, self.first :].flatten().tolist())

    @property
    def measured(self) -> int:
        return int((~self.values.isnan()).sum())

    @property
    def interrupted(self) -> bool:
        return self.measured < self.patches

    def strongest(self, count: int) -> list[tuple[int, int, float]]:
        """(layer, column, recovered) of the patches that move the metric most, in either direction."""
        flat = self.recovered.flatten()
        order = flat.abs().nan_to_num(-1.0).argsort(descending=True, stable=True)[: min(count, self.measured)].tolist()
        width = self.values.shape[1]
        return [(*divmod(number, width), float(flat[number])) for number in order]

    def telling(self, count: int) -> list[int]:
        """The positions (or heads) at which a layer moves the metric most, in order."""
        most = self.recovered.abs().nan_to_num(-1.0).amax(dim=0)
        return sorted(most.argsort(descending=True, stable=True)[:count].tolist())

    def fields(self) -> dict[str, Any]:
        return {
            **self.compared(),
            "sweep": self.what,
            "stack": self.stack,
            "axes": ["layer", self.axis],
            **self.members("positions", "interrupted"),
            "value": self.values.tolist(),
            **self.members("recovered", "control", "checks"),
        }


def where_it_moves(shares: Tensor, positions: tuple[int, int], names: tuple[str, str]) -> str:
    """Up to which layer a patch of the stream at the first position, and from which on at the second, brings back half.

    ``shares`` (layers, positions) are of the lead. Empty if the positions are one, or if half never comes back at one.
    """
    first, second = ((shares[:, position] >= 0.5).tolist() for position in positions)
    until, reached = first.index(False) if False in first else len(first), from_where_on(second)
    if positions[0] == positions[1] or not until or reached is None:
        return ""
    return f"at {names[0]} up to L{until - 1} and at {names[1]} from L{reached} on"


def patch(
    model: TextModel,
    clean: Text,
    corrupt: Text,
    at: str | Sequence[str],
    *,
    answer: Answer = None,
    versus: Answer = None,
    metric: str | MetricFunction | None = None,
    positions: Sequence[int] | None = None,
    top: int = 5,
    controls: int = CONTROLS,
    seed: int = 0,
) -> Patched:
    """Run the corrupt text with the clean run's activations at all the steps of ``at``.

    ``positions`` limits the patch; by default it covers all. ``metric`` is what is followed: one of METRICS, by default
    ``logit_diff``, or a function of the logits (T, V), and if it takes two of the clean run's trace, that gives one
    number. ``answer`` and ``versus`` are its tokens, by default each run's prediction; several tokens of an answer
    continue both texts. ``controls`` random sets of as many heads, experts or units of the same layers are patched
    beside, drawn by ``seed``.

    Raises UsageError for texts that cannot be compared (``require_even``, ``contrast``) and for a position beyond them,
    AddressError for a step that cannot be patched.
    """
    require_controls(controls)
    if not at:
        raise UsageError(
            "nothing is named to patch", "name a head, such as L0H1, a part, such as L0.ffn, or the stream, L0.in"
        )
    runs = runs_of(model, clean, corrupt, Asked.of(model, metric, answer, versus))
    sites = points_of(at, runs.corrupt)
    stacks = {site.stack for site in sites}
    if positions is not None and len(stacks) > 1:
        raise UsageError("a position is of one text, and these steps are of two stacks", "patch those of one stack")
    distinct = positions_in(runs.clean.stacks[stacks.pop()] if positions is not None else runs.clean, positions)
    values = clean_values(runs, sites, distinct)
    logits, read = logits_with(runs.corrupt, values, runs.contrast.read), runs.contrast.read
    what, others = random_sets(sites, runs.corrupt.steps, controls, seed)
    sets = [clean_values(runs, points, distinct) for points in others]
    what, rows = or_directions((what, sets), runs.corrupt, values, controls, seed)
    random = [
        runs.contrast.normalised(runs.contrast.of(row[None])[0]) for row in logits_of_sets(runs.corrupt, rows, read)
    ]
    share = runs.contrast.normalised(runs.contrast.of(logits[None])[0])
    control = Control.of(what, share, random)
    checks = _verify_extremes(runs)
    return Patched.of(model, runs, logits, top, sites=sites, positions=distinct, control=control, checks=checks)


def patch_sweep(
    model: TextModel,
    clean: Text,
    corrupt: Text,
    over: str = "residual",
    *,
    answer: Answer = None,
    versus: Answer = None,
    metric: str | MetricFunction | None = None,
    positions: Sequence[int] | None = None,
    stack: str | None = None,
    resume: Path | None = None,
    on_progress: Progress = ignore_progress,
) -> PatchSweep:
    """``patch`` for each layer at each position (``residual``, ``attn``, ``ffn``), or of each of the ``heads``, their
    ``queries``, ``keys`` or ``values``, or the ``neurons``.

    ``positions`` limit the patches of heads and units; by default they cover all. The patches run in batches. An
    interrupt ends it with the results so far; the file ``resume`` keeps them, to continue from. Raises the errors of
    ``patch``, and UsageError for another ``over``.
    """
    runs = runs_of(model, clean, corrupt, Asked.of(model, metric, answer, versus))
    grid = grid_of(runs, over, positions, swept((runs.clean, runs.corrupt), stack))
    values, check = exact_sweep(runs, grid, resume, on_progress)
    return PatchSweep(
        contrast=runs.contrast,
        checks=(*_verify_extremes(runs), check),
        texts=(runs.clean.encoding, runs.corrupt.encoding),
        differing=compared(runs.clean, runs.corrupt),
        what=over,
        values=values,
        patches=grid.sites,
        first=grid.first,
        positions=grid.positions,
        stack=grid.stack,
        swept=texts_of(runs, grid.stack),
        about=About(model),
    )


def swept(runs: tuple[Trace, Trace], stack: str | None) -> str:
    """What the addresses of the stack begin with that is swept: by default of the one whose text differs.

    Raises UsageError for an encoder that has read no text.
    """
    clean, corrupt = runs
    differs = compared(clean, corrupt)[0] is not clean.encoding
    at = {"encoder": ENC, "decoder": ""}.get(stack or "", ENC * differs)
    if at not in clean.stacks:
        raise UsageError("there is no encoder here that read a text", "leave out the stack")
    return at


def texts_of(runs: Runs, stack: str) -> tuple[Encoding, Encoding]:
    """The clean and the corrupt text of a stack."""
    return runs.clean.stacks[stack].encoding, runs.corrupt.stacks[stack].encoding


def exact_sweep(
    runs: Runs, grid: Grid, resume: Path | None = None, on_progress: Progress = ignore_progress
) -> tuple[Tensor, Verified]:
    """The metric (layers, columns) with each site of a grid patched alone; NaN where nothing was run.

    ``Verified`` is the check of ``sweep``.
    """
    clean, corrupt, followed = runs
    rows: dict[str, Interventions] = {grid.name(*place): (grid.intervention(clean, *place),) for place in grid.places()}
    if resume is not None:
        followed.metric.require_name()
    moved, check = sweep(
        corrupt, rows, followed.read, followed.of, lambda value: abs(value - followed.corrupt),
        on_progress, resume=resume, subject=["patch", *followed.metric.key], from_data=float,
    )  # fmt: skip
    values = grid.filled(followed.corrupt)
    for place, value in zip(grid.places(), moved, strict=True):
        values[place] = math.nan if value is None else value
    return values, check


def grid_of(runs: Runs, over: str, positions: Sequence[int] | None, stack: str = "") -> Grid:
    """The sites of a sweep over two texts, at their ``positions``; where a decoder's texts are the same, none differs.

    Raises UsageError for another ``over``, and for a position beyond the texts.
    """
    clean, corrupt = runs.clean.stacks[stack], runs.corrupt.stacks[stack]
    shares_prefix = not clean.config.looks_ahead
    first = first_different(clean.encoding.ids, corrupt.encoding.ids) if shares_prefix else 0
    return Grid.of(over, clean.steps, len(clean.tokens), first, positions_in(clean, positions), stack)


def positions_in(trace: Trace, positions: Sequence[int] | None) -> tuple[int, ...] | None:
    """The distinct positions. Raises UsageError for one beyond the text."""
    for position in positions or ():
        if not 0 <= position < len(trace.tokens):
            raise UsageError(f"there is no position {position}: the texts have {len(trace.tokens)} tokens")
    return None if positions is None else tuple(dict.fromkeys(positions))


def clean_values(runs: Runs, sites: Sequence[HookPoint], positions: tuple[int, ...] | None) -> tuple[Intervention, ...]:
    """The clean values of the sites at ``positions``. Raises UsageError where a site names tokens of its own beside."""
    cell = next((site for site in sites if site.rows is not None), None)
    if cell is not None and positions is not None:
        raise UsageError(f"{cell} names its tokens already", "leave out --position")
    return tuple(Intervention(site, site.value(runs.clean), positions) for site in sites)


def runs_of(model: TextModel, clean: Text, corrupt: Text, asked: Asked) -> Runs:
    """The traces of both texts, and the metric to follow in them."""
    source, target = asked.trace(model, clean), asked.trace(model, corrupt)
    require_even(*compared(source, target))
    return Runs(source, target, contrast(model, asked, source, target))


def _verify_extremes(runs: Runs) -> tuple[Verified, ...]:
    """Verify that everything patched is the clean run, and nothing patched the corrupt run, to the last bit.

    Where layers take embeddings of their own beside the stream, or a token's id chooses its experts, no patch is
    everything: then only the latter is.
    """
    clean, corrupt, position = runs.clean, runs.corrupt, runs.contrast.position
    (none_patched,) = logits_with(corrupt, [], [position])
    nothing = same("nothing patched is the corrupt run", none_patched, corrupt.logits_at(position))
    if clean.steps.reads_text:
        return (nothing,)
    first_input = HookPoint(clean.steps.input, 0)  # everything computed from the tokens passes through here
    (all_patched,) = logits_with(corrupt, [Intervention(first_input, first_input.value(clean))], [position])
    return (same("everything patched is the clean run", all_patched, clean.logits_at(position)), nothing)
