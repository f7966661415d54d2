"""Add vectors to steps of a running model at every position, or project them out."""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from tinytf.cause.interventions.edits import hook_edits
from tinytf.cause.interventions.hooks import hooked_by_user
from tinytf.cause.steer.vector import SteeringVector, require_width, steering_vector, stream_steps
from tinytf.errors import UsageError
from tinytf.model.batches import typed
from tinytf.model.transformer import Transformer, evaluating
from tinytf.short_repr import brief
from tinytf.steps.table import table_of
from tinytf.text_model import TextModel
from tinytf.trace.address import parse_tensor

Vectors: TypeAlias = SteeringVector | Mapping[str, SteeringVector | Tensor]
"""Vectors by address; or a SteeringVector, which is for its own steps."""
AnyModel = TypeVar("AnyModel", bound=TextModel)

_SPEC = re.compile(r"(?:(?P<at>[^:/\\]*\.[^:/\\]*):)?(?P<file>.*?)(?:\*(?P<strength>[^*/\\]*))?")
_SPEC_EXAMPLE = "such as 'L12.out:joy.safetensors*4', or 'joy.gguf*-2' for every layer that the file holds"


@dataclass(frozen=True, eq=False)
class Change:
    """A vector (C,) for one step, by its full name: added at every position, or with ``removes`` projected out."""

    at: str
    vector: Tensor
    removes: bool = False

    def __call__(self, value: Tensor) -> Tensor:
        """The step's value (T, C) with the vector, or without its direction: x − (x·v̂) v̂ (Arditi et al. 2024)."""
        vector = self.vector.to(value.device)
        if not self.removes:
            return value + vector.to(value.dtype)
        unit = (vector.double() / vector.double().norm()).to(value.dtype)
        return value - (value @ unit)[..., None] * unit


@dataclass(frozen=True)
class Steering:
    """The changes of a model, removals first, and what each group of them is in words."""

    changes: tuple[Change, ...]
    words: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(self.words)


def steering_of(model: TextModel, add: Vectors | None = None, remove: Vectors | None = None) -> Steering:
    """The changes that ``add`` and ``remove`` ask for in a model.

    Raises AddressError for a step that takes no vector; UsageError for a vector of another width, one that is not
    finite or, to be removed, zero, and if there is nothing to change.
    """
    changes: list[Change] = []
    words: list[str] = []
    for vectors, removes in ((remove, True), (add, False)):
        for vector, steps in _by_step(model, vectors):
            require_width(model, vector if isinstance(vector, SteeringVector) else dict.fromkeys(steps, vector))
            vector = vector.single() if removes and isinstance(vector, SteeringVector) else vector
            for name in steps:
                tensor = vector.at(name) if isinstance(vector, SteeringVector) else vector
                if not bool(tensor.isfinite().all()) or (removes and not bool(tensor.any())):
                    what = "zero, and has no direction to remove" if bool(tensor.isfinite().all()) else "not finite"
                    raise UsageError(f"the vector for {name} is {what}", "take another vector, or a smaller strength")
                changes.append(Change(name, tensor, removes))
            words.append(_in_words(vector, steps, removes))
    if not changes:
        raise UsageError("there is no vector to add or to remove", 'such as {"L2.out": 4 * vector}')
    return Steering(tuple(changes), tuple(words))


def _by_step(model: TextModel, vectors: Vectors | None) -> Iterator[tuple[SteeringVector | Tensor, list[str]]]:
    """Each vector with the full names of the steps that it is for."""
    table = table_of(model.config)
    if isinstance(vectors, SteeringVector):
        yield vectors, list(stream_steps([vector.at for vector in vectors.vectors], table))
        return
    if not isinstance(vectors, Mapping | None):
        raise UsageError(f"{brief(vectors)} is no vector by its address", 'such as {"L2.out": 4 * vector}')
    for address, vector in (vectors or {}).items():
        if not isinstance(vector, SteeringVector | Tensor):
            raise UsageError(f"{brief(vector)} for {address} is no vector", "tinytf.steering_vector(FILE) reads one")
        yield vector, list(stream_steps(address, table))


