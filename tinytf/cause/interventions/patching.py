"""Activation patching: run the corrupt text with activations of the clean one (Meng et al. 2022).

How much of the clean run's logit difference comes back shows what those activations carry (Wang et al. 2022).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.cause.interventions.grid import COLUMNS, Grid
from tinytf.cause.interventions.hooks import HookPoint, Intervention, hook_points, logits_with, point_names
from tinytf.cause.interventions.prediction import (
    Choice,
    Contrast,
    choices,
    contrast,
    first_different,
    log_probabilities,
    require_even,
    same,
)
from tinytf.cause.interventions.sweep import Interventions, sweep
from tinytf.errors import UsageError
from tinytf.report import About, Progress, Report, Verified, ignore_progress, text_data
from tinytf.sentences import from_where_on, listed, percent
from tinytf.tables import Array
from tinytf.text.tokenizer import Encoding
from tinytf.text_model import TextModel
from tinytf.trace.trace import Text, Trace


@dataclass(frozen=True)
class PatchedRun(Report):
    """A run of the corrupt text with clean activations, measured by a ``contrast``; ``texts`` are clean and corrupt."""

    contrast: Contrast
    checks: tuple[Verified, ...]
    texts: tuple[Encoding, ...] = field(repr=False)

    @property
    def lead(self) -> str:
        """What is followed, in words."""
        return f"the lead of {self.shown(self.contrast.answer)} over {self.shown(self.contrast.versus)}"

    def compared(self) -> dict[str, Any]:
        """Both texts, and the followed tokens."""
        clean, corrupt = map(text_data, self.texts)
        tokens = {name: self.named(getattr(self.contrast, name)) for name in ("answer", "versus")}
        return {"clean": clean, "corrupt": corrupt, "contrast": {**self.contrast.to_dict(), **tokens}}


@dataclass(frozen=True)
class OnePatch(PatchedRun):
    """One patched run, at ``positions`` (None: all).

    ``difference`` is the logit difference of the contrast; ``recovered`` scales it so that the clean run has 1 and the
    corrupt run 0. ``choices`` are probabilities in the corrupt run (``before``) and in the patched one (``after``).
    """

    EVENTS: ClassVar = {"choices": "choice", "checks": "check"}

    positions: tuple[int, ...] | None
    difference: float
    recovered: float
    choices: tuple[Choice, ...]

    def moved(self, several: bool) -> str:
        """What one part or ``several`` of the clean run do to the lead, in words."""
        if self.recovered < 0:
            return f"of the clean run {'take' if several else 'takes'} even more of {self.lead} away"
        return f"of the clean run {'bring' if several else 'brings'} back {percent(self.recovered)} of {self.lead}"

    def stored(self) -> list[Array]:
        """``recovered`` and ``difference``, each a tensor of one number."""
        return [Array.of(name, (), torch.tensor(getattr(self, name))) for name in ("recovered", "difference")]

    def measured(self, patched: dict[str, Any]) -> dict[str, Any]:
        """The data of the report, with what was ``patched``."""
        choices = [{**vars(choice), self.outcome: self.shown(choice.id)} for choice in self.choices]
        numbers = self.members("positions", "difference", "recovered")
        return {**self.compared(), **patched, **numbers, "choices": choices, **self.members("checks")}


@dataclass(frozen=True)
class Patched(OnePatch):
    """The corrupt run with the clean activations of all ``sites``."""

    KIND = "patch"

    sites: tuple[HookPoint, ...]

    def in_a_sentence(self) -> str:
        """How much of the lead the clean activations bring back."""
        names = point_names(self.sites)
        sites = listed(names) if len(names) <= 3 else f"these {len(names)}"
        return f"{sites} {self.moved(len(names) > 1)}."

    def fields(self) -> dict[str, Any]:
        return self.measured({"at": [str(site) for site in self.sites]})


@dataclass(frozen=True)
class PatchSweep(PatchedRun):
    """Each patch of a sweep alone: logit differences (layers, positions), (layers, heads) or (layers, units).

    Heads and units are patched at ``positions`` (None: all).

    In a decoder the positions before ``first``, where the texts begin to differ, were not run: clean and corrupt
    activations are the same there. Patches not run before an interrupt are NaN.
    """

    KIND = "patch_sweep"
    EVENTS: ClassVar = {"layers": "layer", "checks": "check"}

    what: str
    differences: Tensor
    patches: int
    first: int
    positions: tuple[int, ...] | None

    @property
    def axis(self) -> str:
        """What a column of the map is."""
        return COLUMNS.get(self.what, "position")

    def site(self, layer: int, column: int) -> str:
        """The address of a patch of heads or units."""
        return f"L{layer}H{column}" if self.what == "heads" else f"L{layer}.{column}"

    def clean_site(self, layer: int, column: int) -> str:
        """A patch in words, such as ``L3 of the clean run at 4 ·cat``."""
        if self.what in COLUMNS:
            return f"{self.site(layer, column)} of the clean run"
        tokens = self.texts[0].tokens
        return f"L{layer} of the clean run at {column}{f' {tokens[column].shown}' if column < len(tokens) else ''}"

    def in_a_sentence(self) -> str:
        """Where the lead is brought back: up to which layer where the texts differ, and from which at the prediction.

        At least half of it, in all of these layers; for other sweeps, the patch that moves it most.
        """
        if self.interrupted or not self.measured:
            return ""
        half, (layer, at, most) = self.recovered >= 0.5, self.strongest(1)[0]
        strongest = f"{self.clean_site(layer, at)} moves {self.lead} most: it brings back {percent(most)}."
        if self.what in COLUMNS:
            return strongest
        start, end = self.first, self.contrast.position
        held, reached = half[:, start].tolist(), from_where_on(half[:, end].tolist())
        until = held.index(False) if False in held else len(held)
        tokens = self.texts[0].tokens
        if self.what != "residual" or start == end or not until or reached is None:
            return strongest
        moved = f"at {tokens[start].shown} up to L{until - 1} and at {tokens[end].shown} from L{reached} on"
        return f"What decides {self.lead} is {moved}: patched there, at least half of it comes back."

    def itemised(self) -> dict[str, Any]:
        """The data with one item a layer, with its row of the map."""
        data = self.to_dict()
        maps = zip(data.pop("difference"), data.pop("recovered"), strict=True)
        rows = [
            {"layer": layer, "difference": difference, "recovered": recovered}
            for layer, (difference, recovered) in enumerate(maps)
        ]
        return {**data, "layers": rows}

    def stored(self) -> list[Array]:
        """The maps of ``recovered`` and of logit differences, (layers, positions, heads or units)."""
        return self.arrays()

    def arrays(self) -> list[Array]:
        axes = ["layer", self.axis]
        return [Array.of("recovered", axes, self.recovered), Array.of("difference", axes, self.differences)]

    def label(self, axis: str, place: int) -> str:
        """Name a position by the token of the corrupt text, which is the text that is run."""
        return f"{place} {self.texts[1].tokens[place].shown}" if axis == "position" else super().label(axis, place)

    @property
    def recovered(self) -> Tensor:
        """The differences scaled so that the clean run has 1 and the corrupt run 0; float64."""
        return self.contrast.normalised(self.differences)

    @property
    def measured(self) -> int:
        return int((~self.differences.isnan()).sum())

    @property
    def interrupted(self) -> bool:
        return self.measured < self.patches

    def strongest(self, count: int) -> list[tuple[int, int, float]]:
        """(layer, column, recovered) of the patches that move the difference most, in either direction."""
        flat = self.recovered.flatten()
        order = flat.abs().nan_to_num(-1.0).argsort(descending=True, stable=True)[: min(count, self.measured)].tolist()
        width = self.differences.shape[1]
        return [(*divmod(number, width), float(flat[number])) for number in order]

    def telling(self, count: int) -> list[int]:
        """The positions (or heads) at which a layer moves the difference most, in order."""
        most = self.recovered.abs().nan_to_num(-1.0).amax(dim=0)
        return sorted(most.argsort(descending=True, stable=True)[:count].tolist())

    def fields(self) -> dict[str, Any]:
        return {
            **self.compared(),
            "sweep": self.what,
            "axes": ["layer", self.axis],
            **self.members("positions", "interrupted"),
            "difference": self.differences.tolist(),
            **self.members("recovered", "checks"),
        }


def patch(
    model: TextModel,
    clean: Text,
    corrupt: Text,
    at: str | Sequence[str],
    *,
    answer: str | int | None = None,
    versus: str | int | None = None,
    positions: Sequence[int] | None = None,
    top: int = 5,
) -> Patched:
    """Run the corrupt text with the clean run's activations at all the steps of ``at``.

    ``positions`` limits the patch; by default it covers all. ``answer`` and ``versus`` are the tokens whose logit
    difference is followed, by default each run's prediction.

    Raises UsageError for texts that cannot be compared (``require_even``, ``contrast``) and for a position beyond them,
    AddressError for a step that cannot be patched.
    """
    if not at:
        raise UsageError(
            "nothing is named to patch", "name a head, such as L0H1, a part, such as L0.ffn, or the stream, L0.in"
        )
    source, target, followed = runs_of(model, clean, corrupt, answer, versus)
    distinct = positions_in(source, positions)
    sites = hook_points(at, source.steps, [token.shown for token in target.tokens])
    cell = next((site for site in sites if site.rows is not None), None)
    if cell is not None and distinct is not None:
        raise UsageError(f"{cell} names its tokens already", "leave out --position")
    logits = logits_with(
        target, [Intervention(site, site.value(source), distinct) for site in sites], followed.position
    )
    (difference,) = followed.of(logits[None])
    log_p = log_probabilities(target.logits_at(followed.position))
    return Patched(
        contrast=followed,
        checks=_verify_extremes(source, target, followed.position),
        texts=(source.encoding, target.encoding),
        sites=sites,
        positions=distinct,
        difference=difference,
        recovered=followed.normalised(difference),
        choices=choices(log_p, log_probabilities(logits), top, [followed.answer, followed.versus]),
        about=About(model),
    )


def patch_sweep(
    model: TextModel,
    clean: Text,
    corrupt: Text,
    over: str = "residual",
    *,
    answer: str | int | None = None,
    versus: str | int | None = None,
    positions: Sequence[int] | None = None,
    resume: Path | None = None,
    on_progress: Progress = ignore_progress,
) -> PatchSweep:
    """``patch`` for each layer at each position (``residual``, ``attn``, ``ffn``), of the ``heads`` or ``neurons``.

    ``positions`` limit the patches of heads and units; by default they cover all. The patches run in batches. An
    interrupt ends it with the results so far; the file ``resume`` keeps them, to continue from. Raises the errors of
    ``patch``, and UsageError for another ``over``.
    """
    source, target, followed = runs_of(model, clean, corrupt, answer, versus)
    grid = grid_of(source, target, over, positions)
    differences, check = exact_sweep(source, target, followed, grid, resume, on_progress)
    return PatchSweep(
        contrast=followed,
        checks=(*_verify_extremes(source, target, followed.position), check),
        texts=(source.encoding, target.encoding),
        what=over,
        differences=differences,
        patches=grid.sites,
        first=grid.first,
        positions=grid.positions,
        about=About(model),
    )


def exact_sweep(
    clean: Trace, corrupt: Trace, followed: Contrast, grid: Grid, resume: Path | None, on_progress: Progress
) -> tuple[Tensor, Verified]:
    """The logit differences (layers, columns) with each site of a grid patched alone; NaN where nothing was run.

    ``Verified`` is the check of ``sweep``.
    """
    rows: dict[str, Interventions] = {grid.name(*place): (grid.intervention(clean, *place),) for place in grid.places()}
    moved, check = sweep(
        corrupt, rows, followed.position, followed.of, lambda difference: abs(difference - followed.corrupt),
        on_progress, resume=resume, subject=["patch", followed.answer, followed.versus], from_data=float,
    )  # fmt: skip
    differences = grid.filled(followed.corrupt)
    for place, value in zip(grid.places(), moved, strict=True):
        differences[place] = math.nan if value is None else value
    return differences, check


def grid_of(clean: Trace, corrupt: Trace, over: str, positions: Sequence[int] | None) -> Grid:
    """The sites of a sweep over two texts, at their ``positions``; where a decoder's texts are the same, none differs.

    Raises UsageError for another ``over``, and for a position beyond the texts.
    """
    shares_prefix = not clean.config.looks_ahead
    first = first_different(clean.encoding.ids, corrupt.encoding.ids) if shares_prefix else 0
    return Grid.of(over, clean.steps, len(clean.tokens), first, positions_in(clean, positions))


def positions_in(trace: Trace, positions: Sequence[int] | None) -> tuple[int, ...] | None:
    """The distinct positions. Raises UsageError for one beyond the text."""
    for position in positions or ():
        if not 0 <= position < len(trace.tokens):
            raise UsageError(f"there is no position {position}: the texts have {len(trace.tokens)} tokens")
    return None if positions is None else tuple(dict.fromkeys(positions))


def runs_of(
    model: TextModel, clean: Text, corrupt: Text, answer: str | int | None, versus: str | int | None
) -> tuple[Trace, Trace, Contrast]:
    """The traces of both texts, and the logit difference to follow in them."""
    outcomes = model.optional_outcome(answer, "answer"), model.optional_outcome(versus, "versus")
    source, target = model.trace(clean), model.trace(corrupt)
    require_even(source.encoding, target.encoding)
    return source, target, contrast(source, target, *outcomes)


def _verify_extremes(clean: Trace, corrupt: Trace, position: int) -> tuple[Verified, ...]:
    """Verify that everything patched is the clean run, and nothing patched the corrupt run, to the last bit.

    Where layers take embeddings of their own beside the stream, no patch is everything: then only the latter is.
    """
    none_patched = logits_with(corrupt, [], position)
    nothing = same("nothing patched is the corrupt run", none_patched, corrupt.logits_at(position))
    if any(layer is None for _, layer in clean.steps.carried.values()):
        return (nothing,)
    first_input = HookPoint(clean.steps.input, 0)  # everything computed from the tokens passes through here
    all_patched = logits_with(corrupt, [Intervention(first_input, first_input.value(clean))], position)
    return (same("everything patched is the clean run", all_patched, clean.logits_at(position)), nothing)
