"""Opens a GGUF file of every architecture with llama.cpp, and compares the numbers of all tokens with tinytf's.

``python tests/parity/llamacpp.py FOLDER [NAME ...]``, where ``npm install node-llama-cpp`` was run in FOLDER: it brings
llama.cpp compiled, with its source, for whose headers llamacpp.c is built (by gcc). The files are those of
tests/checkpoints/gguf_conversion.py, in float32, with odd sizes; there the numbers are also those of transformers.
Compared are the probabilities of decoders, alone or beside an encoder that read the same tokens, and the last hidden
states of encoders. Exits 1 where one is wrong that has no reason below.

``--types FILE.gguf`` instead writes FILE's matrices in every I-quant, by llama.cpp's own functions, and compares the
logits of each file: tinytf's, llama.cpp's, and llama.cpp's of the numbers that the file means, stored in float32. The
last two differ by what llama.cpp rounds of activations, as it does beside quantised matrices and tinytf never does.
"""

import argparse
import ctypes
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "checkpoints")]
sys.path += [str(Path(__file__).parents[1] / "text")]

import gguf
import numpy as np
import torch
from architectures import reading
from gguf_conversion import CONVERSIONS, C, V, converted
from gguf_files import Array, Kind, Parts
from torch import Tensor

from tinytf.checkpoints.gguf import read_gguf

TOKENS = 40
TOLERANCE = 5e-3
"""Of probabilities, and of states beside the largest. llama.cpp looks GELU up in half precision, up to 3.1e-3 here, and
makes Qwen's unit vectors with the ε of the norms, here an odd one, up to 8e-4; elsewhere 5e-5 is the most. What is
otherwise comes to 0.2 and more.
"""
DIFFERENT = {
    "phi3": "llama.cpp has no window for it",
    "exaone4, windows": "llama.cpp has windows in the model of 64 layers alone",
    "gpt-oss": "llama.cpp rounds the ends of YaRN's ramp, and transformers does not",
    "olmoe": "llama.cpp does not clamp",
    "phimoe": "llama.cpp has RMSNorm, a softmax over the chosen experts, and no window",
    "phimoe, longrope": "llama.cpp has RMSNorm, a softmax over the chosen experts, and the usual factor of LongRoPE",
    "command-r, heads normed": "llama.cpp has norms in models of 64 layers and more alone",
    "deepseek2, V2 with queries as they are": "llama.cpp takes the model of 27 layers alone",
    "gemma3n": "llama.cpp gives 20 layers keys of their own, and ten sparse gates, whatever a file says",
}
"""What llama.cpp does otherwise than the model's own code, or cannot load at this size, and why."""
UNSCALED = {"t5", "t5, gated, a bias for each layer"}
"""Whose tied head transformers gives states divided by √C, and llama.cpp as they are."""
I_QUANTS = [kind for kind in Kind if kind.name.startswith("IQ")]
WITHIN = 1e-3
"""Of the largest logit: tinytf and llama.cpp on the same numbers, both in float32."""


