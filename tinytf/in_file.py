"""Weights that stay in their file, as it stores them, and are converted each time they are used.

So a model may be larger than the memory: of its matrices those in use are held, and dropped after.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from tinytf.errors import UsageError

BLOCK = 2**27
"""Bytes of a larger matrix that are read at a time for a product with it, or for its sum."""


class InFile(Tensor):
    """A tensor without numbers in memory: ``read`` gives them, in this shape and dtype, to each operation on it.

    ``read_rows`` gives those from the first to before the last along the first axis, without the others: of a mixture's
    experts the chosen ones are read, of the embeddings those of the text, and a product with the vocabulary holds a
    part of it at a time. A view stays in the file too, so that a backward pass holds no weights and no write to a view
    is lost. Raises UsageError where an operation would write to it.
    """

    read: Callable[[], Tensor]
    like: Tensor
    read_rows: Callable[[int, int], Tensor] | None
    turned: "InFile | None"
    """The matrix of which this is the transpose."""

    @staticmethod
    def __new__(
        cls,
        read: Callable[[], Tensor],
        like: Tensor,
        read_rows: Callable[[int, int], Tensor] | None = None,
    ) -> "InFile":
        """``like`` has the shape, the strides and the dtype, on the meta device."""
        made: InFile = Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=torch.device("cpu")
        )
        made.read, made.like, made.read_rows, made.turned = read, like, read_rows, None
        return made

    def __init__(self, *args: Any) -> None: ...

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            raise UsageError("weights that stay in their file cannot be changed", "leave out --keep-quantized")
        source = args[0]
        if func.is_view and isinstance(source, InFile):
            with torch.inference_mode(source.is_inference()):  # as torch expects of a view

                def view() -> Any:
                    return func(source.read(), *args[1:], **kwargs)

                like = func(source.like, *args[1:], **kwargs)
                if func is torch.ops.aten.select.int and args[1] == 0 and source.read_rows is not None:
                    return InFile(partial(_row, source.read_rows, range(len(source))[args[2]]), like)
                if func is torch.ops.aten.detach.default:
                    return InFile(view, like, source.read_rows)
                if isinstance(like, Tensor):
                    made = InFile(view, like)
                    made.turned = source if func is torch.ops.aten.t.default else None
                    return made
                return [InFile(partial(_part, view, number), one) for number, one in enumerate(like)]
        if (found := _by_rows(func, args, kwargs)) is not None:
            return found
        read_args, read_kwargs = tree_map_only(InFile, lambda weight: weight.read(), (args, kwargs))
        return func(*read_args, **read_kwargs)

    def tolist(self) -> Any:
        return self.clone().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        return self.clone().numpy(force=force)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """A copy in memory, which can be changed."""
        numbers = self.detach().clone()
        copied = nn.Parameter(numbers, self.requires_grad) if isinstance(self, nn.Parameter) else numbers
        memo[id(self)] = copied
        return copied

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"InFile({tuple(self.shape)}, {self.dtype})"


def _by_rows(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """What an operation gives that needs a few rows of a matrix at a time; None for any other."""
    match str(func), args:
        case "aten.embedding.default", (InFile() as matrix, Tensor() as ids, *_):
            return _looked_up(matrix, ids)
        case "aten.index.Tensor", (InFile() as matrix, [Tensor() as ids]):
            return None if ids.dtype == torch.bool else _looked_up(matrix, ids)
        case "aten.sum.default", (InFile() as matrix,):
            return _joined(matrix, lambda rows, _: func(rows)[None], torch.sum)
        case "aten.mm.default", (x, InFile(turned=InFile() as matrix)):
            return _joined(matrix, lambda rows, _: func(x, rows.t()))
        case "aten.addmm.default", (bias, x, InFile(turned=InFile() as matrix)) if not kwargs:
            return _joined(matrix, lambda rows, own: func(bias[own], x, rows.t()))
        case "aten.linear.default" | "mkldnn._linear_pointwise.default", (x, InFile() as matrix, *rest):
            bias, *rest = rest or [None]
            return _joined(
                matrix, lambda rows, own: func(x, rows, None if bias is None else bias[own], *rest, **kwargs)
            )
    return None


def _looked_up(matrix: InFile, ids: Tensor) -> Tensor | None:
    """The rows of a matrix with these numbers, each read once; None where one lies beyond it, which is an error."""
    count = len(matrix)
    if (read := matrix.read_rows) is None or not ((ids >= -count) & (ids < count)).all():
        return None
    own, places = (ids % count).unique(return_inverse=True)
    rows = [read(number, number + 1) for number in own.tolist()]
    return torch.cat([torch.empty(0, *matrix.shape[1:], dtype=matrix.dtype), *rows])[places]


def _joined(
    matrix: InFile, use: Callable[[Tensor, slice], Tensor], join: Callable[[Tensor], Tensor] | None = None
) -> Tensor | None:
    """What ``use`` makes of blocks of rows (and of which rows), side by side; None for a matrix that is read whole."""
    if (read := matrix.read_rows) is None or matrix.like.nbytes <= BLOCK:
        return None
    step = max(1, BLOCK * len(matrix) // matrix.like.nbytes)
    ends = ((first, min(first + step, len(matrix))) for first in range(0, len(matrix), step))
    made = torch.cat([use(read(first, last), slice(first, last)) for first, last in ends], -1)
    return made if join is None else join(made)


def _row(read_rows: Callable[[int, int], Tensor], number: int) -> Tensor:
    return read_rows(number, number + 1)[0]


def _part(views: Callable[[], Sequence[Tensor]], number: int) -> Tensor:
    return views()[number]
