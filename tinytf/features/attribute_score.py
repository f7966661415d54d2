"""One attention score in pairs of parts: what of the query and what of the key makes a head look there.

A score q·k is bilinear. So with the scales of norms held, it is a sum over pairs of a part of the query's stream and a
part of the key's: embeddings, heads and feed-forwards of earlier layers, or features of a sparse coder (Elhage et al.
2021, "A Mathematical Framework for Transformer Circuits"; Kamath et al. 2025, "Tracing Attention Computation Through
Feature Interactions"). Shapes: N parts of the query, M parts of the key, C d_model, F features.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.errors import UsageError
from tinytf.features.coder import SparseCoder
from tinytf.features.layouts import LAYOUTS, open_sae
from tinytf.features.place import Place, places_of
from tinytf.features.transcoders import open_transcoders
from tinytf.look.explain.cell import find_cell
from tinytf.look.head_parts import HeadParts, Sources, head_parts
from tinytf.look.stream_parts import Parts
from tinytf.parts.row import Step
from tinytf.report import About, Data, Report, Verified
from tinytf.steps.operations import Scores
from tinytf.steps.table import StepKey
from tinytf.tables import Array
from tinytf.text_model import TextModel
from tinytf.tolerance import PARTS, allowed
from tinytf.trace.faults import require_finite
from tinytf.trace.trace import Text, Trace

_ROUNDINGS = 4
"""Roundings of the sum of all pairs' magnitudes that are allowed."""


@dataclass(frozen=True)
class ScorePart(Data):
    """A part of the query or key; ``value`` is the sum of its pairs with all parts of the other."""

    name: str
    kind: str
    layer: int | None
    value: float


@dataclass(frozen=True)
class ScorePair(Data):
    """What a part of the ``query`` and a part of the ``key`` add to the score together."""

    query: str
    key: str
    value: float


@dataclass(frozen=True, eq=False)
class AttributeScore(Report):
    """The score of one head for a ``query`` and a ``key`` position, and what each pair of parts adds to it.

    ``values`` (N, M) are the pairs of ``queries`` and ``keys``, and ``pairs`` the same with names, the largest first.
    ``masked``: the query does not see the key, so the score has no effect. ``held`` says what was taken as it is.
    ``features`` names the sparse coder, if one was asked for.
    """

    KIND = "attribute_score"
    EVENTS: ClassVar = {"queries": "query", "keys": "key"}

    address: str
    layer: int
    head: int
    query: int
    key: int
    score: float
    masked: bool
    held: str
    features: str
    queries: tuple[ScorePart, ...]
    keys: tuple[ScorePart, ...]
    values: Tensor
    check: Verified

    @property
    def pairs(self) -> tuple[ScorePair, ...]:
        order = self.values.abs().flatten().argsort(descending=True).tolist()
        places = (divmod(number, len(self.keys)) for number in order)
        return tuple(
            ScorePair(self.queries[row].name, self.keys[column].name, float(self.values[row, column]))
            for row, column in places
        )

    def in_a_sentence(self) -> str:
        """The pair that adds most to the score, and the one that takes most away."""
        of_query, of_key = (self.encoding.tokens[at].shown for at in (self.query, self.key))
        ends = [(int(self.values.argmax()), "adds most"), (int(self.values.argmin()), "takes most away")]
        words = []
        for (number, does), sign in zip(ends, (1, -1), strict=True):
            row, column = divmod(number, len(self.keys))
            value = float(self.values[row, column])
            if value * sign > 0:
                words.append(f"{self.queries[row].name} with {self.keys[column].name} {does} ({value:+.3g})")
        return (
            f"The score of the query {of_query} and the key {of_key} is {self.score:.4g}{', masked' * self.masked}"
            f"{': ' * bool(words)}{', '.join(words)}."
        )

    def fields(self) -> dict[str, Any]:
        return self.members(
            "address", "layer", "head", "query", "key", "score", "masked", "held", "features", "queries", "keys",
            "values", "check",
        )  # fmt: skip

    def stored(self) -> list[Array]:
        """What each pair adds to the score."""
        return [Array.of("pairs", ["query part", "key part"], self.values)]


