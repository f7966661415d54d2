"""Activation patching: the corrupt text is run with activations of the clean one put in (Meng et al. 2022).

How much of the clean run's logit difference comes back says what those activations carry (Wang et al. 2022).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.cause.interventions.hooks import HookPoint, Intervention, hook_points, logits_with
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
from tinytf.nearest import did_you_mean
from tinytf.report import About, Progress, Report, Verified, text_data, unheard
from tinytf.steps.table import table_of
from tinytf.tables import Array
from tinytf.text.tokenizer import Encoding
from tinytf.text_model import TextModel
from tinytf.trace.trace import Text, Trace


@dataclass(frozen=True)
class PatchedRun(Report):
    """The corrupt one of two ``texts``, clean and corrupt, run with clean activations; followed by a ``contrast``."""

    contrast: Contrast
    checks: tuple[Verified, ...]
    texts: tuple[Encoding, ...] = field(repr=False)

    def compared(self) -> dict[str, Any]:
        """Both texts, and the tokens that are followed."""
        clean, corrupt = map(text_data, self.texts)
        tokens = {name: self.named(getattr(self.contrast, name)) for name in ("answer", "versus")}
        return {"clean": clean, "corrupt": corrupt, "contrast": {**self.contrast.to_dict(), **tokens}}


@dataclass(frozen=True)
class Patched(PatchedRun):
    """What became of the corrupt run with the clean activations of all ``sites`` put in, at ``positions`` (None: all).

    ``difference`` is that of the contrast; ``recovered`` is 1 where it is the clean run's and 0 where the corrupt
    one's. ``choices`` are probabilities in the corrupt run (``before``) and in the patched one (``after``).
    """

    KIND = "patch"
    EVENTS: ClassVar = {"choices": "choice", "checks": "check"}

    sites: tuple[HookPoint, ...]
    positions: tuple[int, ...] | None
    difference: float
    recovered: float
    choices: tuple[Choice, ...]

    def stored(self) -> list[Array]:
        """What was recovered, as a tensor of one number."""
        return [Array.of(name, (), torch.tensor(getattr(self, name))) for name in ("recovered", "difference")]

    def fields(self) -> dict[str, Any]:
        return {
            **self.compared(),
            "at": [str(site) for site in self.sites],
            **self.members("positions", "difference", "recovered"),
            "choices": [{**vars(one), self.outcome: self.shown(one.id)} for one in self.choices],
            **self.members("checks"),
        }


@dataclass(frozen=True)
class PatchSweep(PatchedRun):
    """Every patch of a sweep by itself: logit differences (layers, positions), or (layers, heads).

    In a decoder the positions before ``first``, up to which the texts are the same, were not run: there clean and
    corrupt activations are the same. What was not run before an interrupt is NaN.
    """

    KIND = "patch_sweep"
    EVENTS: ClassVar = {"layers": "layer", "checks": "check"}

    what: str
    differences: Tensor
    patches: int
    first: int

    def itemised(self) -> dict[str, Any]:
        """A layer with its row of the map."""
        data = self.to_dict()
        maps = zip(data.pop("difference"), data.pop("recovered"), strict=True)
        rows = [{"layer": layer, "difference": one, "recovered": other} for layer, (one, other) in enumerate(maps)]
        return {**data, "layers": rows}

    def stored(self) -> list[Array]:
        """The map, (layers, positions) or (layers, heads): what was recovered, and logit differences."""
        return self.arrays()

    def arrays(self) -> list[Array]:
        axes = ["layer", "head" if self.what == "heads" else "position"]
        return [Array.of("recovered", axes, self.recovered), Array.of("difference", axes, self.differences)]

    def label(self, axis: str, place: int) -> str:
        """A position is named by the token of the corrupt text, the one that is run."""
        return f"{place} {self.texts[1].tokens[place].shown}" if axis == "position" else super().label(axis, place)

    @property
    def recovered(self) -> Tensor:
        """1 where the difference is the clean run's, 0 where it is the corrupt one's; float64."""
        return self.contrast.normalised(self.differences)

    @property
    def measured(self) -> int:
        return int((~self.differences.isnan()).sum())

    @property
    def interrupted(self) -> bool:
        return self.measured < self.patches

    def strongest(self, count: int) -> list[tuple[int, int, float]]:
        """(layer, position or head, recovered) of those that move the difference most, in either direction."""
        flat = self.recovered.flatten()
        order = flat.abs().nan_to_num(-1.0).argsort(descending=True, stable=True)[: min(count, self.measured)].tolist()
        width = self.differences.shape[1]
        return [(*divmod(number, width), float(flat[number])) for number in order]

    def telling(self, count: int) -> list[int]:
        """The positions (or heads) at which some layer moves the difference most, in their order."""
        most = self.recovered.abs().nan_to_num(-1.0).amax(dim=0)
        return sorted(most.argsort(descending=True, stable=True)[:count].tolist())

    def fields(self) -> dict[str, Any]:
        return {
            **self.compared(),
            "sweep": self.what,
            "axes": ["layer", "head" if self.what == "heads" else "position"],
            **self.members("interrupted"),
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
    """What the corrupt text gives with the clean run's activations at all the steps of ``at`` put in.

    At ``positions``, or at all. ``answer`` and ``versus`` are the tokens whose logit difference is followed, by default
    each run's prediction.

    Raises UsageError for texts that cannot be compared (``require_even``, ``contrast``) and for a position beyond them,
    AddressError for a step that cannot be patched.
    """
    if not at:
        raise UsageError("nothing is named to patch", "name a head as L0H1, a part as L0.ffn, the stream as L0.in")
    source, target, found = _runs(model, clean, corrupt, answer, versus)
    places = None if positions is None else tuple(dict.fromkeys(positions))
    for place in places or ():
        if not 0 <= place < len(source.tokens):
            raise UsageError(f"there is no position {place}: the texts have {len(source.tokens)} tokens")
    sites = hook_points(at, source.steps)
    logits = logits_with(target, [Intervention(site, site.value(source), places) for site in sites], found.position)
    (difference,) = found.of(logits[None])
    before = log_probabilities(target.logits_at(found.position))
    return Patched(
        contrast=found,
        checks=_ends(source, target, found.position),
        texts=(source.encoding, target.encoding),
        sites=sites,
        positions=places,
        difference=difference,
        recovered=found.normalised(difference),
        choices=choices(before, log_probabilities(logits), top, [found.answer, found.versus]),
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
    resume: Path | None = None,
    on_progress: Progress = unheard,
) -> PatchSweep:
    """``patch`` for each layer at each position (``residual``, ``attn``, ``ffn``), or each head (``heads``), batched.

    An interrupt ends it with what was measured; with ``resume`` that is kept in this file and continued from it.
    Raises as ``patch`` does, and UsageError for another word.
    """
    table = table_of(model.config)
    steps = {"residual": table.input, "heads": "", **{step.name: step.name for step in table.added}}
    if over not in steps:
        raise UsageError(f"there is no sweep over {over!r}", did_you_mean(over, steps))
    source, target, found = _runs(model, clean, corrupt, answer, versus)
    layers, of_heads = range(source.config.n_layers), over == "heads"
    heads = [source.config.at(layer).n_heads for layer in layers]
    width = max(heads) if of_heads else len(source.tokens)
    alike = not source.config.looks_ahead and not of_heads
    first = first_different(source.encoding.ids, target.encoding.ids) if alike else 0
    rows: dict[str, Interventions] = {}
    for layer in layers:
        step = steps[over] or table.head_given(layer).name
        value = source.step(step, layer)  # (H, T, D), or (T, C)
        for column in range(first, heads[layer] if of_heads else width):
            point = HookPoint(step, layer, column if of_heads else None)
            name = str(point) if of_heads else f"{point} at position {column}"
            one = Intervention(point, value[column]) if of_heads else Intervention(point, value, (column,))
            rows[name] = (one,)
    moved, check = sweep(
        target, rows, found.position, found.of, lambda difference: abs(difference - found.corrupt), on_progress,
        resume=resume, of=["patch", found.answer, found.versus], again=float,
    )  # fmt: skip
    differences = torch.full((len(layers), width), found.corrupt, dtype=torch.float64)
    each = [math.nan if one is None else one for one in moved]
    differences[:, first:] = math.nan  # where a layer has fewer heads
    for layer in layers:
        count = heads[layer] if of_heads else width - first
        differences[layer, first : first + count] = torch.tensor(each[:count], dtype=torch.float64)
        each = each[count:]
    return PatchSweep(
        contrast=found,
        checks=(*_ends(source, target, found.position), check),
        texts=(source.encoding, target.encoding),
        what=over,
        differences=differences,
        patches=len(rows) + first * len(layers),
        first=first,
        about=About(model),
    )


def _runs(
    model: TextModel, clean: Text, corrupt: Text, answer: str | int | None, versus: str | int | None
) -> tuple[Trace, Trace, Contrast]:
    """The traces of both texts, and the difference of logits that is followed in them."""
    chosen = model.optional_outcome(answer, "answer"), model.optional_outcome(versus, "versus")
    source, target = model.trace(clean), model.trace(corrupt)
    require_even(source.encoding, target.encoding)
    return source, target, contrast(source, target, *chosen)


def _ends(clean: Trace, corrupt: Trace, position: int) -> tuple[Verified, ...]:
    """Everything patched is the clean run and nothing patched the corrupt one, to the last bit."""
    everything = HookPoint(clean.steps.input, 0)  # all that follows from the tokens goes through here
    all_in = logits_with(corrupt, [Intervention(everything, everything.value(clean))], position)
    none_in = logits_with(corrupt, [], position)
    return (
        same("everything patched is the clean run", all_in, clean.logits_at(position)),
        same("nothing patched is the corrupt run", none_in, corrupt.logits_at(position)),
    )
