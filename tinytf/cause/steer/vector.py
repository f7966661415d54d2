"""A steering vector: the direction in which two kinds of texts differ at some steps of a model."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.cause.interventions.controls import CONTROLS, Control, random_vectors, require_controls
from tinytf.cause.interventions.edits import require_edit
from tinytf.cause.steer.contrasts import POSITIONS, Contrasts, Pairs, activations_on
from tinytf.cause.steer.directions import METHODS, accuracies_of, held_out, vector_of
from tinytf.cause.steer.files import control_vector, read_vectors, write_vectors
from tinytf.errors import AddressError, TinytfError, UsageError
from tinytf.estimate import Estimate
from tinytf.look.readout import Ends, Readout, ends_data, in_stream
from tinytf.nearest import did_you_mean
from tinytf.report import About, Data, Progress, Report, ignore_progress, plain
from tinytf.sentences import listed, percent
from tinytf.steps.table import StepTable, table_of
from tinytf.tables import Array
from tinytf.text.printable import printable
from tinytf.text_model import TextModel
from tinytf.trace.address import parse_tensor

ALL_LAYERS = "L*.out"
_WORDS = ("made_with", "architecture", "method", "position")
_NAMED = 3
"""The most tokens that a sentence names."""


@dataclass(frozen=True, eq=False)
class LayerVector(Data):
    """The vector (C,) of one step, such as ``L12.out``; ``relative`` is its norm by the mean norm of the step's values.

    ``accuracy`` and ``separation`` are those of ``directions.held_out``; ``control`` has the accuracy beside those of
    random directions at the step. ``promoted`` and ``demoted`` are the ids whose
    logits the vector raises and lowers most, through the final norm without its scale, unless ``reading`` says that
    more lies between; empty where the step does not lead to the residual stream.
    """

    LESS: ClassVar = ("vector", "promoted", "demoted", "reading")

    at: str
    vector: Tensor
    norm: float
    relative: float | None = None
    accuracy: Estimate | None = None
    separation: float | None = None
    control: Control | None = None
    promoted: Ends = ()
    demoted: Ends = ()
    reading: str = ""

    def scaled(self, strength: float) -> "LayerVector":
        """This vector times ``strength``."""
        size = abs(strength)
        both = (self.promoted, self.demoted) if strength else ((), ())
        ends = [tuple((token, value * strength) for token, value in end) for end in both]
        return replace(
            self, vector=self.vector * strength, norm=self.norm * size,
            relative=None if self.relative is None else self.relative * size,
            promoted=ends[strength < 0], demoted=ends[strength >= 0],
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class SteeringVector(Report):
    """The vectors that lead from one kind of text to another, one for each step.

    Times a number it is a stronger, weaker or opposite one. ``source`` names the pairs or the file, ``made_with`` the
    model and ``architecture`` its kind; they, ``method`` and ``position`` are empty, and ``pairs`` is None, where a
    file does not say.
    """

    KIND = "steer"
    EVENTS: ClassVar = {"vectors": "vector"}
    ALWAYS_SAID = True

    source: str
    vectors: tuple[LayerVector, ...]
    made_with: str = ""
    architecture: str = ""
    method: str = ""
    position: str = ""
    pairs: int | None = None
    strength: float = 1.0

    def __mul__(self, strength: float) -> "SteeringVector":
        vectors = tuple(vector.scaled(strength) for vector in self.vectors)
        return replace(self, vectors=vectors, strength=self.strength * strength)

    __rmul__ = __mul__

    def __neg__(self) -> "SteeringVector":
        return self * -1

    @property
    def best(self) -> LayerVector:
        """The vector that tells apart most pairs left out; of several, the one with the largest separation.

        Where neither was measured, the longest.
        """
        return max(self.vectors, key=self.rank)

    @staticmethod
    def rank(vector: LayerVector) -> tuple[float, float, float]:
        """What ``best`` goes by."""
        accuracy = -1.0 if vector.accuracy is None else vector.accuracy.value
        return accuracy, vector.separation or 0.0, vector.norm

    def at(self, address: str) -> Tensor:
        """The vector (C,) for a step; a single vector is for every step.

        Raises UsageError for a step that none of several is for.
        """
        own = next((vector for vector in self.vectors if vector.at == address), None)
        if own is None and len(self.vectors) > 1:
            ends = f"{self.vectors[0].at} to {self.vectors[-1].at}"
            raise UsageError(f"{self.source} has no vector for {address}", f"it has {len(self.vectors)}: {ends}")
        return (own or self.vectors[0]).vector

    def only(self, *addresses: str) -> "SteeringVector":
        """The vectors of some steps, by full name; all without any. Raises UsageError for a missing one."""
        own = [each.at for each in self.vectors]
        if missing := next((address for address in addresses if address not in own), ""):
            raise UsageError(f"{self.source} has no vector for {missing}", f"it has {', '.join(own)}")
        return replace(self, vectors=tuple(each for each in self.vectors if not addresses or each.at in addresses))

    def single(self) -> "SteeringVector":
        """The best vector alone. Raises UsageError for several of which none is known to be the best."""
        if len(self.vectors) > 1 and self.best.accuracy is None:
            hint = "tinytf steer PAIRS --at L12.out -o FILE makes a file with one"
            raise UsageError(f"{self.source} holds {len(self.vectors)} vectors, and one direction is removed", hint)
        source = self.source if len(self.vectors) == 1 else f"{self.source} ({self.best.at})"
        return replace(self, vectors=(self.best,), source=source)

    def gguf(self, name: str) -> bytes:
        """A control vector as llama.cpp reads it; ``name`` is for errors, which are those of ``save``."""
        return control_vector({each.at: each.vector for each in self.vectors}, self.architecture, name)

    def save(self, path: str | Path) -> int:
        """Write a .safetensors file, or a .gguf file as llama.cpp reads it; return its size in bytes.

        Raises UsageError for another ending, and for a step that a .gguf file cannot name.
        """
        return write_vectors(Path(path), {each.at: each.vector for each in self.vectors}, plain(self.metadata()))

    def in_a_sentence(self) -> str:
        """How well the best vector tells apart texts that it was not made from, and the tokens it promotes."""
        best, several = self.best, len(self.vectors) > 1
        if best.accuracy is not None:
            texts = f"{2 * self.pairs:,} texts" if self.pairs else "texts"
            side = f"the vector puts {percent(best.accuracy.value)} of the {texts} left out on the right side"
            where = f"The two kinds of texts differ most clearly at {best.at}:" if several else f"At {best.at},"
            words = f"{where} {side}"
        else:
            what = f"{len(self.vectors)} vectors, the longest" if several else "a vector"
            words = f"{self.source} holds {what} for {best.at}"
        if self.about is None or not best.promoted:
            return f"{words}."
        promotes, demotes = (
            listed([str(self.shown(token)) for token, _ in end[:_NAMED]]) for end in (best.promoted, best.demoted)
        )
        return f"{words}; it promotes {promotes}, and demotes {demotes}."

    def fields(self) -> dict[str, Any]:
        return {
            **self.members("source", *_WORDS, "pairs", "strength"),
            "vectors": [
                {**plain(vector), **ends_data(self, vector.promoted, vector.demoted, ("promoted", "demoted"))}
                for vector in self.vectors
            ],
        }

    def stored(self) -> list[Array]:
        """The vector of each step, (C,), under its address."""
        return [Array.of(vector.at, ["d_model"], vector.vector) for vector in self.vectors]

    def metadata(self) -> dict[str, Any]:
        return {**super().metadata(), **self.fields()}


def stream_steps(addresses: str | Sequence[str], table: StepTable) -> dict[str, tuple[str, int | None]]:
    """The steps that ``addresses`` name, as name and layer by full name, in the order of the forward pass.

    Raises AddressError for what is no step, and for one that is not a vector of the model's width for each token.
    """
    steps: dict[str, tuple[str, int | None]] = {}
    for text in [addresses] if isinstance(addresses, str) else addresses:
        address = parse_tensor(text, table)
        if address.cell:
            raise AddressError(f"{text} is a cell, and a vector is for a whole step", "such as L2.out")
        address = address.plain(table)
        require_edit(address, table)
        assert address.step is not None
        if tuple(address.step.axes) != ("token", "d_model"):
            axes = " × ".join(address.step.axes)
            raise AddressError(
                f"{text} is {axes}, and a steering vector is for token × d_model",
                "such as L2.out, or the two that a layer adds: L2.attn, L2.ffn",
            )
        steps |= {address.step.full_name(layer): (address.step.name, layer) for layer in address.layers or (None,)}
    order = {step.full_name(layer): number for number, (step, layer) in enumerate(table.rows)}
    return dict(sorted(steps.items(), key=lambda entry: order[entry[0]]))


@torch.no_grad()
def steer(
    model: TextModel,
    pairs: Pairs,
    *,
    at: str | Sequence[str] = ALL_LAYERS,
    method: str = "mean",
    position: str = "last",
    top: int = 8,
    controls: int = CONTROLS,
    seed: int = 0,
    on_progress: Progress = ignore_progress,
) -> SteeringVector:
    """The vectors that lead from the negative texts of ``pairs`` to the positive ones, at the steps ``at``.

    ``pairs`` is a table of rows with positive and negative (or clean and corrupt), or the pairs themselves. A vector is
    the direction of the ``method`` (``mean``: difference of means, ``pca`` of the differences, ``probe``: weights of a
    logistic regression), as long as the means of both sides are apart along it, so that all methods have one scale.
    ``position`` is ``last`` or ``mean``: the last token, or the mean over all. ``seed`` draws the pairs left out for
    the accuracy, and ``controls`` random directions, whose accuracies stand beside it; ``top`` is the number of tokens
    at either end. Raises AddressError for other steps; UsageError for another method, too few pairs, fewer than no
    controls, and texts that do not differ there; TinytfError for values that are not finite.
    """
    require_controls(controls)
    for word, known, what in ((method, METHODS, "method"), (position, POSITIONS, "position")):
        if word not in known:
            raise UsageError(f"there is no {what} {word!r}", did_you_mean(word, known))
    steps, contrasts = stream_steps(at, table_of(model.config)), Contrasts.of(pairs)
    fewest = METHODS[method][1]
    if len(contrasts.texts) < fewest:
        message = f"{method} takes {fewest} pairs or more, and {contrasts.name} has {len(contrasts.texts)}"
        raise UsageError(message, "add pairs, or take --method mean")
    vectors = []
    values = activations_on(model, contrasts, list(steps.values()), position, on_progress)
    for name, of in zip(steps, values, strict=True):
        vector = vector_of(method, of)
        norm = float(vector.norm())
        if not math.isfinite(norm):
            raise TinytfError(f"{name} is not finite on these texts", "tinytf trace names the first such step")
        if norm <= 1e-9 * of.norm:
            hint = "take a later step, or --position mean"
            raise UsageError(f"the two kinds of texts do not differ at {name}, or not along this direction", hint)
        accuracy, separation = held_out(method, of, seed) or (None, None)
        control = None
        if accuracy is not None:
            random = accuracies_of(random_vectors(vector, controls, seed), of, seed)
            control = Control.of(f"random directions at {name}", accuracy.value, random)
        vectors.append(LayerVector(name, vector.float(), norm, norm / of.norm, accuracy, separation, control))
    report = SteeringVector(
        source=printable(Path(contrasts.name).name, spaces=False), vectors=tuple(vectors), made_with=model.name,
        architecture=model.name if model.table is None else model.table.name.lower(),
        method=method, position=position, pairs=len(contrasts.texts),
    )  # fmt: skip
    return read_out(model, report, top)


def steering_vector(path: str | Path) -> SteeringVector:
    """The vectors of a .safetensors file that ``SteeringVector.save`` wrote, or of a control vector in GGUF.

    Raises UsageError for another kind of file, CheckpointError for a damaged one.
    """
    path = Path(path)
    tensors, metadata = read_vectors(path)
    records = metadata.get("vectors")
    records = [record for record in records if isinstance(record, dict)] if isinstance(records, list) else []
    known = {str(record.get("at")): record for record in records}
    vectors = []
    for name, tensor in tensors.items():
        record = known.get(name, {})
        relative, separation = _number(record.get("relative"), 0.0), _number(record.get("separation"))
        share = record.get("accuracy")
        ends = share if isinstance(share, dict) else {}
        value, low, high = (_number(ends.get(key), 0.0, 1.0) for key in ("value", "low", "high"))
        accuracy = None if value is None else Estimate(value, low, high)
        vectors.append(LayerVector(name, tensor, float(tensor.double().norm()), relative, accuracy, separation))
    words: Any = {key: printable(str(metadata[key]), spaces=False) for key in _WORDS if key in metadata}
    pairs, strength = _number(metadata.get("pairs"), 1), _number(metadata.get("strength"))
    return SteeringVector(
        source=printable(path.name, spaces=False), vectors=tuple(vectors), **words,
        pairs=None if pairs is None else int(pairs), strength=1.0 if strength is None else strength,
    )  # fmt: skip


def _number(value: Any, low: float = -math.inf, high: float = math.inf) -> float | None:
    """A finite number as written in a file, from ``low`` to ``high``; None for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) and low <= value <= high else None


