"""The header of a GGUF file: metadata by key, and where each tensor lies.

The format is ggml's (docs/gguf.md there), versions 2 and 3, little-endian. Everything is checked against the size of
the file before it is used: the library's own reader follows whatever counts and lengths a file claims, and makes two
numpy arrays of every string, which takes seconds for a vocabulary.
"""

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tinytf.checkpoints.load import damaged
from tinytf.errors import CheckpointError
from tinytf.fields import quoted
from tinytf.files import open_bytes

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_STRING, _ARRAY, _FLOAT32 = 8, 9, 6
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", _FLOAT32: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_SHORTEST_ENTRY = 8 + 4 + 1  # an empty key, a type, a byte
_SHORTEST_TENSOR = 8 + 4 + 8 + 4 + 8  # an empty name, one dimension, a type, an offset
_MOST_ELEMENTS = 2**23  # of all arrays together; the largest vocabularies have 2^18 tokens and twice as many merges
_MOST_DIMENSIONS = 4
_DEFAULT_ALIGNMENT = 32
_WALKED: dict[str, bytes] = {}
"""The last vocabularies that were skipped, by what they are."""
_MOST_WALKED = 16


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file: ``shape`` has rows first, ``kind`` is its ggml type, ``start`` counts from byte 0."""

    path: Path
    name: str
    shape: tuple[int, ...]
    kind: Any
    start: int
    n_bytes: int


@dataclass(frozen=True)
class Header:
    """What a file says before its data, or the parts of a model together."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]


class Cursor:
    """Little-endian numbers and strings of ``data``, one after the other.

    Whatever reaches beyond the end, or is not UTF-8, is a CheckpointError with the file, what it was and the byte.
    ``brief`` is for a header without its vocabulary.
    """

    def __init__(self, data: mmap.mmap, path: Path, brief: bool = False) -> None:
        self.data, self.path, self.brief = data, path, brief
        self.at = 0

    @property
    def left(self) -> int:
        """How many bytes there are from here to the end."""
        return len(self.data) - self.at

    def fail(self, message: str) -> CheckpointError:
        """The error for something that is wrong here."""
        return damaged(self.path, f"{message}, at byte {self.at:,}")

    def require(self, count: int, size: int, what: str) -> None:
        """Refuse ``count`` things of at least ``size`` bytes where they have no room."""
        if count * size > self.left:
            raise self.fail(f"{what} would take {count * size:,} bytes or more, and {self.left:,} are left")

    def numbers(self, form: struct.Struct, what: str) -> tuple[int | float, ...]:
        """The numbers that ``form`` describes."""
        self.require(1, form.size, what)
        found = form.unpack_from(self.data, self.at)
        self.at += form.size
        return found

    def whole(self, form: struct.Struct, what: str) -> int:
        """One whole number."""
        return int(self.numbers(form, what)[0])

    def string(self, what: str) -> str:
        """A length and as many bytes of UTF-8."""
        return self.strings(1, what)[0]

    def strings(self, count: int, what: str) -> list[str]:
        """``count`` strings, in a fast loop, since a vocabulary has hundreds of thousands."""
        self.require(count, _U64.size, what)
        data, at, end, length_at = self.data, self.at, len(self.data), _U64.unpack_from
        found = []
        for _ in range(count):
            self.at = at
            if end - at < _U64.size:
                self.require(1, _U64.size, what)
            (length,) = length_at(data, at)
            at += _U64.size
            if length > end - at:
                self.at = at
                self.require(length, 1, what)
            try:
                found.append(data[at : at + length].decode("utf-8"))
            except UnicodeDecodeError:
                raise self.fail(f"{what} is not UTF-8") from None
            at += length
        self.at = at
        return found

    def skip_strings(self, count: int, what: str) -> None:
        """Go past as many strings. A vocabulary that another file had too is compared, and not walked again."""
        self.require(count, _U64.size, what)
        known = _WALKED.get(what, b"")
        start = at = self.at
        if known and self.data[start : start + len(known)] == known:
            self.at += len(known)
            return
        data, end, length_at = self.data, len(self.data), _U64.unpack_from
        for _ in range(count):
            if end - at < _U64.size:
                at = end + 1
                break
            at += _U64.size + length_at(data, at)[0]
        if at > end:
            raise self.fail(f"{what} reaches beyond the end")
        self.at = at
        if len(_WALKED) >= _MOST_WALKED:
            _WALKED.clear()
        _WALKED[what] = data[start:at]


