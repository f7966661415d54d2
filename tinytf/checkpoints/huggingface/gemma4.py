"""Gemma 4, text only: wider heads and values made of keys in layers without a window, embeddings of layers."""

import math
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.gemma import GEMMA2, cap
from tinytf.checkpoints.huggingface.llama import UNTURNED
from tinytf.checkpoints.huggingface.rope import rope
from tinytf.checkpoints.huggingface.routing import shared_expert
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, by_layer, lm_head, merge_fields
from tinytf.checkpoints.huggingface.windows import FULL, all_but_nth, layer_kinds, windows
from tinytf.checkpoints.table import Draft, Group, Key, Skip, Stored, Tensors, stacked_experts
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_FIVE_OF_SIX = layer_kinds(all_but_nth("sliding_window_pattern", 6))
_OF_HEADS = {"d_head": "head_dim", "n_kv_heads": "num_key_value_heads"}


def kinds_of(fields: Fields, draft: Draft) -> list[str]:
    """The kind of each layer; transformers gives the last one no window, whatever the file says."""
    return [*_FIVE_OF_SIX(fields, draft)[:-1], FULL]


def _read_heads(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The heads of each layer, from per_layer_config, or from the keys of the layers without a window."""
    kinds, shared = kinds_of(fields, draft), fields.flag("attention_k_eq_v", False)
    usual = {"d_head": fields.whole("head_dim", 256, least=1), "n_kv_heads": fields.whole("num_key_value_heads", 4)}
    wide = {
        "d_head": fields.whole("global_head_dim", 512, least=1),
        "n_kv_heads": fields.whole("num_global_key_value_heads", usual["n_kv_heads"]),
    }
    if not shared:
        wide["n_kv_heads"] = usual["n_kv_heads"]
    values_of_keys = by_layer("values_of_keys", [shared and kind == FULL for kind in kinds])
    return merge_fields(heads_by_layer(fields, kinds, usual, wide), values_of_keys)


def heads_by_layer(fields: Fields, kinds: list[str], usual: dict[str, int], wide: dict[str, int]) -> dict[str, Any]:
    """The heads of each layer: as per_layer_config says, or ``wide`` without a window."""
    layers = [wide if kind == FULL else usual for kind in kinds]
    if (own := fields.object("per_layer_config")) is not None:
        of_layers = [own.object(str(layer)) or Fields({}, fields.source) for layer in range(len(kinds))]
        layers = [{ours: one.whole(key, usual[ours]) for ours, key in _OF_HEADS.items()} for one in of_layers]
        for one in of_layers:
            one.refuse_unknown(())
    return merge_fields(*(by_layer(name, [layer[name] for layer in layers]) for name in _OF_HEADS))


def written_heads(config: ModelConfig) -> dict[str, Any]:
    layers = [config.at(layer) for layer in range(config.n_layers)]
    own = [{key: getattr(layer, ours) for ours, key in _OF_HEADS.items()} for layer in layers]
    return {**own[0], "per_layer_config": {str(layer): values for layer, values in enumerate(own)}}


def _write_heads(config: ModelConfig) -> dict[str, Any]:
    shared = any(config.at(layer).values_of_keys for layer in range(config.n_layers))
    return {**written_heads(config), "attention_k_eq_v": shared}


def _read_shared(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The last layers, which share the keys of earlier ones and may have feed-forwards twice as wide."""
    layers = draft["n_layers"]
    own = layers - fields.whole("num_kv_shared_layers", 0, least=0, most=layers - 1)
    wider = 2 if fields.flag("use_double_wide_mlp", False) else 1
    return merge_fields(
        by_layer("shares_keys", [layer >= own for layer in range(layers)]),
        by_layer("d_ff", [draft["d_ff"] * (wider if layer >= own else 1) for layer in range(layers)]),
    )


def _write_shared(config: ModelConfig) -> dict[str, Any]:
    layers = [config.at(layer) for layer in range(config.n_layers)]
    return {
        "num_kv_shared_layers": sum(layer.shares_keys for layer in layers),
        "use_double_wide_mlp": layers[-1].d_ff == 2 * layers[0].d_ff,
    }


def _read_inputs(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    width = fields.whole("hidden_size_per_layer_input", 256, least=0)
    rows = fields.whole("vocab_size_per_layer_input", 262_144)
    if width and rows != draft["vocab_size"]:
        raise fields.fault(f"vocab_size_per_layer_input {rows:,} is not vocab_size {draft['vocab_size']:,}")
    return {"d_layer_input": width}


def _write_inputs(config: ModelConfig) -> dict[str, Any]:
    return {
        "hidden_size_per_layer_input": config.d_layer_input,
        "vocab_size_per_layer_input": config.vocab_size,
    }


def _read_experts(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The experts, beside a feed-forward for every token, which is the shared expert."""
    if not fields.flag("enable_moe_block", False):
        return {}
    if "by_layer" in draft and any(name == "d_ff" for name, _ in draft["by_layer"]):
        raise fields.fault("use_double_wide_mlp true is not implemented with experts")
    return {
        "experts": fields.whole("num_experts", least=1),
        "experts_per_token": fields.whole("top_k_experts", least=1),
        "d_expert": fields.whole("moe_intermediate_size", least=1),
        "d_shared": draft["d_ff"],
        "expert_norms": True,
    }


def _write_experts(config: ModelConfig) -> dict[str, Any]:
    if not config.experts:
        return {"enable_moe_block": False}
    return {
        "enable_moe_block": True,
        "num_experts": config.experts,
        "top_k_experts": config.experts_per_token,
        "moe_intermediate_size": config.d_expert,
        "intermediate_size": config.d_shared,
    }


ROPE = rope(
    1_000_000.0,
    kinds=kinds_of,
    local=lambda _: 10_000.0,
    scalings={"default": "none", "proportional": "proportional"},
)
WINDOWS = windows(kinds_of, 512)


def _write_windows(config: ModelConfig) -> dict[str, Any]:
    """The window, left out where no layer has one: transformers does not accept null here."""
    return {key: value for key, value in WINDOWS.write(config).items() if value is not None}


UNSCALED = {name: replace(layout, offset=0.0) for name, layout in GEMMA2.stored.items()}
"""The tensors of Gemma 2, with norms that multiply by their gain itself."""
LAYER_INPUTS = {
    "blocks.{n}.ple.tokens": Stored("embed_tokens_per_layer", of_layers=True, axis=1),
    "blocks.{n}.ple.context": Stored("per_layer_model_projection", of_layers=True),
    "blocks.{n}.ple.norm": Stored("per_layer_projection_norm"),
    "blocks.{n}.ple.gate": Stored("layers.{n}.per_layer_input_gate"),
    "blocks.{n}.ple.out": Stored("layers.{n}.per_layer_projection"),
    "blocks.{n}.ple.out_norm": Stored("layers.{n}.post_per_layer_input_norm"),
}
"""The embeddings of layers."""
NOT_OWN = Skip(r"layers\.\d+\.self_attn\.[kv]_(proj|norm)\..*", "keys of layers that share them")
_NOT_UNIFIED = (Group(_read_inputs, _write_inputs), Group(_read_experts, _write_experts))
_EXPERTS = {
    "router": Stored("layers.{n}.router.proj"),
    "router_norm": Stored("layers.{n}.router.scale", bare=True),
    "weights": Stored("layers.{n}.router.per_expert_scale", bare=True),
    "experts_norm": Stored("layers.{n}.pre_feedforward_layernorm_2"),
    "mixed_norm": Stored("layers.{n}.post_feedforward_layernorm_2"),
    "shared_norm": Stored("layers.{n}.post_feedforward_layernorm_1"),
}

GEMMA4 = replace(
    GEMMA2,
    name="Gemma 4",
    model_type="gemma4_text",
    classes={"none": "Gemma4TextModel", "lm": "Gemma4ForCausalLM"},
    only={"use_bidirectional_attention": ("vision",)},
    harmless=("num_experts", "top_k_experts", "moe_intermediate_size"),  # null without experts
    fixed={**GEMMA2.fixed, "qk_norm": True, "v_norm": True, "layer_scale": True, "attention_divisor": 1.0},
    settings=(
        *(key for key in UNTURNED if key.name != "num_key_value_heads"),
        Group(_read_heads, _write_heads),
        Group(_read_shared, _write_shared),
        *_NOT_UNIFIED,
        ROPE,
        Key("hidden_activation", "activation", "gelu_pytorch_tanh", ACTIVATIONS),
        cap("final_logit_softcapping", "logit_cap", 0.0),
        Group(lambda fields, draft, tensors: {"embed_scale": math.sqrt(draft["d_model"])}),
        Group(WINDOWS.read, _write_windows),
        Key("attention_bias", "qkv_bias o_bias", False),
        Key("tie_word_embeddings", "tied_head", True),
        lm_head(),
    ),
    stored={
        **UNSCALED,
        **LAYER_INPUTS,
        **{f"blocks.{{n}}.ffn.{name}": layout for name, layout in _EXPERTS.items()},
        **shared_expert("layers.{n}.mlp"),
        **stacked_experts("layers.{n}.experts"),
        "blocks.{n}.scale": Stored("layers.{n}.layer_scalar", bare=True),
    },
    skipped=(*GEMMA2.skipped, NOT_OWN),
)
"""Gemma 4 (Google 2026)."""

GEMMA4_UNIFIED = replace(
    GEMMA4,
    name="Gemma 4 Unified",
    model_type="gemma4_unified_text",
    classes={"none": "Gemma4UnifiedTextModel", "lm": "Gemma4UnifiedForCausalLM"},
    harmless=(),
    settings=tuple(setting for setting in GEMMA4.settings if setting not in _NOT_UNIFIED),
)
"""Gemma 4 12B, whose images and sounds need no encoder: without embeddings of layers or experts."""
