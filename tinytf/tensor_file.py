"""Files of tensors, safetensors, written one tensor at a time: no more than one is held beside what there was."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from tinytf.tables import Array

_TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def safetensors(arrays: Iterable[Array], said: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """The parts of a file that holds ``arrays`` by their names, and ``said`` as its metadata.

    Each tensor is read as its part is taken. Wide numbers come first, so that all are aligned.
    """
    known = [(one, *one.form()) for one in arrays]
    known.sort(key=lambda found: -found[2].itemsize)
    header: dict[str, Any] = {"__metadata__": dict(said)}
    end = 0
    for one, shape, dtype in known:
        start, end = end, end + torch.Size(shape).numel() * dtype.itemsize
        header[one.name] = {"dtype": _TYPES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    words = json.dumps(header, ensure_ascii=False).encode("utf-8")
    words += b" " * (-len(words) % 8)
    yield len(words).to_bytes(8, "little") + words
    for one, shape, dtype in known:
        tensor = one.read().detach().cpu().contiguous()
        assert (tuple(tensor.shape), tensor.dtype) == (tuple(shape), dtype), one.name
        yield tensor.reshape(-1).view(torch.uint8).numpy().data
