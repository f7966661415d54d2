"""LFM2, LFM2-MoE (Liquid AI 2025) and LFM3 (2026): gated short convolutions, and grouped attention in some layers."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.experts import TRAINING
from tinytf.checkpoints.huggingface.llama import BIASES, FIXED, LLAMA
from tinytf.checkpoints.huggingface.rope import SCALINGS, rope
from tinytf.checkpoints.huggingface.table import SIZES, by_layer, lm_head, merge_fields
from tinytf.checkpoints.huggingface.windows import FULL, SLIDING, windows
from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors, experts
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_CONV = "conv"
_MIXERS = {FULL: "attention", _CONV: "short_convolution"}


def _read_mixers(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    layers = range(draft["n_layers"])
    attending = fields.array("full_attn_idxs", int, list(layers))
    default = [FULL if layer in attending else _CONV for layer in layers]
    layer_types = fields.array("layer_types", str, default, count=len(layers))
    return _mixed(fields, draft, [fields.meaning("layer_types", kind, _MIXERS) for kind in layer_types], 3)


def _mixed(fields: Fields, draft: Draft, mixers: list[str], taps: int) -> dict[str, Any]:
    """The mixer of each layer; the heads of a convolution are together as wide as the model."""
    group = draft["d_model"] // draft["n_heads"]
    widths = [draft["d_head"] or group if mixer == "attention" else group for mixer in mixers]
    return {
        "conv_width": fields.whole("conv_L_cache", taps, least=1),
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


def _read_kinds(fields: Fields, draft: Draft) -> list[str]:
    layers = range(draft["n_layers"])
    default = [FULL if n % 4 == 2 else SLIDING if n % 4 == 0 and n else _CONV for n in layers]
    words = fields.array("layer_types", str, default, count=len(layers))
    return [fields.meaning("layer_types", word, {word: word for word in (FULL, SLIDING, _CONV)}) for word in words]


def _attention_kinds(fields: Fields, draft: Draft) -> list[str]:
    """The kind of each layer; of a convolution, which has no positions, that of some attention."""
    kinds = _read_kinds(fields, draft)
    some = next((kind for kind in kinds if kind != _CONV), FULL)
    return [some if kind == _CONV else kind for kind in kinds]


def _read_eps(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """ε of the norms, by the name that transformers writes or by its other one."""
    other = fields.number("rms_norm_eps", 1e-5)
    eps = fields.number("norm_eps", other)
    if "rms_norm_eps" in fields.data and eps != other:
        raise fields.fault(f"rms_norm_eps {other:g} is another name of norm_eps, which is {eps:g}")
    return {"norm_eps": eps}


_WINDOWS = windows(_read_kinds, 256)


def _read_layers(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    kinds = _read_kinds(fields, draft)
    mixers = ["short_convolution" if kind == _CONV else "attention" for kind in kinds]
    return merge_fields(_WINDOWS.read(fields, draft, tensors), _mixed(fields, draft, mixers, 7))


def _write_layers(config: ModelConfig) -> dict[str, Any]:
    keys, mixed = _WINDOWS.write(config), _write_mixers(config)
    kinds = zip(keys["layer_types"], mixed["layer_types"], strict=True)
    return {**keys, **mixed, "layer_types": [kind if mixer == FULL else mixer for kind, mixer in kinds]}


LFM3 = replace(
    LFM2,
    name="LFM3",
    model_type="lfm3",
    classes={"none": "Lfm3Model", "lm": "Lfm3ForCausalLM"},
    only={**LFM2.only, "_rope_type_labels": ([FULL, SLIDING],)},
    fixed={**LFM2.fixed, "gate_by_head": True},
    settings=(
        *SIZES,
        Key("num_key_value_heads", "n_kv_heads", 4),
        Key("max_position_embeddings", "context", 128_000),
        Group(_read_eps, lambda config: {"norm_eps": config.norm_eps}),
        Key("head_dim", "d_head", 128),
        rope(
            1_000_000.0,
            kinds=_attention_kinds,
            local=lambda _: 10_000.0,
            scalings={**SCALINGS, "proportional": "proportional"},
        ),
        Group(
            lambda fields, draft, tensors: {"norm_order": "both" if fields.flag("use_sandwich_norm", True) else "pre"},
            lambda config: {"use_sandwich_norm": config.norm_order == "both"},
        ),
        Key("use_attention_gate", "attention_gate", True),
        BIASES,
        Group(lambda fields, draft, tensors: {"gate_bias": not (draft["attention_gate"] and draft["qkv_bias"])}),
        Key("tie_word_embeddings", "tied_head", True),
        lm_head(),
        Group(_read_layers, _write_layers),
    ),
    harmless=(),
    stored={
        **LFM2.stored,
        "blocks.{n}.attention.o": Stored("layers.{n}.self_attn.o_proj"),
        "blocks.{n}.attention.q_norm": Stored("layers.{n}.self_attn.q_norm"),
        "blocks.{n}.attention.k_norm": Stored("layers.{n}.self_attn.k_norm"),
        "blocks.{n}.attention.gate": Stored("layers.{n}.self_attn.g_proj"),
        "blocks.{n}.attn_norm": Stored("layers.{n}.post_operator_norm"),
        "blocks.{n}.ffn_norm": Stored("layers.{n}.post_ffn_norm"),
    },
    spellings=((r"\.self_attn\.gate_proj\.", ".self_attn.g_proj."),),
)
"""LFM3: windows, norms before and after each part, and heads that are gated."""
