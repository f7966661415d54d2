"""Ablation: the prediction without some parts of the model, each alone or all together."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tinytf.cause.interventions.controls import (
    CONTROLS,
    Control,
    logits_of_sets,
    or_directions,
    random_sets,
    require_controls,
)
from tinytf.cause.interventions.hooks import (
    HookPoint,
    Intervention,
    hidden_with,
    hook_points,
    hooked_by_user,
    intervene,
    intervened,
    logits_with,
    point_names,
    points_of,
    unembedded,
)
from tinytf.cause.interventions.prediction import (
    Choice,
    Effect,
    choices,
    effects,
    log_probabilities,
    logits_at,
    metric_data,
    predicted_at,
    same,
)
from tinytf.cause.interventions.sweep import sweep, verify_logits
from tinytf.cause.interventions.values import BLOCKED, Reference, values_for
from tinytf.compare.measures import loss
from tinytf.config import LEFT_OUT
from tinytf.errors import UsageError
from tinytf.metric import Answer, Asked, Metric, MetricFunction
from tinytf.model.without import left_out
from tinytf.nearest import did_you_mean
from tinytf.report import About, Progress, Report, Verified, ignore_progress
from tinytf.sentences import changed, listed
from tinytf.steps.table import StepTable, table_of
from tinytf.tables import Array
from tinytf.text_model import AnyModel, TextModel
from tinytf.trace.faults import require_finite
from tinytf.trace.trace import Text, Trace, visible

SWEEPS = ("heads", "experts", "ffn", "layers")
_ABLATED = {**{what: what for what in SWEEPS}, "ffn": "feed-forwards"}


@dataclass(frozen=True)
class Ablated(Report):
    """The effect of an ablation on the prediction at ``position``; ``how`` is the kind of ablation.

    ``source`` says where the replacement values came from. ``metric`` is what is followed, by default the
    log-probability of the predicted token; ``target`` is the first token that it is about, None without any.
    """

    how: str
    source: str
    position: int
    metric: Metric
    check: Verified

    @property
    def target(self) -> int | None:
        return self.metric.answer[0] if self.metric.answer else None

    @property
    def follows_probability(self) -> bool:
        """Whether the metric is the log-probability of one token, of which a probability reads more easily."""
        return self.metric.name == "log_prob" and len(self.metric.answer) == 1

    def moved(self, effect: Effect) -> str:
        """What becomes of the metric, in words; of one token's log-probability, what becomes of the probability."""
        if self.follows_probability:
            return f"{self.metric.words.removeprefix('the log-probability of ')} {changed(*map(math.exp, effect.ends))}"
        before, after = (f"{value:.4g}".replace("-", "−") for value in effect.ends)
        verb = "stays at" if before == after else f"goes from {before} to"
        return f"{self.metric.words} {verb} {after}{self.metric.in_unit}"

    def asked(self) -> dict[str, Any]:
        return {**self.members("how", "source", "position"), **metric_data(self, self.metric)}

    def effect_data(self, effect: Effect) -> dict[str, Any]:
        return {**effect.to_dict(), "best": self.named(effect.best)}


@dataclass(frozen=True)
class Ablation(Ablated):
    """The prediction with all of ``sites`` ablated together.

    ``loss_…`` are the mean cross-entropy of the text in nats; None in an encoder and for one token. ``control`` has the
    change of the metric beside random heads, experts or units of the same layers; None for other sites. ``check``
    compares the plain run with a run whose sites are replaced by their own values.
    """

    KIND = "ablate"
    EVENTS: ClassVar = {"tokens": "token", "choices": "choice", "check": "check"}

    sites: tuple[HookPoint, ...]
    effect: Effect
    choices: tuple[Choice, ...]
    loss_before: float | None
    loss_after: float | None
    control: Control | None

    def in_a_sentence(self) -> str:
        """What becomes of the target's probability, and what comes first then."""
        names = point_names(self.sites)
        sites = listed(names) if len(names) <= 3 else f"these {len(names)}"
        ablated = (
            f"With {sites} blocked"
            if self.source == BLOCKED
            else {"zero": f"Without {sites}", "mean": f"With {sites} at the mean"}.get(
                self.how, f"With {sites} from another text"
            )
        )
        if not self.follows_probability:
            return f"{ablated}, {self.moved(self.effect)}."
        was = max(self.choices, key=lambda choice: choice.before).id == self.target
        best = self.effect.best == self.target
        now = ("is still first" if was else "is first now") if best else f"{self.shown(self.effect.best)} comes first"
        return f"{ablated}, {self.moved(self.effect)}, and {now}."

    def stored(self) -> list[Array]:
        """The numbers of the effect, each a tensor of one number."""
        return [Array.of(name, (), torch.tensor(getattr(self.effect, name))) for name in ("kl", "change")]

    def fields(self) -> dict[str, Any]:
        return {
            "at": [str(site) for site in self.sites],
            **self.asked(),
            **self.effect_data(self.effect),
            "choices": [{**vars(choice), self.outcome: self.shown(choice.id)} for choice in self.choices],
            **self.members("loss_before", "loss_after", "control", "check"),
        }


