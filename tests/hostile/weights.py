"""Headers of .safetensors: offsets, overlaps, types, names, sizes; and their indices of several files."""

import json
from collections.abc import Iterator
from random import Random

from hostile.bases import llama, ours, within
from hostile.case import Case
from hostile.mutations import as_json, bytes_of, mutated
from hostile.strings import word

_COMMANDS = (("info", "model"), ("info", "model"), ("trace", "a", "-m", "model"), ("tokens", "a", "-m", "model"),
             ("models", "."))  # fmt: skip
_TYPES = ("F64", "F32", "F16", "BF16", "I64", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F4", "C64", "X", "", 7, None)


def cases(count: int, seed: int) -> Iterator[Case]:
    rng = Random(f"weights {seed}")
    for _ in range(count):
        files = rng.choice((ours, llama))()
        data = files["model.safetensors"]
        match rng.randrange(5):
            case 0:
                about, data = bytes_of(rng, data, 400)
                made = {**files, "model.safetensors": data}
            case 1:
                about, made = _sharded(rng, dict(files))
            case _:
                about, data = _header(rng, data)
                made = {**files, "model.safetensors": data}
        yield Case(about, rng.choice(_COMMANDS), within("model", made))


def _split(data: bytes) -> tuple[dict[str, object], bytes]:
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def _header(rng: Random, data: bytes) -> tuple[str, bytes]:
    header, rest = _split(data)
    names = [name for name in header if name != "__metadata__"]
    one, other = rng.choice(names), rng.choice(names)
    about = f"{one}, {other}"
    match rng.randrange(7):
        case 0:
            header[one]["dtype"] = rng.choice(_TYPES)  # type: ignore[index]
        case 1:
            header[one]["data_offsets"] = header[other]["data_offsets"]  # type: ignore[index]
        case 2:
            header[one]["shape"] = rng.choice(  # type: ignore[index]
                ([], [0], [-1, 2], [2**62, 4], [1] * 65, [2**31, 2**31], [3], [10**30], [0, 2**63])
            )
        case 3:
            header[word(rng)] = header.pop(one)
        case 4:
            header["__metadata__"] = {word(rng): word(rng) for _ in range(rng.choice((1, 500)))}
        case _:
            about, header = mutated(rng, header)
    made = as_json(rng, header)
    size = rng.choice((len(made),) * 8 + (0, 1, len(made) + 1, 2**31, 2**63, 2**64 - 1))
    return about, size.to_bytes(8, "little") + made + rest


def _sharded(rng: Random, files: dict[str, bytes]) -> tuple[str, dict[str, bytes]]:
    """The weights in one shard that an index names, and the index is hostile."""
    data = files.pop("model.safetensors")
    header, _ = _split(data)
    shard = rng.choice(("part.safetensors", "../outside.safetensors", "/etc/passwd", word(rng), "model.safetensors"))
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(header, "part.safetensors")}
    index["weight_map"][rng.choice(list(header))] = shard  # type: ignore[index]
    about, made = mutated(rng, index) if rng.randrange(2) else (f"shard {shard!a}", index)
    return about, {**files, "part.safetensors": data, "model.safetensors.index.json": as_json(rng, made)}
