"""Ablation: what a prediction becomes without some parts of the model, one after the other or all together."""

import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from tinytf.cause.interventions.hooks import (
    HookPoint,
    Intervention,
    hidden_with,
    hook_points,
    intervened,
    intervening,
    logits_with,
    unembedded,
)
from tinytf.cause.interventions.prediction import (
    Choice,
    Effect,
    choices,
    effects,
    log_probabilities,
    predicted_at,
    same,
)
from tinytf.cause.interventions.sweep import sweep
from tinytf.cause.interventions.values import Reference, values_for
from tinytf.compare.measures import loss
from tinytf.config import LEFT_OUT
from tinytf.errors import UsageError
from tinytf.model.without import left_out
from tinytf.nearest import did_you_mean
from tinytf.report import About, Progress, Report, Verified, unheard
from tinytf.steps.table import table_of
from tinytf.tables import Array
from tinytf.text_model import TextModel
from tinytf.trace.faults import require_finite
from tinytf.trace.trace import Text, Trace

AnyModel = TypeVar("AnyModel", bound=TextModel)
SWEEPS = ("heads", "experts", "ffn", "layers")


@dataclass(frozen=True)
class Ablated(Report):
    """What ablating some steps ``how`` made of the prediction at ``position``.

    ``source`` says where the values came from that were put in. ``target`` is the token whose probability is followed.
    """

    how: str
    source: str
    position: int
    target: int
    check: Verified

    def asked(self) -> dict[str, Any]:
        return {**self.members("how", "source", "position"), "target": self.named(self.target)}

    def effect_data(self, effect: Effect) -> dict[str, Any]:
        return {**effect.to_dict(), "best": self.named(effect.best)}


@dataclass(frozen=True)
class Ablation(Ablated):
    """What became of the prediction with all of ``sites`` ablated together.

    ``loss_…`` are over the text, mean cross-entropy in nats; None in an encoder and for one token. ``check`` compares
    the plain run with one that has its own values put in at the same sites.
    """

    KIND = "ablation"
    EVENTS: ClassVar = {"tokens": "token", "choices": "choice", "check": "check"}

    sites: tuple[HookPoint, ...]
    effect: Effect
    choices: tuple[Choice, ...]
    loss_before: float | None
    loss_after: float | None

    def stored(self) -> list[Array]:
        """The numbers of the effect, each a tensor of one number."""
        return [Array.of(name, (), torch.tensor(getattr(self.effect, name))) for name in ("kl", "change")]

    def fields(self) -> dict[str, Any]:
        return {
            "at": [str(site) for site in self.sites],
            **self.asked(),
            **self.effect_data(self.effect),
            "choices": [{**vars(one), self.outcome: self.shown(one.id)} for one in self.choices],
            **self.members("loss_before", "loss_after", "check"),
        }


@dataclass(frozen=True)
class AblationSweep(Ablated):
    """Every head, feed-forward or layer of a model, each ablated alone; ``effects[i]`` is that of ``names[i]``.

    After an interrupt it is None, and NaN in the maps, where nothing was ``measured``. ``kl`` and ``change`` are the
    maps, (layers, heads), (layers with experts, experts), or (1, layers) where nothing is split; NaN where a layer has
    fewer heads. ``counts`` is how many there are in each row. ``check`` compares the strongest with a forward pass of
    its own.
    """

    KIND = "ablation_sweep"
    EVENTS: ClassVar = {"tokens": "token", "effects": "effect", "check": "check"}

    what: str
    names: tuple[str, ...]
    effects: tuple[Effect | None, ...]
    counts: tuple[int, ...]

    def stored(self) -> list[Array]:
        """Both maps, (layers, heads), or (1, layers)."""
        axes = ["all", "layer"] if len(self.counts) == 1 else ["layer", "expert" if "E" in self.names[0] else "head"]
        return [Array.of("kl", axes, self.kl), Array.of("change", axes, self.change)]

    @property
    def kl(self) -> Tensor:
        return self._map(math.nan if one is None else one.kl for one in self.effects)

    @property
    def change(self) -> Tensor:
        return self._map(math.nan if one is None else one.change for one in self.effects)

    def _map(self, values: Iterable[float]) -> Tensor:
        rows = torch.tensor(list(values)).split(list(self.counts))
        return nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=math.nan)

    @property
    def measured(self) -> list[tuple[str, Effect]]:
        return [(name, one) for name, one in zip(self.names, self.effects, strict=True) if one is not None]

    @property
    def interrupted(self) -> bool:
        return None in self.effects

    def strongest(self, count: int) -> list[tuple[str, Effect]]:
        """Those that change the target's probability most, in either direction."""
        return sorted(self.measured, key=lambda pair: -abs(pair[1].change))[:count]

    def fields(self) -> dict[str, Any]:
        return {
            "sweep": self.what,
            **self.asked(),
            **self.members("interrupted"),
            "effects": [{"at": name, **self.effect_data(one)} for name, one in self.measured],
            **self.members("check"),
        }


