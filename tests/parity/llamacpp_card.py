"""Runs two GGUF files in llama.cpp, and compares what ``tinytf info --card`` says with its probabilities.

``python tests/parity/llamacpp_card.py FOLDER FILE.gguf ORIGINAL.gguf``, where ``npm install node-llama-cpp`` was run in
FOLDER. llama.cpp multiplies quantised weights with activations that it rounds to 8 bits, so of a quantised file the two
differ by that; of files in F32 they agree to rounding.
"""

import argparse
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

import numpy as np
from llamacpp import LlamaCpp
from numpy.typing import NDArray

from tinytf.certification.kept import Kept, cut, losses
from tinytf.loading import load
from tinytf.report import ignore_progress

Numbers = NDArray[np.float64]


def statistics(p: Numbers, q: Numbers, targets: NDArray[np.int64]) -> dict[str, float]:
    """Of the probabilities of the original and of the file, (N, V) each, and the ids that follow."""
    p, q = (np.maximum(x, np.finfo(np.float32).tiny) for x in (p, q))
    kl = (p * np.log(p / q)).sum(-1)
    rows = np.arange(len(targets))
    of_p, of_q = p[rows, targets], q[rows, targets]
    return {
        "PPL(Q)": float(np.exp(-np.log(of_q).mean())),
        "PPL(base)": float(np.exp(-np.log(of_p).mean())),
        "mean KLD": float(kl.mean()),
        "error of it": float(kl.std(ddof=1) / len(kl) ** 0.5),
        "99.9 % KLD": float(np.quantile(kl, 0.999)),
        "median KLD": float(np.median(kl)),
        "mean Δp, %": float(100 * (of_q - of_p).mean()),
        "RMS Δp, %": float(100 * np.sqrt(np.square(of_q - of_p).mean())),
        "same top, %": float(100 * (p.argmax(-1) == q.argmax(-1)).mean()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", type=Path, metavar="FOLDER", help="where node-llama-cpp is installed")
    parser.add_argument("paths", type=Path, nargs=2, metavar="FILE.gguf", help="the file, then its original")
    parser.add_argument("--context", type=int, default=64, help="tokens of a piece, at most 256")
    parser.add_argument("--pieces", type=int, default=4)
    given = parser.parse_args()
    model, versus = (load(path, device="cpu") for path in given.paths)
    text = (files("tinytf") / "assets" / "card.txt").read_text("utf-8")
    pieces = cut(versus, text, given.context, given.pieces)
    kept = Kept.of(*(numbers := losses(model, versus, pieces, ignore_progress)))
    ours = [
        float(numbers[1].mean().exp()), kept.versus_perplexity.value, kept.kl.value, kept.kl.error,
        kept.kl_quantiles[1], kept.kl_quantiles[5], 100 * kept.dp.value, 100 * kept.dp_rms.value,
        100 * kept.same_top.value,
    ]  # fmt: skip
    first = given.context // 2
    with tempfile.TemporaryDirectory() as temporary:
        llamacpp = LlamaCpp(given.modules, Path(temporary))
        q, p = (
            np.concatenate([llamacpp.run(path, ids).softmax(-1)[first:-1].numpy() for ids in pieces])
            for path in given.paths
        )
    theirs = statistics(p, q, np.array([token for ids in pieces for token in ids[first + 1 :]]))
    sys.stdout.write(f"{len(p)} tokens of {len(pieces)} pieces\n{'':12} {'tinytf':>12} {'llama.cpp':>12}\n")
    for own, (name, other) in zip(ours, theirs.items(), strict=True):
        sys.stdout.write(f"{name:12} {own:12.6f} {other:12.6f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
