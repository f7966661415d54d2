"""Opening checkpoints: a GPT-2-small-size directory beside transformers, its memory, a GGUF file, a catalogue.

python tests/benchmarks/loading.py --repeat 7
TINYTF_REAL_WEIGHTS=FOLDER python tests/benchmarks/loading.py     with SmolLM2's GGUF file, found in FOLDER
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from _timing import Row, in_turns, milliseconds, options, ratio, show, show_machine, spread

DTYPES = ("float32", "bfloat16")


def write_gpt2(folder: Path) -> None:
    """124 M random weights as transformers saves them, in float32."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config()).save_pretrained(folder)


def peak_bytes() -> int:
    """The most memory that this process has held (Linux; unlike ru_maxrss it begins anew with the program)."""
    told = next(line for line in Path("/proc/self/status").read_text("ascii").splitlines() if line.startswith("VmHWM"))
    return int(told.split()[1]) * 1024


def memory_of(folder: Path, dtype: str) -> None:
    """In a process of its own: how far opening a model and reading every weight raises the peak, over their size."""
    import torch

    from tinytf.checkpoints.huggingface.load import read_directory

    before = peak_bytes()
    model = read_directory(folder).load(getattr(torch, dtype)).transformer
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.parameters()}
    for parameter in model.parameters():
        parameter.detach().sum()
    print((peak_bytes() - before) / sum(storages.values()))


def main() -> int:
    parser = options(__doc__, repeat=7)
    parser.add_argument("--memory-of", nargs=2, metavar=("FOLDER", "DTYPE"), help="measure one opening and print it")
    chosen = parser.parse_args()
    if chosen.memory_of:
        memory_of(Path(chosen.memory_of[0]), chosen.memory_of[1])
        return 0
    show_machine("torch", "tinytf", "transformers")
    import torch
    from transformers import AutoModelForCausalLM

    from tinytf.catalogue import entry_of
    from tinytf.checkpoints.huggingface.load import read_directory
    from tinytf.sources import source_at

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_gpt2(folder)
        runs = {
            "tinytf": lambda: read_directory(folder).load(),
            "transformers": lambda: AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
            "catalogue entry": lambda: entry_of("folder", source_at(folder)),
        }
        seconds = in_turns(runs, chosen.repeat)
        rows = [
            Row(
                "load, tinytf / transformers",
                ratio(seconds, "tinytf", "transformers"),
                goal=1.2,
                note=spread(seconds, "tinytf", "transformers"),
            ),
            Row("a model in tinytf models", milliseconds(seconds, "catalogue entry"), "ms", goal=50.0),
        ]
        for dtype in DTYPES:
            told = subprocess.run(
                (sys.executable, __file__, "--memory-of", name, dtype), stdout=subprocess.PIPE, check=True, text=True
            )
            rows.append(Row(f"peak memory / weights in {dtype}", float(told.stdout), goal=1.15))
    real = os.environ.get("TINYTF_REAL_WEIGHTS")
    file = next(Path(real).rglob("SmolLM2*.gguf"), None) if real else None
    if file is not None:
        from tinytf.loading import load

        found = in_turns({"gguf": lambda: load(str(file))}, max(5, chosen.repeat))
        rows.append(Row(f"load {file.name}", milliseconds(found, "gguf") / 1000, "s", goal=4.0))
    return 1 if show(f"Opening, median of {chosen.repeat}", rows) else 0


if __name__ == "__main__":
    sys.exit(main())
