"""Where the weights of a model lie in memory: side by side, in large pages, as decoding reads them."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tinytf.model.transformer import Transformer
from tinytf.steps import operations
from tinytf.steps.program import Instruction, Program

_ALIGNED = 64
"""Bytes of a line of the processor's caches."""


def _empty(count: int, like: Tensor) -> Tensor:
    """Room for ``count`` numbers. On the processor from numpy, which asks for large pages: a tenth faster to read."""
    if like.is_cpu:
        room = np.empty(count * like.itemsize + _ALIGNED, np.uint8)
        start = -room.ctypes.data % _ALIGNED
        return torch.from_numpy(room[start : start + count * like.itemsize]).view(like.dtype)
    return torch.empty(count, dtype=like.dtype, device=like.device)


def products(program: Program) -> list[list[Instruction]]:
    """The rows that are the product of a matrix, those of one input that follow each other together."""
    found: list[list[Instruction]] = []
    for row in program.rows:
        if type(row.operation) is operations.Linear and isinstance(row.module, nn.Linear):
            if found and _goes_with(row, found[-1][-1], program):
                found[-1].append(row)
            else:
                found.append([row])
    return found


def _goes_with(row: Instruction, before: Instruction, program: Program) -> bool:
    follows = program.rows.index(row) == program.rows.index(before) + 1
    biases = {getattr(one.module, "bias", None) is None for one in (row, before)}
    return follows and row.inputs == before.inputs and len(biases) == 1


def _tensors(rows: Sequence[Instruction]) -> Iterator[list[Tensor]]:
    """The matrices of products that are joined, then their biases."""
    parts: list[Any] = [row.module for row in rows]
    yield [part.weight for part in parts]
    yield [part.bias for part in parts if part.bias is not None]


def _adjacent(tensors: Sequence[Tensor]) -> bool:
    """Whether these follow each other in memory, without a gap."""
    if not all(tensor.is_contiguous() for tensor in tensors):
        return False
    return all(
        later.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and later.storage_offset() == first.storage_offset() + first.numel()
        for first, later in itertools.pairwise(tensors)
    )


def _room(tensor: Tensor) -> tuple[int, int]:
    """Address and bytes of a tensor's memory: an address alone is soon reused by another tensor."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


@torch.inference_mode(False)
@torch.no_grad()
def lay_out(model: Transformer) -> None:
    """Move matrices that are joined side by side, and large ones into large pages, row by row; values do not change.

    One block at a time, so that no more than one is in memory twice. What already lies so stays where it is, and so do
    tensors that were made in inference mode, which cannot be moved.
    """
    if any(parameter.is_inference() for parameter in model.parameters()):
        return
    programs: Any = model.blocks
    blocks = [[tensors for rows in products(one) for tensors in _tensors(rows) if tensors] for one in programs]
    made: set[tuple[int, int]] = set()
    for groups in [*blocks, [[model.unembedding]]]:
        parameters = [parameter for group in groups for parameter in group]
        there = all(_room(parameter) in model.rooms for parameter in parameters)
        if there and all(_adjacent(group) for group in groups):
            continue
        room = _empty(sum(parameter.numel() for parameter in parameters), parameters[0])
        for parameter, place in zip(parameters, room.split([p.numel() for p in parameters]), strict=True):
            parameter.data = place.view(parameter.shape).copy_(parameter)
        made.add(_room(room))
    in_use = {_room(parameter) for parameter in model.parameters()}
    model.rooms = in_use & (model.rooms | made)


@torch.inference_mode()
def joined(rows: Sequence[Instruction]) -> tuple[Tensor, Tensor | None]:
    """Weight (all outputs, in) and bias of several products of one input, joined: views where they are adjacent."""
    weights, biases = _tensors(rows)
    return _one(weights), _one(biases) if biases else None


def _one(tensors: list[Tensor]) -> Tensor:
    first = tensors[0].detach()
    if len(tensors) == 1:
        return first
    if not _adjacent(tensors):
        return torch.cat([tensor.detach() for tensor in tensors])
    rows = sum(len(tensor) for tensor in tensors)
    return first.as_strided((rows, *first.shape[1:]), first.stride(), first.storage_offset())
