"""Read a file of activations from any program: safetensors, npz, JSON or NDJSON. No code in it is ever run."""

import difflib
import math
import os
import tokenize
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tinytf.checkpoints.load import damage_error
from tinytf.checkpoints.weights import Safetensors
from tinytf.errors import DumpError, TinytfError, UsageError
from tinytf.files import MEBI, open_bytes, parse_json, read_bytes
from tinytf.text.printable import printable

_WRITTEN_BY = {
    ".safetensors": "safetensors.numpy.save_file({name: array}, FILE) writes such a file, and tinytf trace -o FILE",
    ".npz": "numpy.savez(FILE, input_ids=ids, **arrays) writes such a file, of plain numbers",
    ".json": 'it is {"input_ids": […], "L0.q": nested lists, …}',
    ".ndjson": 'each line is {"name": "L0.q", "values": nested lists}',
}
SUFFIXES = tuple(_WRITTEN_BY)
IDS = ("ids", "input_ids", "token_ids")
"""The names of a tensor of token ids."""
_LARGEST_TEXT = 512 * MEBI
_MOST_ARRAYS = 1_000_000
_BOMB, _RATIO = 256 * MEBI, 64
"""An archive may inflate to at most the larger of _BOMB bytes and _RATIO times its size; activations compress badly."""
_UNREADABLE = (
    zipfile.BadZipFile, OSError, ValueError, EOFError, KeyError, NotImplementedError, RuntimeError, tokenize.TokenError,
)  # fmt: skip


