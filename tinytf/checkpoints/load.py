"""From files to a model: first what they say without their weights, then every stored tensor to its place."""

import math
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tinytf.checkpoints.table import FamilyTable, Stored, layer_of
from tinytf.config import ModelConfig
from tinytf.errors import CheckpointError
from tinytf.fields import quoted
from tinytf.model.transformer import Transformer
from tinytf.nearest import did_you_mean

Shapes = dict[str, tuple[int, ...]]
_RADIANS = 5e-4
"""By how much a frequency in float32 makes the angle of a position in the thousands too large or small."""


def damaged(path: Path, said: str, what: str = "damaged") -> CheckpointError:
    """The error for a file whose bytes cannot be right."""
    return CheckpointError(f"{path} is {what}: {said}", "the file may be incomplete: download or copy it again")


class WeightFiles(Protocol):
    """Stored tensors: ``shapes`` by name from the headers, values when they are asked for."""

    shapes: Shapes

    def stored(self, name: str) -> Tensor:
        """One tensor as it is stored."""

    def tensors(self, dtype: torch.dtype, pieces: Container[str] = ()) -> Iterator[tuple[str, Tensor]]:
        """Every tensor by name, in ``dtype`` if it holds floating point numbers; of ``pieces`` none is kept."""


class Opened(NamedTuple):
    """A transformer with its weights, on the CPU in eval mode; ``notes`` say what was skipped or looks wrong."""

    transformer: Transformer
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """A model without its weights, and where every stored tensor goes.

    It goes to parameters of the model, or is compared with the tensor that it copies or that is computed here, or goes
    nowhere.
    """

    model: Transformer
    goes_to: Mapping[str, list[tuple[str, Stored]]]
    copy_of: Mapping[str, str]
    computed: Mapping[str, Tensor]
    notes: tuple[str, ...]

    @property
    def pieces(self) -> frozenset[str]:
        """The stored tensors that are copied, each into a part of a larger one of ours."""
        return frozenset(
            name for name, places in self.goes_to.items() if any(how.expert is not None for _, how in places)
        )


