"""Bring a tensor of another program to the axes of one of our steps: its shape proposes ways, its numbers decide.

Shapes: T tokens, H heads (G of keys and values), D head width, R rows of a joint module.
"""

import itertools
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tinytf.checkpoints.table import Stored
from tinytf.compare.dumps.layouts import Meaning
from tinytf.config import ModelConfig
from tinytf.parts.row import Step
from tinytf.steps.operations import Lookup, Mask

_EXACT, _CLOSE = 1e-5, 1e-2
"""Largest relative distances at which a layout is accepted at once, and at which numbers are equal but for rounding."""

_HIDDEN = -5_000.0
"""Scores below this are masked: programs add −10,000 or the least number of a dtype where we have −∞."""


@dataclass(frozen=True)
class Fitted:
    """A tensor in our axes; ``notes`` say what was done to it, ``distance`` is its relative distance from ours.

    Its numbers were multiplied by ``factor``.
    """

    tensor: Tensor
    notes: tuple[str, ...]
    distance: float = math.inf
    factor: float = 1.0

    @property
    def close(self) -> bool:
        return self.distance <= _CLOSE


def fit(
    tensor: Tensor, meaning: Meaning, step: Step, config: ModelConfig, shape: tuple[int, ...], like: Tensor | None
) -> Fitted | None:
    """The tensor in our ``shape``, by the first way that gives the numbers ``like``, else by the nearest.

    None if no way gives that shape.
    """
    best: Fitted | None = None
    for fitted in ways(tensor, meaning, step, config, shape):
        fitted = _masked(fitted) if isinstance(step.operation, Mask) else fitted
        if like is None:
            return fitted
        fitted = replace(fitted, distance=distance(fitted.tensor, like))
        if fitted.distance <= _EXACT:
            return fitted
        if best is None or fitted.distance < best.distance:
            best = fitted
    return best


def ways(tensor: Tensor, meaning: Meaning, step: Step, config: ModelConfig, shape: tuple[int, ...]) -> Iterator[Fitted]:
    """Every way of reading a tensor as a step of that shape, the plainest first."""
    if meaning.pick is not None:
        tensor = tensor[meaning.pick]
    squeezed = [tensor]
    while squeezed[-1].dim() > 1 and squeezed[-1].shape[0] == 1:
        squeezed.append(squeezed[-1][0])
    squeezed.append(tensor.squeeze())
    for candidate in sorted(squeezed, key=lambda t: (t.dim() != len(shape), t.dim())):
        dropped = ("batch axis dropped",) if candidate.dim() < tensor.dim() else ()
        for part in _part(candidate, meaning.how, config):
            for shaped in _in_shape(part.tensor, step, shape):
                notes = (*dropped, *part.notes, *shaped.notes)
                yield Fitted(shaped.tensor, notes)
                if isinstance(step.operation, Lookup) and config.embed_scale != 1:
                    scale = config.embed_scale
                    notes = (*notes, f"multiplied by {scale:.4g}, the scale of the embeddings")
                    yield Fitted(shaped.tensor * scale, notes, factor=scale)


def _masked(fitted: Fitted) -> Fitted:
    """Put −∞ where another program's scores have a large negative number."""
    hidden = (fitted.tensor < _HIDDEN) & fitted.tensor.isfinite()
    if not hidden.any():
        return fitted
    return Fitted(fitted.tensor.masked_fill(hidden, -math.inf), (*fitted.notes, f"below {_HIDDEN:,.0f} read as masked"))


def _part(tensor: Tensor, how: Stored | None, config: ModelConfig) -> Iterator[Fitted]:
    """Our part of a module's output, by the table of its weight, whose rows are the last axis here."""
    if how is not None and (how.parts or how.paired or how.rotary_last) and tensor.dim() > 1:
        flat = tensor if tensor.dim() == 2 else tensor.flatten(1)  # (T, H, D) -> (T, R)
        rows = replace(how, transposed=False, offset=0.0, axis=0, by_row="")
        with suppress(RuntimeError):  # of other sizes
            part = rows.read(flat.transpose(0, 1), config).transpose(0, 1)
            module = how.module.rpartition(".")[2]
            notes = (f"part {how.part + 1} of {len(how.parts)} of {module}",) if how.parts else ()
            yield Fitted(part, (*notes, *(("pairs of rows put in halves",) if how.paired else ())))
            if how.rotary_last:
                return  # without that, a fault of its other rows would be read away
    yield Fitted(tensor, ())


