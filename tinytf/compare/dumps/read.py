"""Reading a file of activations: safetensors, npz, JSON and NDJSON, whoever wrote it. Nothing in it is ever run."""

import difflib
import json
import math
import os
import tokenize
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tinytf.checkpoints.load import damaged
from tinytf.checkpoints.weights import Safetensors
from tinytf.errors import DumpError, TinytfError, UsageError
from tinytf.files import MEBI, open_bytes, read_bytes
from tinytf.text.printable import printable

_WRITTEN_BY = {
    ".safetensors": "safetensors.numpy.save_file({name: array}, FILE) writes such a file, and tinytf trace -o FILE",
    ".npz": "numpy.savez(FILE, input_ids=ids, **arrays) writes such a file, of plain numbers",
    ".json": 'it is {"input_ids": […], "L0.q": nested lists, …}',
    ".ndjson": 'each line is {"name": "L0.q", "values": nested lists}',
}
SUFFIXES = tuple(_WRITTEN_BY)
IDS = ("ids", "input_ids", "token_ids")
"""What a tensor of token ids is called."""
_LARGEST_TEXT = 512 * MEBI
_MOST_ARRAYS = 1_000_000
_BOMB, _RATIO = 256 * MEBI, 64
"""An archive may inflate to so many bytes, or to so many times its size: activations do not compress well."""
_UNREADABLE = (
    zipfile.BadZipFile, OSError, ValueError, EOFError, KeyError, NotImplementedError, RuntimeError, tokenize.TokenError,
)  # fmt: skip