def read_header(path: Path, brief: bool = False) -> Header:
    """The header of the file at ``path``; CheckpointError, in one line, for one that is missing, damaged or foreign.

    A ``brief`` one has of the tokenizer's arrays of strings only their length, as a range.
    """
    try:
        with open_bytes(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _walk(Cursor(data, path, brief))
    except FileNotFoundError:
        raise CheckpointError(f"there is no file {path}") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise CheckpointError(f"{path} is empty") from None


def _walk(cursor: Cursor) -> Header:
    path = cursor.path
    if cursor.data[:4] != _MAGIC:
        raise CheckpointError(f"{path} is not a GGUF file: it starts with {cursor.data[:4]!r}, not with {_MAGIC!r}")
    cursor.at = len(_MAGIC)
    version = cursor.whole(_U32, "the version")
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        kind = f"big-endian, version {swapped}" if swapped in _VERSIONS else f"of version {version}"
        raise CheckpointError(f"{path} is {kind}; tinytf opens GGUF 2 and 3, little-endian")
    n_tensors, n_entries = cursor.whole(_U64, "the number of tensors"), cursor.whole(_U64, "the number of entries")
    cursor.require(n_entries, _SHORTEST_ENTRY, f"a header of {n_entries:,} entries")
    cursor.require(n_tensors, _SHORTEST_TENSOR, f"a header of {n_tensors:,} tensors")
    metadata = _entries(cursor, n_entries)
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise damaged(path, f"general.alignment is {alignment!r}, and has to be a power of two")
    return Header(path, metadata, _tensors(cursor, n_tensors, alignment))


def _entries(cursor: Cursor, count: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    elements = 0
    for place in range(count):
        key = cursor.string(f"key {place}")
        if key in found:
            raise cursor.fail(f"the key {quoted(key)} is there twice")
        kind = cursor.whole(_U32, f"the type of {quoted(key)}")
        if kind == _ARRAY:
            found[key] = _array(cursor, key, _MOST_ELEMENTS - elements)
            elements += len(found[key])
        else:
            found[key] = _value(cursor, key, kind)
    return found


def _value(cursor: Cursor, key: str, kind: int) -> Any:
    if kind == _STRING:
        return cursor.string(f"the value of {quoted(key)}")
    if kind not in _NUMBERS:
        raise cursor.fail(f"{quoted(key)} has the unknown type {kind}")
    (value,) = cursor.numbers(struct.Struct(f"<{_NUMBERS[kind]}"), f"the value of {quoted(key)}")
    # 1e-5 was written as the nearest float32, 9.9999997e-06: the shortest number that is stored so was meant.
    return float(str(np.float32(value))) if kind == _FLOAT32 else value


def _array(cursor: Cursor, key: str, most: int) -> list[str] | tuple[int | float, ...] | range:
    kind, count = cursor.whole(_U32, f"the type of {quoted(key)}"), cursor.whole(_U64, f"the length of {quoted(key)}")
    what = f"{quoted(key)}, an array of {count:,},"
    cursor.require(count, 1, what)
    if count > most:
        raise cursor.fail(f"{what} makes the header longer than {_MOST_ELEMENTS:,} elements, which no model has")
    if kind == _STRING and cursor.brief and key.startswith("tokenizer."):
        cursor.skip_strings(count, what)
        return range(count)
    if kind == _STRING:
        return cursor.strings(count, what)
    if kind not in _NUMBERS:
        raise cursor.fail(f"{quoted(key)} is an array of the unknown type {kind}")
    cursor.require(count, struct.calcsize(f"<{_NUMBERS[kind]}"), what)
    return cursor.numbers(struct.Struct(f"<{count}{_NUMBERS[kind]}"), what)


def _tensors(cursor: Cursor, count: int, alignment: int) -> dict[str, StoredTensor]:
    listed: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for place in range(count):
        name = cursor.string(f"the name of tensor {place}")
        if name in listed:
            raise cursor.fail(f"the tensor {quoted(name)} is there twice")
        n_dimensions = cursor.whole(_U32, f"the dimensions of {quoted(name)}")
        if not 1 <= n_dimensions <= _MOST_DIMENSIONS:
            raise cursor.fail(f"{quoted(name)} has {n_dimensions:,} dimensions, and 1 to {_MOST_DIMENSIONS} are known")
        sizes = cursor.numbers(struct.Struct(f"<{n_dimensions}Q"), f"the dimensions of {quoted(name)}")
        kind, offset = cursor.whole(_U32, f"the type of {quoted(name)}"), cursor.whole(_U64, f"the place of {name!r}")
        listed[name] = tuple(int(size) for size in reversed(sizes)), kind, offset
    return _placed(cursor, listed, alignment)


def _placed(
    cursor: Cursor, listed: Mapping[str, tuple[tuple[int, ...], int, int]], alignment: int
) -> dict[str, StoredTensor]:
    """Every tensor with the bytes it takes: one after the other, each on a multiple of ``alignment``."""
    path, size = cursor.path, len(cursor.data)
    data_start = _aligned(cursor.at, alignment)
    found: dict[str, StoredTensor] = {}
    expected = 0
    for name, (shape, number, offset) in listed.items():
        kind, block, block_bytes = _kind(path, name, number)
        if 0 in shape:
            raise damaged(path, f"{quoted(name)} has shape {shape}, which holds nothing")
        if shape[-1] % block:
            raise damaged(
                path, f"{quoted(name)} has rows of {shape[-1]:,} numbers, and {kind.name} stores {block} at a time"
            )
        n_bytes = math.prod(shape) // block * block_bytes
        if offset != expected:
            said = f"the data of {quoted(name)} is said to start at {offset:,}, and that before it ends at {expected:,}"
            raise damaged(path, said)
        start = data_start + offset
        if start + n_bytes > size:
            said = f"{quoted(name)} takes {n_bytes:,} bytes from {start:,}, and the file has {size:,}"
            raise damaged(path, said, "truncated")
        found[name] = StoredTensor(path, name, shape, kind, start, n_bytes)
        expected = _aligned(offset + n_bytes, alignment)
    return found


def _kind(path: Path, name: str, number: int) -> tuple[Any, int, int]:
    """A tensor type with the numbers and the bytes of its blocks."""
    import gguf

    try:
        kind = gguf.GGMLQuantizationType(number)
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise CheckpointError(f"{path}: {quoted(name)} is of tensor type {number}, which is not known") from None
    return kind, block, block_bytes


def _aligned(place: int, alignment: int) -> int:
    return -(-place // alignment) * alignment
