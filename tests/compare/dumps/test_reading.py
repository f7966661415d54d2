"""Files of activations: what is read of them, and those that are refused before anything in them is believed."""

import io
import json
import os
import struct
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tinytf.compare.dumps.read import open_dump
from tinytf.errors import DumpError

ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


def npy(array: np.ndarray) -> bytes:
    """An array as numpy stores it."""
    out = io.BytesIO()
    np.lib.format.write_array(out, array)
    return out.getvalue()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64", "bool", ">f4", "uint8"])
def test_arrays_of_numpy_are_read_in_any_number_format(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, **{"L0.q": ARRAY.astype(dtype), "turned": np.asfortranarray(ARRAY)}, text="The cat")
    dump = open_dump(path)
    assert dump.shapes == {"L0.q": (2, 3), "turned": (2, 3)}
    np.testing.assert_array_equal(dump.read("L0.q").double().numpy(), ARRAY.astype(dtype).astype(np.float64))
    np.testing.assert_array_equal(dump.read("turned").numpy(), ARRAY)
    assert dump.text == "The cat"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64])
def test_tensors_of_safetensors_are_read_as_they_are(tmp_path: Path, dtype: torch.dtype) -> None:
    path, tensor = tmp_path / "a.safetensors", torch.arange(6).reshape(2, 3).to(dtype)
    save_file({"x": tensor, "input_ids": torch.tensor([[3, 1, 4]])}, path, metadata={"text": "a [b", "ids": "[1, 2"})
    dump = open_dump(path)
    assert torch.equal(dump.read("x"), tensor)
    assert dump.text == "a [b"
    save_file({"x": tensor, "input_ids": torch.tensor([[3, 1, 4]])}, path)
    assert open_dump(path).ids == [3, 1, 4]


def test_json_of_any_program_is_nested_lists_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"x": ARRAY.tolist(), "ids": [1, 2], "text": "a b", "y": [1, None, "NaN"]}))
    dump = open_dump(path)
    assert dump.shapes == {"x": (2, 3), "ids": (2,), "y": (3,)}
    assert (dump.ids, dump.text) == ([1, 2], "a b")
    torch.testing.assert_close(
        dump.read("y"), torch.tensor([1, -torch.inf, torch.nan], dtype=torch.float64), equal_nan=True
    )
    lines = tmp_path / "a.ndjson"
    lines.write_text('{"name": "x", "values": [[1, 2]]}\n\n{"y": [3]}\n')
    assert open_dump(lines).shapes == {"x": (1, 2), "y": (1,)}


def damaged(kind: str, folder: Path) -> Path:
    """A file of that kind."""
    path = folder / ("a.npz" if kind in NPZ else "a.json" if kind in JSON else "a.safetensors")
    if kind == "a pickled array":
        np.savez(path, x=np.array([{"a": 1}], dtype=object))
    elif kind == "half an archive":
        np.savez(path, x=np.ones(100))
        path.write_bytes(path.read_bytes()[:-50])
    elif kind == "complex numbers":
        np.savez(path, x=np.ones(3, np.complex64))
    elif kind == "a zip bomb":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as member:
            header = npy(np.zeros(0, np.float32)).replace(b"(0,)", b"(134217728,)")[: len(npy(np.zeros(0, np.float32)))]
            member.write(header)
            for _ in range(512):
                member.write(bytes(2**20))
    elif kind == "a shape that lies":
        data = npy(ARRAY).replace(b"(2, 3)", b"(2, 9)")
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", data)
    elif kind == "another file in the archive":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.txt", b"hello")
    elif kind == "no header of numpy":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", b"hello")
    elif kind == "a header with code":
        data = npy(ARRAY).replace(b"'fortran_order': False", b"'fortran_order': exit()")
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", data)
    elif kind == "no archive":
        path.write_bytes(b"PK\x03\x04 nothing")
    elif kind == "no member":
        with zipfile.ZipFile(path, "w"):
            pass
    elif kind in JSON:
        path.write_text(JSON[kind])
    elif kind == "a header that is too long":
        path.write_bytes(struct.pack("<Q", 2**60) + b"{}")
    elif kind == "no tensors":
        save_file({}, path)
    elif kind == "half a file":
        save_file({"x": torch.ones(100)}, path)
        path.write_bytes(path.read_bytes()[:-50])
    return path


NPZ = {
    "a pickled array": "pickled objects",
    "a zip bomb": "is refused: it has .* would inflate to 5",
    "a shape that lies": "is damaged: x.npy says that it is",
    "another file in the archive": "x.txt, which is not a numpy array",
    "no header of numpy": "is damaged",
    "a header with code": "is damaged",
    "no archive": "is damaged",
    "half an archive": "is damaged",
    "complex numbers": "x holds complex64, which cannot be compared",
    "no member": "holds no tensors",
}
JSON = {
    "ragged lists": '{"x": [[1, 2], [3]]}',
    "words": '{"x": ["a", "b"]}',
    "no object": "[1, 2]",
    "no JSON": "{",
    "nested too deeply": '{"x": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "huge numbers": '{"x": [1' + "0" * 5000 + "]}",
}
TENSORS = {"a header that is too long": "damaged", "no tensors": "holds no tensors", "half a file": "damaged"}


@pytest.mark.share(8)
@pytest.mark.parametrize("kind", [*NPZ, *JSON, *TENSORS])
def test_a_file_that_is_not_what_it_says_is_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    began = time.monotonic()
    with pytest.raises(DumpError, match={**NPZ, **TENSORS}.get(kind, "a.json")) as caught:
        open_dump(damaged(kind, tmp_path)).read("x")
    assert "\n" not in caught.value.message
    assert caught.value.hint
    assert time.monotonic() - began < 20


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "folder.json").mkdir()
    for name in ("pipe.npz", "folder.json", "none.npz", "none.safetensors", "x.txt"):
        with pytest.raises(DumpError) as caught:
            open_dump(tmp_path / name)
        assert caught.value.hint


def test_a_name_that_is_nearly_right_is_told(tmp_path: Path) -> None:
    np.savez(tmp_path / "port.npz", x=ARRAY)
    with pytest.raises(DumpError) as caught:
        open_dump(tmp_path / "prot.npz")
    assert caught.value.hint == "did you mean port.npz?"


@pytest.mark.parametrize("ids", [[[1, 2], [3, 4]], [0.5], [-1]])
def test_ids_that_are_none_are_refused(tmp_path: Path, ids: list) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=ARRAY, input_ids=np.array(ids))
    with pytest.raises(DumpError) as caught:
        _ = open_dump(path).ids
    assert caught.value.hint
