"""Files of steering vectors: .safetensors, and control vectors of llama.cpp in GGUF.

A control vector has ``general.architecture`` controlvector, ``controlvector.model_hint`` (the architecture of the
model), ``controlvector.layer_count``, and one tensor ``direction.N`` for each layer. llama.cpp and repeng add it to the
output of block N, counted from 0, and have none for block 0 (``llama_adapter_cvec::apply`` in llama.cpp).
"""

import json
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tinytf.checkpoints.gguf.header import MAGIC, read_header
from tinytf.checkpoints.gguf.weights import read_tensor
from tinytf.checkpoints.weights import Safetensors
from tinytf.errors import UsageError
from tinytf.files import parse_json, reading
from tinytf.outputs import write_output
from tinytf.tables import Array
from tinytf.tensor_file import safetensors
from tinytf.version import __version__

_NUMBER = re.compile(r"(\d+)")
_ARCHITECTURE, _DIRECTION = "controlvector", "direction."
_KINDS = ("steer", "steering_vector")
"""What our files of vectors say that they are: the second, those written before version 3 of the schema."""
_OUTPUT = re.compile(r"L(\d+)\.out")
_MAKES, _AGAIN = "tinytf steer PAIRS -o FILE makes one", "make the vector again"
_VERSION, _ALIGNMENT, _UINT32, _STRING = 3, 32, 4, 8
Stored = tuple[dict[str, Tensor], dict[str, Any]]
"""The vectors of a file by the address of their step, and what the file says of them."""


def write_vectors(path: Path, vectors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> int:
    """Write vectors by address; return the size in bytes. Raises UsageError like ``outputs.write_output``.

    A GGUF file leaves out L0.out, where llama.cpp adds nothing, and raises UsageError for any other step than an
    output.
    """
    suffix = path.suffix.lower()
    if suffix == ".gguf":
        return write_output(path, control_vector(vectors, str(metadata.get("architecture", "")), path.name))
    _require_known(path.name, suffix)
    arrays = [Array.of(name, ["d_model"], vector) for name, vector in vectors.items()]
    return write_output(path, safetensors(arrays, {"tinytf": json.dumps({"version": __version__, **metadata})}))


def read_vectors(path: Path) -> Stored:
    """The vectors of a file that ``write_vectors``, llama.cpp or repeng wrote.

    Raises UsageError for another kind of file, CheckpointError for a damaged one.
    """
    suffix = path.suffix.lower()
    _require_known(path.name, suffix)
    try:
        vectors, metadata = _READERS[suffix](reading(path))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", _MAKES) from None
    if not vectors:
        raise UsageError(f"{path.name} holds no vector", _MAKES)
    width = next(iter(vectors.values())).shape
    for name, vector in vectors.items():
        if vector.dim() != 1 or vector.shape != width:
            shapes = f"of shape {tuple(vector.shape)}", f"of shape {tuple(width)}"
            first = f", and {next(iter(vectors))} {shapes[1]}" if vector.dim() == 1 else ", and a vector has one axis"
            raise UsageError(f"{name} of {path.name} is {shapes[0]}{first}", _AGAIN)
        if not vector.is_floating_point() or not bool(vector.isfinite().all()):
            raise UsageError(f"{name} of {path.name} holds what is no finite number", _AGAIN)
    in_order = sorted(vectors, key=lambda name: [int(part) if part.isdigit() else part for part in _NUMBER.split(name)])
    return {name: vectors[name].float() for name in in_order}, metadata


def _require_known(name: str, suffix: str) -> None:
    if suffix not in _READERS:
        raise UsageError(f"{name} is no file of steering vectors", f"it ends in {' or '.join(_READERS)}")


def _read_safetensors(path: Path) -> Stored:
    file = Safetensors(path)
    try:
        metadata = parse_json(file.metadata().get("tinytf", "null"))
    except ValueError:
        metadata = None
    if not isinstance(metadata, dict) or metadata.get("kind") not in _KINDS:
        raise UsageError(f"{path.name} holds no steering vector", _MAKES)
    return {name: file.stored(name) for name in file.shapes}, metadata


def _read_gguf(path: Path) -> Stored:
    header = read_header(path)
    architecture = header.metadata.get("general.architecture")
    if architecture != _ARCHITECTURE:
        raise UsageError(f"{path.name} is a GGUF file of {architecture!r}, and no control vector", _MAKES)
    vectors = {}
    for name, tensor in header.tensors.items():
        number = name.removeprefix(_DIRECTION)
        if not name.startswith(_DIRECTION) or not number.isascii() or not number.isdigit() or int(number) < 1:
            message = f"{path.name} has a tensor {name!r}, and a control vector has direction.1, direction.2 …"
            raise UsageError(message, _MAKES)
        vectors[f"L{int(number)}.out"] = read_tensor(tensor)
    vectors = dict(sorted(vectors.items(), key=lambda entry: int(entry[0][1:-4])))
    return vectors, {"architecture": str(header.metadata.get(f"{_ARCHITECTURE}.model_hint", ""))}


_READERS: Mapping[str, Callable[[Path], Stored]] = {".safetensors": _read_safetensors, ".gguf": _read_gguf}
"""The reader of a file, by its ending."""


def control_vector(vectors: Mapping[str, Tensor], architecture: str, name: str) -> bytes:
    """A GGUF file with the vectors of block outputs. Raises UsageError like ``write_vectors``."""
    layers: dict[int, Tensor] = {}
    for address, vector in vectors.items():
        match = _OUTPUT.fullmatch(address)
        if match is None:
            hint = "write a .safetensors file, or take the outputs of layers: --at L*.out"
            raise UsageError(f"{name} holds vectors for outputs of layers, and {address} is none", hint)
        if int(match[1]):
            layers[int(match[1])] = vector
    if not layers:
        hint = "write a .safetensors file, or take a later layer"
        raise UsageError(f"llama.cpp adds nothing to L0.out, so {name} would be empty", hint)
    header = [
        MAGIC + struct.pack("<IQQ", _VERSION, len(layers), 3),
        _text("general.architecture") + struct.pack("<I", _STRING) + _text(_ARCHITECTURE),
        _text(f"{_ARCHITECTURE}.model_hint") + struct.pack("<I", _STRING) + _text(architecture),
        _text(f"{_ARCHITECTURE}.layer_count") + struct.pack("<II", _UINT32, len(layers)),
    ]
    data = b""
    for layer, vector in layers.items():
        header.append(_text(f"{_DIRECTION}{layer}") + struct.pack("<IQIQ", 1, len(vector), 0, len(data)))  # 0: float32
        data += _aligned(vector.detach().cpu().to(torch.float32).numpy().astype("<f4").tobytes())
    return _aligned(b"".join(header)) + data


def _aligned(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % _ALIGNMENT)


def _text(text: str) -> bytes:
    encoded = text.encode("utf-8")
    return struct.pack("<Q", len(encoded)) + encoded