@torch.no_grad()
def attribute_score(
    model: TextModel, text: Text, at: str, *, features: SparseCoder | str | Path | None = None
) -> AttributeScore:
    """Split one attention score, such as ``L1H0.scores[9,4]``, into pairs of a part of the query and one of the key.

    ``text`` may be a trace. The scales of all norms before the score are held, so that the pairs sum to it; a bias is a
    part. With ``features``, an autoencoder or transcoder or a folder of several, what they write is split into features
    and their error.

    Raises AddressError for anything but one cell of ``scores``; UsageError for a score that is not made of the stream
    by steps that are linear once norms are held, and for features that no earlier layer writes; TinytfError for numbers
    that are not finite; CheckpointError as ``open_sae``.
    """
    trace = model.trace(text)
    cell, _ = find_cell(trace, at)
    if type(cell.step.operation) is not Scores or cell.layer is None:
        raise UsageError(f"{at} is {cell.step.title}, and what is split is scores", "such as L1H0.scores[4,2]")
    head, (query, key) = cell.head or 0, cell.index
    require_finite(trace, trace.step("scores", cell.layer, (head,)))
    sources = Sources() if features is None else Features(trace, features)
    sides = [
        head_parts(trace, place, head, position, sources)
        for place, position in zip(trace.steps.sources(cell.step, cell.layer), (query, key), strict=True)
    ]
    if isinstance(sources, Features):
        sources.require_used(cell.layer)
    values = sides[0].vectors @ sides[1].vectors.T  # (N, D) · (D, M)
    score = float(cell.value)
    size, dtype = float(values.abs().sum()), trace.last_hidden.dtype
    check = Verified(
        "the sum of all pairs", abs(math.fsum(values.flatten().tolist()) - score),
        max(allowed(PARTS, dtype), _ROUNDINGS * torch.finfo(dtype).eps * size),
    )  # fmt: skip
    queries, keys = (_named(side, values.sum(dim=1 - number)) for number, side in enumerate(sides))
    has_mask = trace.steps.has("masked", cell.layer)
    masked = has_mask and bool(trace.step("masked", cell.layer, (head,))[0, query, key] == -math.inf)
    return AttributeScore(
        str(cell.address()), cell.layer, head, query, key, score, masked, "the scale of every norm before it",
        sources.names if isinstance(sources, Features) else "", queries, keys, values, check,
        about=About(model, trace.encoding),
    )  # fmt: skip


def _named(side: HeadParts, values: Tensor) -> tuple[ScorePart, ...]:
    return tuple(ScorePart(*name, value) for name, value in zip(side.names, values.tolist(), strict=True))


class Features(Sources):
    """The parts of the stream, of which those that sparse coders write are features and an error."""

    def __init__(self, trace: Trace, given: SparseCoder | str | Path) -> None:
        coders = _opened(given)
        self.names = ", ".join(dict.fromkeys(coder.name for coder in coders))
        self.coders: dict[StepKey, tuple[SparseCoder, Place]] = {}
        self._used = False
        for coder in coders:
            read, written = places_of(coder, trace.steps, None, None)
            self.coders[written.name, written.layer] = coder.to(trace.last_hidden.device), read

    def added(self, stream: Parts, step: Step, layer: int) -> Parts:
        found = self._features(stream, (step.name, layer))
        return super().added(stream, step, layer) if found is None else found

    def reached(self, parts: Parts, place: StepKey) -> Parts:
        return self._features(parts, place) or parts

    def _features(self, stream: Parts, place: StepKey) -> Parts | None:
        """The features of a step as parts, their coder's bias and its error; None without a coder."""
        if place not in self.coders:
            return None
        (coder, read), trace, position, self._used = self.coders[place], stream.trace, stream.position, True
        value, x = trace.step(*place)[position], read.value(trace)[position : position + 1]
        activations = coder.encode(x)[0]  # (F,)
        active = activations.nonzero().flatten()
        at_zero = coder.decode(activations.new_zeros(1, len(activations)), x)
        alone = torch.zeros(len(active), len(activations)).to(activations)
        alone[range(len(active)), active] = activations[active]
        vectors = coder.decode(alone, x.expand(len(active), -1)) - at_zero  # (n, C)
        parts, (name, layer) = Parts(trace, position, stream.frozen), place
        for number, vector in zip(active.tolist(), vectors, strict=True):
            parts.add(f"{name}.F{number}", "feature", vector, layer)
        parts.add(f"{name} coder bias", "coder bias", at_zero[0], layer)
        parts.add(f"{name} error", "error", value.double() - vectors.double().sum(0) - at_zero[0].double(), layer)
        return parts

    def require_used(self, layer: int) -> None:
        """Raise UsageError if no layer below writes any of the features."""
        if not self._used:
            steps = ", ".join(f"L{at}.{name}" for name, at in self.coders)
            raise UsageError(f"layer {layer} reads no features of {self.names}: they are of {steps}",
                             "ask about a later layer")  # fmt: skip


def _opened(given: SparseCoder | str | Path) -> Sequence[SparseCoder]:
    if isinstance(given, SparseCoder):
        return (given,)
    path = Path(given)
    if not path.is_dir() or any((path / name).is_file() for name in LAYOUTS):
        return (open_sae(path),)
    opened = open_transcoders(path)
    if opened.crosses_layers:
        raise UsageError(f"{path.name} writes into several layers, and a score is split by features of one each",
                         "circuit --features takes cross-layer transcoders")  # fmt: skip
    return opened.coders
