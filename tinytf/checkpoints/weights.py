"""Weight files of a model directory: names and shapes from their headers, values on demand."""

import math
import os
import pickle
import weakref
from collections.abc import Container, Iterator, Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tinytf.checkpoints.load import Shapes, damage_error, identity, require_same, takes
from tinytf.errors import CheckpointError
from tinytf.fields import quoted
from tinytf.files import open_bytes, parse_json, read_json

_NUMBERS_PER_PIECE = 4 * 2**20
"""The number of values that are converted at a time."""


def _require_file(path: Path) -> None:
    """Raise CheckpointError for a missing or unreadable file, or a pipe, before a library tries to open it."""
    try:
        open_bytes(path).close()
    except FileNotFoundError:
        raise CheckpointError(f"there is no {path.name} in {path.parent}") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None


class Mapped:
    """A file that weights are mapped from, held open to detect changes.

    Replacing the file by another is no change: the views remain those of the old file.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, open_bytes(path)
        weakref.finalize(self, self.file.close)
        self._state_when_opened = self._current_state()

    def _current_state(self) -> tuple[int, int]:
        status = os.fstat(self.file.fileno())
        return status.st_size, status.st_mtime_ns

    def require_unchanged(self) -> None:
        """Raise CheckpointError for a file that was overwritten or truncated: reading it could crash the process."""
        if self._current_state() != self._state_when_opened:
            raise CheckpointError(f"{self.path} was changed while its model was open", "quit, and open it again")

    def __deepcopy__(self, memo: object) -> "Mapped":
        return self


_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
"""Types by their words in a header."""


class Safetensors:
    """A ``.safetensors`` file, whose tensors are views of the mapped file: data that are not used are never loaded.

    ``mapped`` is the file once such views exist.
    """

    mapped: tuple[Mapped, ...] = ()

    def __init__(self, path: Path) -> None:
        self.path = path
        _require_file(path)
        self._identity = identity(path)
        try:
            with safe_open(path, framework="pt") as file:
                self.shapes: Shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise damage_error(path, str(error)) from None

    def metadata(self) -> dict[str, str]:
        """The metadata in the header."""
        with safe_open(self.path, framework="pt") as file:
            return file.metadata() or {}

    @cached_property
    def _places(self) -> dict[str, tuple[int, int, torch.dtype | None]]:
        """The first byte of each tensor, its bytes and its type: the header, after its own length, has them."""
        with open_bytes(self.path) as file:
            length = int.from_bytes(file.read(8), "little")
            header = parse_json(file.read(length))
        return {
            name: (8 + length + first, last - first, _DTYPES.get(header[name]["dtype"]))
            for name in self.shapes
            for first, last in (header[name]["data_offsets"],)
        }

    def stored(self, name: str) -> Tensor:
        """One tensor, in memory: reading a file is several times as fast as touching a mapping of it."""
        require_same(self.path, self._identity)
        start, count, dtype = self._places[name]
        if dtype is None or not count:
            with safe_open(self.path, framework="pt") as file:
                return file.get_tensor(name)
        return self._numbers(start, count, dtype).view(self.shapes[name])

    def stored_rows(self, name: str, first: int, last: int) -> Tensor:
        start, count, dtype = self._places[name]
        if dtype is None or not count:
            return self.stored(name)[first:last]
        require_same(self.path, self._identity)
        length, *others = self.shapes[name]
        each = count // length
        return self._numbers(start + first * each, (last - first) * each, dtype).view(-1, *others)

    def _numbers(self, start: int, count: int, dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(np.fromfile(self.path, np.uint8, count, offset=start)).view(dtype)

    def takes(self, dtype: torch.dtype) -> int:
        others = (shape for name, shape in self.shapes.items() if self._places[name][2] != dtype)
        return sum(math.prod(shape) for shape in others) * dtype.itemsize

    def tensors(self, dtype: torch.dtype, pieces: Container[str] = ()) -> Iterator[tuple[str, Tensor]]:
        names = {name for name, (_, _, stored) in self._places.items() if stored == dtype and name not in pieces}
        views = {}
        if names:
            with safe_open(self.path, framework="pt") as file:
                views = {name: file.get_tensor(name) for name in self.shapes if name in names}
            self.mapped = (Mapped(self.path),)
        yield from views.items()
        views.clear()
        for name in (name for name in self.shapes if name not in names):
            yield name, self._converted(name, dtype)

    def _converted(self, name: str, dtype: torch.dtype) -> Tensor:
        """A tensor in memory, in ``dtype`` if it is floating point, converted piece by piece."""
        start, count, stored = self._places[name]
        if stored is None or not stored.is_floating_point or stored == dtype or not count:
            tensor = self.stored(name)
            return tensor.to(dtype) if tensor.is_floating_point() else tensor
        require_same(self.path, self._identity)
        result = torch.empty(self.shapes[name], dtype=dtype)
        size, end = _NUMBERS_PER_PIECE * stored.itemsize, start + count
        firsts = range(start, end, size)
        for first, room in zip(firsts, result.view(-1).split(_NUMBERS_PER_PIECE), strict=True):
            numbers = np.fromfile(self.path, np.uint8, min(size, end - first), offset=first)
            room.copy_(torch.from_numpy(numbers).view(stored))
        return result


class Pickled:
    """A ``.bin`` file of torch.save, read without executing code in it."""

    mapped: tuple[Mapped, ...] = ()

    def __init__(self, path: Path) -> None:
        self.path = path
        _require_file(path)
        self._tensors = self._read()
        self.shapes: Shapes = {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def _read(self) -> dict[str, Tensor]:
        try:
            try:
                state = torch.load(self.path, map_location="cpu", weights_only=True, mmap=True)
            except RuntimeError:  # files from before torch 1.6 cannot be mapped
                state = torch.load(self.path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:
            raise CheckpointError(
                f"{self.path} is refused: it is damaged, or holds more than tensors, which could run code",
                "if you trust it, convert it to safetensors",
            ) from None
        except Exception as error:  # a damaged archive raises different errors
            reason = str(error).splitlines()[0] if str(error) else repr(error)
            raise damage_error(self.path, reason) from None
        if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
            raise CheckpointError(f"{self.path} is not a table of tensors by name")
        for name, value in state.items():
            if not isinstance(name, str):
                raise CheckpointError(f"{self.path} is not a table of tensors by name: one is called {name!r:.40}")
            if (kind := _odd_kind(value)) is not None:
                raise CheckpointError(
                    f"{self.path}: {quoted(name)} is a {kind} tensor", "save it again with plain tensors of numbers"
                )
        return state

    def stored(self, name: str) -> Tensor:
        return self._tensors[name]

    def stored_rows(self, name: str, first: int, last: int) -> Tensor:
        return self._tensors[name][first:last]

    def takes(self, dtype: torch.dtype) -> int:
        return takes(self._tensors.values(), dtype)

    def tensors(self, dtype: torch.dtype, pieces: Container[str] = ()) -> Iterator[tuple[str, Tensor]]:
        if any(tensor.dtype == dtype for tensor in self._tensors.values()):
            self.mapped = (Mapped(self.path),)
        for name, tensor in self._tensors.items():
            yield name, tensor.to(dtype) if tensor.is_floating_point() else tensor


def _odd_kind(tensor: Tensor) -> str | None:
    """The kind of a tensor that is not a plain array of numbers; None for a plain one."""
    if tensor.is_nested or tensor.is_meta or tensor.is_quantized:
        return "nested" if tensor.is_nested else "meta" if tensor.is_meta else "quantised"
    return None if tensor.layout == torch.strided else str(tensor.layout).removeprefix("torch.").replace("_", " ")


_KINDS: dict[str, type[Safetensors] | type[Pickled]] = {".safetensors": Safetensors, ".bin": Pickled}
WHOLE = ("model.safetensors", "pytorch_model.bin")
"""The names of an unsharded weight file; NAME.index.json lists the shards of a sharded one."""


class Weights:
    """All weight files of a directory; ``shapes`` by tensor name. Raises CheckpointError for a tensor stored twice."""

    def __init__(self, directory: Path) -> None:
        self.files = [_KINDS[path.suffix](path) for path in weight_files(directory)]
        self.shapes: Shapes = {}
        for file in self.files:
            for name, shape in file.shapes.items():
                if name in self.shapes:
                    raise CheckpointError(f"{directory} holds {name} twice, the second time in {file.path.name}")
                self.shapes[name] = shape

    @property
    def mapped(self) -> tuple[Mapped, ...]:
        return tuple(mapped for file in self.files for mapped in file.mapped)

    def takes(self, dtype: torch.dtype) -> int:
        return sum(file.takes(dtype) for file in self.files)

    def stored(self, name: str) -> Tensor:
        return next(file.stored(name) for file in self.files if name in file.shapes)

    def stored_rows(self, name: str, first: int, last: int) -> Tensor:
        return next(file.stored_rows(name, first, last) for file in self.files if name in file.shapes)

    def tensors(self, dtype: torch.dtype, pieces: Container[str] = ()) -> Iterator[tuple[str, Tensor]]:
        for file in self.files:
            yield from file.tensors(dtype, pieces)


def weight_files(directory: Path) -> list[Path]:
    """The weight files of a directory: one, or the shards in its index; safetensors takes precedence over pickle."""
    for name in WHOLE:
        if (directory / name).exists():
            return [directory / name]
        index = directory / f"{name}.index.json"
        if index.exists():
            return [directory / shard for shard in _shards(index)]
    raise CheckpointError(f"there is no model.safetensors in {directory}")


def _shards(index: Path) -> list[str]:
    weight_map: Any = read_json(index).get("weight_map")
    if (
        not isinstance(weight_map, Mapping)
        or not weight_map
        or not all(isinstance(name, str) for name in weight_map.values())
    ):
        raise CheckpointError(f"{index} has no weight_map of tensor names to file names")
    shards = sorted(set(weight_map.values()))
    for shard in shards:
        if PurePosixPath(shard).name != shard or PureWindowsPath(shard).name != shard:
            raise CheckpointError(f"{index} names {shard!r}, which is not a file in the same folder")
        if Path(shard).suffix not in _KINDS:
            raise CheckpointError(f"{index} names {shard!r}, which is not a weight file")
        if not (index.parent / shard).exists():
            raise CheckpointError(f"{index} names {shard}, but there is no such file beside it")
    return shards


def not_finite(state: Mapping[str, Tensor]) -> tuple[str, ...]:
    """A note if weights hold NaN or infinities. A finite sum rules them out, which is fast for most tensors."""
    faulty = [n for n, t in state.items() if not torch.isfinite(t.sum()) and not torch.isfinite(t).all()]
    if not faulty:
        return ()
    more = f" and {len(faulty) - 1} more" if len(faulty) > 1 else ""
    return (f"the weights hold NaN or infinities: {faulty[0]}{more}",)
