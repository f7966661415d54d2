"""Feed-forward units: which are active on a text, and which tokens their output directions promote.

Shapes: T tokens, F units of a layer (d_ff), C d_model, V vocabulary, U chosen units.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.counting import counted
from tinytf.errors import AddressError, UsageError
from tinytf.look.readout import Ends, Readout, ends_data
from tinytf.model.transformer import Transformer
from tinytf.nearest import did_you_mean
from tinytf.report import About, Report, plain
from tinytf.sentences import listed
from tinytf.steps.table import table_of
from tinytf.tables import Array
from tinytf.text_model import TextModel
from tinytf.trace.address import parse_single_number
from tinytf.trace.trace import Text, Trace

_UNIT = re.compile(r"L(-?[0-9]{1,9})\.(-?[0-9]{1,9})")
_POSITIONS_AT_ONCE = 64  # positions whose logits are computed at a time
ORDERS = ("activation", "contribution")


@dataclass(frozen=True, order=True)
class Unit:
    """One of the d_ff units of a layer, ``L3.17``."""

    layer: int
    index: int

    def __str__(self) -> str:
        return f"L{self.layer}.{self.index}"


def parse_unit(text: str, config: ModelConfig) -> Unit:
    """The unit that ``L3.17`` names. Raises AddressError for a unit that the model lacks."""
    match = _UNIT.fullmatch(text.strip())
    if match is None:
        raise AddressError(f"{text!r} is not a unit", "unit 17 of layer 3 is L3.17")
    return Unit(
        parse_single_number(match[1], config.n_layers, "layer"), parse_single_number(match[2], config.d_ff, "unit")
    )


@dataclass(frozen=True)
class ActiveUnit:
    """A unit at one token: its ``activation``, before W₂.

    ``contribution`` is what it adds to the predicted token's logit directly, through the residual stream and the
    final norm with its scale at this token; None if there is no direct path.
    """

    unit: Unit
    activation: float
    contribution: float | None = None


@dataclass(frozen=True)
class TokenUnits:
    """The units of one position, the most active first, and the id that the model predicts there with its logit."""

    position: int
    predicted: int | None
    logit: float | None
    units: tuple[ActiveUnit, ...]


@dataclass(frozen=True)
class Direction:
    """A unit's output weights (its row of W₂) as logits: ids with what an activation of 1 adds to their logits.

    The values are not divided by the final norm's scale, which differs by token. ``norm`` is the norm of the row.
    """

    unit: Unit
    norm: float
    promoted: Ends
    suppressed: Ends


@dataclass(frozen=True)
class ActiveExample:
    """A token that activates a unit: token ``position`` of ``document``, counted from 0, which is ``ids[at]``."""

    activation: float
    document: int
    position: int
    ids: tuple[int, ...]
    at: int


@dataclass(frozen=True)
class TopExamples:
    """The strongest examples of each unit (or feature) in a corpus, the strongest first, and the number of tokens read.

    ``corpus`` names the corpus.
    """

    units: Mapping[Any, tuple[ActiveExample, ...]]
    tokens: int
    documents: int
    corpus: str = ""

    def to_dict(self, shown: Callable[[int], str | None]) -> dict[str, Any]:
        """Plain JSON data; ``shown`` is the text of a token."""
        units = [
            {
                "unit": str(unit),
                "examples": [{**plain(example), "tokens": [shown(i) for i in example.ids]} for example in examples],
            }
            for unit, examples in self.units.items()
        ]
        return {"corpus": self.corpus, "tokens": self.tokens, "documents": self.documents, "units": units}


@dataclass(frozen=True)
class Neurons(Report):
    """The units of every token of a text, or the ``chosen`` ones, and the directions of all these units.

    ``reading`` says how directions were read, or why ``directions`` is empty; ``contributing`` says the same of
    contributions. ``examples`` of these units are present if a corpus was searched.
    """

    KIND = "neurons"
    TABLE = ("active", "units")
    EVENTS: ClassVar = {
        "tokens": "token",
        "active": "active",
        "directions": "direction",
        "corpus": "corpus",
        "examples": "examples",
    }

    by: str
    tokens: tuple[TokenUnits, ...]
    directions: tuple[Direction, ...]
    reading: str
    contributing: str
    trace: Trace = field(repr=False, compare=False)
    chosen: tuple[Unit, ...] = ()
    examples: TopExamples | None = None

    def in_a_sentence(self) -> str:
        """The first unit of the last token, or where the first chosen one is most active; and what it promotes there.

        The strongest by contribution is the one that moves the predicted token's logit most, up or down.
        """
        rows = [(token, token.units[0]) for token in self.tokens if token.units]
        if not rows:
            return ""
        token, active = max(rows, key=lambda row: _size(row[1].activation)) if self.chosen else rows[-1]
        at, unit = self.encoding.tokens[token.position].shown, active.unit
        if not math.isfinite(active.activation):
            return f"At {at}, {unit} is not finite."
        if not active.activation:
            return f"{unit} is not active in this text." if self.chosen else f"At {at}, no unit{self.where} is active."
        if self.chosen:
            words = f"{unit} is most active at {at} ({active.activation:+.3g})"
        elif self.by == "activation":
            words = f"At {at}, {unit} is the most active unit{self.where} ({active.activation:+.3g})"
        else:
            moved = f"the logit of {self.shown(token.predicted or 0)} most ({active.contribution or 0:+.3g})"
            words = f"At {at}, {unit} is the unit{self.where} that moves {moved}"
        direction = next((direction for direction in self.directions if direction.unit == unit), None)
        ends = () if direction is None else direction.promoted if active.activation >= 0 else direction.suppressed
        return f"{words}; it speaks for {listed([str(self.shown(i)) for i, _ in ends[:3]])}." if ends else f"{words}."

    @property
    def where(self) -> str:
        """`` of layer 1`` if only some layers were looked at."""
        layers = self.trace.recording.layers
        if len(layers) == self.trace.config.n_layers:
            return ""
        return f" of layer{'s' if len(layers) > 1 else ''} {listed([str(layer) for layer in layers])}"

    def fields(self) -> dict[str, Any]:
        return {
            **self.members("by", "reading", "contributing"),
            "active": [
                {
                    **plain(token),
                    "predicted": None if token.predicted is None else self.named(token.predicted),
                    "units": [{**vars(entry.unit), **vars(entry), "unit": str(entry.unit)} for entry in token.units],
                }
                for token in self.tokens
            ],
            "directions": [
                {
                    "unit": str(direction.unit),
                    "norm": direction.norm,
                    **ends_data(self, direction.promoted, direction.suppressed),
                }
                for direction in self.directions
            ],
            "examples": None if self.examples is None else self.examples.to_dict(self.word),
        }

    def itemised(self) -> dict[str, Any]:
        """The corpus, then the examples of each unit."""
        data = self.to_dict()
        corpus = data.pop("examples")
        return {**data, "examples": corpus and corpus.pop("units"), "corpus": corpus}

    def stored(self) -> list[Array]:
        """``units`` (U, 2), layer and index; their ``activations`` (T, U); their ``directions`` (U, C), rows of W₂."""
        acts = [activated(self.trace, unit.layer)[:, unit.index] for unit in self.units]
        directions = torch.stack([_row(self.trace.model, unit).detach() for unit in self.units])
        return [
            Array.of(
                "units", ["unit", "layer and index"], torch.tensor([(unit.layer, unit.index) for unit in self.units])
            ),
            Array.of("activations", ["token", "unit"], torch.stack(acts, dim=-1)),
            Array.of("directions", ["unit", "d_model"], directions),
        ]

    @property
    def units(self) -> tuple[Unit, ...]:
        """Every shown unit, once, in the order of the text."""
        return tuple(dict.fromkeys(active.unit for token in self.tokens for active in token.units))


def require_units(config: ModelConfig) -> None:
    """Raise UsageError for a model without a feed-forward, or with experts: no units that every token uses."""
    if not config.d_ff:
        raise UsageError("this model has no feed-forward, so it has no units", "its layers have a mixer alone")
    if config.experts:
        raise UsageError(
            "the feed-forwards of this model are experts, and each has units of its own",
            "tinytf experts shows where tokens go; --at L0E1.expert.act shows the units of one expert",
        )


def activated(trace: Trace, layer: int) -> Tensor:
    """The input of W₂ in a layer, (T, F)."""
    return trace.step(trace.steps.ffn_activation, layer)


def _directions(readout: Readout, units: Sequence[Unit], top: int) -> tuple[Direction, ...]:
    """The ``top`` tokens that each unit promotes, and suppresses, most."""
    if not readout.has_directions or not units:
        return ()
    rows = torch.stack([_row(readout.model, unit) for unit in units])  # (U, C)
    ends = zip(units, rows.float().norm(dim=-1).tolist(), readout.ends(rows, top), strict=True)
    return tuple(Direction(unit, norm, promoted, suppressed) for unit, norm, (promoted, suppressed) in ends)


def _row(model: Transformer, unit: Unit) -> Tensor:
    """The unit's row of W₂, (C,), which is a column of the stored matrix."""
    return output_weights(model, unit.layer)[:, unit.index]


