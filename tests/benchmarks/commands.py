"""Whole commands beside other tools': attention on a safetensors directory, a trace on GPT-2-small size.

python tests/benchmarks/commands.py --smollm2 FOLDER --repeat 5

FOLDER is a directory of transformers, such as `tinytf export SmolLM2.gguf --to huggingface FOLDER` writes. The peers
are in the extra bench: InterpKit's `attention`, and a script that opens the same directory in TransformerLens and
calls run_with_cache.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from _timing import Row, in_turns, options, ratio, show, show_machine, spread
from loading import write_gpt2

TEXT = "The cat sat on"
EIGHT = "The cat sat on the mat all day"
LENS = """
import sys, torch
from transformers import AutoModelForCausalLM
from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
bridge = build_bridge_from_module(model, "GPT2LMHeadModel", hf_config=model.config)
bridge.run_with_cache(torch.arange(1, 9)[None])
"""


def process(*arguments: str) -> Callable[[], object]:
    """A whole process with its output to a pipe; a status other than 0 raises."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    return lambda: subprocess.run(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, env=environment
    )


def main() -> int:
    parser = options(__doc__, repeat=5)
    parser.add_argument("--smollm2", type=Path, required=True, help="a directory of transformers to draw attention of")
    chosen = parser.parse_args()
    show_machine("torch", "tinytf", "transformers", "interpkit", "transformer-lens")
    tinytf = (sys.executable, "-m", "tinytf_cli")
    interpkit = shutil.which("interpkit", path=str(Path(sys.executable).parent)) or "interpkit"
    folder = str(chosen.smollm2)
    with tempfile.TemporaryDirectory() as name:
        write_gpt2(Path(name))
        tokenizer = Path(__file__).parents[2] / "tinytf" / "assets" / "tiny" / "tokenizer.json"
        shutil.copyfile(tokenizer, Path(name) / "tokenizer.json")
        runs = {
            "attention": process(*tinytf, "attention", TEXT, "--model", folder),
            "interpkit": process(interpkit, "attention", folder, TEXT),
            "trace": process(*tinytf, "trace", EIGHT, "--model", name),
            "lens": process(sys.executable, "-c", LENS, name),
            "import torch": process(sys.executable, "-c", "import torch"),
        }
        seconds = in_turns(runs, chosen.repeat)
    rows = [
        Row(
            "tinytf attention / interpkit attention",
            ratio(seconds, "attention", "interpkit"),
            goal=1 / 3,
            note=spread(seconds, "attention", "interpkit", "import torch"),
        ),
        Row(
            "tinytf trace / TransformerLens run_with_cache",
            ratio(seconds, "trace", "lens"),
            goal=1 / 3,
            note=spread(seconds, "trace", "lens"),
        ),
    ]
    return 1 if show(f"Whole commands, median of {chosen.repeat}", rows) else 0


if __name__ == "__main__":
    sys.exit(main())
