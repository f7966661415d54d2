"""DiffLlama: a Llama with the differential attention of Ye et al. 2024."""

import math
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.llama import BIASES, LLAMA, SETTINGS
from tinytf.checkpoints.huggingface.table import by_layer
from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors
from tinytf.fields import Fields


def _read(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The start of λ in each layer, by section 2.1 of the paper."""
    return by_layer("lambda_init", [0.8 - 0.6 * math.exp(-0.3 * layer) for layer in range(draft["n_layers"])])


DIFFLLAMA = replace(
    LLAMA,
    name="DiffLlama",
    model_type="diffllama",
    classes={"none": "DiffLlamaModel", "lm": "DiffLlamaForCausalLM"},
    settings=(*SETTINGS, Key("rms_norm_eps", "norm_eps", 1e-5), BIASES, Group(_read)),
    harmless=("lambda_std_dev",),
    stored={
        **LLAMA.stored,
        "blocks.{n}.attention.difference": Stored("layers.{n}.self_attn", gives="attn"),
        "blocks.{n}.attention.o": Stored("layers.{n}.self_attn.o_proj", axis=1, coupled=True),
    },
)
