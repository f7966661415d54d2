"""Opening checkpoints: a GPT-2-small-size directory beside transformers, its memory, a GGUF file, a catalogue.

python tests/benchmarks/loading.py --repeat 7
TINYTF_REAL_WEIGHTS=FOLDER python tests/benchmarks/loading.py     with the GGUF files of SmolLM2 and Gemma 3 in FOLDER
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from _timing import Row, in_turns, milliseconds, options, ratio, show, show_machine, spread

DTYPES = ("float32", "bfloat16")
GGUF = (("SmolLM2*.gguf", 1.0), ("gemma-3-270m*.gguf", 3.0))
"""Files, and in how many seconds each opens."""


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

    from tinytf.checkpoints.gguf import read_gguf
    from tinytf.checkpoints.huggingface.load import read_directory

    before = peak_bytes()
    model = (read_gguf if folder.is_file() else read_directory)(folder).load(getattr(torch, dtype)).transformer
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.parameters()}
    for parameter in model.parameters():
        parameter.detach().sum()
    print((peak_bytes() - before) / sum(storages.values()))


def gguf_rows(file: Path, goal: float) -> list[Row]:
    """Opening a GGUF file beside transformers, which dequantises with the same library, and the memory that it takes.

    transformers is asked once: it takes half a minute for a vocabulary of Gemma's size.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tinytf.loading import load

    def theirs() -> None:
        AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)

    def ours() -> object:
        return load(str(file), device="cpu")

    seconds = in_turns({"tinytf": ours}, 5)
    beside = in_turns({"tinytf": ours, "transformers": theirs}, 1, warm=0)
    said = subprocess.run(
        (sys.executable, __file__, "--memory-of", str(file), "float32"), stdout=subprocess.PIPE, check=True, text=True
    )
    return [
        Row(f"load {file.name}", milliseconds(seconds, "tinytf") / 1000, "s", goal=goal),
        Row("the same, tinytf / transformers", ratio(beside, "tinytf", "transformers"), goal=0.5),
        Row("peak memory / weights in float32", float(said.stdout), goal=1.15),
    ]


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

    from tinytf.checkpoints.huggingface.load import read_directory
    from tinytf.models import entry_of
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
    for name, goal in GGUF if real else ():
        for file in list(Path(real).rglob(name))[:1]:
            rows += gguf_rows(file, goal)
    return 1 if show(f"Opening, median of {chosen.repeat}", rows) else 0


if __name__ == "__main__":
    sys.exit(main())