def _predicted(model: TextModel, text: Text, target: str | int | None) -> tuple[Trace, int, Tensor, int]:
    """The trace, the position, the log-probabilities there, and the target: by default the predicted token."""
    named = model.optional_outcome(target)
    trace = model.trace(text)
    position = predicted_at(trace)
    require_finite(trace, trace.logits_at(position))
    before = log_probabilities(trace.logits_at(position))
    return trace, position, before, int(before.argmax()) if named is None else named


def ablate(
    model: TextModel,
    text: Text,
    at: str | Sequence[str],
    *,
    target: str | int | None = None,
    how: str = "zero",
    reference: Reference | str | Path | None = None,
    seed: int = 0,
    top: int = 5,
    on_progress: Progress = unheard,
) -> Ablation:
    """What the prediction after a text, or its trace, becomes with the steps of ``at`` ablated together.

    ``at`` is such as ``"L3H5"``. ``target`` is the token that is followed, by default the predicted one; ``reference``
    may be a file, and is by default the model's own corpus.

    Raises UsageError where ``at`` is empty, for a model or text that predicts nothing, and for values that cannot be
    taken (``values_for``); AddressError for a step that cannot be ablated.
    """
    if not at:
        raise UsageError("nothing is named to ablate", "name a head as L0H1, a part as L0.ffn, a layer as L0")
    trace, position, before, followed = _predicted(model, text, target)
    sites = hook_points(at, trace.steps)
    values = values_for(model, sites, how, reference, text=trace.encoding, seed=seed, on_progress=on_progress)
    hidden = hidden_with(trace, [Intervention(site, values.of[site]) for site in sites])  # (T, C)
    own = logits_with(trace, [Intervention(site, site.value(trace)) for site in sites], position)
    after = log_probabilities(unembedded(trace, hidden, position))
    loss_before, loss_after = (loss(trace.model, trace.encoding, states) for states in (trace.last_hidden, hidden))
    return Ablation(
        how=how,
        source=values.source,
        position=position,
        target=followed,
        sites=sites,
        effect=effects(before, after[None], followed)[0],
        choices=choices(before, after, top, [followed]),
        loss_before=loss_before,
        loss_after=loss_after,
        check=same("their own values put in give the plain logits", own, trace.logits_at(position)),
        about=About(model, trace.encoding),
    )