def read_out(model: TextModel, vector: SteeringVector, top: int) -> SteeringVector:
    """The vector with the tokens that it promotes and demotes in ``model``; unchanged in a model without a head.

    Raises UsageError for a vector of another width, AddressError for a step that the model lacks.
    """
    require_width(model, vector)
    transformer, device = model.transformer, model.transformer.embed.tokens.weight.device
    steps = stream_steps([each.at for each in vector.vectors], table_of(model.config))
    rows = {True: dict[str, Tensor](), False: dict[str, Tensor]()}  # those that are added to the stream as they are
    for each in vector.vectors:
        name, layer = steps[each.at]
        if layer is not None:
            row, is_added = in_stream(transformer, name, layer, each.vector[None].to(device))
            if row is not None:
                rows[is_added][each.at] = row
    vectors = {each.at: each for each in vector.vectors}
    for is_added, own in rows.items():
        readout = Readout(transformer, "the vector", in_stream=is_added)
        if own and readout.has_directions:
            reading = "" if readout.is_normed else readout.reading
            for at, (most, least) in zip(own, readout.ends(torch.cat([*own.values()]), top), strict=True):
                vectors[at] = replace(vectors[at], promoted=most, demoted=least, reading=reading)
    return replace(vector, vectors=tuple(vectors.values()), about=About(model))


def require_width(model: TextModel, vector: "SteeringVector | Mapping[str, Tensor]") -> None:
    """Raise UsageError, with its name, for a vector of another width than the model."""
    own = {each.at: each.vector for each in vector.vectors} if isinstance(vector, SteeringVector) else vector
    for name, each in own.items():
        if tuple(each.shape) != (model.config.d_model,):
            source = f"{vector.source} at {name}" if isinstance(vector, SteeringVector) else f"the vector for {name}"
            raise UsageError(
                f"{source} has {' × '.join(map(str, each.shape)) or 'no'} numbers, "
                f"and {model.name} is {model.config.d_model} wide",
                "it was made with another model" if isinstance(vector, SteeringVector) else "",
            )
