"""The header of a GGUF file: metadata by key, and the location of each tensor.

The format is ggml's (docs/gguf.md there), versions 2 and 3, little-endian. Everything is checked against the size of
the file before it is used: the reader of the gguf library trusts the counts and lengths in a file, and makes two numpy
arrays for every string, which takes seconds for a vocabulary.
"""

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from tinytf.checkpoints.load import damage_error
from tinytf.errors import CheckpointError
from tinytf.fields import quoted
from tinytf.files import open_bytes

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_STRING, _ARRAY, _FLOAT32 = 8, 9, 6
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", _FLOAT32: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_SHORTEST_ENTRY = 8 + 4 + 1  # an empty key, a type, a byte
_SHORTEST_TENSOR = 8 + 4 + 8 + 4 + 8  # an empty name, one dimension, a type, an offset
_MOST_ELEMENTS = 2**23  # in all arrays together; the largest vocabularies have 2^18 tokens and twice as many merges
_MOST_DIMENSIONS = 4
_DEFAULT_ALIGNMENT = 32
_SKIPPED: dict[str, bytes] = {}
"""The bytes of the last vocabularies that were skipped, by the description of the array."""
_MOST_SKIPPED = 16


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file: ``shape`` has rows first, ``kind`` is its ggml type, ``start`` its offset in the file."""

    path: Path
    name: str
    shape: tuple[int, ...]
    kind: Any
    start: int
    n_bytes: int


@dataclass(frozen=True)
class Header:
    """The metadata and tensor list of a file, or of all parts of a model together."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]


class Cursor:
    """Reads little-endian numbers and strings from ``data`` in order.

    Raises CheckpointError, with file, ``subject`` and byte, for data that end too early or are not UTF-8. ``brief``
    skips the vocabulary.
    """

    def __init__(self, data: mmap.mmap, path: Path, brief: bool = False) -> None:
        self.data, self.path, self.brief = data, path, brief
        self.at = 0

    @property
    def remaining(self) -> int:
        """The number of bytes from here to the end."""
        return len(self.data) - self.at

    def fail(self, message: str) -> CheckpointError:
        """The error for a fault at this byte."""
        return damage_error(self.path, f"{message}, at byte {self.at:,}")

    def require(self, count: int, size: int, subject: str) -> None:
        """Raise CheckpointError unless ``count`` items of at least ``size`` bytes fit into the remaining bytes."""
        if count * size > self.remaining:
            raise self.fail(f"{subject} would take {count * size:,} bytes or more, and {self.remaining:,} are left")

    def numbers(self, form: struct.Struct, subject: str) -> tuple[int | float, ...]:
        """The numbers in the format ``form``."""
        self.require(1, form.size, subject)
        numbers = form.unpack_from(self.data, self.at)
        self.at += form.size
        return numbers

    def whole(self, form: struct.Struct, subject: str) -> int:
        """One whole number."""
        return int(self.numbers(form, subject)[0])

    def string(self, subject: str) -> str:
        """A string: its length, then as many bytes of UTF-8."""
        return self.strings(1, subject)[0]

    def strings(self, count: int, subject: str) -> list[str]:
        """``count`` strings; the loop is inlined for speed, since a vocabulary has hundreds of thousands."""
        self.require(count, _U64.size, subject)
        data, at, end, length_at = self.data, self.at, len(self.data), _U64.unpack_from
        strings = []
        for _ in range(count):
            self.at = at
            if end - at < _U64.size:
                self.require(1, _U64.size, subject)
            (length,) = length_at(data, at)
            at += _U64.size
            if length > end - at:
                self.at = at
                self.require(length, 1, subject)
            try:
                strings.append(data[at : at + length].decode("utf-8"))
            except UnicodeDecodeError:
                raise self.fail(f"{subject} is not UTF-8") from None
            at += length
        self.at = at
        return strings

    def skip_strings(self, count: int, subject: str) -> None:
        """Move past ``count`` strings. A vocabulary equal to a recently skipped one is compared, not walked."""
        self.require(count, _U64.size, subject)
        vocabulary = _SKIPPED.get(subject, b"")
        start = at = self.at
        if vocabulary and self.data[start : start + len(vocabulary)] == vocabulary:
            self.at += len(vocabulary)
            return
        data, end, length_at = self.data, len(self.data), _U64.unpack_from
        for _ in range(count):
            if end - at < _U64.size:
                at = end + 1
                break
            at += _U64.size + length_at(data, at)[0]
        if at > end:
            raise self.fail(f"{subject} reaches beyond the end")
        self.at = at
        if len(_SKIPPED) >= _MOST_SKIPPED:
            _SKIPPED.clear()
        _SKIPPED[subject] = data[start:at]


