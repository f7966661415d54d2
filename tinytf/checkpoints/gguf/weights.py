"""The tensors of a GGUF file in their places: a strict account of both, and rows put in our order as they are read."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import BinaryIO

import torch
from torch import Tensor

from tinytf.checkpoints.gguf.architecture import Architecture
from tinytf.checkpoints.gguf.header import Header
from tinytf.checkpoints.gguf.values import opened, pieces, require_known_kind
from tinytf.checkpoints.table import Stored, empty_model, require_match, shapes_of
from tinytf.config import ModelConfig
from tinytf.model.transformer import Transformer


@dataclass(frozen=True)
class Plan:
    """A model without its weights, and of each parameter the name of its tensor and how it lies there."""

    model: Transformer
    places: Mapping[str, tuple[str, Stored]]


def plan(header: Header, config: ModelConfig, architecture: Architecture) -> Plan:
    """The place of every tensor of the file, from the header alone.

    Raises CheckpointError for the first that is missing, of another shape, of a type that is not implemented, or
    that the model has no place for.
    """
    model = empty_model(config, len(header.tensors), header.path)
    shapes = shapes_of(model)
    places = {ours: architecture.place(ours) for ours in shapes}
    needed = {name: how.stored_shape(shapes[ours]) for ours, (name, how) in places.items()}
    found = {name: one.shape for name, one in header.tensors.items() if name not in architecture.passed_over}
    require_match(needed, found, header.path, f"the {architecture.name} model")
    for name in needed:
        require_known_kind(header.path, header.tensors[name])
    return Plan(model, places)


def read_weights(header: Header, planned: Plan, dtype: torch.dtype) -> Mapping[str, Tensor]:
    """Every parameter by our name, in ``dtype``; beside them there is never more than a few rows of one in memory."""
    with opened(header.path) as file:
        return {ours: _read(file, header, planned, ours, dtype) for ours in planned.places}


def _read(file: BinaryIO, header: Header, planned: Plan, ours: str, dtype: torch.dtype) -> Tensor:
    name, how = planned.places[ours]
    stored, config = header.tensors[name], planned.model.config
    if len(stored.shape) == 1:
        ((_, values),) = pieces(file, header.path, stored)
        return how.read(torch.from_numpy(values[0]), config).to(dtype)
    target = torch.empty(planned.model.get_parameter(ours).shape, dtype=dtype)
    order = None if how.as_it_is else _our_rows(how, stored.shape[0], config)
    for first, values in pieces(file, header.path, stored):
        piece = torch.from_numpy(values)
        if order is None:
            target[first : first + len(piece)] = piece
        else:
            rows = order[first : first + len(piece)]
            target[rows[rows >= 0]] = (piece[rows >= 0] + how.offset).to(dtype)
    return target


def _our_rows(how: Stored, count: int, config: ModelConfig) -> Tensor:
    """For each stored row its row with us, −1 for those of another parameter."""
    mine = replace(how, offset=0.0).read(torch.arange(count), config)
    order = torch.full((count,), -1)
    order[mine] = torch.arange(len(mine))
    return order
