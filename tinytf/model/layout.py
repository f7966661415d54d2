"""The layout of a model's weights in memory for decoding: side by side, in large pages."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.memory import in_large_pages, page_out
from tinytf.model.transformer import Transformer
from tinytf.steps import operations
from tinytf.steps.program import Instruction, Program

_BYTES_PER_PIECE = 2**25


def products(program: Program) -> list[list[Instruction]]:
    """The rows that are matrix products, grouped where consecutive rows share their input."""
    groups: list[list[Instruction]] = []
    for row in program.rows:
        if type(row.operation) is operations.Linear and isinstance(row.module, nn.Linear):
            if groups and _goes_with(row, groups[-1][-1], program):
                groups[-1].append(row)
            else:
                groups.append([row])
    return groups


def _goes_with(row: Instruction, previous: Instruction, program: Program) -> bool:
    follows = program.rows.index(row) == program.rows.index(previous) + 1
    biases = {getattr(product.module, "bias", None) is None for product in (row, previous)}
    return follows and row.step.own == previous.step.own and row.inputs == previous.inputs and len(biases) == 1


def _tensors(rows: Sequence[Instruction]) -> Iterator[list[Tensor]]:
    """Yield the matrices of products that are joined, then their biases."""
    parts: list[Any] = [row.module for row in rows]
    yield [part.weight for part in parts]
    yield [part.bias for part in parts if part.bias is not None]


def _adjacent(tensors: Sequence[Tensor]) -> bool:
    """Whether the tensors follow each other in memory, without gaps."""
    if not all(tensor.is_contiguous() for tensor in tensors):
        return False
    return all(
        later.untyped_storage().data_ptr() == earlier.untyped_storage().data_ptr()
        and later.storage_offset() == earlier.storage_offset() + earlier.numel()
        for earlier, later in itertools.pairwise(tensors)
    )


def _room(tensor: Tensor) -> tuple[int, int]:
    """The address and bytes of a tensor's storage; both, since another tensor may soon reuse the address."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


@torch.inference_mode(False)
@torch.no_grad()
def lay_out(model: Transformer) -> None:
    """Move the matrices of joined products side by side into large pages; their values do not change.

    Works block by block, so that at most one block is in memory twice; of mapped files, at most a piece. Tensors that
    are already laid out stay, and so do tensors created in inference mode, which cannot be moved.
    """
    if any(parameter.is_inference() for parameter in model.parameters()):
        return
    programs: Any = model.blocks
    files, unread = [mapped.path for mapped in model.mapped], 0
    blocks = [[tensors for rows in products(program) for tensors in _tensors(rows) if tensors] for program in programs]
    new_rooms: set[tuple[int, int]] = set()
    for groups in [*blocks, [[model.unembedding]]]:
        parameters = [parameter for group in groups for parameter in group]
        is_moved = all(_room(parameter) in model.rooms for parameter in parameters)
        if is_moved and all(_adjacent(group) for group in groups):
            continue
        buffer = in_large_pages(sum(parameter.numel() for parameter in parameters), parameters[0])
        for parameter, slot in zip(parameters, buffer.split([p.numel() for p in parameters]), strict=True):
            for piece, place in _pieces(parameter, slot.view(parameter.shape)):
                place.copy_(piece)
                unread += piece.nbytes
                if unread > _BYTES_PER_PIECE:  # asking for the pages costs more than a small matrix
                    page_out(files)
                    unread = 0
            parameter.data = slot.view(parameter.shape)
        new_rooms.add(_room(buffer))
    if unread:
        page_out(files)
    in_use = {_room(parameter) for parameter in model.parameters()}
    model.rooms = in_use & (model.rooms | new_rooms)


def _pieces(parameter: Tensor, slot: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """A parameter and a ``slot`` of its shape (out, …), some rows at a time."""
    rows = max(1, len(parameter) * _BYTES_PER_PIECE // max(1, parameter.nbytes))
    return zip(parameter.split(rows), slot.split(rows), strict=True)


@torch.inference_mode()
def joined(rows: Sequence[Instruction]) -> tuple[Tensor, Tensor | None]:
    """Weight (all outputs, in) and bias of several products of one input, joined: views where they are adjacent."""
    weights, biases = _tensors(rows)
    return _join(weights), _join(biases) if biases else None


def _join(tensors: list[Tensor]) -> Tensor:
    first = tensors[0].detach()
    if len(tensors) == 1:
        return first
    if not _adjacent(tensors):
        return torch.cat([tensor.detach() for tensor in tensors])
    rows = sum(len(tensor) for tensor in tensors)
    return first.as_strided((rows, *first.shape[1:]), first.stride(), first.storage_offset())
