"""Record every tensor that a student's forward pass computes, with the line of code that made it."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tinytf.check.opened import is_own

_MOST_NUMBERS = 2**24
_UNSET = {torch.empty, torch.empty_like, Tensor.new_empty}
"""Functions that return uninitialised numbers."""


@dataclass(frozen=True, eq=False)
class Output:
    """A copy of a tensor that the student's code made, and the line that made it; ``order`` counts from 0.

    ``parents`` are the orders of the tensors that it was computed from, ``ancestors`` those of all before them too, and
    ``parameters`` the paths of the parameters; ``own`` are those that its function was handed.
    """

    order: int
    file: str
    line: int
    tensor: Tensor
    parents: frozenset[int] = frozenset()
    ancestors: frozenset[int] = frozenset()
    parameters: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()


class OutputRecorder(TorchFunctionMode):
    """While active, keeps a copy of every floating-point tensor that a torch function returns."""

    def __init__(self, file: Path, module: nn.Module) -> None:
        super().__init__()
        self.folder = file.resolve().parent
        self.outputs: list[Output] = []
        self.last: dict[int, Output] = {}
        self._own: dict[str, bool] = {}
        nothing = frozenset[int]()
        self._origins = {id(one): (nothing, nothing, frozenset({path})) for path, one in module.named_parameters()}
        self._weights = {id(one): frozenset({path}) for path, one in module.named_parameters()}
        self._alive: list[Tensor] = []  # so that no other tensor gets its id

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        given = [self._origins[id(one)] for one in tensors_in([args, kwargs]) if id(one) in self._origins]
        parents = frozenset[int]().union(*(one[0] for one in given))
        ancestors = frozenset[int]().union(*(one[1] for one in given))
        parameters = frozenset[str]().union(*(one[2] for one in given))
        weights = [self._weights.get(id(one)) for one in tensors_in([args, kwargs])]
        handed = frozenset[str]().union(*(one for one in weights if one is not None))
        for tensor in () if function in _UNSET else tensors_in(result):
            own = parents
            if tensor.is_floating_point() and 0 < tensor.numel() <= _MOST_NUMBERS and tensor.dim():
                file, line = self._innermost_line()
                copy = tensor.detach().clone()
                output = Output(len(self.outputs), file, line, copy, parents, ancestors, parameters, handed)
                self.outputs.append(output)
                self.last[id(tensor)], own = output, frozenset({output.order})
            self._origins[id(tensor)] = own, ancestors | own, parameters
            if handed and None not in weights:  # a transposed matrix, a gain plus 1
                self._weights[id(tensor)] = handed
            self._alive.append(tensor)
        return result

    def _innermost_line(self) -> tuple[str, int]:
        """The innermost frame in the student's code: file and line."""
        frame = sys._getframe(2)
        while frame is not None:
            file = frame.f_code.co_filename
            if file not in self._own:
                self._own[file] = is_own(file, self.folder)
            if self._own[file]:
                return file, frame.f_lineno
            frame = frame.f_back  # type: ignore[assignment]
        return "", 0


def tensors_in(result: Any, depth: int = 5) -> Iterator[Tensor]:
    """The tensors in a function's result, also inside tuples, dicts and objects."""
    if isinstance(result, Tensor):
        yield result
    elif depth and isinstance(result, tuple | list):
        for part in result:
            yield from tensors_in(part, depth - 1)
    elif depth and isinstance(result, dict):
        yield from tensors_in(list(result.values()), depth - 1)
    elif depth and hasattr(result, "__dict__"):
        yield from tensors_in(list(vars(result).values()), depth - 1)


def find_logits(result: Any, width: int) -> Tensor | None:
    """The logits that a module returned: the first tensor whose last axis is ``width``."""
    candidates = (t for t in tensors_in(result) if t.dim() and t.shape[-1] == width and t.is_floating_point())
    return next(candidates, None)


@torch.no_grad()
def record_outputs(
    file: Path, module: nn.Module, call: Callable[[], Any], width: int
) -> tuple[list[Output], Output | None]:
    """Every tensor that a call of the module makes, in order, and the first returned whose last axis is ``width``."""
    recorder = OutputRecorder(file, module)
    with recorder:
        result = call()
    logits = find_logits(result, width)
    return recorder.outputs, None if logits is None else recorder.last.get(
        id(logits), Output(-1, "", 0, logits.detach())
    )
