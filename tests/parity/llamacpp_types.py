"""Compares what every type of GGUF tensor means to llama.cpp with what tinytf reads: the same bytes, number by number.

``python tests/parity/llamacpp_types.py FOLDER [--write]``, where ``npm install node-llama-cpp`` was run in FOLDER: it
brings llama.cpp compiled, whose ``dequantize_row_…`` are called. Exits 1 where one differs. ``--write`` puts bytes and
numbers of two blocks of each type into tests/checkpoints/ggml_numbers.json, to which the tests hold tinytf.
"""

import argparse
import ctypes
import json
import sys
import tempfile
from base64 import b64encode
from pathlib import Path

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "checkpoints")]
sys.path += [str(Path(__file__).parents[1] / "text")]

import gguf
import numpy as np
from gguf_files import Array, Kind, Parts

from tinytf.checkpoints.gguf.header import read_header
from tinytf.checkpoints.gguf.weights import GgufWeights

NUMBERS = Path(__file__).parents[1] / "checkpoints" / "ggml_numbers.json"


def of_llama_cpp(library: ctypes.CDLL, blocks: Array, kind: Kind) -> Array | None:
    """The numbers of some blocks; None for a type that llama.cpp does not have."""
    dequantise = getattr(library, f"dequantize_row_{kind.name.lower().replace('_k', '_K')}", None)
    if dequantise is None:
        return None
    numbers = np.empty(len(blocks) * gguf.GGML_QUANT_SIZES[kind][0], np.float32)
    dequantise(blocks.ctypes.data_as(ctypes.c_void_p), numbers.ctypes.data_as(ctypes.c_void_p),
               ctypes.c_int64(numbers.size))  # fmt: skip
    return numbers


def of_tinytf(blocks: Array, kind: Kind) -> Array:
    with tempfile.TemporaryDirectory() as folder:
        parts = Parts({"general.architecture": "any"}, {"x": (blocks.reshape(1, -1), kind)})
        return GgufWeights(read_header(parts.write(Path(folder) / "a.gguf"))).stored("x").numpy().ravel()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", type=Path, metavar="FOLDER", help="where node-llama-cpp is installed")
    parser.add_argument("--write", action="store_true", help="write the numbers that the tests hold tinytf to")
    given = parser.parse_args()
    library = ctypes.CDLL(str(next(given.modules.rglob("linux-x64/libggml-base.so"))))
    dice, written, wrong = np.random.default_rng(11), {}, 0
    for kind in Kind:
        count, size = gguf.GGML_QUANT_SIZES[kind]
        if count == 1:
            continue
        blocks = dice.integers(0, 256, (2000, size), dtype=np.uint8)
        with np.errstate(all="ignore"):
            theirs = of_llama_cpp(library, blocks, kind)
            if theirs is None:
                continue
            finite = np.isfinite(theirs.reshape(len(blocks), count)).all(axis=1)
            blocks, theirs = blocks[finite], theirs.reshape(-1, count)[finite].ravel()
            try:
                ours = of_tinytf(blocks, kind)
            except Exception as error:
                sys.stdout.write(f"{kind.name:8} not read: {error}\n")
                continue
            furthest = float(np.max(np.abs(ours - theirs) / np.maximum(np.abs(theirs), 1e-30)))
        wrong += furthest > 1e-6
        sys.stdout.write(f"{kind.name:8} {theirs.size:,} numbers, at most {furthest:.1e} of one apart\n")
        two = b64encode(blocks[:2].tobytes()), b64encode(theirs[: 2 * count].tobytes())
        written[kind.name] = [part.decode("ascii") for part in two]
    if given.write:
        NUMBERS.write_text(json.dumps(written, indent=1) + "\n", "utf-8")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
