"""Tensor types of GGUF files: against the numbers that llama.cpp reads, and against the library."""

import json
from base64 import b64decode
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_files import Array, Kind, Parts

from tinytf.checkpoints.gguf.header import read_header
from tinytf.checkpoints.gguf.weights import GgufWeights
from tinytf.errors import CheckpointError

REFUSED = {Kind.Q8_1, Kind.Q8_K, Kind.Q1_0, Kind.I8, Kind.I16, Kind.I32, Kind.I64, Kind.F64}
IN_BLOCKS = [kind for kind in Kind if gguf.GGML_QUANT_SIZES[kind][0] > 1 and kind not in REFUSED]


NUMBERS = json.loads(Path(__file__).with_name("ggml_numbers.json").read_text("utf-8"))
"""By the name of a type, two blocks and what llama.cpp reads in them, as tests/parity/llamacpp_types.py found."""


def some_blocks(kind: Kind) -> Array:
    """Three rows of two blocks of any bytes."""
    return np.random.default_rng(5).integers(0, 256, (3, 2 * gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)


def weights(tmp_path: Path, stored: Array, kind: Kind) -> GgufWeights:
    parts = Parts({"general.architecture": "any"}, {"x": (stored, kind)})
    return GgufWeights(read_header(parts.write(tmp_path / "a.gguf")))


@pytest.mark.parametrize("kind", IN_BLOCKS, ids=lambda kind: kind.name)
def test_a_block_means_what_llama_cpp_reads(tmp_path, kind):
    stored, expected = (b64decode(part) for part in NUMBERS[kind.name])
    found = weights(tmp_path, np.frombuffer(stored, np.uint8)[None], kind).stored("x").numpy()
    np.testing.assert_allclose(found[0], np.frombuffer(expected, np.float32), rtol=1e-6)


@pytest.mark.parametrize("kind", IN_BLOCKS, ids=lambda kind: kind.name)
def test_every_type_is_read_as_the_library_reads_it(tmp_path, kind):
    stored = some_blocks(kind)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(stored, kind)
    np.testing.assert_array_equal(weights(tmp_path, stored, kind).stored("x").numpy(), expected)


@pytest.mark.parametrize("kind", sorted(REFUSED), ids=lambda kind: kind.name)
def test_a_type_that_the_library_cannot_read_is_refused_by_name(tmp_path, kind):
    stored = np.zeros((2, 2 * gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
    with pytest.raises(CheckpointError) as caught:
        weights(tmp_path, stored, kind)
    assert f"'x' is stored as {kind.name}, which is not implemented" in caught.value.message
    assert {word.strip() for word in caught.value.hint.removeprefix("implemented:").split(",")} == {
        kind.name for kind in set(Kind) - REFUSED
    }
