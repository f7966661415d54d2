"""RecurrentGemma (Botev et al. 2024): gated linear recurrences, and attention with a window in some layers."""

import math
from dataclasses import replace
from typing import Any

import torch

from tinytf.checkpoints.huggingface.gemma import GEMMA2, cap
from tinytf.checkpoints.huggingface.llama import UNTURNED
from tinytf.checkpoints.huggingface.rope import rope
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, by_layer, lm_head, merge_fields
from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_MIXERS = {"recurrent": "griffin", "attention": "attention"}


def _read(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The mixer of each layer and the width of its heads; half of intermediate_size is the units of a feed-forward."""
    kinds = fields.array("block_types", str, ("recurrent", "recurrent", "attention"))
    named = [fields.meaning("block_types", kind, _MIXERS) for kind in kinds]
    mixers = [named[layer % len(named)] for layer in range(draft["n_layers"])]
    channels = fields.whole("lru_width", draft["d_model"], least=1)
    if channels % draft["n_heads"]:
        raise fields.fault(f"lru_width {channels:,} is not divisible by num_attention_heads {draft['n_heads']}")
    widths = {"griffin": channels // draft["n_heads"], "attention": draft["d_head"]}
    return {
        "context": 2**20,
        "d_ff": draft["d_ff"] // 2,
        "embed_scale": float(torch.tensor(math.sqrt(draft["d_model"])).bfloat16()),  # a constant in bfloat16
        "o_bias": True,
        **merge_fields(by_layer("mixer", mixers), by_layer("d_head", [widths[mixer] for mixer in mixers])),
    }


def _write(config: ModelConfig) -> dict[str, Any]:
    words = {ours: word for word, ours in _MIXERS.items()}
    layers = [config.at(layer) for layer in range(config.n_layers)]
    attention = next((layer.d_head for layer in layers if layer.mixer == "attention"), None)
    return {
        "head_dim": attention,
        "block_types": [words.get(layer.mixer) for layer in layers],
        "lru_width": next((layer.n_heads * layer.d_head for layer in layers if layer.mixer == "griffin"), None),
        "intermediate_size": 2 * config.d_ff,
    }


_BLOCK = "layers.{n}.temporal_block"
_STORED = {
    "embed.tokens": Stored("embed_tokens"),
    "blocks.{n}.norm1": Stored("layers.{n}.temporal_pre_norm", offset=1.0),
    **{f"blocks.{{n}}.attention.{name}": Stored(f"{_BLOCK}.{name}_proj") for name in "qkvo"},
    "blocks.{n}.griffin.v": Stored(f"{_BLOCK}.linear_x"),
    "blocks.{n}.griffin.gate": Stored(f"{_BLOCK}.linear_y"),
    "blocks.{n}.griffin.v_conv": Stored(f"{_BLOCK}.conv_1d", convolution=True),
    **{
        f"blocks.{{n}}.griffin.{ours}": Stored(
            f"{_BLOCK}.rg_lru.{name}_weight",
            bare=True,
            bias=f"{_BLOCK}.rg_lru.{name}_bias",
            apart="n_heads",
            transposed=True,
        )
        for ours, name in (("gate_in", "input_gate"), ("gate_kept", "recurrent_gate"))
    },
    "blocks.{n}.griffin.decay": Stored(f"{_BLOCK}.rg_lru.recurrent_param", bare=True),
    "blocks.{n}.griffin.o": Stored(f"{_BLOCK}.linear_out"),
    "blocks.{n}.norm2": Stored("layers.{n}.channel_pre_norm", offset=1.0),
    **{f"blocks.{{n}}.ffn.{name}": Stored(f"layers.{{n}}.mlp_block.{name}_proj") for name in ("gate", "up", "down")},
    "final_norm": Stored("final_norm", offset=1.0),
    "head.decoder": Stored("lm_head"),
}

RECURRENT_GEMMA = replace(
    GEMMA2,
    name="RecurrentGemma",
    model_type="recurrent_gemma",
    classes={"none": "RecurrentGemmaModel", "lm": "RecurrentGemmaForCausalLM"},
    only={},
    fixed={**GEMMA2.fixed, "norm_order": "pre", "o_bias": True, "ffn_bias": True},
    settings=(
        *(key for key in UNTURNED if key.ours != "context"),
        Key("head_dim", "d_head", lambda draft: draft["d_model"] // draft["n_heads"]),
        rope(share=0.5),
        Key("attention_window_size", "window", 2048),
        Key("conv1d_width", "conv_width", 4),
        Key("hidden_activation", "activation", "gelu_pytorch_tanh", ACTIVATIONS),
        cap("logits_soft_cap", "logit_cap", 30.0),
        Key("attention_bias", "qkv_bias", False),
        Key("tie_word_embeddings", "tied_head", True),
        lm_head(),
        Group(_read, _write),
    ),
    harmless=("layer_types", "layers_block_type", "w_init_variance_scale", "final_w_init_variance_scale"),
    stored=_STORED,
)
