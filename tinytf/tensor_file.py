"""Write safetensors files one tensor at a time, so that memory holds at most one more tensor."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from tinytf.tables import Array

_TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def safetensors(arrays: Iterable[Array], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """Yield the parts of a file that holds ``arrays`` by name, with ``metadata``.

    Each tensor is read when its part is taken. Wide numbers come first, so that all are aligned.
    """
    entries = [(array, *array.form()) for array in arrays]
    entries.sort(key=lambda entry: -entry[2].itemsize)
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for array, shape, dtype in entries:
        start, end = end, end + torch.Size(shape).numel() * dtype.itemsize
        header[array.name] = {"dtype": _TYPES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    header_bytes = json.dumps(header, ensure_ascii=False).encode("utf-8")
    header_bytes += b" " * (-len(header_bytes) % 8)
    yield len(header_bytes).to_bytes(8, "little") + header_bytes
    for array, shape, dtype in entries:
        tensor = array.read().detach().cpu().contiguous()
        assert (tuple(tensor.shape), tensor.dtype) == (tuple(shape), dtype), array.name
        yield tensor.reshape(-1).view(torch.uint8).numpy().data
