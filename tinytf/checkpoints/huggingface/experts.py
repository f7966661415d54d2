"""Mixtures of experts: Mixtral (Jiang et al. 2024) and Qwen3-MoE."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.llama import LLAMA, MISTRAL, SHARED
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, lm_head
from tinytf.checkpoints.table import Found, Group, Key, Stored, Tensors, experts
from tinytf.config import ModelConfig
from tinytf.fields import Fields

TRAINING = ("output_router_logits", "router_aux_loss_coef", "router_jitter_noise")
"""Keys of a router that change nothing in evaluation."""
WITHOUT_DENSE = {name: how for name, how in LLAMA.stored.items() if ".ffn." not in name}
"""Where a Llama's modules are, but for its feed-forward."""


def _read_experts(fields: Fields, found: Found, tensors: Tensors) -> dict[str, Any]:
    """How many experts there are, in transformers 5 under another name, and which layers have them."""
    name = "num_local_experts" if "num_local_experts" in fields.data else "num_experts"
    count, step = fields.whole(name), fields.whole("decoder_sparse_step", 1)
    dense = set(fields.array("mlp_only_layers", int, ()))
    here = tuple(0 if n in dense or (n + 1) % step else count for n in range(found["n_layers"]))
    if not any(here):
        raise fields.fault(f"{name} {count}, decoder_sparse_step and mlp_only_layers leave no layer with experts")
    mixed = {"by_layer": (*found.get("by_layer", ()), ("experts", here))} if len(set(here)) > 1 else {}
    return {"experts": count, **mixed}


def _write_experts(config: ModelConfig) -> dict[str, Any]:
    dense = [n for n in range(config.n_layers) if not config.at(n).experts]
    return {"num_experts": config.experts, "decoder_sparse_step": 1, "mlp_only_layers": dense}


SOME_LAYERS = Group(_read_experts, _write_experts)
"""Experts in all layers but those that the configuration names."""
_WINDOW = Group(
    lambda fields, found, tensors: {
        "window": fields.whole("sliding_window", 0) if fields.flag("use_sliding_window", False) else 0
    },
    lambda config: {"use_sliding_window": config.window > 0, "sliding_window": config.window or None},
)

MIXTRAL = replace(
    MISTRAL,
    name="Mixtral",
    model_type="mixtral",
    classes={"none": "MixtralModel", "lm": "MixtralForCausalLM"},
    needs=("experts",),
    settings=(
        *MISTRAL.settings,
        Key("num_local_experts", "experts"),
        Key("num_experts_per_tok", "experts_per_token", 2),
    ),
    harmless=TRAINING,
    stored={
        **WITHOUT_DENSE,
        "blocks.{n}.ffn.router": Stored("layers.{n}.block_sparse_moe.gate"),
        **experts("layers.{n}.block_sparse_moe.experts", ("w1", "w3", "w2")),
    },
    spellings=((r"\.mlp\.", ".block_sparse_moe."),),
)
QWEN3_MOE = replace(
    LLAMA,
    name="Qwen3-MoE",
    model_type="qwen3_moe",
    classes={"none": "Qwen3MoeModel", "lm": "Qwen3MoeForCausalLM"},
    fixed={**LLAMA.fixed, "qk_norm": True},
    needs=("experts",),
    settings=(
        *SHARED,
        Key("head_dim", "d_head", 0),
        Key("hidden_act", "activation", "silu", ACTIVATIONS),
        Key("tie_word_embeddings", "tied_head", False),
        lm_head(),
        Key("attention_bias", "qkv_bias o_bias", False),
        _WINDOW,
        SOME_LAYERS,
        Key("num_experts_per_tok", "experts_per_token"),
        Key("moe_intermediate_size", "d_expert"),
        Key("norm_topk_prob", "routes_renormed", False),
    ),
    harmless=TRAINING,
    stored={
        **LLAMA.stored,
        "blocks.{n}.ffn.router": Stored("layers.{n}.mlp.gate"),
        **experts("layers.{n}.mlp.experts"),
    },
)
