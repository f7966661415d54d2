"""The tensors of a GGUF file: read in pieces, and dequantised by the ``gguf`` library."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tinytf.checkpoints.gguf.header import Header, StoredTensor, gguf_library
from tinytf.checkpoints.load import damaged
from tinytf.errors import CheckpointError
from tinytf.fields import quoted

KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")
_PIECE = 2**18  # numbers at a time: few enough that intermediate results of dequantising stay in the cache


class GgufWeights:
    """The tensors that a header lists. Raises CheckpointError for a tensor type that is not implemented."""

    def __init__(self, header: Header) -> None:
        self._path, self._tensors = header.path, header.tensors
        self.shapes = {name: tensor.shape for name, tensor in header.tensors.items()}
        for tensor in header.tensors.values():
            if tensor.kind.name not in KINDS:
                raise CheckpointError(
                    f"{header.path}: {quoted(tensor.name)} is stored as {tensor.kind.name}, which is not implemented",
                    f"implemented: {', '.join(KINDS)}",
                )

    def stored(self, name: str) -> Tensor:
        """One tensor, in float32."""
        return read_tensor(self._path, self._tensors[name])

    def tensors(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Every tensor by name, in ``dtype``."""
        return ((name, read_tensor(self._path, tensor, dtype)) for name, tensor in self._tensors.items())


def read_tensor(path: Path, stored: StoredTensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The numbers of a tensor. Apart from the result, only a few of its rows are in memory at a time."""
    rows, width = math.prod(stored.shape[:-1]), stored.shape[-1]
    row_bytes = stored.n_bytes // rows
    result = torch.empty(rows, width, dtype=dtype)
    try:
        with path.open("rb") as file:
            file.seek(stored.start)
            for piece in result.split(max(1, _PIECE // width)):
                data = np.fromfile(file, dtype=np.uint8, count=len(piece) * row_bytes)
                if data.size != len(piece) * row_bytes:
                    raise damaged(path, f"it ends within {quoted(stored.name)}", "truncated")
                numbers = gguf_library().quants.dequantize(data, stored.kind)
                piece.copy_(torch.from_numpy(numbers).view_as(piece))
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    return result.view(stored.shape)
