"""Importance matrices: the mean squares of the inputs of matrices on a text, as llama-imatrix writes them.

A GGUF file has two tensors for each matrix: ``NAME.in_sum2``, sums of squares over the tokens, and ``NAME.counts``, the
tokens. The older format (.dat) has means times a number of chunks. Both are those of llama.cpp's tools/imatrix. Shapes:
M matrices (the experts of a layer, else 1), C inputs.
"""

import math
import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tinytf.checkpoints.gguf.header import MAGIC, Cursor, Header, read_header
from tinytf.checkpoints.gguf.weights import read_tensor
from tinytf.checkpoints.load import damage_error
from tinytf.errors import CheckpointError
from tinytf.fields import Fields, quoted
from tinytf.files import open_bytes

_I32 = struct.Struct("<i")
_SUMS, _COUNTS = ".in_sum2", ".counts"
_NAME = re.compile(rb"[\w.\-]{1,256}")
_SHORTEST_ENTRY = 4 + 1 + 4 + 4 + 4  # a name of one letter, three numbers, one value


@dataclass(frozen=True)
class Imatrix:
    """``means`` are the mean squares of the inputs of each tensor, (M, C) in float64, NaN where nothing was counted.

    ``datasets`` are the files of text; ``chunks`` of ``chunk_size`` tokens were read, None if the file does not say.
    """

    path: Path
    means: Mapping[str, Tensor]
    datasets: tuple[str, ...] = ()
    chunks: int | None = None
    chunk_size: int | None = None


def read_imatrix(path: Path) -> Imatrix:
    """The importance matrix of a file. Raises CheckpointError for one that is missing, damaged or something else."""
    try:
        with open_bytes(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found = None if data[:4] == MAGIC else _read_old(Cursor(data, path))
    except FileNotFoundError:
        raise CheckpointError(f"there is no file {path}") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise CheckpointError(f"{path} is empty") from None
    return _of_header(read_header(path)) if found is None else found


def _of_header(header: Header) -> Imatrix:
    path, keys = header.path, Fields(header.metadata, header.path)
    kind = keys.text("general.type", "model")
    if kind != "imatrix":
        raise CheckpointError(f"{path} holds a {quoted(kind)}, not an importance matrix", "llama-imatrix writes one")
    means: dict[str, Tensor] = {}
    for name, tensor in header.tensors.items():
        if not name.endswith(_SUMS):
            continue
        matrix = name.removesuffix(_SUMS)
        if matrix + _COUNTS not in header.tensors:
            raise damage_error(path, f"{quoted(name)} has no {quoted(matrix + _COUNTS)}")
        sums, counts = read_tensor(tensor).double(), read_tensor(header.tensors[matrix + _COUNTS]).double().flatten()
        if sums.numel() % len(counts):
            raise damage_error(path, f"{quoted(matrix)} has {sums.numel():,} sums and {len(counts):,} counts")
        means[matrix] = _means(path, matrix, sums.view(len(counts), -1), counts)
    if not means:
        raise damage_error(path, "it has no sums of squares")
    numbers = (keys.whole(f"imatrix.chunk_{name}", 0) or None for name in ("count", "size"))
    datasets = keys.array("imatrix.datasets", str) if "imatrix.datasets" in header.metadata else ()
    return Imatrix(path, means, tuple(datasets), *numbers)


def _means(path: Path, name: str, sums: Tensor, counts: Tensor) -> Tensor:
    """The mean squares (M, C) from their sums and the counts (M,)."""
    for numbers in (sums, counts):
        if not bool(((numbers >= 0) & numbers.isfinite()).all()):
            raise damage_error(path, f"{quoted(name)} has a number that is no sum of squares")
    return sums / torch.where(counts > 0, counts, math.nan)[:, None]


def _read_old(cursor: Cursor) -> Imatrix:
    path, n_entries = cursor.path, cursor.whole(_I32, "the number of entries")
    means: dict[str, Tensor] = {}
    if not 1 <= n_entries <= cursor.remaining // _SHORTEST_ENTRY:
        raise _not_one(path)
    for _ in range(n_entries):
        name = _old_string(cursor, "a name")
        if not _NAME.fullmatch(name):
            raise damage_error(path, f"it names {quoted(name.decode('latin-1'))}") if means else _not_one(path)
        subject = name.decode("ascii", "replace")
        calls, count = (cursor.whole(_I32, f"the size of {quoted(subject)}") for _ in range(2))
        if calls < 0 or count < 1:
            raise damage_error(path, f"{quoted(subject)} has {count:,} values of {calls:,} chunks")
        cursor.require(count, 4, f"the values of {quoted(subject)}")
        values = np.frombuffer(cursor.data, "<f4", count, cursor.at).astype(np.float64)
        cursor.at += 4 * count
        means[subject] = _means(path, subject, torch.from_numpy(values)[None], torch.tensor([float(calls)]))
    if not cursor.remaining:  # before llama.cpp wrote the text's name
        return Imatrix(path, means)
    chunks, text = cursor.whole(_I32, "the number of chunks"), _old_string(cursor, "the name of the text")
    if cursor.remaining:
        raise damage_error(path, f"{cursor.remaining:,} bytes follow its end")
    return Imatrix(path, means, (text.decode("utf-8", "replace"),) if text else (), max(0, chunks) or None)


def _old_string(cursor: Cursor, subject: str) -> bytes:
    length = cursor.whole(_I32, subject)
    if length < 0:
        raise cursor.fail(f"{subject} has {length:,} bytes")
    cursor.require(length, 1, subject)
    cursor.at += length
    return cursor.data[cursor.at - length : cursor.at]


def _not_one(path: Path) -> CheckpointError:
    return CheckpointError(f"{path} is not an importance matrix", "llama-imatrix writes one, as .gguf or .dat")