@dataclass(frozen=True)
class Checkpoint:
    """What a model says without the values of the weights; ``source`` is the directory or file, or names it."""

    source: Path | str
    table: FamilyTable
    config: ModelConfig
    weights: WeightFiles
    notes: tuple[str, ...] = ()

    def plan(self) -> Plan:
        """The place of every tensor, from the headers alone.

        Raises CheckpointError for the first that is missing, of another shape, stored twice, or without a place.
        """
        table, found = self.table, self.weights.shapes
        stored: dict[str, str] = {}  # plain name -> name in the file
        for name in found:
            plain = table.plain(name)
            if plain in stored:
                raise CheckpointError(f"{self.source} holds both {stored[plain]} and {name}, which are the same tensor")
            stored[plain] = name
        for copy, copied in table.copies.items():
            if copy in stored and copied not in stored:
                stored[copied] = stored.pop(copy)
        model = empty_model(self.config, len(found), self.source)
        goes_to: dict[str, list[tuple[str, Stored]]] = {}
        needed: Shapes = {}
        for parameter, shape in shapes_of(model).items():
            for plain, how in table.places(parameter, shape[0], self.config, stored):
                name = stored.get(plain) or table.prefixed(plain)
                own = layer_of(parameter, self.config)
                needed[name] = how.stored_shape(shape if how.expert is None else shape[1:], own)
                goes_to.setdefault(name, []).append((parameter, how))
        copy_of: dict[str, str] = {}
        computed: dict[str, Tensor] = {}
        skipped, said = set(), set()
        for plain, name in stored.items():
            if name in goes_to:
                continue
            left = table.why_left(plain)
            if plain in table.copies:  # of an untied head, transformers reads the one that has a place above
                copy_of |= {name: stored[table.copies[plain]]} if self.config.tied_head else {}
            elif left is None:
                continue
            elif left.computed is not None:
                computed[name] = left.computed(self.config, found[name])
            elif left.said:
                said.add(f"not opened: {left.why} ({plain.split('.')[0]})")
            skipped.add(name)
        there = {name: shape for name, shape in found.items() if name not in skipped}
        require_match(needed, there, self.source, f"a {table.name} model")
        return Plan(model, goes_to, copy_of, computed, tuple(sorted(said)))

    def load(self, dtype: torch.dtype = torch.float32) -> Opened:
        """The model, its weights in ``dtype``: views of the mapped files where these hold that dtype.

        Raises CheckpointError, with the file and the tensor, for one that is missing, left over, of another shape or
        damaged.
        """
        plan = self.plan()
        state: dict[str, Tensor] = {}
        shapes = shapes_of(plan.model)
        for name, tensor in self.weights.tensors(dtype, plan.pieces):
            if name in plan.copy_of:
                self._require_copy(name, plan.copy_of[name])
            if name in plan.computed:
                self._require_computed(name, plan.computed[name])
            for parameter, how in plan.goes_to.get(name, ()):
                if not tensor.is_floating_point():
                    raise CheckpointError(f"{self.source}: {name} holds {tensor.dtype}, which are no weights")
                if how.expert is None:
                    state[parameter] = how.read(tensor, layer_of(parameter, self.config))
                    continue
                if parameter not in state:
                    state[parameter] = torch.empty(shapes[parameter], dtype=dtype)
                state[parameter][how.expert] = how.read(tensor, layer_of(parameter, self.config))
        plan.model.load_state_dict(state, assign=True)
        plan.model.mapped = getattr(self.weights, "mapped", ())
        return Opened(plan.model.eval(), (*self.notes, *plan.notes))

    def _require_copy(self, name: str, copied: str) -> None:
        if not torch.equal(self.weights.stored(name), self.weights.stored(copied)):
            raise CheckpointError(
                f"{self.source}: {name} differs from {copied}, and the configuration says that they are one",
                'if they are two, config.json has to say: "tie_word_embeddings": false',
            )

    def _require_computed(self, name: str, computed: Tensor) -> None:
        """Raise CheckpointError for a stored table that is not, but for its rounding, the one computed here."""
        stored = self.weights.stored(name)
        rounding = _RADIANS + (torch.finfo(stored.dtype).eps if stored.is_floating_point() else 0.0)
        apart = (stored.double() - computed.double()).abs().max().item() if stored.shape == computed.shape else math.inf
        if not apart <= rounding:
            raise CheckpointError(
                f"{self.source}: {name} is not the table that the configuration gives; they differ by {apart:.3g}",
                "a table of its own is not implemented",
            )


def empty_model(config: ModelConfig, stored: int, source: Path | str) -> Transformer:
    """A model without memory for its weights; the files hold ``stored`` tensors."""
    if config.n_layers > stored:  # before a wrong number makes millions of them
        raise CheckpointError(f"{source} holds {stored:,} tensors, too few for {config.n_layers:,} layers")
    with torch.device("meta"):
        return Transformer(config)


def shapes_of(model: Transformer) -> Shapes:
    """The shape of every parameter by its name."""
    return {name: tuple(tensor.shape) for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def require_match(needed: Shapes, found: Shapes, source: Path | str, model: str = "the model") -> None:
    """Raise CheckpointError for the first needed tensor that is missing or has another shape, and for any other."""
    for name, shape in needed.items():
        if name not in found:
            missing = sum(other not in found for other in needed)
            raise CheckpointError(f"{source} lacks {name} ({missing:,} of {len(needed):,} tensors are missing)")
        if found[name] != shape:
            raise CheckpointError(f"{source}: {name} has shape {found[name]}, the configuration needs {shape}")
    for name in found:
        if name not in needed:
            hint = did_you_mean(name, needed)
            raise CheckpointError(f"{source} holds {quoted(name)}, which {model} has no place for", hint)
