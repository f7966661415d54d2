"""From files to a model: first the configuration and the headers, then each stored tensor to its parameters."""

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from tinytf.checkpoints.table import Computed, FamilyTable, Stored, layer_of
from tinytf.config import ModelConfig
from tinytf.counting import tell
from tinytf.errors import CheckpointError
from tinytf.fields import quoted
from tinytf.in_file import InFile
from tinytf.memory import UNASKED, free_bytes, in_gib, in_large_pages, require_free
from tinytf.model.transformer import Transformer
from tinytf.nearest import did_you_mean

Shapes = dict[str, tuple[int, ...]]
_SMALL = 2**18
"""Weights of at most so many bytes never stay in their file: norms and biases."""
_ROUNDINGS = 16
"""The allowed error of a table that a file stores, in roundings of float32: a power rounds its exponent too."""


def damage_error(path: Path, reason: str, state: str = "damaged") -> CheckpointError:
    """The error for a file whose bytes cannot be right."""
    return CheckpointError(f"{path} is {state}: {reason}", "the file may be incomplete: download or copy it again")


def identity(path: Path) -> tuple[int, int, int]:
    """What a file is recognised by while weights are still to be read from it."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def require_same(path: Path, before: tuple[int, int, int]) -> None:
    """Raise CheckpointError for a file that was replaced or written to since it was opened."""
    if not path.exists() or identity(path) != before:
        raise CheckpointError(f"{path} was changed while its model was open", "quit, and open it again")


def takes(tensors: Iterable[Tensor], dtype: torch.dtype) -> int:
    """The bytes that tensors take in ``dtype``, beyond their own."""
    return sum(tensor.numel() * dtype.itemsize for tensor in tensors if tensor.dtype != dtype)


class WeightFiles(Protocol):
    """Stored tensors: ``shapes`` by name, from the headers; values are read on demand."""

    shapes: Shapes

    def stored(self, name: str) -> Tensor:
        """One tensor, in its stored dtype and layout."""

    def takes(self, dtype: torch.dtype) -> int:
        """The bytes of memory that all tensors take in ``dtype``, beyond those that a mapped file has."""

    def tensors(self, dtype: torch.dtype, pieces: Container[str] = ()) -> Iterator[tuple[str, Tensor]]:
        """Yield names and tensors, in ``dtype`` where they are floating point; those in ``pieces`` are not retained."""


@runtime_checkable
class InRows(Protocol):
    """Stored tensors of which a part can be read, along the first axis."""

    def stored_rows(self, name: str, first: int, last: int) -> Tensor:
        """Numbers ``first`` to ``last - 1`` along the first axis of a tensor, as ``stored`` gives it."""


class LoadedModel(NamedTuple):
    """A transformer with its weights, on the CPU in eval mode; ``notes`` say what was skipped or looks wrong."""

    transformer: Transformer
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """A model without its weights, and what to do with each stored tensor.

    ``targets`` are the parameters that a tensor fills. A tensor in ``copy_of`` must equal the one named there; for one
    in ``computed``, the function there gives what it must hold. All others are skipped.
    """

    model: Transformer
    targets: Mapping[str, list[tuple[str, Stored]]]
    copy_of: Mapping[str, str]
    computed: Mapping[str, Callable[[Tensor], Computed]]
    notes: tuple[str, ...]

    @property
    def pieces(self) -> frozenset[str]:
        """The stored tensors that are copied into slices of larger parameters, one for each expert or row."""
        return frozenset(
            name for name, targets in self.targets.items() if any(layout.expert is not None for _, layout in targets)
        )


@dataclass(frozen=True)
class Checkpoint:
    """A model before its weights are read; ``source`` is its directory or file, or a name for it."""

    source: Path | str
    table: FamilyTable
    config: ModelConfig
    weights: WeightFiles
    notes: tuple[str, ...] = ()

    def plan(self) -> Plan:
        """Match every stored tensor with our parameters, from the headers alone.

        Raises CheckpointError for the first tensor that is missing, misshapen, stored twice, or unknown.
        """
        table, shapes = self.table, self.weights.shapes
        stored: dict[str, str] = {}  # plain name -> name in the file
        for name in shapes:
            plain = table.plain(name)
            if plain in stored:
                raise CheckpointError(f"{self.source} holds both {stored[plain]} and {name}, which are the same tensor")
            stored[plain] = name
        for copy, original in table.copies.items():
            is_one_tensor = self.config.tied_head or not copy.endswith("weight")
            if copy in stored and original not in stored and is_one_tensor:
                stored[original] = stored.pop(copy)
        model = empty_model(self.config, len(shapes), self.source)
        targets: dict[str, list[tuple[str, Stored]]] = {}
        needed: Shapes = {}
        for parameter, shape in shapes_of(model).items():
            for plain, layout in table.locations(parameter, shape[0], self.config, stored):
                name = stored.get(plain) or table.prefixed(plain)
                layer = layer_of(parameter, self.config)
                part = layout.part_of(torch.empty(shape, device="meta"))
                needed[name] = layout.stored_shape(tuple(part.shape), layer)
                targets.setdefault(name, []).append((parameter, layout))
        copy_of: dict[str, str] = {}
        computed: dict[str, Callable[[Tensor], Computed]] = {}
        skipped_names, notes = set(), set()
        for plain, name in stored.items():
            if name in targets:
                continue
            skip = table.why_skipped(plain, self.config.n_layers)
            original = table.original(plain, self.config)
            if original in stored:  # for an untied head, transformers reads the tensor matched above
                both = self.config.tied_head or self.config.shares_embeddings
                copy_of |= {name: stored[original]} if both else {}
            elif skip is None:
                continue
            elif skip.computed is not None:
                computed[name] = partial(skip.computed, self._layer_of(plain))
            elif skip.noted:
                notes.add(f"not opened: {skip.why} ({plain.split('.')[0]})")
            skipped_names.add(name)
        used = {name: shape for name, shape in shapes.items() if name not in skipped_names}
        require_match(needed, used, self.source, f"a {table.name} model")
        return Plan(model, targets, copy_of, computed, tuple(sorted(notes)))

    def load(self, dtype: torch.dtype = torch.float32, *, keep: bool = False) -> LoadedModel:
        """The model with its weights in ``dtype``: views of the mapped files where they store that dtype.

        With ``keep``, or where the memory has no room for them, large weights stay in their files and are converted
        each time they are used.

        Raises CheckpointError, naming file and tensor, for a tensor that is missing, unknown, misshapen or damaged.
        """
        plan = self.plan()
        state: dict[str, Tensor] = {}
        shapes = shapes_of(plan.model)
        needed = self.weights.takes(dtype)
        if keep or needed > max(UNASKED, free_bytes(torch.device("cpu"))):
            return self._kept(plan, dtype)
        for number, (name, tensor) in enumerate(self.weights.tensors(dtype, plan.pieces)):
            tell("tensors read:", number, max(number, len(plan.targets)))
            if name in plan.copy_of:
                self._require_copy(name, plan.copy_of[name])
            if name in plan.computed:
                self._require_computed(name, plan.computed[name])
            for parameter, layout in plan.targets.get(name, ()):
                ours = self._ours(name, tensor, parameter, layout)
                if layout.expert is None:
                    state[parameter] = ours
                    continue
                if parameter not in state:
                    state[parameter] = torch.empty(shapes[parameter], dtype=dtype)
                layout.part_of(state[parameter]).copy_(ours)
        plan.model.load_state_dict(state, assign=True)
        plan.model.mapped = getattr(self.weights, "mapped", ())
        return LoadedModel(plan.model.eval(), (*self.notes, *plan.notes))

    def _kept(self, plan: Plan, dtype: torch.dtype) -> LoadedModel:
        """The model whose large weights stay in their files."""
        for name, original in plan.copy_of.items():
            self._require_copy(name, original)
        for name, computed in plan.computed.items():
            self._require_computed(name, computed)
        places: dict[str, list[tuple[str, Stored]]] = {}
        for name, targets in plan.targets.items():
            for parameter, layout in targets:
                places.setdefault(parameter, []).append((name, layout))
        state: dict[str, Tensor] = {}
        for parameter, shape in shapes_of(plan.model).items():
            whole = any(layout.ids for _, layout in places[parameter])
            like = torch.empty(shape, dtype=torch.long if whole else dtype, device="meta")
            read = partial(self._read, parameter, places[parameter], like)
            rows = self._rows_of(parameter, places[parameter], like)
            state[parameter] = InFile(read, like, rows) if like.nbytes > _SMALL else read().clone()
        plan.model.load_state_dict(state, assign=True)
        size = in_gib(sum(weight.like.nbytes for weight in state.values() if isinstance(weight, InFile)))
        note = f"weights stay in their file, and are read at each use: {size} in {str(dtype).removeprefix('torch.')}"
        return LoadedModel(plan.model.eval(), (*self.notes, *plan.notes, note))

    def _read(self, parameter: str, places: list[tuple[str, Stored]], like: Tensor) -> Tensor:
        """One of our parameters, from the stored tensors that hold it."""
        self._require_room(like.nbytes)
        whole = torch.empty_like(like, device="cpu")
        for name, layout in places:
            stored = self.weights.stored(name)
            if stored.dtype != like.dtype:
                room = in_large_pages(stored.numel(), torch.empty(0, dtype=like.dtype))
                stored = room.view(stored.shape).copy_(stored)
            ours = self._ours(name, stored, parameter, layout)
            if layout.expert is None:
                return ours
            layout.part_of(whole).copy_(ours)
        return whole

    def _rows_of(
        self, parameter: str, places: list[tuple[str, Stored]], like: Tensor
    ) -> Callable[[int, int], Tensor] | None:
        """What reads a few rows of one of our matrices, or a few experts; None where they are read together."""
        if like.dim() == 3:
            return lambda first, last: torch.stack(
                [self._read_expert(parameter, places, like, number) for number in range(first, last)]
            )
        [(name, layout), *others] = places
        weights = self.weights
        if others or like.dim() != 2 or layout != Stored(layout.module) or not isinstance(weights, InRows):
            return None

        def read(first: int, last: int) -> Tensor:
            self._require_room((last - first) * like.nbytes // len(like))
            return weights.stored_rows(name, first, last).to(like.dtype)

        return read

    def _require_room(self, size: int) -> None:
        """Raise MemoryShortage where a matrix does not fit: beyond a control group's limit, a process is killed."""
        hint = "raise the limit, or close other programs"
        require_free(f"a part of the weights of {self.source} takes", size, torch.device("cpu"), hint)

    def _read_expert(self, parameter: str, places: list[tuple[str, Stored]], like: Tensor, number: int) -> Tensor:
        """One expert (out, in) of one of our parameters, without the others where they can be told apart."""
        own = [(name, replace(layout, expert=None)) for name, layout in places if layout.expert == number]
        if own:
            return self._read(parameter, own, like[number])
        held = (range(len(like))[one.expert if isinstance(one.expert, slice) else slice(None)] for _, one in places)
        (name, layout), number = next(
            (place, numbers.index(number)) for place, numbers in zip(places, held, strict=True) if number in numbers
        )
        if layout == Stored(layout.module) and isinstance(self.weights, InRows):
            return self.weights.stored_rows(name, number, number + 1)[0].to(like.dtype)
        return self._ours(name, self.weights.stored(name), parameter, layout)[number].to(like.dtype)

    def _ours(self, name: str, stored: Tensor, parameter: str, layout: Stored) -> Tensor:
        """What a stored tensor holds of one of our parameters."""
        if not stored.is_floating_point() and not layout.ids:
            raise CheckpointError(f"{self.source}: {name} holds {stored.dtype} numbers, which cannot be weights")
        return layout.read(stored, layer_of(parameter, self.config), parameter.rpartition(".")[2])

    def _require_copy(self, name: str, original: str) -> None:
        if not torch.equal(self.weights.stored(name), self.weights.stored(original)):
            raise CheckpointError(
                f"{self.source}: {name} differs from {original}, but the configuration says that they are tied",
                'if they are not, set "tie_word_embeddings": false in config.json'
                if self.table.plain(name) in self.table.copies
                else "",
            )

    def _layer_of(self, plain: str) -> ModelConfig:
        """The configuration of the layer that a stored name belongs to; the model's for one without a layer."""
        layer = re.search(r"(?<=\.)\d+(?=\.)", plain)
        return self.config.at(int(layer[0]) if layer and int(layer[0]) < self.config.n_layers else None)

    def _require_computed(self, name: str, computed: Callable[[Tensor], Computed]) -> None:
        """Raise CheckpointError for a stored table that differs from the computed one by more than rounding."""
        stored = self.weights.stored(name)
        values, error = computed(stored)
        if stored.shape != values.shape:
            shapes = f"has shape {tuple(stored.shape)}, the configuration gives {tuple(values.shape)}"
            raise CheckpointError(f"{self.source}: {name} {shapes}")
        if torch.equal(stored, values.to(stored.dtype)):
            return
        values, difference = values.double(), (stored.double() - values.double()).abs()
        allowed = torch.zeros(())
        if stored.is_floating_point():
            limits = torch.finfo(stored.dtype)
            rounding = _ROUNDINGS * torch.finfo(torch.float32).eps + limits.eps
            allowed = values.abs() * rounding + error + limits.smallest_normal * limits.eps
        if not (difference <= allowed).all():
            raise CheckpointError(
                f"{self.source}: {name} differs from the table that the configuration gives by {difference.max():.3g}",
                "a custom table is not implemented",
            )


