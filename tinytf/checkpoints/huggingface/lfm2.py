"""LFM2 and LFM2-MoE (Liquid AI 2025): gated short convolutions, and grouped attention in some layers."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.experts import TRAINING
from tinytf.checkpoints.huggingface.llama import FIXED, LLAMA
from tinytf.checkpoints.huggingface.rope import rope
from tinytf.checkpoints.huggingface.table import SIZES, by_layer, lm_head, merge_fields
from tinytf.checkpoints.huggingface.windows import FULL
from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors, experts
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_CONV = "conv"
_MIXERS = {FULL: "attention", _CONV: "short_convolution"}


def _read_mixers(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The mixer of each layer; the heads of a convolution are together as wide as the model."""
    layers = range(draft["n_layers"])
    attending = fields.array("full_attn_idxs", int, list(layers))
    default = [FULL if layer in attending else _CONV for layer in layers]
    layer_types = fields.array("layer_types", str, default, count=len(layers))
    mixers = [fields.meaning("layer_types", kind, _MIXERS) for kind in layer_types]
    group = draft["d_model"] // draft["n_heads"]
    widths = [draft["d_head"] or group if mixer == "attention" else group for mixer in mixers]
    return {
        "conv_width": fields.whole("conv_L_cache", 3, least=1),
        **merge_fields(by_layer("mixer", mixers), by_layer("d_head", widths)),
    }


def _write_mixers(config: ModelConfig) -> dict[str, Any]:
    words = {ours: word for word, ours in _MIXERS.items()}
    layers = [words.get(config.at(layer).mixer) for layer in range(config.n_layers)]
    return {"layer_types": layers, "conv_L_cache": config.conv_width}


def _read_width(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The feed-forward's units: as stored, or two thirds of that, multiplied and rounded up (Touvron et al. 2023)."""
    width = fields.whole("block_ff_dim" if "block_ff_dim" in fields.data else "intermediate_size", 12_288, least=1)
    if fields.flag("block_auto_adjust_ff_dim", True):
        multiple = fields.whole("block_multiple_of", 256, least=1)
        width = int(fields.number("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
        width = -(-width // multiple) * multiple
    return {"d_ff": width}


def _write_width(config: ModelConfig) -> dict[str, Any]:
    return {"intermediate_size": config.d_ff, "block_auto_adjust_ff_dim": False}


def _read_tied(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    return {"tied_head": fields.flag("tie_embedding", fields.flag("tie_word_embeddings", True))}


_ATTENTION = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "o", "q_layernorm": "q_norm",
              "k_layernorm": "k_norm"}  # fmt: skip

LFM2 = replace(
    LLAMA,
    name="LFM2",
    model_type="lfm2",
    classes={"none": "Lfm2Model", "lm": "Lfm2ForCausalLM"},
    only={"conv_bias": (False,)},
    fixed={**FIXED, "activation": "silu", "qk_norm": True},
    needs=("qk_norm",),
    settings=(
        *(key for key in SIZES if key.name != "intermediate_size"),
        Group(_read_width, _write_width),
        Key("num_key_value_heads", "n_kv_heads", 8),
        Key("max_position_embeddings", "context", 128_000),
        Key("norm_eps", "norm_eps", 1e-5),
        rope(1_000_000.0),
        Key("head_dim", "d_head", 0),
        Group(_read_tied, lambda config: {"tie_word_embeddings": config.tied_head}),
        lm_head(),
        Group(_read_mixers, _write_mixers),
    ),
    written={"conv_bias": False},
    harmless=(
        "block_dim", "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale", "block_use_swiglu",
        "block_use_xavier_init", "conv_dim", "conv_dim_out", "conv_use_xavier_init", "num_heads", "theta",
        "use_pos_enc",
    ),
    stored={
        "embed.tokens": Stored("embed_tokens"),
        "blocks.{n}.norm1": Stored("layers.{n}.operator_norm"),
        **{f"blocks.{{n}}.attention.{ours}": Stored(f"layers.{{n}}.self_attn.{name}")
           for name, ours in _ATTENTION.items()},
        **{f"blocks.{{n}}.conv.{name}": Stored("layers.{n}.conv.in_proj", part=part, parts=("d_model",) * 3)
           for part, name in enumerate(("gate_in", "gate", "v"))},
        "blocks.{n}.conv.v_conv": Stored("layers.{n}.conv.conv", convolution=True),
        "blocks.{n}.conv.o": Stored("layers.{n}.conv.out_proj"),
        "blocks.{n}.norm2": Stored("layers.{n}.ffn_norm"),
        "blocks.{n}.ffn.gate": Stored("layers.{n}.feed_forward.w1"),
        "blocks.{n}.ffn.up": Stored("layers.{n}.feed_forward.w3"),
        "blocks.{n}.ffn.down": Stored("layers.{n}.feed_forward.w2"),
        "final_norm": Stored("embedding_norm"),
        "head.decoder": Stored("lm_head"),
    },
    heads={},
)  # fmt: skip


def _read_experts(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Experts in all but the first layers, weighed by sigmoids, and chosen with a bias where there is one."""
    layers, dense = draft["n_layers"], fields.whole("num_dense_layers", 2, least=0)
    if dense >= layers:
        raise fields.fault(f"num_dense_layers {dense} leaves none of the {layers} layers with experts")
    count = fields.whole("num_experts", 32, least=1)
    choice_bias = fields.flag("use_expert_bias", True)
    return {"choice_bias": choice_bias, **by_layer("experts", [count * (n >= dense) for n in range(layers)])}


def _write_experts(config: ModelConfig) -> dict[str, Any]:
    counts = [config.at(layer).experts for layer in range(config.n_layers)]
    dense = counts.count(0)
    keys = {"num_experts": config.experts, "num_dense_layers": dense, "use_expert_bias": config.choice_bias}
    return keys if not any(counts[:dense]) else {}


LFM2_MOE = replace(
    LFM2,
    name="LFM2-MoE",
    model_type="lfm2_moe",
    classes={"none": "Lfm2MoeModel", "lm": "Lfm2MoeForCausalLM"},
    fixed={**LFM2.fixed, "router": "sigmoid", "routes_epsilon": 1e-6},
    needs=("qk_norm", "experts"),
    settings=(
        *SIZES,
        *LFM2.settings[len(SIZES) :],
        Group(_read_experts, _write_experts),
        Key("num_experts_per_tok", "experts_per_token", 4),
        Key("moe_intermediate_size", "d_expert", 1792),
        Key("norm_topk_prob", "routes_renormed", True),
        Key("routed_scaling_factor", "routed_scale", 1.0),
    ),
    harmless=TRAINING,
    stored={
        **LFM2.stored,
        "blocks.{n}.ffn.router": Stored("layers.{n}.feed_forward.gate"),
        "blocks.{n}.ffn.preference": Stored("layers.{n}.feed_forward.expert_bias", bare=True),
        **experts("layers.{n}.feed_forward.experts", ("w1", "w3", "w2")),
    },
)