def part_of(tensor: Tensor, how: Stored, config: ModelConfig) -> Tensor:
    """The first reading of a module's output as our part of it; of a shard, its share of the part."""
    return next(_part(tensor, how, config)).tensor


def _in_shape(tensor: Tensor, step: Step, shape: tuple[int, ...]) -> Iterator[Fitted]:
    """Every order of axes that gives ``shape``, the plainest first."""
    if tensor.shape == shape:
        yield Fitted(tensor, ())
    if tensor.numel() != math.prod(shape):
        yield from _repeated(tensor, step, shape)
        return
    if tensor.dim() == len(shape):
        for order in itertools.permutations(range(tensor.dim())):
            moved = tensor.permute(order)
            if moved.shape == shape and list(order) != sorted(order):
                yield Fitted(moved, ("axes in another order",))
    if len(shape) == 3 and tensor.dim() == 2:  # (T, H·D) or transposed -> (H, T, D)
        for flat, notes in ((tensor, ()), (tensor.T, ("transposed",))):
            if flat.shape == (shape[1], shape[0] * shape[2]):
                yield Fitted(flat.unflatten(1, (shape[0], shape[2])).transpose(0, 1), notes)
        if tensor.shape == (shape[0] * shape[1], shape[2]):  # (T·H, D) -> (H, T, D)
            yield Fitted(tensor.unflatten(0, (shape[1], shape[0])).transpose(0, 1), ("a row for each token and head",))
    if len(shape) == 2 and tensor.dim() == 3:  # (T, H, D) or (H, T, D) -> (T, H·D)
        if tensor.shape[0] == shape[0]:
            yield Fitted(tensor.flatten(1), ("heads put side by side",))
        if tensor.shape[1] == shape[0]:
            yield Fitted(tensor.transpose(0, 1).flatten(1), ("heads put side by side",))
    if len(shape) == 1:
        yield Fitted(tensor.reshape(shape), ())


def _repeated(tensor: Tensor, step: Step, shape: tuple[int, ...]) -> Iterator[Fitted]:
    """Undo the repetition of keys or values for each query head: (H, T, D) -> (G, T, D)."""
    if "kv head" not in step.axes or tensor.numel() % math.prod(shape):
        return
    times = tensor.numel() // math.prod(shape)
    for way in _in_shape(tensor, replace(step, axes=()), (shape[0] * times, *shape[1:])):
        yield Fitted(way.tensor[::times], (*way.notes, f"every {times}th of the repeated heads taken"))


def is_turned(step: Step, config: ModelConfig) -> bool:
    """Whether a step of a layer holds queries or keys in heads, whose rows RoPE turns in halves or in pairs."""
    return (
        config.mixer == "attention"
        and config.positions == "rotary"
        and step.role in ("q", "k")
        and step.axes[-1] == "d_head"
    )


def in_halves(tensor: Tensor, config: ModelConfig) -> Tensor:
    """Reorder the rows of heads (H, T, D) from pairs (0, 1), (2, 3) … to halves (0, D/2), (1, D/2 + 1) …"""
    width = config.rope.width
    turned = tensor[..., :width].unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    return torch.cat((turned, tensor[..., width:]), dim=-1)


def distance(tensor: Tensor, like: Tensor) -> float:
    """The largest difference, relative to our largest number; infinite where one side alone is not finite."""
    kind = torch.promote_types(torch.promote_types(tensor.dtype, like.dtype), torch.float32)
    a, b = tensor.to(like.device, kind), like.to(kind)
    if a.numel() and b.numel() and math.isfinite(largest := float((a - b).abs().max())):  # as all of both is then
        return largest / (float(b.abs().max()) or 1.0)
    equal = (a == b) | (a.isnan() & b.isnan())
    differences = torch.where(equal, 0.0, (a - b).abs()).nan_to_num(nan=math.inf, posinf=math.inf)
    finite = b[b.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 1.0
    return float(differences.max()) / (scale or 1.0) if differences.numel() else 0.0
