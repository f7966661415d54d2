"""The tensors of a GGUF file: read in pieces, and dequantised by the ``gguf`` library."""

import math
import os
from collections.abc import Callable, Container, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tinytf.checkpoints.gguf.header import Header, StoredTensor
from tinytf.checkpoints.load import damage_error, identity, require_same
from tinytf.errors import CheckpointError
from tinytf.fields import Fields, quoted

_PIECE = 2**18  # numbers at a time, so that intermediate results fit into the CPU cache and their memory is reused
_MOST_THREADS = 8
_LEARNED = "xielu."
"""Metadata that are weights: what an activation learns, in arrays with a number for each layer."""


class GgufWeights:
    """The tensors that a header lists, and weights in its metadata.

    Raises CheckpointError for a tensor type that is not implemented.
    """

    def __init__(self, header: Header) -> None:
        self._tensors = header.tensors
        keys = Fields(header.metadata, header.path)
        learned = {key: keys.array(key, float) for key in header.metadata if key.startswith(_LEARNED)}
        if twice := next((key for key in learned if key in header.tensors), ""):
            raise CheckpointError(f"{header.path} holds {quoted(twice)} as metadata and as a tensor")
        self._arrays = {key: torch.tensor([float(number) for number in numbers]) for key, numbers in learned.items()}
        self.shapes = {name: tensor.shape for name, tensor in header.tensors.items()}
        self.shapes |= {name: tuple(numbers.shape) for name, numbers in self._arrays.items()}
        self._identities = {tensor.path: identity(tensor.path) for tensor in header.tensors.values()}
        for tensor in header.tensors.values():
            if not _is_read(tensor.kind):
                known = ", ".join(kind.name for kind in type(tensor.kind) if _is_read(kind))
                raise CheckpointError(
                    f"{tensor.path}: {quoted(tensor.name)} is stored as {tensor.kind.name}, which is not implemented",
                    f"implemented: {known}",
                )

    def stored(self, name: str) -> Tensor:
        """One tensor, in float32."""
        if name in self._arrays:
            return self._arrays[name]
        path = self._tensors[name].path
        require_same(path, self._identities[path])
        return read_tensor(self._tensors[name])

    def stored_rows(self, name: str, first: int, last: int) -> Tensor:
        """Some rows of a matrix, or some experts of a tensor that holds a matrix for each, in float32."""
        tensor = self._tensors[name]
        require_same(tensor.path, self._identities[tensor.path])
        each, count = tensor.n_bytes // tensor.shape[0], last - first
        shape, start = (count, *tensor.shape[1:]), tensor.start + first * each
        return read_tensor(replace(tensor, shape=shape, start=start, n_bytes=count * each))

    def takes(self, dtype: torch.dtype) -> int:
        """The bytes of all tensors in ``dtype``."""
        return sum(math.prod(shape) for shape in self.shapes.values()) * dtype.itemsize

    def tensors(self, dtype: torch.dtype, pieces: Container[str] = ()) -> Iterator[tuple[str, Tensor]]:
        """Every tensor by name, in ``dtype``."""
        yield from ((name, numbers.to(dtype)) for name, numbers in self._arrays.items())
        with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as threads:
            for name, tensor in self._tensors.items():
                yield name, read_tensor(tensor, dtype, threads.map)


@cache
def _is_read(kind: Any) -> bool:
    """Whether the library can dequantise a tensor type, tried on one block of zeros."""
    import gguf

    try:
        gguf.quants.dequantize(np.zeros(gguf.GGML_QUANT_SIZES[kind][1], np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def read_tensor(
    stored: StoredTensor,
    dtype: torch.dtype = torch.float32,
    each: Callable[[Callable[[int], None], range], Iterable[None]] = map,
) -> Tensor:
    """The values of a tensor, read a few rows at a time.

    ``each`` maps a function over the first row of every piece, possibly in threads.
    """
    import gguf

    path, (*leading, width) = stored.path, stored.shape
    rows = math.prod(leading)
    row_bytes = stored.n_bytes // rows
    step = max(1, _PIECE // width)
    result = torch.empty(rows, width, dtype=dtype)

    def fill(first: int) -> None:
        piece = result[first : first + step]
        data = np.fromfile(path, np.uint8, len(piece) * row_bytes, offset=stored.start + first * row_bytes)
        if data.size != len(piece) * row_bytes:
            raise damage_error(path, f"it ends within {quoted(stored.name)}", "truncated")
        with np.errstate(all="ignore"):  # NaN scales give NaN weights, which are reported later
            numbers = gguf.quants.dequantize(data, stored.kind)
        piece.copy_(torch.from_numpy(numbers).view_as(piece))

    try:
        for _ in each(fill, range(0, rows, step)):
            pass
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    return result.view(stored.shape)
