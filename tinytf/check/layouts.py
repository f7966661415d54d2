"""Layouts of reference parameters inside one parameter of a student: transposed, side by side, by head."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.check.parameters import ReferenceParameter, StudentParameter
from tinytf.config import ModelConfig
from tinytf.trace.parameters import is_split


@dataclass(frozen=True)
class Layout:
    """How our tensors, (in, out) as in the formulas, lie in the student's parameter."""

    words: str
    make: Callable[[Sequence[Tensor]], Tensor]

    @property
    def form(self) -> str:
        """The layout apart from transposition, which a matrix shares with its bias."""
        return self.words.removesuffix(", transposed")


def find_layouts(theirs: StudentParameter, ours: ReferenceParameter, config: ModelConfig) -> Iterator[Layout]:
    """The layouts in which our tensors fit the student's shape, likeliest first."""
    sizes, count = config.sizes, len(ours.steps)
    axes = [parameter.axes for _, parameter in ours.steps]
    shapes = [tuple(sizes[axis] for axis in parameter_axes) for parameter_axes in axes]
    split = next((index for index, axis in enumerate(axes[0]) if is_split(axis)), None)
    if len(shapes[0]) == 1:
        total = sum(shape[0] for shape in shapes)
        if theirs.per_head and count == 1 and split is not None and theirs.shape == (config.d_head,):
            yield Layout("by head", lambda tensors: tensors[0])
        elif theirs.shape == (total,):
            if count > 1 and split is not None and len(set(shapes)) == 1:
                yield Layout("side by side", lambda tensors: torch.cat(list(tensors)))
                yield Layout("head by head", lambda tensors: _interleaved(tensors, config.n_heads))
            else:
                yield Layout("side by side" if count > 1 else "", lambda tensors: torch.cat(list(tensors)))
        elif count == 1 and split is not None and theirs.shape == (total // config.d_head, config.d_head):
            yield Layout("by head", lambda tensors: tensors[0].view(theirs.shape))
        return
    (rows, _), columns = shapes[0], sum(shape[-1] for shape in shapes)
    if theirs.per_head:
        if count == 1 and split == 1 and {theirs.shape} & {(rows, config.d_head), (config.d_head, rows)}:
            yield from _matrix_layouts(theirs, (rows, config.d_head), "by head", lambda tensors: tensors[0])
        return
    if len(theirs.shape) == 3 and count == 1 and split is not None:
        heads = shapes[0][split] // config.d_head
        for order in itertools.permutations(range(3)):
            parts = [rows, heads, config.d_head] if split == 1 else [heads, config.d_head, shapes[0][1]]
            if tuple(parts[axis] for axis in order) == theirs.shape:
                yield Layout("by head", lambda t, parts=parts, order=order: t[0].reshape(parts).permute(order))  # type: ignore[misc]
        return
    if len(theirs.shape) != 2:
        return
    words = "side by side" if count > 1 else ""
    if ours.modules.startswith(("embed.", "head.decoder")) and ours.names == ("E",) and theirs.shape == (rows, columns):
        yield Layout("", lambda tensors: tensors[0])
        return
    yield from _matrix_layouts(theirs, (rows, columns), words, lambda tensors: torch.cat(list(tensors), dim=1))
    if count > 1 and split is not None and len(set(shapes)) == 1:
        interleave = lambda tensors: _interleaved([t.T for t in tensors], config.n_heads).T  # noqa: E731
        yield from _matrix_layouts(theirs, (rows, columns), "head by head", interleave)
    elif count > 1 and split is None:
        reverse = lambda tensors: torch.cat(list(reversed(tensors)), dim=1)  # noqa: E731
        yield from _matrix_layouts(theirs, (rows, columns), "the second before the first", reverse)


def _matrix_layouts(
    theirs: StudentParameter, shape: tuple[int, int], words: str, join: Callable[[Sequence[Tensor]], Tensor]
) -> Iterator[Layout]:
    """The layouts of a matrix (in, out): as nn.Linear stores it, (out, in), or as in x @ W."""
    transposed = Layout(", ".join(filter(None, (words, "transposed"))), lambda tensors: join(tensors).T)
    straight = Layout(words, join)
    first, second = (transposed, straight) if theirs.is_linear else (straight, transposed)
    for layout in (first, second):
        if theirs.shape == (shape if layout is straight else shape[::-1]) and (
            not theirs.is_linear or layout is transposed
        ):
            yield layout


def _interleaved(tensors: Sequence[Tensor], heads: int) -> Tensor:
    """Several tensors (H·D, …) as one, its first axis ordered (H, tensor, D)."""
    return torch.stack([tensor.unflatten(0, (heads, -1)) for tensor in tensors], dim=1).flatten(0, 2)