@dataclass(frozen=True)
class AblationSweep(Ablated):
    """Every head, feed-forward or layer of a model, each ablated alone; ``effects[i]`` belongs to ``names[i]``.

    An effect not measured before an interrupt is None, and NaN in the maps. The maps ``kl`` and ``change`` are
    (layers, heads), (layers with experts, experts), or (1, layers) if nothing is split; NaN where a layer has fewer
    heads. ``counts`` are the lengths of the rows. ``control`` has the strongest beside the others. ``check`` compares
    the strongest with a forward pass of its own.
    """

    KIND = "ablate_sweep"
    EVENTS: ClassVar = {"tokens": "token", "effects": "effect", "check": "check"}

    what: str
    names: tuple[str, ...]
    effects: tuple[Effect | None, ...]
    counts: tuple[int, ...]

    def in_a_sentence(self) -> str:
        """Which ablation changes the metric most, and how."""
        if not self.measured:
            return ""
        ((name, effect),) = self.strongest(1)
        of = f"Of {len(self.measured):,} {_ABLATED[self.what]}, {name} matters most"
        then = "" if effect.best == self.target else f", and {self.shown(effect.best)} comes first"
        return f"{of}: without it, {self.moved(effect)}{then * self.follows_probability}."

    def stored(self) -> list[Array]:
        """Both maps, (layers, heads), or (1, layers)."""
        axes = ["all", "layer"] if len(self.counts) == 1 else ["layer", "expert" if "E" in self.names[0] else "head"]
        return [Array.of("kl", axes, self.kl), Array.of("change", axes, self.change)]

    @property
    def kl(self) -> Tensor:
        return self._map(math.nan if effect is None else effect.kl for effect in self.effects)

    @property
    def change(self) -> Tensor:
        return self._map(math.nan if effect is None else effect.change for effect in self.effects)

    def _map(self, values: Iterable[float]) -> Tensor:
        rows = torch.tensor(list(values)).split(list(self.counts))
        return nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=math.nan)

    @property
    def measured(self) -> list[tuple[str, Effect]]:
        return [(name, effect) for name, effect in zip(self.names, self.effects, strict=True) if effect is not None]

    @property
    def control(self) -> Control | None:
        return Control.of_sweep(_ABLATED[self.what], [effect.change for _, effect in self.measured])

    @property
    def interrupted(self) -> bool:
        return None in self.effects

    def strongest(self, count: int) -> list[tuple[str, Effect]]:
        """The ablations that change the metric most, in either direction."""
        return sorted(self.measured, key=lambda pair: -abs(pair[1].change))[:count]

    def fields(self) -> dict[str, Any]:
        return {
            "sweep": self.what,
            **self.asked(),
            **self.members("interrupted"),
            "effects": [{"at": name, **self.effect_data(effect)} for name, effect in self.measured],
            **self.members("control", "check"),
        }


def _run_plain(
    model: TextModel, text: Text, target: Answer, versus: Answer, metric: str | MetricFunction | None
) -> tuple[Trace, int, Metric, Tensor]:
    """The trace, the position that predicts, the metric, and the logits (P, V) that it reads."""
    default = "log_prob" if versus is None else "logit_diff"
    asked = Asked.of(model, metric, target, versus, default=default, names=("target", "versus"))
    trace = asked.trace(model, text)
    predicted = predicted_at(trace)
    position = asked.position(predicted)
    require_finite(trace, trace.logits_at(position))
    second = int(trace.logits_at(position).topk(2).indices[1]) if versus is None else None
    followed = asked.bind(trace, predicted, second, shown=model.shown, run="plain")
    if followed.is_lead and followed.answer == followed.versus:
        raise UsageError("target and versus are one token, so there is no difference to follow", "name two tokens")
    return trace, position, followed, logits_at(trace, followed.read(position))


