"""Recording a trace of models whose layers are not all attention, beside transformers' plain forward pass.

Weights are random, the same in both libraries, and the logits are compared first. transformers runs its own code for
these mixers where their compiled kernels are not installed, as on any machine without a GPU.

    python tests/benchmarks/hybrid.py --repeat 5
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from _timing import Row, in_turns, options, ratio, show, show_machine, spread
from torch import nn

from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.model.transformer import Transformer
from tinytf.trace.record import record, recording_bytes

from trace import MIB, encoding_of, held  # isort: skip - the benchmark beside this one

LENGTH = 512
GOAL = 1.5
_SIZES: dict[str, Any] = {
    "vocab_size": 4096, "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4,
    "intermediate_size": 1536, "max_position_embeddings": 1024, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
_DELTA = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 2
_MAMBA2 = {"mamba_n_heads": 16, "mamba_d_head": 64, "mamba_d_state": 64, "mamba_n_groups": 1, "mamba_expand": 2}
MODELS = {
    "Qwen3.5": ("Qwen3_5Text", "Qwen3_5ForCausalLM", {
        "head_dim": 64, "layer_types": _DELTA, "linear_num_value_heads": 8, "linear_num_key_heads": 4,
        "linear_key_head_dim": 64, "linear_value_head_dim": 64,
    }),
    "LFM2": ("Lfm2", "Lfm2ForCausalLM", {"layer_types": ["conv", "conv", "full_attention", "conv"] * 2}),
    "Bamba": ("Bamba", "BambaForCausalLM", {**_MAMBA2, "attn_layer_indices": [3, 7]}),
}  # fmt: skip


def measured(theirs: nn.Module, ours: Transformer, repeat: int) -> list[Row]:
    """The times of both and what the trace keeps, after the logits were compared."""
    ids = torch.randint(ours.config.vocab_size, (1, LENGTH), generator=torch.Generator().manual_seed(1))
    encoding = encoding_of(ids[0].tolist())
    apart = float((theirs(ids).logits - ours(ids)).abs().max())
    print(f"logits of the two libraries differ by at most {apart:.1e}")
    seconds = in_turns({"trace": lambda: record(ours, encoding), "forward": lambda: theirs(ids)}, repeat)
    kept = held(record(ours, encoding), ours) / MIB
    foretold = recording_bytes(ours.config, LENGTH, 1, 4, range(ours.config.n_layers)) / MIB
    return [
        Row(f"trace of {LENGTH} tokens / transformers' forward", ratio(seconds, "trace", "forward"), "x", GOAL,
            spread(seconds, "trace", "forward")),
        Row("kept by the trace", kept, "MiB", None, f"said before it is made: {foretold:,.0f} MiB"),
    ]  # fmt: skip


def main() -> int:
    given = options(__doc__ or "", repeat=5).parse_args()
    show_machine("torch", "transformers")
    missed = 0
    for name, (config, kind, settings) in MODELS.items():
        torch.manual_seed(0)
        theirs = getattr(transformers, kind)(getattr(transformers, f"{config}Config")(**_SIZES, **settings)).eval()
        with tempfile.TemporaryDirectory() as folder:
            theirs.save_pretrained(folder)
            ours = read_directory(Path(folder)).load().transformer.requires_grad_(False)
            rows = measured(theirs.requires_grad_(False), ours, given.repeat)
        missed += show(f"{name}, 8 layers, d_model 512", rows)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
