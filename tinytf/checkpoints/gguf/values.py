"""The numbers of stored tensors: read from the file in pieces, and dequantised by the ``gguf`` library."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from tinytf.checkpoints.gguf.header import StoredTensor
from tinytf.checkpoints.gguf.library import gguf_library
from tinytf.errors import CheckpointError
from tinytf.fields import quoted

Values = npt.NDArray[np.float32]

KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")
_PIECE = 2**18  # numbers at a time: few enough that what dequantising makes on the way stays in the cache


def require_known_kind(path: Path, stored: StoredTensor) -> None:
    """CheckpointError, with its name, for a tensor type that is not implemented."""
    if stored.kind.name not in KINDS:
        raise CheckpointError(
            f"{path}: {quoted(stored.name)} is stored as {stored.kind.name}, which is not implemented",
            f"implemented: {', '.join(KINDS)}",
        )


def pieces(file: BinaryIO, path: Path, stored: StoredTensor) -> Iterator[tuple[int, Values]]:
    """The tensor's numbers as (first row, rows × width) in float32, a few rows at a time; a vector is one row."""
    library = gguf_library()
    rows, width = (stored.shape[0], stored.shape[1]) if len(stored.shape) == 2 else (1, stored.shape[0])
    row_bytes = stored.n_bytes // rows
    step = max(1, _PIECE // width)
    file.seek(stored.start)
    for first in range(0, rows, step):
        count = min(step, rows - first)
        data = np.fromfile(file, dtype=np.uint8, count=count * row_bytes)
        if data.size != count * row_bytes:
            raise CheckpointError(f"{path} is truncated: it ends within {quoted(stored.name)}")
        yield first, library.quants.dequantize(data, stored.kind).reshape(count, width)


def read_vector(path: Path, stored: StoredTensor) -> Values:
    """All numbers of a vector, in float32."""
    require_known_kind(path, stored)
    with opened(path) as file:
        return next(pieces(file, path, stored))[1][0]


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The file to read from; CheckpointError where the system will not."""
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
