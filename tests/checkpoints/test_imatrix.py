"""Importance matrices: the files that llama-imatrix wrote of a tiny model, beside sums from its trace; and wrong files.

``llama_imatrix/`` was written by llama.cpp v0.5.0 (llama-imatrix --process-output -c 24 -b 24 --chunks 2), in both
formats, from ``small_parts(num_hidden_layers=2)`` and TEXT.
"""

import pickle
import random
import struct
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from architectures import encoding_of
from gguf_files import Kind, Parts, small_parts

from tinytf.checkpoints.gguf.imatrix import read_imatrix
from tinytf.errors import CheckpointError
from tinytf.loading import load
from tinytf.trace.record import record

WRITTEN = Path(__file__).parent / "llama_imatrix"
TEXT = (
    "The cat sat on the mat, and the other cats sat there too. It's what they'll do: don't they? "
    "We're in 2024, at 12:30."
)
INPUTS = {
    "attn_q": "norm1",
    "attn_k": "norm1",
    "attn_v": "norm1",
    "attn_output": "concat",
    "ffn_gate": "norm2",
    "ffn_up": "norm2",
    "ffn_down": "ffn.act",
}
"""The step that each matrix multiplies."""
CHUNK = 24


def test_the_means_are_those_of_the_squares_of_what_each_matrix_multiplies(tmp_path: Path) -> None:
    model = load(str(small_parts(num_hidden_layers=2).write(tmp_path / "tiny.gguf")), device="cpu")
    tokens = model.encode(TEXT).ids
    traces = [record(model.transformer, encoding_of(tokens[start : start + CHUNK])) for start in (0, CHUNK)]
    found = read_imatrix(WRITTEN / "imatrix.gguf")
    assert (found.datasets, found.chunks, found.chunk_size) == (("text.txt",), 2, CHUNK)
    steps = {f"blk.{layer}.{name}.weight": (step, layer) for layer in range(2) for name, step in INPUTS.items()}
    steps["output.weight"] = "final.norm", None
    assert set(found.means) == set(steps)
    for name, (step, layer) in steps.items():
        sums = sum(trace.step(step, layer).double().square().sum(0) for trace in traces)
        assert torch.allclose(found.means[name], sums / (2 * CHUNK), rtol=5e-3), name  # its cache is in half precision


def test_the_old_format_says_the_same() -> None:
    new, old = (read_imatrix(WRITTEN / f"imatrix.{extension}") for extension in ("gguf", "dat"))
    assert (old.datasets, old.chunks, old.chunk_size) == (("text.txt",), 2, None)
    assert set(old.means) == set(new.means)
    for name, means in new.means.items():
        assert torch.allclose(old.means[name], means, rtol=1e-6)
    data = (WRITTEN / "imatrix.dat").read_bytes()
    assert data.endswith(struct.pack("<ii", 2, 8) + b"text.txt")


def entry(name: bytes, calls: int, *values: float) -> bytes:
    return struct.pack("<i", len(name)) + name + struct.pack(f"<ii{len(values)}f", calls, len(values), *values)


def test_experts_have_their_own_counts_and_none_of_those_without_tokens(tmp_path: Path) -> None:
    sums, counts = torch.arange(12.0).view(3, 4), torch.tensor([[2.0], [0.0], [5.0]])
    parts = Parts({"general.architecture": "imatrix", "general.type": "imatrix"})
    parts.tensors = {"x.in_sum2": (sums.numpy(), Kind.F32), "x.counts": (counts.numpy(), Kind.F32)}
    means = read_imatrix(parts.write(tmp_path / "x.gguf")).means["x"]
    assert means[0].tolist() == [0, 0.5, 1, 1.5]
    assert means[1].isnan().all()
    assert torch.allclose(means[2], sums[2].double() / 5)
    path = tmp_path / "first.dat"
    path.write_bytes(struct.pack("<i", 2) + entry(b"x", 4, 2, 8) + entry(b"y", 0, 1))  # without the end, as at first
    assert read_imatrix(path).means["x"].tolist() == [[0.5, 2]]
    assert read_imatrix(path).means["y"].isnan().all()


def refused(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_imatrix(path)
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("extension", ["gguf", "dat"])
def test_a_file_that_is_cut_off_anywhere_is_refused(tmp_path: Path, extension: str) -> None:
    data, path = (WRITTEN / f"imatrix.{extension}").read_bytes(), tmp_path / f"cut.{extension}"
    end = len(data) - 16  # where the old format ends without the name of a text
    for size in sorted({*range(0, 300, 7), *range(300, len(data), 97)} - {end}):
        path.write_bytes(data[:size])
        refused(path)
    path.write_bytes(data + b"x" * 5)
    if extension == "dat":
        assert "5 bytes follow its end" in refused(path)


@pytest.mark.parametrize("extension", ["gguf", "dat"])
def test_any_other_bytes_are_refused_or_give_means(tmp_path: Path, extension: str) -> None:
    data, path, draw = (WRITTEN / f"imatrix.{extension}").read_bytes(), tmp_path / f"bent.{extension}", random.Random(3)
    for _ in range(150):
        bent = bytearray(data)
        for _ in range(draw.choice((1, 1, 4))):
            bent[draw.randrange(min(len(data), draw.choice((40, 400, len(data)))))] = draw.choice((0, 255, 128, 65))
        path.write_bytes(bent)
        with suppress(CheckpointError):
            for means in read_imatrix(path).means.values():
                assert bool((means.isnan() | (means >= 0)).all())


def test_something_else_is_said_to_be_something_else(tmp_path: Path) -> None:
    path = tmp_path / "x.dat"
    for data in (pickle.dumps({"a": [1.0] * 99}), b"PK\3\4" + b"\0" * 99, b"The cat sat on the mat. " * 9, b"\0" * 99):
        path.write_bytes(data)
        assert "is not an importance matrix" in refused(path)
    path.write_bytes(b"")
    assert "is empty" in refused(path)
    assert "there is no file" in refused(tmp_path / "none")
    assert "cannot read" in refused(tmp_path)
    assert "holds a 'model', not an importance matrix" in refused(small_parts().write(tmp_path / "model.gguf"))
    for bad in (float("nan"), float("inf"), -1.0):
        path.write_bytes(struct.pack("<i", 1) + entry(b"x", 1, 1.0, bad))
        assert "no sum of squares" in refused(path)
    parts = Parts({"general.architecture": "imatrix", "general.type": "imatrix"})
    parts.tensors = {"x.in_sum2": (torch.ones(4).numpy(), Kind.F32)}
    assert "has no 'x.counts'" in refused(parts.write(tmp_path / "half.gguf"))
    parts.tensors["x.counts"] = torch.ones(3).numpy(), Kind.F32
    assert "has 4 sums and 3 counts" in refused(parts.write(tmp_path / "odd.gguf"))