def ablation_sweep(
    model: TextModel,
    text: Text,
    over: str = "heads",
    *,
    target: str | int | None = None,
    how: str = "zero",
    reference: Reference | str | Path | None = None,
    seed: int = 0,
    resume: Path | None = None,
    on_progress: Progress = unheard,
) -> AblationSweep:
    """``ablate`` for every head (``heads``), feed-forward (``ffn``) or layer (``layers``), each alone, batched.

    Of ``experts`` those are run that some token is sent to: the others add nothing.
    ``on_progress`` counts the texts of a mean too. An interrupt ends it with what was measured; with ``resume`` that is
    kept in this file and continued from it. Raises as ``ablate`` does, and UsageError for another word.
    """
    if over not in SWEEPS:
        raise UsageError(f"there is no sweep over {over!r}", did_you_mean(over, SWEEPS))
    trace, position, before, followed = _predicted(model, text, target)
    layers = range(trace.config.n_layers)
    mixed = [layer for layer in layers if trace.config.at(layer).experts]
    if over == "experts" and not mixed:
        raise UsageError("this model has no experts", "--sweep ffn takes its feed-forwards")
    names = {
        "experts": [f"L{layer}E{number}" for layer in mixed for number in range(trace.config.experts)],
        "heads": [f"L{layer}H{head}" for layer in layers for head in range(trace.config.at(layer).n_heads)],
        "ffn": [f"L{layer}.ffn" for layer in layers],
        "layers": [f"L{layer}" for layer in layers],
    }[over]
    groups = {name: hook_points([name], trace.steps) for name in names}
    if over == "experts":
        used = {layer: trace.step(trace.steps.choice, layer).any(dim=0) for layer in mixed}
        groups = {name: sites for name, sites in groups.items() if used[sites[0].layer][sites[0].head or 0]}
    values = values_for(
        model,
        [site for group in groups.values() for site in group],
        how,
        reference,
        text=trace.encoding,
        seed=seed,
        on_progress=lambda done, of: on_progress(done, of + len(groups)),
    )
    found, check = sweep(
        trace,
        {name: tuple(Intervention(site, values.of[site]) for site in group) for name, group in groups.items()},
        position,
        lambda logits: effects(before, log_probabilities(logits), followed),
        lambda effect: abs(effect.change),
        lambda done, of: on_progress(values.texts + done, values.texts + of),
        resume=resume,
        of=["ablation", followed],
        again=lambda said: Effect(**said),
    )
    counts = {
        "heads": [trace.config.at(layer).n_heads for layer in layers],
        "experts": [trace.config.experts] * len(mixed),
    }
    unchanged = effects(before, before[None], followed)[0]
    each = dict(zip(groups, found, strict=True))
    return AblationSweep(
        how=how,
        source=values.source,
        position=position,
        target=followed,
        what=over,
        names=tuple(names),
        effects=tuple(each.get(name, unchanged) for name in names),
        counts=tuple(counts.get(over, [len(layers)])),
        check=check,
        about=About(model, trace.encoding),
    )


def ablated(
    model: TextModel, at: str | Sequence[str], *, how: str = "zero", reference: str | Path | None = None
) -> AbstractContextManager[None]:
    """Every text that goes through the model in here goes through it with the steps of ``at`` ablated.

    Forward passes, traces and generation alike; ``how`` is ``zero`` or ``mean``. Raises as ``ablate`` does.
    """
    interventions, _ = _interventions(model, at, how, reference)
    return intervening(model.transformer, interventions)


def without(
    model: AnyModel, at: str | Sequence[str], *, how: str = "zero", reference: str | Path | None = None
) -> AnyModel:
    """Another model of the same weights, that always runs without ``at``.

    Steps such as ``"L3H5"`` are ablated, as in ``ablated``; ``"scaling"``, ``"mask"`` and ``"positions"`` are left out
    of the computation. Raises as ``ablated`` and ``left_out`` do.
    """
    names = [at] if isinstance(at, str) else list(dict.fromkeys(at))
    parts = tuple(name for name in names if name in LEFT_OUT)
    steps = [name for name in names if name not in LEFT_OUT]
    said = list(parts)
    if parts:
        model = replace(model, transformer=left_out(model.transformer, parts), lacks=(*model.lacks, *parts))
    if steps:
        interventions, source = _interventions(model, steps, how, reference)
        model = replace(model, transformer=intervened(model.transformer, interventions))
        said.append(f"{', '.join(steps)} ({source or how})")
    return replace(model, file_notes=(*model.file_notes, f"without {', '.join(said)}"))


def _interventions(
    model: TextModel, at: str | Sequence[str], how: str, reference: str | Path | None
) -> tuple[list[Intervention], str]:
    """What takes the place of the steps, and where it is from."""
    points = hook_points(at, table_of(model.config))
    values = values_for(model, points, how, reference)
    return [Intervention(point, values.of[point]) for point in points], values.source
