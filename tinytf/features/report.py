"""The features of a text: which are active at each token, what they promote, and what the prediction is without them.

Shapes: T tokens, F features, U shown features, C width of the step that is read, O of the one that is written.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.bulk.folder import RecordedCorpus
from tinytf.cause.interventions.hooks import unembedded
from tinytf.cause.interventions.prediction import (
    Choice,
    Effect,
    choices,
    effects,
    log_probabilities,
    predicted_at,
    same,
)
from tinytf.compare.measures import loss
from tinytf.errors import UsageError
from tinytf.features.coder import SparseCoder
from tinytf.features.fidelity import Fidelity, Reconstructed, fidelity, hidden_edited, reconstructed
from tinytf.features.layouts import open_sae
from tinytf.features.place import Place, places_of
from tinytf.look.examples import places_in
from tinytf.look.neurons import TopExamples, predicted_tokens
from tinytf.look.readout import Ends, Readout, ends_data, in_stream
from tinytf.metric import Asked
from tinytf.report import About, Data, Progress, Report, Verified, ignore_progress, plain
from tinytf.sentences import changed, listed, percent
from tinytf.steps.table import table_of
from tinytf.tables import Array
from tinytf.text.corpus import Corpus
from tinytf.text_model import TextModel
from tinytf.trace.faults import require_finite
from tinytf.trace.trace import Text, Trace

NEAREST = 5
"""How many features with the most alike directions are named for a chosen one."""


@dataclass(frozen=True)
class ActiveFeature(Data):
    """A feature at one token. ``contribution`` is what it adds to the predicted token's logit directly.

    It goes through the residual stream and the final norm with its scale at this token; None without a direct path.
    """

    feature: int
    activation: float
    contribution: float | None = None


@dataclass(frozen=True)
class TokenFeatures:
    """The features of one position, the strongest first, and how many ``active`` ones it has.

    ``predicted`` is the id that the model predicts there; None without a head.
    """

    position: int
    predicted: int | None
    active: int
    features: tuple[ActiveFeature, ...]


@dataclass(frozen=True)
class FeatureDirection:
    """What an activation of 1 adds to the step: the norm of that direction, and the tokens at both of its ends.

    Logits are not divided by the final norm's scale, which differs by token. ``nearest`` are the features with the most
    alike directions, each with the cosine; for chosen features only.
    """

    feature: int
    norm: float
    promoted: Ends = ()
    suppressed: Ends = ()
    nearest: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class FeatureChange:
    """The prediction at ``position`` with some features ``ablated`` and activations ``added`` to others.

    The change is made at every token of the text, and the part of the step that the coder does not reconstruct stays.
    ``check`` compares the plain run with a run in which the step is replaced by its own value.
    """

    ablated: tuple[int, ...]
    added: Mapping[int, float]
    position: int
    target: int
    effect: Effect
    choices: tuple[Choice, ...]
    loss_before: float | None
    loss_after: float | None
    check: Verified


@dataclass(frozen=True)
class Features(Report):
    """The features of every token of a text, or the ``chosen`` ones, with the directions of all of these.

    ``at`` and ``into`` are the steps that ``coder`` reads and writes. ``reading`` says how directions were read, or why
    they have no tokens; ``contributing`` says the same of contributions. ``change`` is there if features were changed,
    ``examples`` if a corpus was searched.
    """

    KIND = "features"
    TABLE = ("active", "features")
    EVENTS: ClassVar = {
        "tokens": "token", "active": "active", "directions": "direction", "fidelity": "fidelity", "change": "change",
        "corpus": "corpus", "examples": "examples",
    }  # fmt: skip

    coder: SparseCoder
    at: str
    into: str
    chosen: tuple[int, ...]
    fidelity: Fidelity
    tokens: tuple[TokenFeatures, ...]
    directions: tuple[FeatureDirection, ...]
    reading: str
    contributing: str
    change: FeatureChange | None = None
    examples: TopExamples | None = None
    step: Reconstructed | None = field(default=None, repr=False, compare=False)

    @property
    def check(self) -> Verified | None:
        return None if self.change is None else self.change.check

    @property
    def shown_features(self) -> tuple[int, ...]:
        """Every shown feature, once, in the order of the text."""
        return tuple(direction.feature for direction in self.directions)

    def in_a_sentence(self) -> str:
        """What the change does; else where the chosen feature is active, or the strongest feature of the last token."""
        if self.change is not None:
            return self._change_in_words(self.change)
        if self.chosen:
            rows = [(token.features[0].activation, token.position) for token in self.tokens if token.features]
            active = [row for row in rows if row[0] > 0]
            if not active:
                return f"Feature {self.chosen[0]} is not active in this text."
            most, position = max(active)
            at = f"most at {self.encoding.tokens[position].shown} ({most:.3g})"
            where = f"active at {len(active):,} of {len(rows):,} tokens, {at}"
            return f"Feature {self.chosen[0]} is {where}{self._speaks_for(self.chosen[0])}."
        last = next((token for token in reversed(self.tokens) if token.features), None)
        if last is None:
            return f"No feature is active in this text at {self.at}."
        strongest, share = last.features[0], self.fidelity.explained_variance
        words = f"At {self.encoding.tokens[last.position].shown}, feature {strongest.feature} is the most active"
        kept = "" if share is None or share < 0 else f"; all active ones keep {percent(share)} of the variance"
        return f"{words} of {last.active:,} ({strongest.activation:.3g}){self._speaks_for(strongest.feature)}{kept}."

    def _speaks_for(self, feature: int) -> str:
        ends = next(direction.promoted for direction in self.directions if direction.feature == feature)
        return f", and speaks for {listed([str(self.shown(i)) for i, _ in ends[:3]])}" if ends else ""

    def _change_in_words(self, change: FeatureChange) -> str:
        ablated = [f"feature {number}" for number in change.ablated]
        added = [f"{value:+g} of feature {number}" for number, value in change.added.items()]
        parts = [f"{how} {listed(names)}" for how, names in (("without", ablated), ("with", added)) if names]
        words = " and ".join(parts)
        effect, was = change.effect, max(change.choices, key=lambda choice: choice.before).id == change.target
        now = ("is still first" if was else "is first now") if effect.best == change.target else ""
        now = now or f"{self.shown(effect.best)} comes first"
        shares = (math.exp(share) for share in (effect.before, effect.after))
        return f"{words[0].upper()}{words[1:]}, {self.shown(change.target)} {changed(*shares)}, and {now}."

    def fields(self) -> dict[str, Any]:
        return {
            "sae": self.coder.to_dict(),
            **self.members("at", "into", "chosen", "fidelity", "reading", "contributing"),
            "active": [
                {
                    **plain(token),
                    "predicted": None if token.predicted is None else self.named(token.predicted),
                }
                for token in self.tokens
            ],
            "directions": [
                {
                    **plain(direction),
                    **ends_data(self, direction.promoted, direction.suppressed),
                    "nearest": [{"feature": other, "cosine": cosine} for other, cosine in direction.nearest],
                }
                for direction in self.directions
            ],
            "change": self._change_data(),
            "examples": None if self.examples is None else self.examples.to_dict(self.word),
        }

    def _change_data(self) -> dict[str, Any] | None:
        change = self.change
        if change is None:
            return None
        return {
            "ablated": list(change.ablated),
            "added": [{"feature": number, "activation": value} for number, value in change.added.items()],
            "position": change.position,
            "target": self.named(change.target),
            "kl": change.effect.kl,
            "log_probability_before": change.effect.before,
            "log_probability_after": change.effect.after,
            "change": change.effect.change,
            "best": self.named(change.effect.best),
            "choices": [{**vars(choice), self.outcome: self.shown(choice.id)} for choice in change.choices],
            "loss_before": change.loss_before,
            "loss_after": change.loss_after,
            "check": plain(change.check),
        }

    def itemised(self) -> dict[str, Any]:
        """The corpus, then the examples of each feature."""
        data = self.to_dict()
        corpus = data.pop("examples")
        return {**data, "examples": corpus and corpus.pop("units"), "corpus": corpus}

    def stored(self) -> list[Array]:
        """The numbers of the shown ``features`` (U,), their ``activations`` (T, U) and ``directions`` (U, O).

        Also the ``reconstruction`` (n, O) of the tokens at ``positions`` (n,).
        """
        if self.step is None or not self.shown_features:
            return []
        shown = list(self.shown_features)
        return [
            Array.of("features", ["feature"], torch.tensor(shown)),
            Array.of("activations", ["token", "feature"], self.step.activations[:, shown]),
            Array.of("directions", ["feature", "width"], self.coder.decoder[shown]),
            Array.of("positions", ["own token"], torch.tensor(self.step.own)),
            Array.of("reconstruction", ["own token", "width"], self.step.reconstruction),
        ]


@torch.no_grad()
def features(
    model: TextModel,
    text: Text,
    sae: SparseCoder | str | Path,
    *,
    at: str | None = None,
    into: str | None = None,
    top: int = 3,
    chosen: Sequence[int] = (),
    tokens: int = 5,
    ablate: Sequence[int] = (),
    add: Mapping[int, float] | None = None,
    target: str | int | None = None,
) -> Features:
    """The ``top`` features of a sparse autoencoder or transcoder at each token of a text or trace, or the ``chosen``.

    ``sae`` is a coder, or where one is; ``at`` and ``into`` are the steps that it reads and writes, by default those
    that its file names. ``tokens`` is how many tokens are read at either end of a direction. The prediction, of
    ``target`` or of the predicted token, is compared with ``ablate`` features at 0, and activations ``add``-ed.

    Raises UsageError for a coder of another width, a feature that it lacks, and a change of nothing predicted;
    AddressError for a step that has no vector a token; CheckpointError as ``open_sae`` does.
    """
    coder = sae if isinstance(sae, SparseCoder) else open_sae(sae)
    add = dict(add or {})
    for number in (*chosen, *ablate, *add):
        if not 0 <= number < coder.n_features:
            message = f"there is no feature {number:,}: {coder.name} has {coder.n_features:,}, from 0"
            raise UsageError(message, "without --feature, tinytf features shows the active ones")
    followed = model.optional_outcome(target)
    read, written = places_of(coder, table_of(model.config), at, into)
    trace = model.trace(text)
    require_finite(trace, read.value(trace))
    require_finite(trace, trace.last_hidden)
    coder = coder.to(trace.last_hidden.device)
    step = reconstructed(model, trace, coder, read, written)
    best, _ = predicted_tokens(trace)
    shown = [list(dict.fromkeys(chosen))] * len(trace.tokens) if chosen else _strongest(step, top)
    numbers = list(dict.fromkeys(number for row in shown for number in row))
    rows, is_added = in_stream(trace.model, written.name, written.layer, coder.decoder[numbers])
    is_scaled = coder.normalisation != "none" and not coder.is_transcoder
    source = f"rows of W_dec{', without the scale of each token' if is_scaled else ''}"
    readout = Readout(trace.model, source, "feature", is_added)
    parts = None
    if rows is not None and readout.direct and best is not None:
        parts = readout.questions(trace.last_output, best) @ rows.double().T  # (T, U)
        parts = parts * coder.output_scale(read.value(trace)).double()
    column = {number: index for index, number in enumerate(numbers)}
    own = set(step.own)

    def active(position: int, number: int) -> ActiveFeature:
        activation = float(step.activations[position, number])
        return ActiveFeature(
            number, activation, None if parts is None else activation * float(parts[position, column[number]])
        )

    changes = tuple(ablate), add, followed
    return Features(
        coder=coder,
        at=str(read),
        into=str(written),
        chosen=tuple(dict.fromkeys(chosen)),
        fidelity=fidelity([step]),
        tokens=tuple(
            TokenFeatures(
                position,
                None if best is None else int(best[position]),
                int((step.activations[position] > 0).sum()),
                tuple(active(position, number) for number in row) if position in own else (),
            )
            for position, row in enumerate(shown)
        ),
        directions=_directions(coder, numbers, rows, readout, tokens, bool(chosen)),
        reading=readout.reading if rows is not None else f"{written} is not added to the residual stream: no tokens",
        contributing=readout.contributing,
        change=_change(model, trace, coder, read, written, step, *changes) if ablate or add else None,
        step=step,
        about=About(model, trace.encoding),
    )


def _strongest(step: Reconstructed, top: int) -> list[list[int]]:
    """The features of each token that are active, the ``top`` strongest first; none of a token that was added."""
    own, best = set(step.own), step.activations.topk(min(top, step.activations.shape[1]), dim=-1)
    return [
        [number for number, value in zip(numbers, values, strict=True) if value > 0] if position in own else []
        for position, (numbers, values) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    ]


def _directions(
    coder: SparseCoder, numbers: Sequence[int], rows: Tensor | None, readout: Readout, top: int, with_nearest: bool
) -> tuple[FeatureDirection, ...]:
    decoder = coder.decoder[list(numbers)]  # (U, O)
    ends: Sequence[tuple[Ends, Ends]] = [((), ())] * len(numbers)
    if rows is not None and readout.has_directions and numbers:
        ends = list(readout.ends(rows, top))
    nearest: list[tuple[tuple[int, float], ...]] = [()] * len(numbers)
    if with_nearest:
        unit = torch.nn.functional.normalize(coder.decoder, dim=-1)
        cosines = unit[list(numbers)] @ unit.T  # (U, F)
        cosines[range(len(numbers)), list(numbers)] = -math.inf
        most = cosines.topk(min(NEAREST, coder.n_features - 1), dim=-1)
        pairs = zip(most.indices.tolist(), most.values.tolist(), strict=True)
        nearest = [tuple(zip(*pair, strict=True)) for pair in pairs]
    norms = decoder.norm(dim=-1).tolist()
    return tuple(
        FeatureDirection(number, norm, *end, near)
        for number, norm, end, near in zip(numbers, norms, ends, nearest, strict=True)
    )


def _change(
    model: TextModel, trace: Trace, coder: SparseCoder, read: Place, written: Place, step: Reconstructed,
    ablated: tuple[int, ...], added: Mapping[int, float], target: int | None,
) -> FeatureChange:  # fmt: skip
    position = predicted_at(trace)
    before = trace.logits_at(position)
    require_finite(trace, before)
    log_p = log_probabilities(before)
    followed = int(log_p.argmax()) if target is None else target
    metric = Asked("log_prob", (followed,)).bind(trace, position, shown=model.shown, run="plain")
    numbers = list(dict.fromkeys((*ablated, *added)))
    now = step.activations[step.own][:, numbers]  # (n, U)
    then = torch.where(torch.tensor([number in ablated for number in numbers], device=now.device), 0.0, now)
    then = then + torch.tensor([added.get(number, 0.0) for number in numbers]).to(now)
    scale = coder.output_scale(read.value(trace)[step.own].to(now))
    changed_step = step.output.clone()
    changed_step[step.own] += (((then - now) @ coder.decoder[numbers]) * scale).to(changed_step)
    hidden = hidden_edited(model, trace, written, changed_step)
    logits = unembedded(trace, hidden, [position])
    (unchanged,) = unembedded(trace, hidden_edited(model, trace, written, step.output), [position])
    return FeatureChange(
        ablated,
        added,
        position,
        followed,
        effects(before[None], logits[None], metric, position)[0],
        choices(log_p, log_probabilities(logits[0]), 5, [followed]),
        step.losses and step.losses[0],
        loss(trace.model, trace.encoding, hidden),
        same(f"{written}'s own value put in gives the plain logits", unchanged, before),
    )


@torch.no_grad()
def feature_examples(
    model: TextModel,
    corpus: Corpus | RecordedCorpus,
    sae: SparseCoder | str | Path,
    features: Sequence[int],
    *,
    at: str | None = None,
    top: int = 5,
    window: int | None = None,
    on_progress: Progress = ignore_progress,
) -> TopExamples:
    """Find the places of a corpus, of ``tinytf.text.corpus.find_files``, where each of ``features`` is most active.

    The corpus is read as a stream, as ``top_examples`` reads it, or a recorded one. Raises the errors of both.
    """
    coder = sae if isinstance(sae, SparseCoder) else open_sae(sae)
    read, _ = places_of(coder, table_of(model.config), at, None)
    numbers = list(dict.fromkeys(features))

    def strengths(rows: Tensor) -> Tensor:
        own = coder.to(rows.device)
        parts = read.of_source(rows, model.config).flatten(0, -2).split(128)  # F columns of few rows
        return torch.cat([own.encode(part)[:, numbers] for part in parts]).unflatten(0, rows.shape[:-1])

    columns = {read.source(model.config): ([f"feature {number}" for number in numbers], strengths)}
    return places_in(model, corpus, columns, top, window, on_progress)