def _in_words(vector: SteeringVector | Tensor, steps: Sequence[str], removes: bool) -> str:
    """``4 × joy.safetensors at L12.out``, ``joy.gguf removed at 29 steps, L1.out to L29.out``."""
    name, strength = (vector.source, vector.strength) if isinstance(vector, SteeringVector) else ("a vector", 1.0)
    where = f"at {steps[0]}" if len(steps) == 1 else f"at {len(steps)} steps, {steps[0]} to {steps[-1]}"
    if removes:
        return f"the direction of {name} removed {where}"
    return f"{name} {where}" if strength == 1 else f"{signed(strength)} × {name} {where}"


def signed(value: float, form: str = "g") -> str:
    """A number with a proper minus sign: ``4``, ``−0.5``."""
    return f"{value:{form}}".replace("-", "−")


def read_steering(model: TextModel, add: Sequence[str], remove: Sequence[str]) -> Steering:
    """The changes that command-line words ask for: ``[ADDRESS:]FILE[*STRENGTH]``, without a strength to remove.

    Raises UsageError for a word of another form, and the errors of ``steering_vector`` and ``steering_of``.
    """
    parts = [steering_of(model, **{way: _read(word, way)}) for way, words in (("remove", remove), ("add", add))
             for word in words]  # fmt: skip
    return Steering(*(tuple(item for part in parts for item in getattr(part, name)) for name in ("changes", "words")))


def _read(word: str, way: str) -> Vectors:
    match = _SPEC.fullmatch(word)
    if match is None or not match["file"]:
        raise UsageError(f"--{way} {word!r} names no file", _SPEC_EXAMPLE)
    strength = 1.0
    if match["strength"] is not None:
        if way == "remove":
            raise UsageError(f"--remove {word!r} has a strength, and a direction is removed whole", "leave it out")
        try:
            strength = float(match["strength"])
        except ValueError:
            strength = float("nan")
        if not abs(strength) < float("inf"):
            raise UsageError(f"--add {word!r}: {match['strength']!r} is no strength", _SPEC_EXAMPLE)
    vector = steering_vector(Path(match["file"])) * strength
    return vector if match["at"] is None else {match["at"]: vector}


def steered(
    model: AnyModel, add: Vectors | None = None, *, remove: Vectors | None = None
) -> AbstractContextManager[AnyModel]:
    """Add vectors to steps at every position, for every text that runs inside the ``with`` block, which gets the model.

    ``add`` maps addresses to vectors, such as ``{"L12.out": 4 * vector}``; a SteeringVector alone is for its own steps.
    ``remove`` projects directions out, one for each address (of several vectors the best), before anything is added.
    Traces, scores and gradients see it, and so does generation, with its cache, since a position's change does not
    depend on other positions. Blocks nest; other threads are refused meanwhile. Raises AddressError for a step that
    takes no vector, UsageError for a vector of another width.
    """
    return _inside(model, steering_of(model, add, remove).changes)


@contextmanager
def _inside(model: AnyModel, changes: Sequence[Change]) -> Iterator[AnyModel]:
    with hooked_by_user(model.transformer, _hook(model.transformer, changes)):
        yield model


def steered_model(model: AnyModel, changes: Sequence[Change]) -> AnyModel:
    """Another model that shares the weights, and always runs with the changes."""
    shared = {id(tensor): tensor for tensor in (*model.transformer.parameters(), *model.transformer.buffers())}
    clone = copy.deepcopy(model.transformer, shared).eval()
    list(_hook(clone, changes))  # the hooks stay
    return replace(model, transformer=clone)


def hidden_states(model: Transformer, ids: Sequence[int], types: Sequence[int] = ()) -> Tensor:
    """The last hidden states (T, C) of a text."""
    device = next(model.parameters()).device
    with evaluating(model):
        states: Tensor = model.hidden(torch.tensor([ids], device=device), token_types=typed([types], device))[0]
    return states


def _hook(model: Transformer, changes: Sequence[Change]) -> Iterator[RemovableHandle]:
    """Hook each change on the module of its step, as an edit that takes each position by itself."""
    table = table_of(model.config)
    for change in changes:
        yield from hook_edits(model, [(parse_tensor(change.at, table), change)], by_position=True)
