"""The tensors of a GGUF file: read in pieces, and dequantised by the ``gguf`` library."""

import math
from collections.abc import Container, Iterator
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tinytf.checkpoints.gguf.header import Header, StoredTensor, gguf_library
from tinytf.checkpoints.load import damaged
from tinytf.errors import CheckpointError
from tinytf.fields import quoted

_PIECE = 2**18  # numbers at a time: few enough that intermediate results of dequantising stay in the cache


class GgufWeights:
    """The tensors that a header lists. Raises CheckpointError for a tensor type that is not implemented."""

    def __init__(self, header: Header) -> None:
        self._tensors = header.tensors
        self.shapes = {name: tensor.shape for name, tensor in header.tensors.items()}
        for tensor in header.tensors.values():
            if not _is_read(tensor.kind):
                known = ", ".join(kind.name for kind in type(tensor.kind) if _is_read(kind))
                raise CheckpointError(
                    f"{tensor.path}: {quoted(tensor.name)} is stored as {tensor.kind.name}, which is not implemented",
                    f"implemented: {known}",
                )

    def stored(self, name: str) -> Tensor:
        """One tensor, in float32."""
        return read_tensor(self._tensors[name])

    def tensors(self, dtype: torch.dtype, pieces: Container[str] = ()) -> Iterator[tuple[str, Tensor]]:
        """Every tensor by name, in ``dtype``."""
        return ((name, read_tensor(tensor, dtype)) for name, tensor in self._tensors.items())


@cache
def _is_read(kind: Any) -> bool:
    """Whether the library can dequantise a tensor type: it is asked with one block of zeros."""
    library = gguf_library()
    try:
        library.quants.dequantize(np.zeros(library.GGML_QUANT_SIZES[kind][1], np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def read_tensor(stored: StoredTensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The numbers of a tensor. Apart from the result, only a few of its rows are in memory at a time."""
    path, (*rows_of, width) = stored.path, stored.shape
    rows = math.prod(rows_of)
    row_bytes = stored.n_bytes // rows
    result = torch.empty(rows, width, dtype=dtype)
    try:
        with path.open("rb") as file:
            file.seek(stored.start)
            for piece in result.split(max(1, _PIECE // width)):
                data = np.fromfile(file, dtype=np.uint8, count=len(piece) * row_bytes)
                if data.size != len(piece) * row_bytes:
                    raise damaged(path, f"it ends within {quoted(stored.name)}", "truncated")
                with np.errstate(all="ignore"):  # scales that are no numbers make weights that are none: those are said
                    numbers = gguf_library().quants.dequantize(data, stored.kind)
                piece.copy_(torch.from_numpy(numbers).view_as(piece))
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    return result.view(stored.shape)