def output_weights(model: Transformer, layer: int) -> Tensor:
    """The W₂ of a layer, (C, F)."""
    step = table_of(model.config).feed_forward
    linear: Any = model.blocks[layer].get_submodule(step.module)
    weight: Tensor = step.operation.matrix(linear)
    return weight


@torch.no_grad()
def neurons(
    model: TextModel,
    text: Text,
    *,
    layer: int | None = None,
    top: int = 3,
    by: str = "activation",
    units: Sequence[str] = (),
    tokens: int = 5,
) -> Neurons:
    """The ``top`` feed-forward units at each token of a text, or of its trace; or the ``units``, such as ``L3.17``.

    The units belong to ``layer``, to the layers of ``units``, or to all recorded layers. ``by`` orders them by the size
    of their activation or contribution; ``tokens`` is the number of tokens read at either end of a direction. Raises
    AddressError for a unit that does not exist, UsageError for another order, and for contributions without a direct
    path.
    """
    require_units(model.config)
    chosen = [parse_unit(unit, model.config) for unit in units]
    layers = sorted({unit.layer for unit in chosen}) if chosen else None if layer is None else [layer]
    trace = model.trace(text, layers=layers)
    if by not in ORDERS:
        raise UsageError(f"units are not ordered by {by!r}", did_you_mean(by, ORDERS))
    readout = Readout(trace.model)
    if by == "contribution" and not readout.direct:
        raise UsageError(f"units cannot be ordered by contribution: {readout.contributing}", "leave out --by")
    predicted, logits = predicted_tokens(trace)
    questions = None
    if readout.direct:
        assert predicted is not None
        stream = trace.last_output
        questions = readout.questions(stream, predicted)
    by_position = _chosen(trace, chosen, questions) if chosen else _strongest(trace, top, by, questions)
    rows = tuple(
        TokenUnits(
            position,
            None if predicted is None else int(predicted[position]),
            None if logits is None else float(logits[position]),
            active,
        )
        for position, active in enumerate(by_position)
    )
    shown_units = tuple(dict.fromkeys(active.unit for row in rows for active in row.units))
    directions, about = _directions(readout, shown_units, tokens), About(model, trace.encoding)
    return Neurons(
        by, rows, directions, readout.reading, readout.contributing, trace, tuple(dict.fromkeys(chosen)), about=about
    )


