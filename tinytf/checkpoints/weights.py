"""Weight files of a model directory: names and shapes from their headers, values when they are asked for."""

import os
import pickle
import weakref
from collections.abc import Container, Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tinytf.checkpoints.load import Shapes, damaged
from tinytf.errors import CheckpointError
from tinytf.fields import quoted
from tinytf.files import open_bytes, read_json

_PIECE = 4 * 2**20
"""How many numbers are converted at a time."""
_COPIED = 2**24
"""How many bytes of pieces are copied from one mapping of a file."""


def _require_file(path: Path) -> None:
    """Raise CheckpointError where a library that opens ``path`` would find none, or wait for a pipe."""
    try:
        open_bytes(path).close()
    except FileNotFoundError:
        raise CheckpointError(f"there is no {path.name} in {path.parent}") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None


class Mapped:
    """A file that weights are views of, held open, so that it can be told whether it is as it was.

    One that another file took the place of is: the views stay those of the old one.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, open_bytes(path)
        weakref.finalize(self, self.file.close)
        self._before = self._now()

    def _now(self) -> tuple[int, int]:
        found = os.fstat(self.file.fileno())
        return found.st_size, found.st_mtime_ns

    def require_unchanged(self) -> None:
        """Raise CheckpointError for a file that was written over or cut short: reading on could end the process."""
        if self._now() != self._before:
            raise CheckpointError(f"{self.path} was changed while its model is open", "leave, and open it again")

    def __deepcopy__(self, memo: object) -> "Mapped":
        return self


class Safetensors:
    """A ``.safetensors`` file. Its tensors are views of the mapped file: what is not read is never loaded.

    ``mapped`` is the file once there are such views.
    """

    mapped: tuple[Mapped, ...] = ()

    def __init__(self, path: Path) -> None:
        self.path = path
        _require_file(path)
        try:
            with safe_open(path, framework="pt") as file:
                self.shapes: Shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise damaged(path, str(error)) from None

    def metadata(self) -> dict[str, str]:
        """What the file says about itself."""
        with safe_open(self.path, framework="pt") as file:
            return file.metadata() or {}

    def stored(self, name: str) -> Tensor:
        with safe_open(self.path, framework="pt") as file:
            return file.get_tensor(name)

    def tensors(self, dtype: torch.dtype, pieces: Container[str] = ()) -> Iterator[tuple[str, Tensor]]:
        with safe_open(self.path, framework="pt") as file:
            kept = [name for name in self.shapes if name not in pieces]
            views = {name: tensor for name in kept if (tensor := file.get_tensor(name)).dtype == dtype}
        others = [name for name in self.shapes if name not in views]
        self.mapped = (Mapped(self.path),) if views else ()
        yield from views.items()
        views.clear()
        copied = [name for name in others if name in pieces]
        while copied:  # mapped anew now and then, so that pages once read are dropped
            with safe_open(self.path, framework="pt") as file:
                read = 0
                while copied and read < _COPIED:
                    piece = file.get_tensor(name := copied.pop())
                    read += piece.nbytes
                    yield name, piece.to(dtype)
        for name in (name for name in others if name not in pieces):
            stored = self.stored(name)
            if stored.is_floating_point():
                shape = stored.shape
                del stored
                yield name, self._converted(name, shape, dtype)
            else:
                yield name, stored

    def _converted(self, name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """A tensor in another dtype. The file is mapped anew for every piece, so that pages once read are dropped."""
        result = torch.empty(shape, dtype=dtype)
        if not shape:
            with safe_open(self.path, framework="pt") as file:
                return result.copy_(file.get_tensor(name))
        step = max(1, _PIECE // max(1, result.numel() // max(1, shape[0])))
        for first in range(0, shape[0], step):
            with safe_open(self.path, framework="pt") as file:
                result[first : first + step] = file.get_slice(name)[first : first + step]
        return result


class Pickled:
    """A ``.bin`` file of torch.save, read without running code from it."""

    mapped: tuple[Mapped, ...] = ()

    def __init__(self, path: Path) -> None:
        self.path = path
        _require_file(path)
        self._tensors = self._read()
        self.shapes: Shapes = {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def _read(self) -> dict[str, Tensor]:
        try:
            try:
                found = torch.load(self.path, map_location="cpu", weights_only=True, mmap=True)
            except RuntimeError:  # the format of before torch 1.6 cannot be mapped
                found = torch.load(self.path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:
            raise CheckpointError(
                f"{self.path} is refused: it is damaged, or holds more than tensors, which could run code",
                "convert it to safetensors where you trust it",
            ) from None
        except Exception as error:  # a damaged archive raises different errors
            said = str(error).splitlines()[0] if str(error) else repr(error)
            raise damaged(self.path, said) from None
        if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
            raise CheckpointError(f"{self.path} is not a table of tensors by name")
        for name, value in found.items():
            if not isinstance(name, str):
                raise CheckpointError(f"{self.path} is not a table of tensors by name: one is called {name!r:.40}")
            if (kind := _odd_kind(value)) is not None:
                raise CheckpointError(
                    f"{self.path}: {quoted(name)} is a {kind} tensor", "save it again with plain tensors of numbers"
                )
        return found

    def stored(self, name: str) -> Tensor:
        return self._tensors[name]

    def tensors(self, dtype: torch.dtype, pieces: Container[str] = ()) -> Iterator[tuple[str, Tensor]]:
        if any(tensor.dtype == dtype for tensor in self._tensors.values()):
            self.mapped = (Mapped(self.path),)
        for name, tensor in self._tensors.items():
            yield name, tensor.to(dtype) if tensor.is_floating_point() else tensor


def _odd_kind(tensor: Tensor) -> str | None:
    """What a tensor is that is not a plain array of numbers."""
    if tensor.is_nested or tensor.is_meta or tensor.is_quantized:
        return "nested" if tensor.is_nested else "meta" if tensor.is_meta else "quantised"
    return None if tensor.layout == torch.strided else str(tensor.layout).removeprefix("torch.").replace("_", " ")


_KINDS: dict[str, type[Safetensors] | type[Pickled]] = {".safetensors": Safetensors, ".bin": Pickled}
WHOLE = ("model.safetensors", "pytorch_model.bin")
"""The names of a weight file in one piece; NAME.index.json lists shards."""


class Weights:
    """All weight files of a directory together: ``shapes`` by tensor name, and every tensor once."""

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
        return tuple(one for file in self.files for one in file.mapped)

    def stored(self, name: str) -> Tensor:
        return next(file.stored(name) for file in self.files if name in file.shapes)

    def tensors(self, dtype: torch.dtype, pieces: Container[str] = ()) -> Iterator[tuple[str, Tensor]]:
        for file in self.files:
            yield from file.tensors(dtype, pieces)


def weight_files(directory: Path) -> list[Path]:
    """The weight files of a directory: one, or the shards of its index; safetensors before pickled ones."""
    for name in WHOLE:
        if (directory / name).exists():
            return [directory / name]
        index = directory / f"{name}.index.json"
        if index.exists():
            return [directory / shard for shard in _shards(index)]
    raise CheckpointError(f"there is no model.safetensors in {directory}")


def _shards(index: Path) -> list[str]:
    places: Any = read_json(index).get("weight_map")
    if not isinstance(places, Mapping) or not places or not all(isinstance(name, str) for name in places.values()):
        raise CheckpointError(f"{index} has no weight_map of tensor names to file names")
    shards = sorted(set(places.values()))
    for shard in shards:
        if PurePosixPath(shard).name != shard or PureWindowsPath(shard).name != shard:
            raise CheckpointError(f"{index} names {shard!r}, which is not a file of its own folder")
        if Path(shard).suffix not in _KINDS:
            raise CheckpointError(f"{index} names {shard!r}, which is not a weight file")
        if not (index.parent / shard).exists():
            raise CheckpointError(f"{index} names {shard}, and there is no such file beside it")
    return shards


def not_finite(state: Mapping[str, Tensor]) -> tuple[str, ...]:
    """A note where weights hold NaN or infinities; for most tensors a finite sum is enough to know."""
    bad = [n for n, t in state.items() if not torch.isfinite(t.sum()) and not torch.isfinite(t).all()]
    if not bad:
        return ()
    more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
    return (f"the weights hold NaN or infinities: {bad[0]}{more}",)
