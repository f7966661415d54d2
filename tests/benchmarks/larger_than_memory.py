"""A Llama larger than the memory it may take: its trace, memory and time, against its layers run one by one.

python tests/benchmarks/larger_than_memory.py FOLDER                 8 B parameters, 16 GB in bfloat16, limit 6 GiB
python tests/benchmarks/larger_than_memory.py FOLDER --sizes 1536,4096,24,32000,16,4 --limit 1.5

Writes the model into FOLDER unless it is there. The limit is of addresses (ulimit -v) beyond those that an empty
process with torch has, since a control group needs rights that not everybody has.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from _timing import Row, options, show, show_machine
from safetensors.torch import load_file, save_file

NAMES = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", "num_attention_heads", "num_key_value_heads",
)  # fmt: skip
IDS = [3, 501, 77, 1029, 12]


def write_llama(folder: Path, sizes: list[int]) -> None:
    """Random weights from a seed, a file for each layer, as transformers saves them."""
    from transformers import LlamaConfig

    folder.mkdir(parents=True, exist_ok=True)
    config = LlamaConfig(
        **dict(zip(NAMES, sizes, strict=True)), architectures=["LlamaForCausalLM"], tie_word_embeddings=False
    )
    config.save_pretrained(folder)
    generator = torch.Generator().manual_seed(0)
    with torch.device("meta"):
        from transformers import LlamaForCausalLM

        shapes = {name: tensor.shape for name, tensor in LlamaForCausalLM(config).state_dict().items()}
    parts: dict[str, list[str]] = {}
    for name in shapes:
        parts.setdefault(f"model-{name.split('.')[2] if '.layers.' in name else 'ends'}.safetensors", []).append(name)
    for part, names in parts.items():
        tensors = {}
        for name in names:
            drawn = torch.empty(shapes[name], dtype=torch.bfloat16)
            tensors[name] = (
                drawn.fill_(1) if drawn.dim() == 1 else drawn.normal_(0, sizes[0] ** -0.5, generator=generator)
            )
        save_file(tensors, folder / part, metadata={"format": "pt"})
    index = {"weight_map": {name: part for part, names in parts.items() for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")


@torch.no_grad()
def one_by_one(folder: Path) -> torch.Tensor:
    """The logits of transformers' layers, each with its weights opened alone, in float32."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

    config = LlamaConfig.from_pretrained(folder, attn_implementation="eager")
    ends = load_file(folder / "model-ends.safetensors")
    x = ends["model.embed_tokens.weight"][torch.tensor([IDS])].float()
    where = torch.arange(len(IDS))[None]
    turned = LlamaRotaryEmbedding(config)(x, where)
    hidden = torch.full((len(IDS), len(IDS)), torch.finfo(torch.float32).min).triu(1)[None, None]
    for number in range(config.num_hidden_layers):
        with torch.device("meta"):
            layer = LlamaDecoderLayer(config, number)
        weights = load_file(folder / f"model-{number}.safetensors")
        own = {name.split(".", 3)[3]: tensor.float() for name, tensor in weights.items()}
        layer.load_state_dict(own, assign=True)
        made = layer(x, attention_mask=hidden, position_ids=where, position_embeddings=turned)
        x = made if isinstance(made, torch.Tensor) else made[0]
    norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
    norm.weight.copy_(ends["model.norm.weight"])
    return norm(x) @ ends["lm_head.weight"].float().T


def traced(folder: Path, limit: float, logits: Path) -> None:
    """In a process of its own: a trace under the limit, its logits into a file, seconds and memory to stdout."""
    import resource

    import psutil

    import tinytf
    from tinytf.checkpoints.huggingface.load import read_directory
    from tinytf.text.tokenizer import Encoding, Token
    from tinytf.trace.record import record

    most = psutil.Process().memory_info().vms + int(limit * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    start = time.perf_counter()
    loaded = read_directory(folder).load()
    tokens = tuple(Token(number, f"#{number}", 0, 0, b"", False) for number in IDS)
    trace = record(loaded.transformer, Encoding("", tokens, ""))
    seconds = time.perf_counter() - start
    save_file({"logits": loaded.transformer.unembed(trace.last_hidden).contiguous()}, logits)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "peak": peak, "notes": loaded.notes, "version": tinytf.__version__}))


def read_once(folder: Path) -> float:
    """Seconds to read the files once, 16 MiB at a time."""
    start = time.perf_counter()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb", buffering=0) as file:
            while file.read(2**24):
                pass
    return time.perf_counter() - start


def main() -> int:
    parser = options(__doc__, 1)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sizes", default="4096,14336,32,128256,32,8", help=", ".join(NAMES))
    parser.add_argument("--limit", type=float, default=6.0, help="GiB of addresses")
    parser.add_argument("--traced", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.traced:
        traced(asked.folder, asked.limit, asked.traced)
        return 0
    show_machine("torch", "transformers")
    if not (asked.folder / "model.safetensors.index.json").exists():
        write_llama(asked.folder, [int(size) for size in asked.sizes.split(",")])
    size = sum(path.stat().st_size for path in asked.folder.glob("*.safetensors"))
    kept = asked.folder / "logits.tensors"
    command = [sys.executable, __file__, str(asked.folder), "--limit", str(asked.limit), "--traced", str(kept)]
    once = read_once(asked.folder)
    said: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    expected, found = one_by_one(asked.folder)[0], load_file(kept)["logits"]
    off = float((found.reshape(expected.shape) - expected).abs().max() / expected.abs().max())
    print(*said["notes"], sep="\n")
    return show(
        f"a trace of {len(IDS)} tokens, {size / 2**30:.1f} GiB of weights",
        [
            Row("logits, furthest from its layers run one by one", off * 1e6, "ppm", 10.0),
            Row("peak memory over the weights", said["peak"] / size / 2, note=f"{said['peak'] / 2**30:.2f} GiB"),
            Row("time over reading the files once", said["seconds"] / once, note=f"{said['seconds']:.0f} s"),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