class LlamaCpp:
    """llama.cpp as node-llama-cpp brings it: a program built in a folder for scratch, and its functions."""

    def __init__(self, modules: Path, scratch: Path) -> None:
        self.libraries = next(modules.resolve().rglob("linux-x64/libggml-base.so")).parent
        self.base = ctypes.CDLL(str(self.libraries / "libggml-base.so"))
        self._scratch, self._program, source = scratch, scratch / "llamacpp", scratch / "source"
        bundle = next(modules.resolve().rglob("node-llama-cpp/llama/gitRelease.bundle"))
        subprocess.run(["git", "clone", "-q", "-c", "advice.detachedHead=false", bundle, source], check=True)
        linked = [
            path for name in ("libllama.v*", "libggml.v*", "libggml-base") for path in self.libraries.glob(f"{name}.so")
        ]
        subprocess.run(
            ["gcc", "-O1", f"-I{source}/include", f"-I{source}/ggml/include", Path(__file__).with_suffix(".c"), *linked,
             f"-Wl,-rpath,{self.libraries}", "-o", self._program], check=True,
        )  # fmt: skip

    def run(self, path: Path, ids: list[int], what: str = "logits") -> Tensor:
        """The logits or last hidden states of each token. Raises RuntimeError with what llama.cpp says."""
        out = self._scratch / "numbers"
        done = subprocess.run([self._program, self.libraries, path, what, out, *map(str, ids)], capture_output=True)
        if done.returncode:
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise RuntimeError(next((line for line in lines if "error" in line), lines[-1] if lines else "no numbers"))
        return torch.from_numpy(np.fromfile(out, np.float32)).view(len(ids), -1).double()

    def quantised(self, numbers: Array, kind: Kind) -> Array:
        """Rows (out, in) as blocks of a type, every input as important as any other."""
        rows, columns = numbers.shape
        count, size = gguf.GGML_QUANT_SIZES[kind]
        stored, weights = np.empty((rows, columns // count * size), np.uint8), np.ones(columns, np.float32)
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (numbers, stored, weights)]
        self.base.ggml_quantize_chunk(
            int(kind), *pointers[:2], ctypes.c_int64(0), ctypes.c_int64(rows), ctypes.c_int64(columns), pointers[2]
        )
        return stored


def rewritten(llamacpp: LlamaCpp, original: Path, kind: Kind, folder: Path) -> tuple[Path, Path, int]:
    """A file with its matrices in a type, one with the numbers that those mean, and how many matrices are of the type.

    As in llama-quantize, a matrix whose rows the type's blocks do not divide is IQ4_NL, and the embeddings stay.
    """
    reader = gguf.GGUFReader(original)
    keys = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    stored, meant, changed = Parts(keys), Parts(keys), 0
    for tensor in reader.tensors:
        numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if numbers.ndim == 2 and tensor.name.startswith("blk."):
            to = kind if numbers.shape[1] % gguf.GGML_QUANT_SIZES[kind][0] == 0 else Kind.IQ4_NL
            blocks = llamacpp.quantised(np.ascontiguousarray(numbers, np.float32), to)
            stored.tensors[tensor.name], changed = (blocks, to), changed + (to == kind)
            numbers = gguf.quants.dequantize(blocks, to)
        else:
            stored.tensors[tensor.name] = numbers, Kind.F32
        meant.tensors[tensor.name] = numbers, Kind.F32
    return stored.write(folder / "stored.gguf"), meant.write(folder / "meant.gguf"), changed


def of_types(llamacpp: LlamaCpp, original: Path, folder: Path) -> Iterator[tuple[bool, str]]:
    """A line for each I-quant: the largest differences of logits, as shares of the largest logit."""
    ids = (torch.arange(TOKENS) * 7 % 300).tolist()
    for kind in I_QUANTS:
        stored, meant, changed = rewritten(llamacpp, original, kind, folder)
        with torch.no_grad():
            ours = read_gguf(stored).load().transformer(torch.tensor([ids]))[0].double()
        theirs, plain = llamacpp.run(stored, ids), llamacpp.run(meant, ids)
        apart, rounding, both = (
            float((one - other).abs().max() / plain.abs().max())
            for one, other in ((ours, plain), (theirs, plain), (ours, theirs))
        )
        right = apart <= WITHIN
        found = f"{'right' if right else 'different':11} {kind.name:8} {changed:4} matrices"
        told = f"of the same numbers {apart:.1e}; llama.cpp's rounding {rounding:.1e}; together {both:.1e}"
        yield right, f"{found}; {told}"


def shown(numbers: Tensor, what: str) -> Tensor:
    """What is compared: the probabilities of logits, and states as shares of the largest."""
    return numbers.softmax(-1) if what == "logits" else numbers / numbers.abs().max()


def of_architectures(llamacpp: LlamaCpp, names: list[str], folder: Path) -> Iterator[tuple[bool, str]]:
    ids = (torch.arange(TOKENS) * 7 % (V - 3)).tolist()
    for name in names or CONVERSIONS:
        path = converted(CONVERSIONS[name])[1].write(folder / "model.gguf")
        checkpoint = read_gguf(path)
        model, tokens = checkpoint.load().transformer, torch.tensor([ids])
        what = "logits" if checkpoint.config.causal else "states"
        with torch.no_grad():
            if model.encoder is not None:
                model = reading(model, model.read(tokens))
            ours = shown((model if what == "logits" else model.hidden)(tokens)[0].double(), what)
        try:
            theirs = llamacpp.run(path, ids, what)
        except RuntimeError as error:
            found, told = "not loaded", f"{error}"
        else:
            theirs = theirs / C**0.5 if name in UNSCALED else theirs
            difference = float((shown(theirs, what) - ours).abs().max())
            found, told = "right" if difference <= TOLERANCE else "different", f"{difference:.1e}"
        reason = f": {DIFFERENT[name]}" if found != "right" and name in DIFFERENT else ""
        yield found == "right" or name in DIFFERENT, f"{found:11} {name:40} {told}{reason}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", type=Path, metavar="FOLDER", help="where node-llama-cpp is installed")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--types", type=Path, metavar="FILE.gguf", help="try every I-quant of this model instead")
    given = parser.parse_args()
    torch.set_num_threads(1)
    wrong = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tried, what = (of_types, given.types) if given.types else (of_architectures, given.names)
        for right, line in tried(LlamaCpp(given.modules, folder), what, folder):
            wrong += not right
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