def _size(activation: float) -> float:
    """The absolute value, with NaN as the largest."""
    return math.inf if math.isnan(activation) else abs(activation)


def predicted_tokens(trace: Trace) -> tuple[Tensor | None, Tensor | None]:
    """The most probable id at each position and its logit, (T,) each."""
    if trace.model.head is None:
        return None, None
    hidden = trace.last_hidden
    best = [trace.model.unembed(part).max(dim=-1) for part in hidden.split(_POSITIONS_AT_ONCE)]
    return torch.cat([part.indices for part in best]), torch.cat([part.values for part in best])


def _contributions(trace: Trace, layer: int, act: Tensor, questions: Tensor | None) -> Tensor | None:
    """The contribution of each unit to the predicted tokens' logits, (T, F); None without a direct path."""
    if questions is None:
        return None
    return act.double() * (questions @ output_weights(trace.model, layer).double())


def _strongest(trace: Trace, top: int, by: str, questions: Tensor | None) -> list[tuple[ActiveUnit, ...]]:
    """The strongest units of each token, with one layer's activations in memory at a time."""
    strength = torch.empty(len(trace.tokens), 0, dtype=torch.float64)
    best: list[list[ActiveUnit]] = [[] for _ in trace.tokens]
    for layer in counted("layers ranked:", trace.recording.layers):
        if not trace.steps.has(trace.steps.ffn_activation, layer):
            continue
        act = activated(trace, layer)
        parts = _contributions(trace, layer, act, questions)
        ranked = (act if by == "activation" or parts is None else parts).double().abs().nan_to_num(nan=math.inf)
        most = ranked.topk(min(top, ranked.shape[1]), dim=-1)
        strength = torch.cat((strength, most.values.cpu()), dim=-1)
        for position, indices in enumerate(most.indices.tolist()):
            best[position] += [_active(Unit(layer, i), act, parts, position) for i in indices]
    order = strength.sort(dim=-1, descending=True, stable=True).indices[:, :top].tolist()
    return [tuple(best[position][index] for index in indices) for position, indices in enumerate(order)]


def _chosen(trace: Trace, units: Sequence[Unit], questions: Tensor | None) -> list[tuple[ActiveUnit, ...]]:
    by_layer: dict[int, tuple[Tensor, Tensor | None]] = {}
    for layer in {unit.layer for unit in units}:
        act = activated(trace, layer)
        by_layer[layer] = act, _contributions(trace, layer, act, questions)
    return [
        tuple(_active(unit, *by_layer[unit.layer], position) for unit in dict.fromkeys(units))
        for position in range(len(trace.tokens))
    ]


def _active(unit: Unit, act: Tensor, parts: Tensor | None, position: int) -> ActiveUnit:
    part = None if parts is None else float(parts[position, unit.index])
    return ActiveUnit(unit, float(act[position, unit.index]), part)
