"""Opening a directory: configuration, then every stored tensor to its place, with a strict account of both."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tinytf.checkpoints.huggingface.families import family_of
from tinytf.checkpoints.huggingface.table import Family
from tinytf.checkpoints.huggingface.words import HARMLESS
from tinytf.checkpoints.table import Stored, empty_model, require_match, shapes_of
from tinytf.checkpoints.weights import Shapes, Weights
from tinytf.config import ModelConfig
from tinytf.errors import CheckpointError
from tinytf.fields import Fields, faults_of
from tinytf.files import read_json
from tinytf.model.transformer import Transformer


@dataclass(frozen=True)
class Header:
    """What a directory says without its weights' values: family, configuration, and things a user should know."""

    directory: Path
    family: Family
    config: ModelConfig
    weights: Weights
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Opened:
    """A model in eval mode on the CPU, its family, and ``notes``: what was passed over or looks wrong."""

    transformer: Transformer
    family: Family
    notes: tuple[str, ...]


def read_header(directory: Path) -> Header:
    """Family and configuration from config.json and the headers of the weight files."""
    path = directory / "config.json"
    data = read_json(path)
    family = family_of(data, path)
    if data.get("quantization_config"):
        raise CheckpointError(f"{path}: quantised weights (quantization_config) are not implemented in this format")
    weights = Weights(directory)
    fields = Fields(data, path)
    tensors = {family.plain(name): name for name in weights.shapes}
    tensors |= {copied: tensors[copy] for copy, copied in family.copies.items() if copy in tensors}
    with faults_of(path):
        config = family.read(fields, tensors)
    unused = tuple(fields.unknown({*HARMLESS, *family.harmless}))
    notes = (f"config.json has keys that tinytf does not know: {', '.join(unused)}",) if unused else ()
    return Header(directory, family, config, weights, notes)


@dataclass(frozen=True)
class _Plan:
    """Where every stored tensor goes: to parameters of ours, to be compared with the one it copies, or nowhere."""

    goes_to: Mapping[str, list[tuple[str, Stored]]]
    copy_of: Mapping[str, str]
    notes: tuple[str, ...]


def _plan(header: Header, ours: Shapes) -> _Plan:
    family, found, source = header.family, header.weights.shapes, header.directory
    stored: dict[str, str] = {}  # plain name -> name in the file
    for name in found:
        plain = family.plain(name)
        if plain in stored:
            raise CheckpointError(f"{source} holds both {stored[plain]} and {name}, which are the same tensor")
        stored[plain] = name
    for copy, copied in family.copies.items():
        if copy in stored and copied not in stored:
            stored[copied] = stored.pop(copy)
    goes_to: dict[str, list[tuple[str, Stored]]] = {}
    needed: Shapes = {}
    for parameter, shape in ours.items():
        plain, how = family.place(parameter)
        name = stored.get(plain) or family.prefixed(plain)
        needed[name] = how.stored_shape(shape)
        goes_to.setdefault(name, []).append((parameter, how))
    copy_of: dict[str, str] = {}
    passed, said = set(), set()
    for plain, name in stored.items():
        if name in goes_to:
            continue
        left = family.why_left(plain)
        if plain in family.copies:  # of an untied head, transformers reads the one that has a place above
            copy_of |= {name: stored[family.copies[plain]]} if header.config.tied_head else {}
        elif left is None:
            continue
        elif left.said:
            said.add(f"not opened: {left.why} ({plain.split('.')[0]})")
        passed.add(name)
    there = {name: shape for name, shape in found.items() if name not in passed}
    require_match(needed, there, source, f"a {family.name} model")
    return _Plan(goes_to, copy_of, tuple(sorted(said)))


def load_directory(header: Header, dtype: torch.dtype = torch.float32) -> Opened:
    """The model of the directory that ``header`` was read from, its weights in ``dtype``.

    Where the files hold that dtype already, weights are views of the mapped files and nothing is copied. Raises
    CheckpointError naming the file, key or tensor for whatever is missing, left over, of another shape or damaged.
    """
    directory = header.directory
    model = empty_model(header.config, len(header.weights.shapes), directory)
    plan = _plan(header, shapes_of(model))
    state: dict[str, Tensor] = {}
    for name, tensor in header.weights.tensors(dtype):
        if name in plan.copy_of:
            _require_copy(name, plan.copy_of[name], header.weights, directory)
        for parameter, how in plan.goes_to.get(name, ()):
            if not tensor.is_floating_point():
                raise CheckpointError(f"{directory}: {name} holds {tensor.dtype}, which are no weights")
            state[parameter] = how.read(tensor, header.config)
    model.load_state_dict(state, assign=True)
    return Opened(model.eval(), header.family, (*header.notes, *plan.notes))


def _require_copy(name: str, copied: str, weights: Weights, source: Path) -> None:
    if not torch.equal(weights.stored(name), weights.stored(copied)):
        raise CheckpointError(
            f"{source}: {name} differs from {copied}, and the configuration says that they are one",
            'if they are two, config.json has to say: "tie_word_embeddings": false',
        )