@dataclass(frozen=True)
class Dump:
    """Tensors of a file by their names there, each read when it is asked for, and what the file says about them.

    ``metadata`` may hold ``model`` (as of ``TextModel.to_dict``), ``text`` and ``ids``.
    """

    path: Path
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], Tensor] = field(repr=False)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return printable(self.path.name, spaces=False)

    @cached_property
    def ids(self) -> list[int] | None:
        """The token ids that the tensors are of; None where the file does not say. DumpError where they are none."""
        found = self.metadata.get("ids")
        if found is None:
            name = next((name for name in IDS if name in self.shapes), None)
            if name is None:
                return None
            found = self.read(name).squeeze()
            if found.dim() > 1:
                sizes = " × ".join(map(str, self.shapes[name]))
                raise DumpError(f"{self.path}: {name} is {sizes}, a batch of texts", "write one text to a file")
            found = found.reshape(-1).tolist()
        if not isinstance(found, list) or not all(isinstance(i, int | float) and i == i // 1 >= 0 for i in found):
            raise DumpError(f"{self.path}: its ids are no token ids", "they are whole numbers, 0 or more")
        return [int(i) for i in found]

    @property
    def text(self) -> str | None:
        found = self.metadata.get("text")
        return found if isinstance(found, str) else None

    @property
    def config(self) -> Mapping[str, Any] | None:
        """The configuration of the model that was recorded, where a file of ours says it."""
        model = self.metadata.get("model")
        found = model.get("config") if isinstance(model, dict) else None
        return found if isinstance(found, dict) else None


def is_dump(name: str) -> bool:
    """Whether a word names a file of activations that exists."""
    return name.lower().endswith(SUFFIXES) and os.path.isfile(name)


def open_dump(path: str | Path) -> Dump:
    """Read names and shapes of a file. Raises DumpError for one that is missing, damaged or refused."""
    path = Path(path)
    kinds = {".safetensors": _safetensors, ".npz": _npz, ".json": _json, ".ndjson": _ndjson}
    reader = kinds.get(path.suffix.lower())
    if reader is None:
        raise DumpError(f"{path} is no file of activations", f"save its arrays as one of {' '.join(SUFFIXES)}")
    hint = _WRITTEN_BY[path.suffix.lower()]
    try:
        open_bytes(path).close()  # says what is no file at all, whichever library reads the rest
        found = reader(path)
    except UsageError:  # it is the command's output too
        raise
    except TinytfError as error:
        raise DumpError(error.message, error.hint or hint) from None
    except FileNotFoundError:
        near = difflib.get_close_matches(path.name, _dumps_in(path.parent), n=1)
        raise DumpError(f"there is no file {path}", f"did you mean {near[0]}?" if near else hint) from None
    except OSError as error:
        raise DumpError(f"cannot read {path}: {error.strerror or error}", hint) from None
    if not found.shapes:
        raise DumpError(f"{path} holds no tensors", hint)
    return found


def _dumps_in(folder: Path) -> list[str]:
    """The names of the files there that could be meant."""
    try:
        return [name for name in os.listdir(folder) if name.lower().endswith(SUFFIXES)]
    except OSError:
        return []


def _safetensors(path: Path) -> Dump:
    file = Safetensors(path)
    said = {name: _parsed(words) for name, words in file.metadata().items()}
    ours = said.pop("tinytf", None)
    return Dump(path, file.shapes, file.stored, {**said, **(ours if isinstance(ours, dict) else {})})


def _parsed(words: str) -> Any:
    """A member of the metadata, which are texts: as JSON where it is an object or an array."""
    if words[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            return json.loads(words)
    return words


def _npz(path: Path) -> Dump:
    """The arrays of numpy.savez. Sizes are checked before anything is inflated; pickled objects are refused."""
    try:
        with open_bytes(path) as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            size, whole = path.stat().st_size, sum(one.file_size for one in members)
            if len(members) > _MOST_ARRAYS or whole > max(_BOMB, _RATIO * size):
                said = f"it has {size:,} bytes, and would inflate to {whole:,}"
                raise DumpError(f"{path} is refused: {said}", "write it again with numpy.savez, without compression")
            headers = {one.filename.removesuffix(".npy"): _header(archive, one, path) for one in members}
    except _UNREADABLE as error:
        raise damaged(path, printable(str(error), spaces=False)) from None

    def array_of(name: str) -> "np.ndarray[Any, Any]":
        shape, dtype, fortran = headers[name]
        try:
            with open_bytes(path) as file, zipfile.ZipFile(file) as archive, archive.open(f"{name}.npy") as member:
                _numpy_header(member)
                data = member.read(math.prod(shape) * dtype.itemsize)
            return np.frombuffer(data, dtype=dtype).reshape(shape, order="F" if fortran else "C")
        except _UNREADABLE as error:
            raise damaged(path, f"{name}: {printable(str(error), spaces=False)}") from None

    words = {name for name, (shape, dtype, _) in headers.items() if dtype.kind == "U" and not shape}
    return Dump(
        path,
        {name: shape for name, (shape, _, _) in headers.items() if name not in words},
        lambda name: _as_tensor(array_of(name), f"{path}: {printable(name, spaces=False)}"),
        {name: str(array_of(name)) for name in words},
    )


def _numpy_header(member: Any) -> tuple[tuple[int, ...], bool, "np.dtype[Any]"]:
    """Shape, whether the first axis runs fastest, and dtype."""
    version = np.lib.format.read_magic(member)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(member)


def _header(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> tuple[tuple[int, ...], Any, bool]:
    """Shape, dtype and order of one array, by its own header alone."""
    name = printable(member.filename, spaces=False)
    if not member.filename.endswith(".npy"):
        raise DumpError(f"{path} holds {name}, which is no array of numpy")
    with archive.open(member) as file:
        shape, fortran, dtype = _numpy_header(file)
        start = file.tell()
    if dtype.hasobject:
        raise DumpError(f"{path} is refused: {name} holds pickled objects, which could run code", "write plain arrays")
    if start + math.prod(shape) * dtype.itemsize != member.file_size:
        raise damaged(path, f"{name} says that it is {shape}, and has {member.file_size:,} bytes")
    return shape, dtype, fortran


def _as_tensor(array: np.ndarray[Any, Any], what: str) -> Tensor:
    if array.dtype.kind not in "fiub":
        raise DumpError(f"{what} holds {array.dtype}, which are no numbers to compare", "write real numbers")
    kind = {"f": np.float64 if array.dtype.itemsize > 4 else np.float32, "b": np.int64}.get(array.dtype.kind, np.int64)
    return torch.from_numpy(array.astype(kind))


def _json(path: Path) -> Dump:
    return _of_objects(path, iter([_loads(path, read_bytes(path, _LARGEST_TEXT))]))


def _ndjson(path: Path) -> Dump:
    lines = (line for line in read_bytes(path, _LARGEST_TEXT).splitlines() if line.strip())
    return _of_objects(path, (_loads(path, line) for line in lines))


def _loads(path: Path, data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DumpError(f"{path} is not JSON: {printable(str(error), spaces=False)}") from None
    if not isinstance(found, dict):
        raise DumpError(f"{path} holds a {type(found).__name__}, not an object of tensors by name")
    return found


def _of_objects(path: Path, objects: Iterator[dict[str, Any]]) -> Dump:
    """The tensors of a trace of ours or of another program, in one object or in one for each line.

    Another program may write {name: nested lists, …}, or lines of {"name": …, "values": nested lists}.
    """
    metadata: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    ids: list[Any] = []
    for one in objects:
        name = one.get("address", one.get("name"))
        if isinstance(name, str) and isinstance(one.get("values"), list):
            arrays[name] = one["values"]
            continue
        if one.get("type") == "token":
            ids.append(one.get("id"))
            continue
        ours = "kind" in one or "type" in one
        for key, value in one.items():
            if key == "values" and isinstance(value, dict):
                arrays |= {name: said.get("values") for name, said in value.items() if isinstance(said, dict)}
            elif key == "tokens" and isinstance(value, list) and all(isinstance(token, dict) for token in value):
                ids += [token.get("id") for token in value]
                metadata["tokens"] = value
            elif isinstance(value, list) and not ours:
                arrays[key] = value
            elif isinstance(value, str | dict):
                metadata.setdefault(key, value)
    if ids:
        metadata["ids"] = ids
    tensors = {name: _nested(values, f"{path}: {printable(name, spaces=False)}") for name, values in arrays.items()}
    model = metadata.get("model")
    if isinstance(model, dict) and model.get("dtype", "float64") != "float64":  # our own, with the digits of float32
        tensors = {name: one.float() for name, one in tensors.items()}
    return Dump(path, {name: tuple(one.shape) for name, one in tensors.items()}, tensors.__getitem__, metadata)


def _nested(values: Any, what: str) -> Tensor:
    """Nested lists as a tensor; null is −∞, as in our own JSON."""
    try:
        array = np.array(values, dtype=np.float64)
        if np.isnan(array).any():
            flat = np.array(values, dtype=object).ravel()
            array = np.array([-math.inf if one is None else float(one) for one in flat]).reshape(array.shape)
    except (TypeError, ValueError, OverflowError, RecursionError):
        raise DumpError(f"{what} is no array of numbers", "lists nested in lists of one length") from None
    return torch.from_numpy(array)
