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


class InFile(Tensor):
    """A tensor without numbers in memory: ``read`` gives them, in this shape and dtype, to each operation on it.

    Of a mixture's experts, ``read_row`` gives one without the others, so that only the chosen ones are read. A view
    stays in the file too, so that a backward pass holds no weights and no write to a view is lost. Raises UsageError
    where an operation would write to it.
    """

    read: Callable[[], Tensor]
    like: Tensor
    read_row: Callable[[int], Tensor] | None

    @staticmethod
    def __new__(
        cls, read: Callable[[], Tensor], like: Tensor, read_row: Callable[[int], Tensor] | None = None
    ) -> "InFile":
        """``like`` has the shape, the strides and the dtype, on the meta device."""
        made: InFile = Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=torch.device("cpu")
        )
        made.read, made.like, made.read_row = read, like, read_row
        return made

    def __init__(
        self, read: Callable[[], Tensor], like: Tensor, read_row: Callable[[int], Tensor] | None = None
    ) -> None: ...

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
                if func is torch.ops.aten.select.int and args[1] == 0 and source.read_row is not None:
                    return InFile(partial(source.read_row, range(len(source))[args[2]]), like)
                if isinstance(like, Tensor):
                    return InFile(view, like, source.read_row if func is torch.ops.aten.detach.default else None)
                return [InFile(partial(_part, view, number), one) for number, one in enumerate(like)]
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


def _part(views: Callable[[], Sequence[Tensor]], number: int) -> Tensor:
    return views()[number]
