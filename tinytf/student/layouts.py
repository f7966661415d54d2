"""How parameters of a reference may lie in one of a student's: transposed, side by side, by head."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.student.parameters import Ours, Theirs
from tinytf.trace.parameters import is_split


@dataclass(frozen=True)
class Way:
    """How our tensors, as formulas read them, (in, out), lie in the student's parameter."""

    words: str
    make: Callable[[Sequence[Tensor]], Tensor]

    @property
    def form(self) -> str:
        """What a matrix has in common with its bias: how several lie in one."""
        return self.words.removesuffix(", transposed")


def tensor_ways(theirs: Theirs, ours: Ours, config: ModelConfig) -> Iterator[Way]:
    """The ways in which our tensors fit the student's shape, the likeliest first."""
    sizes, count = config.sizes, len(ours.steps)
    axes = [one.axes for _, one in ours.steps]
    shapes = [tuple(sizes[axis] for axis in each) for each in axes]
    split = next((place for place, axis in enumerate(axes[0]) if is_split(axis)), None)
    if len(shapes[0]) == 1:
        total = sum(shape[0] for shape in shapes)
        if theirs.per_head and count == 1 and split is not None and theirs.shape == (config.d_head,):
            yield Way("by head", lambda tensors: tensors[0])
        elif theirs.shape == (total,):
            if count > 1 and split is not None and len(set(shapes)) == 1:
                yield Way("side by side", lambda tensors: torch.cat(list(tensors)))
                yield Way("head by head", lambda tensors: _interleaved(tensors, config.n_heads))
            else:
                yield Way("side by side" if count > 1 else "", lambda tensors: torch.cat(list(tensors)))
        elif count == 1 and split is not None and theirs.shape == (total // config.d_head, config.d_head):
            yield Way("by head", lambda tensors: tensors[0].view(theirs.shape))
        return
    (rows, _), columns = shapes[0], sum(shape[-1] for shape in shapes)
    if theirs.per_head:
        if count == 1 and split == 1 and {theirs.shape} & {(rows, config.d_head), (config.d_head, rows)}:
            yield from _matrix_ways(theirs, (rows, config.d_head), "by head", lambda tensors: tensors[0])
        return
    if len(theirs.shape) == 3 and count == 1 and split is not None:
        heads = shapes[0][split] // config.d_head
        for order in itertools.permutations(range(3)):
            parts = [rows, heads, config.d_head] if split == 1 else [heads, config.d_head, shapes[0][1]]
            if tuple(parts[place] for place in order) == theirs.shape:
                yield Way("by head", lambda t, parts=parts, order=order: t[0].reshape(parts).permute(order))  # type: ignore[misc]
        return
    if len(theirs.shape) != 2:
        return
    said = "side by side" if count > 1 else ""
    if ours.modules.startswith(("embed.", "head.decoder")) and ours.names == ("E",) and theirs.shape == (rows, columns):
        yield Way("", lambda tensors: tensors[0])
        return
    yield from _matrix_ways(theirs, (rows, columns), said, lambda tensors: torch.cat(list(tensors), dim=1))
    if count > 1 and split is not None and len(set(shapes)) == 1:
        made = lambda tensors: _interleaved([t.T for t in tensors], config.n_heads).T  # noqa: E731
        yield from _matrix_ways(theirs, (rows, columns), "head by head", made)
    elif count > 1 and split is None:
        back = lambda tensors: torch.cat(list(reversed(tensors)), dim=1)  # noqa: E731
        yield from _matrix_ways(theirs, (rows, columns), "the second before the first", back)


def _matrix_ways(
    theirs: Theirs, shape: tuple[int, int], said: str, made: Callable[[Sequence[Tensor]], Tensor]
) -> Iterator[Way]:
    """A matrix (in, out) as nn.Linear keeps it, (out, in), or as it is multiplied, x @ W."""
    turned = Way(", ".join(filter(None, (said, "transposed"))), lambda tensors: made(tensors).T)
    straight = Way(said, made)
    first, second = (turned, straight) if theirs.linear else (straight, turned)
    for way in (first, second):
        if theirs.shape == (shape if way is straight else shape[::-1]) and (not theirs.linear or way is turned):
            yield way


def _interleaved(tensors: Sequence[Tensor], heads: int) -> Tensor:
    """Several (H·D, …) as (H, 3, D, …) in one axis."""
    return torch.stack([one.unflatten(0, (heads, -1)) for one in tensors], dim=1).flatten(0, 2)
