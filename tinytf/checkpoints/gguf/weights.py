"""The tensors of a GGUF file in their places: one table of names and shapes, and a strict account of both."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from tinytf.checkpoints.gguf.architecture import Architecture
from tinytf.checkpoints.gguf.header import Header, StoredTensor
from tinytf.checkpoints.gguf.rotary import FACTORS
from tinytf.checkpoints.gguf.values import opened, pieces, require_known_kind
from tinytf.config import ModelConfig
from tinytf.errors import CheckpointError
from tinytf.fields import quoted
from tinytf.nearest import did_you_mean


@dataclass(frozen=True)
class Place:
    """A parameter of ours and the tensor that it is stored as; ``pairs`` heads of rows have to be put in our order."""

    ours: str
    stored: str
    shape: tuple[int, ...]
    pairs: int = 0


def places(config: ModelConfig, architecture: Architecture) -> Iterator[Place]:
    """Where every parameter of a model is stored."""
    c, width, d_ff = config, config.d_model, config.d_ff
    inside, grouped = c.n_heads * c.d_head, c.n_kv_heads * c.d_head
    heads, groups = (c.n_heads, c.n_kv_heads) if architecture.interleaved else (0, 0)
    linear = (
        ("attention.q", "attn_q", (inside, width), c.qkv_bias, heads),
        ("attention.k", "attn_k", (grouped, width), c.qkv_bias, groups),
        ("attention.v", "attn_v", (grouped, width), c.qkv_bias, 0),
        ("attention.o", "attn_output", (width, inside), c.o_bias, 0),
        ("ffn.gate", "ffn_gate", (d_ff, width), c.ffn_bias, 0),
        ("ffn.up", "ffn_up", (d_ff, width), c.ffn_bias, 0),
        ("ffn.down", "ffn_down", (width, d_ff), c.ffn_bias, 0),
    )
    yield Place("embed.tokens.weight", "token_embd.weight", (c.vocab_size, width))
    for n in range(c.n_layers):
        yield Place(f"blocks.{n}.norm1.weight", f"blk.{n}.attn_norm.weight", (width,))
        yield Place(f"blocks.{n}.norm2.weight", f"blk.{n}.ffn_norm.weight", (width,))
        for ours, stored, shape, bias, pairs in linear:
            yield Place(f"blocks.{n}.{ours}.weight", f"blk.{n}.{stored}.weight", shape, pairs)
            if bias:
                yield Place(f"blocks.{n}.{ours}.bias", f"blk.{n}.{stored}.bias", shape[:1], pairs)
    yield Place("final_norm.weight", "output_norm.weight", (width,))
    if not c.tied_head:
        yield Place("head.decoder.weight", "output.weight", (c.vocab_size, width))


def plan(header: Header, config: ModelConfig, architecture: Architecture) -> list[Place]:
    """The place of every tensor of the file, from the header alone.

    Raises CheckpointError for the first that is missing, of another shape, of a type that is not implemented, or
    that the model has no place for.
    """
    taken: dict[str, Place] = {}
    for place in places(config, architecture):
        stored = header.tensors.get(place.stored)
        if stored is None:
            raise CheckpointError(f"{header.path} lacks {place.stored}, which {config.n_layers:,} layers need")
        if stored.shape != place.shape:
            raise CheckpointError(
                f"{header.path}: {place.stored} has shape {stored.shape}, the metadata needs {place.shape}"
            )
        require_known_kind(header.path, stored)
        taken[place.stored] = place
    said_by_the_configuration = {FACTORS} if architecture.factors else set()
    for name in header.tensors:
        if name not in taken and name not in said_by_the_configuration:
            raise CheckpointError(
                f"{header.path} holds {quoted(name)}, which the {architecture.name} model has no place for",
                did_you_mean(name, taken),
            )
    return list(taken.values())


def read_weights(header: Header, planned: list[Place], dtype: torch.dtype) -> Mapping[str, Tensor]:
    """Every parameter by our name, in ``dtype``; beside them there is never more than a few rows of one in memory."""
    with opened(header.path) as file:
        return {place.ours: _read(file, header.path, header.tensors[place.stored], place, dtype) for place in planned}


def _read(file: BinaryIO, path: Path, stored: StoredTensor, place: Place, dtype: torch.dtype) -> Tensor:
    target = torch.empty(place.shape, dtype=dtype)
    order = _our_rows(place) if place.pairs else None
    for first, values in pieces(file, path, stored):
        piece = torch.from_numpy(values if len(place.shape) == 2 else values[0])
        rows = slice(first, first + len(piece))
        if order is None:
            target[rows] = piece
        else:
            target[order[rows]] = piece.to(dtype)
    return target


def _our_rows(place: Place) -> Tensor:
    """For each stored row its row with us: of head h the pair (j, part p) is stored at 2j + p, and is our p·D/2 + j."""
    return torch.arange(place.shape[0]).view(place.pairs, 2, -1).transpose(1, 2).flatten()
