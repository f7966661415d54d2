"""JetMoE (Shen et al. 2024): experts in the feed-forward, and in attention, where each has queries of its own."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.experts import TRAINING
from tinytf.checkpoints.huggingface.llama import FIXED, LLAMA
from tinytf.checkpoints.huggingface.rope import ROPE
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, lm_head
from tinytf.checkpoints.table import Group, Key, Stored

_MIXED = "layers.{n}.self_attention.experts"
_KV: dict[str, Any] = {"module": "layers.{n}.self_attention.kv_proj", "parts": ("n_kv_heads", "n_kv_heads")}
_HALVES: dict[str, Any] = {"module": "layers.{n}.mlp.input_linear", "parts": ("d_expert", "d_expert"), "axis": 1}

JETMOE = replace(
    LLAMA,
    name="JetMoE",
    model_type="jetmoe",
    classes={"none": "JetMoeModel", "lm": "JetMoeForCausalLM"},
    needs=("head_experts",),
    only={},
    fixed={**FIXED, "o_bias": True, "head_experts": True, "sum_bias": True, "norm_eps": 1e-6},
    settings=(
        Key("vocab_size"),
        Key("hidden_size", "d_model"),
        Key("num_hidden_layers", "n_layers"),
        Key("num_key_value_heads", "n_kv_heads", 16),
        Key("kv_channels", "d_head", 128),
        Key("num_local_experts", "experts", 8),
        Key("num_experts_per_tok", "experts_per_token", 2),
        Key("intermediate_size", "d_ff d_expert", 5632),
        Key("max_position_embeddings", "context", 4096),
        ROPE,
        Key("activation_function", "activation", "silu", ACTIVATIONS),
        Key("rms_norm_eps", "final_norm_eps", 1e-6),  # of the last norm alone
        Key("tie_word_embeddings", "tied_head", True),
        lm_head(),
        Group(lambda fields, draft, tensors: {"n_heads": draft["n_kv_heads"] * draft["experts"]}),
    ),
    harmless=(*TRAINING, "aux_loss_coef", "num_attention_heads"),
    stored={
        **{name: layout for name, layout in LLAMA.stored.items() if ".attention." not in name and ".ffn." not in name},
        "blocks.{n}.attention.router": Stored(f"{_MIXED}.router.layer"),
        "blocks.{n}.attention.q": Stored(f"{_MIXED}.input_linear", apart="experts", tiled=True),
        "blocks.{n}.attention.k": Stored(**_KV),
        "blocks.{n}.attention.v": Stored(**_KV, part=1),
        "blocks.{n}.attention.o": Stored(
            f"{_MIXED}.output_linear", apart="experts", tiled=True, axis=1, bias=f"{_MIXED}.bias"
        ),
        "blocks.{n}.ffn.router": Stored("layers.{n}.mlp.router.layer"),
        "blocks.{n}.ffn.experts.gate": Stored(**_HALVES),
        "blocks.{n}.ffn.experts.up": Stored(**_HALVES, part=1),
        "blocks.{n}.ffn.experts.down": Stored("layers.{n}.mlp.output_linear"),
        "blocks.{n}.ffn.constant": Stored("layers.{n}.mlp", gives="ffn"),
    },
)
