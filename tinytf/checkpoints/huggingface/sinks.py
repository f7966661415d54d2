"""Llama-like decoders with windows, most with attention sinks: Granite 4 with windows, its experts, Flint, Kolibri."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.cousins import GRANITE
from tinytf.checkpoints.huggingface.experts import QWEN3_MOE, SOME_LAYERS
from tinytf.checkpoints.huggingface.llama import BIASES, HEAD_AND_ACTIVATION, UNTURNED
from tinytf.checkpoints.huggingface.rope import ROPE
from tinytf.checkpoints.huggingface.routing import MIXED, SIGMOID, shared_expert
from tinytf.checkpoints.huggingface.softmax_experts import GRANITE_MOE_SHARED
from tinytf.checkpoints.huggingface.table import by_layer, lm_head, merge_fields
from tinytf.checkpoints.huggingface.windows import SLIDING, layer_kinds, window_of, windows
from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors, stacked_experts
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_SINK = {"blocks.{n}.attention.sink": Stored("layers.{n}.self_attn.sinks", bare=True)}


def _read_bases(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The rotary base of each layer, which has no positions where that is 0."""
    common = draft["rope_theta"]
    bases = fields.array("layer_rope_theta", float, None, count=draft["n_layers"]) or [common] * draft["n_layers"]
    usual = max(bases) or common
    return merge_fields(
        by_layer("positions", ["rotary" if base else "none" for base in bases]),
        by_layer("rope_theta", [base or usual for base in bases]),
    )


def _write_bases(config: ModelConfig) -> dict[str, Any]:
    layers = [config.at(layer) for layer in range(config.n_layers)]
    return {"layer_rope_theta": [layer.rope_theta if layer.positions == "rotary" else 0 for layer in layers]}


_WINDOWS = (windows(layer_kinds(lambda fields, layer: layer % 4 != 0), 128), Group(_read_bases, _write_bases))

GRANITE_SWA = replace(
    GRANITE,
    name="Granite with windows",
    model_type="granite_swa",
    classes={"none": "GraniteSWAModel", "lm": "GraniteSWAForCausalLM"},
    fixed={**GRANITE.fixed, "attention_sinks": True},
    settings=(
        *GRANITE.settings,
        Key("rms_norm_eps", "norm_eps", 1e-5),
        Key("tie_word_embeddings", "tied_head", True),
        lm_head(),
        *_WINDOWS,
    ),
    stored={**GRANITE.stored, **_SINK},
)
"""IBM 2026: full attention in every fourth layer."""

GRANITE_MOE_SWA = replace(
    GRANITE_MOE_SHARED,
    name="Granite-MoE with windows",
    model_type="granitemoe_swa",
    classes={"none": "GraniteMoeSWAModel", "lm": "GraniteMoeSWAForCausalLM"},
    fixed={**GRANITE_MOE_SHARED.fixed, "attention_sinks": True},
    settings=(*GRANITE_MOE_SHARED.settings, *_WINDOWS),
    stored={
        **GRANITE_MOE_SHARED.stored,
        **_SINK,
        "blocks.{n}.ffn.router": Stored("layers.{n}.block_sparse_moe.router"),
        **stacked_experts("layers.{n}.block_sparse_moe.experts"),
    },
    spellings=(),
)


def _read_flint(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Layers with a window have RoPE, the others no positions."""
    layers = range(draft["n_layers"])
    kinds = layer_kinds(lambda _, layer: layer > 1 and layer % 4 != 1 and layer != layers[-1])
    return merge_fields(
        windows(kinds, 513).read(fields, draft, tensors),
        by_layer("positions", ["rotary" if kind == SLIDING else "none" for kind in kinds(fields, draft)]),
    )


FLINT = replace(
    QWEN3_MOE,
    name="Flint",
    model_type="flint",
    classes={"none": "FlintModel", "lm": "FlintForCausalLM"},
    fixed={**QWEN3_MOE.fixed, "attention_sinks": True, "router": "sigmoid"},
    settings=(
        *UNTURNED,
        ROPE,
        Key("head_dim", "d_head", 128),
        *HEAD_AND_ACTIVATION,
        BIASES,
        Group(_read_flint, windows(layer_kinds(lambda fields, layer: False)).write),
        SOME_LAYERS,
        Key("num_experts_per_tok", "experts_per_token", 6),
        Key("moe_intermediate_size", "d_expert", 512),
        Key("shared_expert_intermediate_size", "d_shared", 1024),
        Key("norm_topk_prob", "routes_renormed", True),
    ),
    stored={
        **QWEN3_MOE.stored,
        "blocks.{n}.attention.sink": Stored("layers.{n}.self_attn.softmax_offset", bare=True),
        **shared_expert("layers.{n}.mlp.shared_expert"),
    },
    spellings=((r"self_attn\.sinks$", "self_attn.softmax_offset"),),
)
"""Recursive 2026: experts chosen by sigmoids; layers without a window have no positions."""


def _read_kolibri(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Experts, and layers that have RoPE if they or none have a window."""
    count = "num_local_experts" if "num_local_experts" in fields.data else "num_experts"
    windowed = window_of(fields, 513) > 0
    kinds = _FOUR_OF_FIVE(fields, draft)
    turned = ["rotary" if kind == SLIDING or not windowed else "none" for kind in kinds]
    return {"experts": fields.whole(count, 384), **by_layer("positions", turned)}


_FOUR_OF_FIVE = layer_kinds(lambda fields, layer: (layer + 1) % 5 != 0)
KOLIBRI = replace(
    QWEN3_MOE,
    name="Kolibri",
    model_type="kolibri1",
    classes={"none": "Kolibri1Model", "lm": "Kolibri1ForCausalLM"},
    harmless=(*QWEN3_MOE.harmless, "intermediate_size"),  # every expert has its own width
    fixed={**QWEN3_MOE.fixed, **SIGMOID, "choice_of_scores": False, "norm_order": "both"},
    settings=(
        *(key for key in UNTURNED if not isinstance(key, Key) or key.name != "intermediate_size"),
        Key("moe_intermediate_size", "d_ff d_expert", 512),
        Key("head_dim", "d_head", 128),
        ROPE,
        *HEAD_AND_ACTIVATION,
        windows(_FOUR_OF_FIVE, 513),
        Group(_read_kolibri, lambda config: {"num_experts": config.experts}),
        Key("num_experts_per_tok", "experts_per_token", 6),
        Key("shared_expert_intermediate_size", "d_shared", 512),
        Key("norm_topk_prob", "routes_renormed", False),
    ),
    stored={
        **QWEN3_MOE.stored,
        **MIXED,
        "blocks.{n}.attn_norm": Stored("layers.{n}.post_attn_norm"),
        "blocks.{n}.ffn_norm": Stored("layers.{n}.post_ffn_norm"),
        "blocks.{n}.ffn.preference": Stored("layers.{n}.moe.router.expert_bias", bare=True),
    },
    spellings=(
        (r"mlp\.gate\.e_score_correction_bias", "moe.router.expert_bias"),
        ("post_self_attn_layernorm", "post_attn_norm"),
        ("post_mlp_layernorm", "post_ffn_norm"),
    ),
)
"""Kolibri 1 (Aleph Alpha 2026): a bias on the router's own numbers decides the choice."""