def empty_model(config: ModelConfig, n_tensors: int, source: Path | str) -> Transformer:
    """A model without memory for its weights (on the meta device), from files that hold ``n_tensors`` tensors."""
    if config.n_layers > n_tensors:  # before a wrong number builds millions of layers
        raise CheckpointError(f"{source} holds {n_tensors:,} tensors, too few for {config.n_layers:,} layers")
    with torch.device("meta"):
        return Transformer(config)


def shapes_of(model: Transformer) -> Shapes:
    """The shape of every parameter and buffer by name."""
    return {name: tuple(tensor.shape) for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def require_match(needed: Shapes, shapes: Shapes, source: Path | str, model: str = "the model") -> None:
    """Raise CheckpointError for the first needed tensor that is missing or misshapen, and for any unknown one."""
    for name, shape in needed.items():
        if name not in shapes:
            missing = sum(n not in shapes for n in needed)
            raise CheckpointError(f"{source} lacks {name} ({missing:,} of {len(needed):,} tensors are missing)")
        if shapes[name] != shape:
            raise CheckpointError(f"{source}: {name} has shape {shapes[name]}, the configuration needs {shape}")
    for name in shapes:
        if name not in needed:
            hint = did_you_mean(name, needed)
            raise CheckpointError(f"{source} holds {quoted(name)}, which {model} has no place for", hint)
