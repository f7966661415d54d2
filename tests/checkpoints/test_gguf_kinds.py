"""Tensor types of GGUF files: against their blocks written out, and every other one against the library."""

import itertools
from pathlib import Path

import gguf
import numpy as np
import pytest
from ggml_blocks import BLOCKS
from gguf_files import Array, Kind, Parts

from tinytf.checkpoints.gguf.header import read_header
from tinytf.checkpoints.gguf.weights import GgufWeights
from tinytf.errors import CheckpointError

REFUSED = {Kind.Q8_1, Kind.Q8_K, Kind.Q1_0, Kind.I8, Kind.I16, Kind.I32, Kind.I64, Kind.F64}
IN_BLOCKS = [kind for kind in Kind if gguf.GGML_QUANT_SIZES[kind][0] > 1 and kind not in REFUSED]


def some_blocks(kind: Kind, scales: tuple[int, ...]) -> Array:
    """Three rows of two blocks of any bytes, but for scales in float16, which are finite."""
    dice = np.random.default_rng(5)
    blocks = dice.integers(0, 256, (6, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    for place in scales:
        blocks[:, place : place + 2] = dice.uniform(0.1, 1, (6, 1)).astype(np.float16).view(np.uint8)
    if kind is Kind.MXFP4:
        blocks[:, 0] = dice.integers(110, 140, 6)
    return blocks.reshape(3, -1)


def weights(tmp_path: Path, stored: Array, kind: Kind) -> GgufWeights:
    parts = Parts({"general.architecture": "any"}, {"x": (stored, kind)})
    return GgufWeights(read_header(parts.write(tmp_path / "a.gguf")))


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_block_means_what_ggml_says(tmp_path, kind):
    formula, scales = BLOCKS[kind]
    stored = some_blocks(Kind[kind], scales)
    found = weights(tmp_path, stored, Kind[kind]).stored("x").numpy()
    expected = [list(itertools.chain(*(formula(half.tobytes()) for half in np.split(row, 2)))) for row in stored]
    assert found.shape == (3, len(expected[0]))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", IN_BLOCKS, ids=lambda kind: kind.name)
def test_every_type_is_read_as_the_library_reads_it(tmp_path, kind):
    stored = some_blocks(kind, ())
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
