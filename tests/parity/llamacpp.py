"""Opens a GGUF file of every architecture with llama.cpp, and compares the probabilities of all tokens with tinytf's.

``python tests/parity/llamacpp.py FOLDER [NAME ...]``, where ``npm install node-llama-cpp`` was run in FOLDER: it brings
llama.cpp compiled. The files are those of tests/checkpoints/gguf_conversion.py, in float32, with odd sizes; there the
numbers are also those of transformers. Exits 1 where one is wrong that has no reason below.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "checkpoints")]
sys.path += [str(Path(__file__).parents[1] / "text")]

import torch
from gguf_conversion import CONVERSIONS, V, converted
from torch import Tensor

from tinytf.checkpoints.gguf import read_gguf

TOKENS = 40
TOLERANCE = 5e-3
"""Of probabilities. llama.cpp looks GELU up in half precision, up to 3.1e-3 here, and makes Qwen's unit vectors with
the ε of the norms, here an odd one, up to 8e-4; elsewhere 5e-5 is the most. What is otherwise comes to 0.2 and more.
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", type=Path, metavar="FOLDER", help="where node-llama-cpp is installed")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    given = parser.parse_args()
    torch.set_num_threads(1)
    ids = (torch.arange(TOKENS) * 7 % (V - 3)).tolist()
    ours: dict[str, Tensor] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder, jobs = Path(temporary), []
        for name in given.names or CONVERSIONS:
            path = converted(CONVERSIONS[name])[1].write(folder / f"{name}.gguf")
            checkpoint = read_gguf(path)
            if not checkpoint.config.causal or checkpoint.config.encoder is not None:
                continue
            with torch.no_grad():
                ours[name] = checkpoint.load().transformer(torch.tensor([ids]))[0].double().softmax(-1)
            jobs.append({"name": name, "path": str(path), "ids": ids})
        (folder / "jobs").write_text(json.dumps(jobs), "utf-8")
        script = Path(__file__).with_suffix(".mjs")
        subprocess.run(["node", script, given.modules.resolve(), folder / "jobs", folder], check=True)
        answers = {name: json.loads((folder / f"{name}.json").read_text("utf-8")) for name in ours}
    wrong = 0
    for name, answer in answers.items():
        if isinstance(answer, dict):
            found, told = "not loaded", answer["error"]
        else:
            difference = float((torch.tensor(answer, dtype=torch.float64) - ours[name]).abs().max())
            found, told = "right" if difference <= TOLERANCE else "different", f"{difference:.1e}"
        wrong += found != "right" and name not in DIFFERENT
        reason = f": {DIFFERENT[name]}" if found != "right" and name in DIFFERENT else ""
        sys.stdout.write(f"{found:11} {name:40} {told}{reason}\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