def ablate(
    model: TextModel,
    text: Text,
    at: str | Sequence[str],
    *,
    target: Answer = None,
    versus: Answer = None,
    metric: str | MetricFunction | None = None,
    how: str = "zero",
    reference: Reference | str | Path | None = None,
    seed: int = 0,
    top: int = 5,
    controls: int = CONTROLS,
    on_progress: Progress = ignore_progress,
) -> Ablation:
    """Measure the prediction after a text, or its trace, with the steps of ``at`` ablated together.

    ``at`` holds addresses such as ``"L3H5"``. ``metric`` is what is followed: one of METRICS, by default ``log_prob``
    (with ``versus`` ``logit_diff``), or a function of the logits (T, V), and if it takes two of the plain run's trace,
    that gives one number. ``target`` are its tokens, by default the predicted one; those of a longer answer continue
    the text. ``reference`` may be a file, and is by default the model's own corpus. ``controls`` random sets of as many
    heads, experts or units of the same layers are ablated beside, drawn by ``seed``, or whole steps changed by as much
    in random directions.

    Raises UsageError if ``at`` is empty, for a model or text that predicts nothing, and for values that are not
    available (``values_for``); AddressError for a step that cannot be ablated.
    """
    if not at:
        raise UsageError(
            "nothing is named to ablate", "name a head, such as L0H1, a part, such as L0.ffn, or a layer, L0"
        )
    require_controls(controls)
    trace, position, followed, plain = _run_plain(model, text, target, versus, metric)
    sites = points_of(at, trace)
    what, others = random_sets(sites, trace.steps, controls, seed)
    every = list(dict.fromkeys((*sites, *(point for one in others for point in one))))
    values = values_for(model, every, how, reference, text=trace.encoding, seed=seed, on_progress=on_progress)
    _require_keys_left(trace, list(values.blocked))
    own, rows = tuple(map(values.intervention, sites)), [tuple(map(values.intervention, one)) for one in others]
    what, rows = or_directions((what, rows), trace, own, controls, seed)
    hidden = hidden_with(trace, own)  # (T, C)
    logits, place = unembedded(trace, hidden, followed.read(position)), followed.read(position).index(position)
    log_p, log_p_after = log_probabilities(plain[place]), log_probabilities(logits[place])
    effect = effects(plain, logits[None], followed, position)[0]
    of_others = logits_of_sets(trace, rows, followed.read(position))
    random = [effects(plain, row[None], followed, position)[0].change for row in of_others]
    loss_before, loss_after = (loss(trace.model, trace.encoding, states) for states in (trace.last_hidden, hidden))
    return Ablation(
        how=how,
        source=values.source,
        position=position,
        metric=followed,
        sites=sites,
        effect=effect,
        choices=choices(log_p, log_p_after, top, followed.followed),
        loss_before=loss_before,
        loss_after=loss_after,
        control=Control.of(what, effect.change, random),
        check=_verify_own_values(trace, sites, position),
        about=About(model, trace.encoding),
    )


def _verify_own_values(trace: Trace, sites: Sequence[HookPoint], position: int) -> Verified:
    """Verify that the sites' own values put in change nothing: exactly, unless attention then runs step by step."""
    claim, plain = "their own values put in give the plain logits", trace.logits_at(position)
    own = [Intervention(site, site.value(trace)) for site in sites]
    if all(site.own(trace).steps.at(site.step, site.layer).recorded for site in sites):
        return same(claim, logits_with(trace, own, [position])[0], plain)
    return verify_logits(claim, trace.model, plain, lambda: logits_with(trace, own, [position])[0])


def _require_keys_left(trace: Trace, blocked: Sequence[HookPoint]) -> None:
    """Raise UsageError if cells of attention weights block nothing that was seen, or all that a token sees."""
    for layer in {point.layer for point in blocked}:
        points = [point for point in blocked if point.layer == layer]
        step = trace.steps.at(points[0].step, layer)
        is_blocked = torch.zeros(trace.config.at(layer).n_heads, len(trace.tokens), len(trace.tokens))  # (H, Q, K)
        for point in points:
            Intervention(point, torch.ones(())).write(is_blocked)
        seen = [visible(trace, step, layer, head) for head in range(len(is_blocked))]
        sees = torch.stack([torch.ones_like(is_blocked[0]).bool() if one is None else one for one in seen])
        if not bool((is_blocked.bool() & sees).any()):
            raise UsageError(f"{points[0]} is masked already: no token looks at a later one", "a cell is [query,key]")
        blind = (sees & ~is_blocked.bool()).any(dim=-1).logical_not().any(dim=0).nonzero().flatten().tolist()
        if blind:
            token = trace.tokens[blind[0]].shown
            raise UsageError(
                f"{points[0]} blocks all that token {blind[0]} {token} sees", "leave it a key, such as [3:,0]"
            )


