"""Bringing a tensor of another program to the axes of one of our steps: its shape proposes how, the numbers decide.

Shapes: T tokens, H heads (G those of keys and values), D head width, R rows of a joint module.
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
"""How far apart numbers are, relative to the largest, that need no other layout, and that are the same but rounded."""

_HIDDEN = -5_000.0
"""Scores below are masked: programs add −10,000 or the least number of a dtype where we have −∞."""


@dataclass(frozen=True)
class Fitted:
    """A tensor in our axes, with what was done to it in words; ``apart`` is how far it is from ours.

    ``factor`` is what its numbers were multiplied by.
    """

    tensor: Tensor
    said: tuple[str, ...]
    apart: float = math.inf
    factor: float = 1.0

    @property
    def close(self) -> bool:
        return self.apart <= _CLOSE


def fit(
    tensor: Tensor, meaning: Meaning, step: Step, config: ModelConfig, shape: tuple[int, ...], like: Tensor | None
) -> Fitted | None:
    """The tensor as ours, of ``shape``; of several ways the first that gives the numbers ``like``, else the nearest.

    None where no way gives that shape.
    """
    best: Fitted | None = None
    for found in _ways(tensor, meaning, step, config, shape):
        found = _masked(found) if isinstance(step.operation, Mask) else found
        if like is None:
            return found
        found = replace(found, apart=apart(found.tensor, like))
        if found.apart <= _EXACT:
            return found
        if best is None or found.apart < best.apart:
            best = found
    return best


def _ways(
    tensor: Tensor, meaning: Meaning, step: Step, config: ModelConfig, shape: tuple[int, ...]
) -> Iterator[Fitted]:
    if meaning.pick is not None:
        tensor = tensor[meaning.pick]
    wholes = [tensor]
    while wholes[-1].dim() > 1 and wholes[-1].shape[0] == 1:
        wholes.append(wholes[-1][0])
    wholes.append(tensor.squeeze())
    for whole in sorted(wholes, key=lambda one: (one.dim() != len(shape), one.dim())):
        batch = ("batch axis dropped",) if whole.dim() < tensor.dim() else ()
        for part in _part(whole, meaning.how, config):
            for way in _in_shape(part.tensor, step, shape):
                said = (*batch, *part.said, *way.said)
                yield Fitted(way.tensor, said)
                if isinstance(step.operation, Lookup) and config.embed_scale != 1:
                    scale = config.embed_scale
                    said = (*said, f"multiplied by {scale:.4g}, the scale of the embeddings")
                    yield Fitted(way.tensor * scale, said, factor=scale)


def _masked(found: Fitted) -> Fitted:
    """Scores with −∞ where another program has a large negative number."""
    hidden = (found.tensor < _HIDDEN) & found.tensor.isfinite()
    if not hidden.any():
        return found
    return Fitted(found.tensor.masked_fill(hidden, -math.inf), (*found.said, f"below {_HIDDEN:,.0f} read as masked"))


def _part(tensor: Tensor, how: Stored | None, config: ModelConfig) -> Iterator[Fitted]:
    """Our part of what a module gives, by the table of its weight: the rows of that are the last axis here."""
    if how is not None and (how.parts or how.paired or how.turned_last) and tensor.dim() > 1:
        flat = tensor if tensor.dim() == 2 else tensor.flatten(1)  # (T, H, D) -> (T, R)
        rows = replace(how, transposed=False, offset=0.0, axis=0, by_row=False)
        with suppress(RuntimeError):  # of other sizes
            part = rows.read(flat.transpose(0, 1), config).transpose(0, 1)
            module = how.module.rpartition(".")[2]
            said = (f"part {how.part + 1} of {len(how.parts)} of {module}",) if how.parts else ()
            yield Fitted(part, (*said, *(("pairs of rows put in halves",) if how.paired else ())))
    yield Fitted(tensor, ())


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
        for flat, said in ((tensor, ()), (tensor.T, ("transposed",))):
            if flat.shape == (shape[1], shape[0] * shape[2]):
                yield Fitted(flat.unflatten(1, (shape[0], shape[2])).transpose(0, 1), said)
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
    """Keys or values that were repeated for each query head: (H, T, D) -> (G, T, D)."""
    if "kv head" not in step.axes or tensor.numel() % math.prod(shape):
        return
    times = tensor.numel() // math.prod(shape)
    for way in _in_shape(tensor, replace(step, axes=()), (shape[0] * times, *shape[1:])):
        yield Fitted(way.tensor[::times], (*way.said, f"every {times}th of the repeated heads taken"))


def is_turned(step: Step) -> bool:
    """Whether a step is of queries or keys in heads, whose rows RoPE turns in halves or in pairs."""
    return step.role in ("q", "k") and step.axes[-1] == "d_head"


def in_halves(tensor: Tensor, config: ModelConfig) -> Tensor:
    """Heads (H, T, D) whose rows lie as pairs (0, 1), (2, 3) …, as RoPE of halves has them: (0, D/2), (1, D/2 + 1) …"""
    width = config.rope.width
    turned = tensor[..., :width].unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    return torch.cat((turned, tensor[..., width:]), dim=-1)


def apart(tensor: Tensor, like: Tensor) -> float:
    """The largest difference, relative to the largest number of ours; infinite where one side alone is not finite."""
    a, b = tensor.to(like.device, torch.float64), like.double()
    apart = torch.where(a == b, 0.0, (a - b).abs()).nan_to_num(nan=math.inf, posinf=math.inf)
    seen = b[b.isfinite()]
    scale = float(seen.abs().max()) if seen.numel() else 1.0
    return float(apart.max()) / (scale or 1.0) if apart.numel() else 0.0
