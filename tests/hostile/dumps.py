"""Files of activations that `diff` reads: .npz, .json, .ndjson, .safetensors; and tables of names."""

import io
import json
import struct
import zipfile
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np

from hostile.bases import ours, within
from hostile.case import Case
from hostile.mutations import as_json, bytes_of, mutated
from hostile.strings import NASTY, word

_IDS = [1, 2, 3]
_NAMES = ("L0.q", "L0.k", "L0.scores", "L0.weights", "L0.resid_post", "logits", "embed", "q", "h.0.attn", "layer0", "x")


def _arrays(rng: Random) -> dict[str, Any]:
    """Some arrays of shapes that may fit a step, and some that cannot."""
    shapes = ((3, 8), (1, 3, 8), (2, 3, 4), (3, 2, 4), (1, 2, 3, 3), (3, 280), (0,), (), (3,), (8, 3), (1,) * 20)
    kinds = ("f4", "f8", "f2", "i8", "u1", "?", "c8", "U3", "M8[s]", "S2")
    made: dict[str, Any] = {"input_ids": np.array(_IDS)}
    for _ in range(rng.randrange(1, 4)):
        shape = rng.choice(shapes)
        numbers = np.array([rng.choice((0.0, 0.5, -1.0, 1e30, float("nan"), float("inf"))) for _ in range(3)])
        array = np.resize(numbers, shape)
        name = rng.choice(_NAMES) if rng.randrange(4) else word(rng)
        with np.errstate(invalid="ignore", over="ignore"):
            made[name] = (
                array.astype("f4" if rng.randrange(2) else rng.choice(kinds), casting="unsafe")
                if rng.randrange(5) or not shape
                else array
            )
    if not rng.randrange(4):
        made["input_ids"] = rng.choice((np.array([-1]), np.array([[1, 2], [3, 4]]), np.array([0.5]), np.array([10**9]),
                                        np.array(["a"]), np.arange(10_000), np.array([])))  # fmt: skip
    return made


def cases(count: int, seed: int) -> Iterator[Case]:
    rng = Random(f"dumps {seed}")
    for _ in range(count):
        suffix, write = rng.choice(((".npz", _npz), (".npz", _npz), (".json", _json), (".ndjson", _ndjson),
                                    (".safetensors", _safetensors)))  # fmt: skip
        about, data = write(rng)
        file = f"dump{suffix}"
        files = {**within("model", ours()), file: data}
        words = ("diff", "-m", "model", "--versus", file, *rng.choice(((), (), ("the cat",))))
        if not rng.randrange(8):
            words = ("diff", file, file)
        elif not rng.randrange(6):
            files["names.toml"], words = _table(rng), (*words, "--names", "names.toml")
        yield Case(f"{suffix} {about}", (*words, *rng.choice(((), ("--json",), ("-o", "out.html")))), files)


def _npz(rng: Random) -> tuple[str, bytes]:
    """What numpy writes, objects, headers that claim too much, entries of other names, and what inflates."""
    made, arrays = io.BytesIO(), _arrays(rng)
    about = f"{ {name: (array.shape, array.dtype.str) for name, array in arrays.items()}!a:.200}"
    match rng.randrange(6):
        case 0:
            np.savez(made, x=np.array([{"a": 1}], dtype=object))
            return "objects", made.getvalue()
        case 1:
            with zipfile.ZipFile(made, "w") as archive:
                archive.writestr(rng.choice(("L0.q.npy", "../../x.npy", "x", "\u202e.npy")), _npy(rng))
            return "a header", made.getvalue()
        case 2:
            with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("L0.q.npy", _npy(rng, (2_000, 2_000)) + b"\0" * 16_000_000)
            return "inflating", made.getvalue()
    with zipfile.ZipFile(made, "w") as archive:
        for name, array in arrays.items():
            entry = io.BytesIO()
            np.save(entry, array)
            archive.writestr(name.encode("utf-8", "replace").decode() + ".npy", entry.getvalue())
    return bytes_of(rng, made.getvalue()) if not rng.randrange(3) else (about, made.getvalue())


def _npy(rng: Random, shape: tuple[int, ...] | None = None) -> bytes:
    """A header as numpy's, of whatever shape and type."""
    sizes = shape or rng.choice(((2**40,), (-1,), (2**31, 2**31), (0, 2**62), (3, 8), ("x",), (10**30,), (True,)))
    kind = rng.choice(("<f4", "<f8", "|O", "<U1000000000", "V1", "x", "<f4,<f4", ">f8"))
    said = repr({"descr": kind, "fortran_order": rng.choice((False, True, 1)), "shape": sizes})
    said = rng.choice((said,) * 4 + ("__import__('os').mkdir('owned')", "{" * 5_000, said[:-3], ""))
    return b"\x93NUMPY\x01\0" + struct.pack("<H", min(len(said), 65_535)) + said.encode()


def _listed(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: array.tolist() if array.dtype.kind in "fiub?" else "x" for name, array in arrays.items()}


def _json(rng: Random) -> tuple[str, bytes]:
    data = _listed(_arrays(rng))
    about, data = mutated(rng, data) if rng.randrange(3) else ("as it is", data)
    return about, as_json(rng, data)


def _ndjson(rng: Random) -> tuple[str, bytes]:
    lines = [{"name": name, "values": values} for name, values in _listed(_arrays(rng)).items()]
    about, lines = mutated(rng, lines)
    return about, b"\n".join(as_json(rng, line) for line in (lines if isinstance(lines, list) else [lines]))


def _safetensors(rng: Random) -> tuple[str, bytes]:
    header: dict[str, Any] = {
        "__metadata__": {"ids": json.dumps(_IDS), "text": word(rng).encode("utf-8", "replace").decode()}
    }
    data = b""
    for name, array in _arrays(rng).items():
        flat = np.ascontiguousarray(array, dtype="f4") if array.dtype.kind in "fiub?" else np.zeros((3, 8), "f4")
        header[name] = {"dtype": "F32", "shape": list(flat.shape), "data_offsets": [len(data), len(data) + flat.nbytes]}
        data += flat.tobytes()
    about, header = mutated(rng, header) if rng.randrange(2) else ("as it is", header)
    made = as_json(rng, header)
    return about, len(made).to_bytes(8, "little") + made + data


def _table(rng: Random) -> bytes:
    """A table of what names mean."""
    known = (
        '"q" = "L0.q"',
        '"h.{n}.attn" = "L{n}.resid_post"',
        '"{n}{n}" = "L{n}.q"',
        '"*" = "x"',
        '"(a+)+$" = "L0.q"',
    )
    key = rng.choice(NASTY).replace("\\", "").replace('"', "")
    return "\n".join((*rng.sample(known, rng.randrange(1, 3)), f'"{key}" = "{key}"')).encode("utf-8", "surrogatepass")