def ablate_sweep(
    model: TextModel,
    text: Text,
    over: str = "heads",
    *,
    target: Answer = None,
    versus: Answer = None,
    metric: str | MetricFunction | None = None,
    how: str = "zero",
    reference: Reference | str | Path | None = None,
    seed: int = 0,
    resume: Path | None = None,
    on_progress: Progress = ignore_progress,
) -> AblationSweep:
    """``ablate`` for every head (``heads``), feed-forward (``ffn``) or layer (``layers``), each alone, batched.

    ``experts`` runs only those to which a token is routed: the others add nothing. ``on_progress`` also counts the
    texts of a mean. An interrupt ends it with the results so far; the file ``resume`` keeps them, to continue from.
    Raises the errors of ``ablate``, and UsageError for another ``over``.
    """
    if over not in SWEEPS:
        raise UsageError(f"there is no sweep over {over!r}", did_you_mean(over, SWEEPS))
    trace, position, followed, plain = _run_plain(model, text, target, versus, metric)
    rows = _rows_of(over, trace.steps)
    names = tuple(name for row in rows for name in row)
    groups = {name: hook_points(name, trace.steps) for name in names}
    if over == "experts":
        layers = {sites[0].layer for sites in groups.values()}
        used = {layer: trace.step(trace.steps.choice, layer).any(dim=0) for layer in layers}
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
    if resume is not None:
        followed.require_name()
    measured, check = sweep(
        trace,
        {name: tuple(values.intervention(site) for site in group) for name, group in groups.items()},
        followed.read(position),
        lambda logits: effects(plain, logits, followed, position),
        lambda effect: abs(effect.change),
        lambda done, of: on_progress(values.texts + done, values.texts + of),
        resume=resume,
        subject=["ablation", *followed.key],
        from_data=lambda data: Effect(**data),
    )
    unchanged = effects(plain, plain[None], followed, position)[0]
    by_name = dict(zip(groups, measured, strict=True))
    return AblationSweep(
        how=how,
        source=values.source,
        position=position,
        metric=followed,
        what=over,
        names=names,
        effects=tuple(by_name.get(name, unchanged) for name in names),
        counts=tuple(map(len, rows)),
        check=check,
        about=About(model, trace.encoding),
    )


def _rows_of(over: str, table: StepTable) -> list[list[str]]:
    """The names of what a sweep ablates, in the rows of its map. Raises UsageError if the model has none."""
    config, layers = table.config, range(table.config.n_layers)
    rows = {
        "heads": [[f"L{layer}H{head}" for head in range(config.at(layer).n_heads)] for layer in layers],
        "experts": [[f"L{n}E{expert}" for expert in range(config.experts)] for n in layers if config.at(n).experts],
        "ffn": [[f"L{n}.{table.summand(table.at('ffn', n), n).name}" for n in layers if config.at(n).d_ff]],
        "layers": [[f"L{layer}" for layer in layers]],
    }[over]
    if not any(rows):
        part, other = ("experts", "ffn") if over == "experts" else ("feed-forward", "layers")
        raise UsageError(f"this model has no {part}", f"sweep {other} instead")
    return rows


@contextmanager
def ablated(
    model: AnyModel, at: str | Sequence[str], *, how: str = "zero", reference: Reference | str | Path | None = None
) -> Iterator[AnyModel]:
    """Ablate the steps of ``at`` for every text that runs inside the ``with`` block, which gets the model.

    This holds for forward passes, traces and generation; other threads are refused meanwhile. ``how`` is ``zero`` or
    ``mean``. Raises the errors of ``ablate``.
    """
    interventions, _ = _interventions(model, at, how, reference)
    with hooked_by_user(model.transformer, intervene(model.transformer, interventions)):
        yield model


def without(
    model: AnyModel, at: str | Sequence[str], *, how: str = "zero", reference: Reference | str | Path | None = None
) -> AnyModel:
    """Another model that shares the weights, and always runs without ``at``.

    Steps such as ``"L3H5"`` are ablated, as in ``ablated``; ``"scaling"``, ``"mask"`` and ``"positions"`` are left out
    of the computation. Raises the errors of ``ablated`` and ``left_out``.
    """
    names = [at] if isinstance(at, str) else list(dict.fromkeys(at))
    parts = tuple(name for name in names if name in LEFT_OUT)
    steps = [name for name in names if name not in LEFT_OUT]
    words = list(parts)
    if parts:
        model = replace(model, transformer=left_out(model.transformer, parts), lacks=(*model.lacks, *parts))
    if steps:
        interventions, source = _interventions(model, steps, how, reference)
        model = replace(model, transformer=intervened(model.transformer, interventions))
        words.append(f"{', '.join(steps)} ({source or how})")
    return replace(model, file_notes=(*model.file_notes, f"without {', '.join(words)}"))


def _interventions(
    model: TextModel, at: str | Sequence[str], how: str, reference: Reference | str | Path | None
) -> tuple[list[Intervention], str]:
    """The interventions that ablate the steps, and the source of their values."""
    points = hook_points(at, table_of(model.config))
    values = values_for(model, points, how, reference)
    return [values.intervention(point) for point in points], values.source