def read_header(path: Path, brief: bool = False) -> Header:
    """The header of the file at ``path``. Raises CheckpointError for a file that is missing, damaged or not GGUF.

    If ``brief``, the tokenizer's arrays of strings are not read; a range of their length stands for each.
    """
    try:
        with open_bytes(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(Cursor(data, path, brief))
    except FileNotFoundError:
        raise CheckpointError(f"there is no file {path}") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise CheckpointError(f"{path} is empty") from None


def _parse(cursor: Cursor) -> Header:
    path = cursor.path
    if cursor.data[:4] != MAGIC:
        start = f"it starts with {cursor.data[:4]!r}, not with {MAGIC!r}"
        raise CheckpointError(f"{path} is not a GGUF file: {start}", "is it the file itself, and downloaded whole?")
    cursor.at = len(MAGIC)
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
        raise damage_error(path, f"general.alignment is {alignment!r}, and has to be a power of two")
    return Header(path, metadata, _tensors(cursor, n_tensors, alignment))


def _entries(cursor: Cursor, count: int) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    elements = 0
    for number in range(count):
        key = cursor.string(f"key {number}")
        if key in entries:
            raise cursor.fail(f"the key {quoted(key)} occurs twice")
        kind = cursor.whole(_U32, f"the type of {quoted(key)}")
        if kind == _ARRAY:
            entries[key] = _array(cursor, key, _MOST_ELEMENTS - elements)
            elements += len(entries[key])
        else:
            entries[key] = _value(cursor, key, kind)
    return entries


def _value(cursor: Cursor, key: str, kind: int) -> Any:
    if kind == _STRING:
        return cursor.string(f"the value of {quoted(key)}")
    if kind not in _NUMBERS:
        raise cursor.fail(f"{quoted(key)} has the unknown type {kind}")
    (value,) = cursor.numbers(struct.Struct(f"<{_NUMBERS[kind]}"), f"the value of {quoted(key)}")
    # 1e-5 is stored as the nearest float32, 9.9999997e-06; recover it as the shortest decimal with that float32.
    return float(str(np.float32(value))) if kind == _FLOAT32 else value


def _array(cursor: Cursor, key: str, most: int) -> list[str] | tuple[int | float, ...] | range:
    kind, count = cursor.whole(_U32, f"the type of {quoted(key)}"), cursor.whole(_U64, f"the length of {quoted(key)}")
    subject = f"{quoted(key)}, an array of {count:,},"
    cursor.require(count, 1, subject)
    if count > most:
        raise cursor.fail(f"{subject} makes the header longer than {_MOST_ELEMENTS:,} elements, which no model has")
    if kind == _STRING and cursor.brief and key.startswith("tokenizer."):
        cursor.skip_strings(count, subject)
        return range(count)
    if kind == _STRING:
        return cursor.strings(count, subject)
    if kind not in _NUMBERS:
        raise cursor.fail(f"{quoted(key)} is an array of the unknown type {kind}")
    cursor.require(count, struct.calcsize(f"<{_NUMBERS[kind]}"), subject)
    return cursor.numbers(struct.Struct(f"<{count}{_NUMBERS[kind]}"), subject)


def _tensors(cursor: Cursor, count: int, alignment: int) -> dict[str, StoredTensor]:
    entries: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for number in range(count):
        name = cursor.string(f"the name of tensor {number}")
        if name in entries:
            raise cursor.fail(f"the tensor {quoted(name)} occurs twice")
        n_dimensions = cursor.whole(_U32, f"the dimensions of {quoted(name)}")
        if not 1 <= n_dimensions <= _MOST_DIMENSIONS:
            raise cursor.fail(
                f"{quoted(name)} has {n_dimensions:,} dimensions, and 1 to {_MOST_DIMENSIONS} are allowed"
            )
        sizes = cursor.numbers(struct.Struct(f"<{n_dimensions}Q"), f"the dimensions of {quoted(name)}")
        kind, offset = cursor.whole(_U32, f"the type of {quoted(name)}"), cursor.whole(_U64, f"the offset of {name!r}")
        shape = tuple(int(size) for size in reversed(sizes))
        # ggml has four axes always, and drops those of length 1 in front when it writes a file again
        ones = len(list(takewhile(lambda size: size == 1, shape[:-1]))) if len(shape) == _MOST_DIMENSIONS else 0
        entries[name] = shape[ones:], kind, offset
    return _locate_tensors(cursor, entries, alignment)


def _locate_tensors(
    cursor: Cursor, entries: Mapping[str, tuple[tuple[int, ...], int, int]], alignment: int
) -> dict[str, StoredTensor]:
    """Every tensor with its location: the tensors follow one another, each at a multiple of ``alignment``."""
    path, size = cursor.path, len(cursor.data)
    data_start = _aligned(cursor.at, alignment)
    tensors: dict[str, StoredTensor] = {}
    expected = 0
    for name, (shape, type_id, offset) in entries.items():
        kind, block, block_bytes = _tensor_type(path, name, type_id)
        if 0 in shape:
            raise damage_error(path, f"{quoted(name)} has shape {shape}, which is empty")
        if shape[-1] % block:
            raise damage_error(
                path, f"{quoted(name)} has rows of {shape[-1]:,} numbers, and {kind.name} stores blocks of {block}"
            )
        n_bytes = math.prod(shape) // block * block_bytes
        if offset != expected:
            message = f"the data of {quoted(name)} starts at {offset:,}, but the tensor before it ends at {expected:,}"
            raise damage_error(path, message)
        start = data_start + offset
        if start + n_bytes > size:
            message = f"{quoted(name)} takes {n_bytes:,} bytes from {start:,}, but the file has {size:,}"
            raise damage_error(path, message, "truncated")
        tensors[name] = StoredTensor(path, name, shape, kind, start, n_bytes)
        expected = _aligned(offset + n_bytes, alignment)
    return tensors


def _tensor_type(path: Path, name: str, type_id: int) -> tuple[Any, int, int]:
    """A tensor type, and how many numbers and bytes its blocks hold."""
    import gguf

    try:
        kind = gguf.GGMLQuantizationType(type_id)
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise CheckpointError(f"{path}: {quoted(name)} has the unknown tensor type {type_id}") from None
    return kind, block, block_bytes


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