@dataclass(frozen=True)
class Dump:
    """The tensors of a file by their names, each read on demand, and the file's metadata.

    ``metadata`` may hold ``model`` (as in ``TextModel.to_dict``), ``text`` and ``ids``. A generation has several
    ``passes``, each with its own tokens; a tensor-parallel run has ``shards``, each with its part of tensors.
    """

    path: Path
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], Tensor] = field(repr=False)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    passes: "tuple[Dump, ...]" = ()
    shards: "tuple[Dump, ...]" = ()

    @property
    def name(self) -> str:
        return printable(self.path.name, spaces=False)

    @cached_property
    def ids(self) -> list[int] | None:
        """The token ids of the text; None if the file has none. Raises DumpError for ids that are not token ids."""
        ids = self.metadata.get("ids")
        if ids is None:
            name = next((name for name in IDS if name in self.shapes), None)
            if name is None:
                return None
            ids = self.read(name).squeeze()
            if ids.dim() > 1:
                sizes = " × ".join(map(str, self.shapes[name]))
                raise DumpError(f"{self.path}: {name} is {sizes}, a batch of texts", "write one text to a file")
            ids = ids.reshape(-1).tolist()
        if not isinstance(ids, list) or not all(isinstance(i, int | float) and i == i // 1 >= 0 for i in ids):
            raise DumpError(f"{self.path}: its ids are no token ids", "token ids are whole numbers, 0 or more")
        return [int(i) for i in ids]

    def beginning(self, count: int, tokens: int) -> "Dump":
        """The first ``count`` of all ``tokens``: of every tensor, along each axis that is as long as the text."""

        def read(name: str) -> Tensor:
            tensor = self.read(name)
            for axis, size in enumerate(tensor.shape):
                tensor = tensor.narrow(axis, 0, count) if size == tokens else tensor
            return tensor

        shapes = {
            name: tuple(count if size == tokens else size for size in shape) for name, shape in self.shapes.items()
        }
        return replace(self, shapes=shapes, read=read, metadata={**self.metadata, "ids": (self.ids or [])[:count]})

    def called(self, names: Mapping[str, str]) -> "Dump":
        """Some of its tensors under other names: ``names`` are the stored ones by theirs."""
        read = self.read
        shapes = {name: self.shapes[stored] for name, stored in names.items()}
        return replace(self, shapes=shapes, read=lambda name: read(names[name]), metadata={})

    @property
    def text(self) -> str | None:
        text = self.metadata.get("text")
        return text if isinstance(text, str) else None

    @property
    def config(self) -> Mapping[str, Any] | None:
        """The configuration of the recorded model, which files of ours contain; else None."""
        model = self.metadata.get("model")
        config = model.get("config") if isinstance(model, dict) else None
        return config if isinstance(config, dict) else None


def is_dump(name: str) -> bool:
    """Whether a word names a file of activations that exists."""
    return name.lower().endswith(SUFFIXES) and os.path.isfile(name)


def open_dump(path: str | Path) -> Dump:
    """Read the names and shapes of a file. Raises DumpError for a file that is missing, damage_error or refused."""
    path = Path(path)
    readers = {".safetensors": _safetensors, ".npz": _npz, ".json": _json, ".ndjson": _ndjson}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise DumpError(f"{path} is no file of activations", f"save its arrays as one of {' '.join(SUFFIXES)}")
    hint = _WRITTEN_BY[path.suffix.lower()]
    try:
        open_bytes(path).close()  # fail alike for a path that is no file, whichever library reads the rest
        dump = reader(path)
    except UsageError:  # the path is the command's output too
        raise
    except TinytfError as error:
        raise DumpError(error.message, error.hint or hint) from None
    except FileNotFoundError:
        near = difflib.get_close_matches(path.name, _dumps_in(path.parent), n=1)
        raise DumpError(f"there is no file {path}", f"did you mean {near[0]}?" if near else hint) from None
    except OSError as error:
        raise DumpError(f"cannot read {path}: {error.strerror or error}", hint) from None
    if not dump.shapes:
        raise DumpError(f"{path} holds no tensors", hint)
    return dump


def read_states(path: Path, width: int) -> Tensor:
    """The states of an encoder, (S, width) or a batch of one, in a file of activations.

    Of several such tensors it is the one that is named as the states of an encoder or the last ones. Raises DumpError
    for a file without any, or with several that could be, and for the folder of a recorded corpus.
    """
    if path.is_dir():
        raise DumpError(f"{path} is a folder, and states of an encoder are a file", _SAVED)
    dump = open_dump(path)
    wide = [name for name, shape in dump.shapes.items() if len(shape) in (2, 3) and shape[-1] == width]
    named = [name for name in wide if {name, name.rpartition(".")[2]} & {*_STATES}]
    if len(chosen := named or wide) != 1:
        what = f"{len(chosen)} tensors that are" if chosen else "no tensor that is"
        raise DumpError(f"{path} has {what} tokens × {width}", f"save them as {_STATES[0]}; {_SAVED}")
    return dump.read(chosen[0])


_STATES = ("encoder_last_hidden_state", "last_hidden_state", "source", "final.norm")
"""Names for the states of an encoder: as transformers gives them, and our steps."""
_SAVED = "tinytf trace TEXT --stack encoder --at STEP -o FILE.safetensors saves a step with all its tokens"


def _dumps_in(folder: Path) -> list[str]:
    """The names of the dumps in a folder; empty if it cannot be listed."""
    try:
        return [name for name in os.listdir(folder) if name.lower().endswith(SUFFIXES)]
    except OSError:
        return []


def _safetensors(path: Path) -> Dump:
    file = Safetensors(path)
    metadata = {name: _parsed(words) for name, words in file.metadata().items()}
    ours = metadata.pop("tinytf", None)
    return Dump(path, file.shapes, file.stored, {**metadata, **(ours if isinstance(ours, dict) else {})})


def _parsed(words: str) -> Any:
    """A member of the metadata, a text; parsed if it is a JSON object or array."""
    if words[:1] in ("{", "["):
        with suppress(ValueError):
            return parse_json(words)
    return words


def _npz(path: Path) -> Dump:
    """The arrays of numpy.savez. Sizes are checked before anything is inflated; pickled objects are refused."""
    try:
        archive = zipfile.ZipFile(path)  # open as long as the dump is: of 2,000 arrays its directory takes a while
        members = archive.infolist()
        size, inflated = path.stat().st_size, sum(member.file_size for member in members)
        if len(members) > _MOST_ARRAYS or inflated > max(_BOMB, _RATIO * size):
            sizes = f"it has {size:,} bytes, and would inflate to {inflated:,}"
            raise DumpError(f"{path} is refused: {sizes}", "write it again with numpy.savez, without compression")
        headers = {member.filename.removesuffix(".npy"): _header(archive, member, path) for member in members}
    except _UNREADABLE as error:
        raise damage_error(path, printable(str(error), spaces=False)) from None

    def array_of(name: str) -> "np.ndarray[Any, Any]":
        shape, dtype, fortran, start = headers[name]
        try:
            with archive.open(f"{name}.npy") as member:
                member.read(start)
                data = member.read(math.prod(shape) * dtype.itemsize)
            return np.frombuffer(data, dtype=dtype).reshape(shape, order="F" if fortran else "C")
        except _UNREADABLE as error:
            raise damage_error(path, f"{name}: {printable(str(error), spaces=False)}") from None

    texts = {name for name, (shape, dtype, _, _) in headers.items() if dtype.kind == "U" and not shape}
    return Dump(
        path,
        {name: shape for name, (shape, *_) in headers.items() if name not in texts},
        lambda name: _as_tensor(array_of(name), f"{path}: {printable(name, spaces=False)}"),
        {name: str(array_of(name)) for name in texts},
    )


def _numpy_header(member: Any) -> tuple[tuple[int, ...], bool, "np.dtype[Any]"]:
    """Shape, whether it is in Fortran order, and dtype."""
    version = np.lib.format.read_magic(member)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(member)


def _header(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> tuple[tuple[int, ...], Any, bool, int]:
    """Shape, dtype, whether it is in Fortran order, and the size of the header, from the header of one array."""
    name = printable(member.filename, spaces=False)
    if not member.filename.endswith(".npy"):
        raise DumpError(f"{path} holds {name}, which is not a numpy array")
    with archive.open(member) as file:
        shape, fortran, dtype = _numpy_header(file)
        start = file.tell()
    if dtype.hasobject:
        raise DumpError(f"{path} is refused: {name} holds pickled objects, which could run code", "write plain arrays")
    if start + math.prod(shape) * dtype.itemsize != member.file_size:
        raise damage_error(path, f"{name} says that it is {shape}, and has {member.file_size:,} bytes")
    return shape, dtype, fortran, start


def _as_tensor(array: np.ndarray[Any, Any], what: str) -> Tensor:
    if array.dtype.kind not in "fiub":
        raise DumpError(f"{what} holds {array.dtype}, which cannot be compared", "write real numbers")
    kind = {"f": np.float64 if array.dtype.itemsize > 4 else np.float32, "b": np.int64}.get(array.dtype.kind, np.int64)
    return torch.from_numpy(array.astype(kind))


def _json(path: Path) -> Dump:
    return _of_objects(path, iter([_loads(path, read_bytes(path, _LARGEST_TEXT))]))


def _ndjson(path: Path) -> Dump:
    lines = (line for line in read_bytes(path, _LARGEST_TEXT).splitlines() if line.strip())
    return _of_objects(path, (_loads(path, line) for line in lines))


def _loads(path: Path, data: bytes) -> dict[str, Any]:
    try:
        content = parse_json(data)
    except ValueError as error:
        raise DumpError(f"{path} is not JSON: {printable(str(error), spaces=False)}") from None
    if not isinstance(content, dict):
        raise DumpError(f"{path} holds a {type(content).__name__}, not an object of tensors by name")
    return content


def _of_objects(path: Path, objects: Iterator[dict[str, Any]]) -> Dump:
    """The tensors of a trace, ours or another program's, in one object or in one object a line.

    Another program may write {name: nested lists, …}, or lines of {"name": …, "values": nested lists}.
    """
    metadata: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    ids: list[Any] = []
    for record in objects:
        name = record.get("address", record.get("name"))
        if isinstance(name, str) and isinstance(record.get("values"), list):
            arrays[name] = record["values"]
            continue
        if record.get("type") == "token":
            ids.append(record.get("id"))
            continue
        ours = "kind" in record or "type" in record
        for key, value in record.items():
            if key == "values" and isinstance(value, dict):
                arrays |= {name: entry.get("values") for name, entry in value.items() if isinstance(entry, dict)}
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
        tensors = {name: tensor.float() for name, tensor in tensors.items()}
    return Dump(path, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, tensors.__getitem__, metadata)


def _nested(values: Any, what: str) -> Tensor:
    """Nested lists as a tensor; null is −∞, as in our own JSON."""
    try:
        array = np.array(values, dtype=np.float64)
        if np.isnan(array).any():
            flat = np.array(values, dtype=object).ravel()
            array = np.array([-math.inf if number is None else float(number) for number in flat]).reshape(array.shape)
    except (TypeError, ValueError, OverflowError, RecursionError):
        raise DumpError(f"{what} is no array of numbers", "lists nested in lists of one length") from None
    return torch.from_numpy(array)
