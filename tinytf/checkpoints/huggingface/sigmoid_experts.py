"""Experts chosen by sigmoids: GLM-4.5, Solar Open, dots.llm1, K-EXAONE, Hy3, Trinity, Laguna and MiniMax M2."""

import math
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.cousins import EXAONE4, require_rope
from tinytf.checkpoints.huggingface.experts import MIXTRAL, TRAINING
from tinytf.checkpoints.huggingface.llama import BIASES, FIXED, HEAD_AND_ACTIVATION, LLAMA, SETTINGS, UNTURNED
from tinytf.checkpoints.huggingface.rope import rope, rotary_pairs
from tinytf.checkpoints.huggingface.routing import (
    FURTHER_LAYERS,
    FURTHER_NAMED,
    MIXED,
    SIGMOID,
    routed,
    shared_expert,
    sigmoid_router,
)
from tinytf.checkpoints.huggingface.table import by_layer
from tinytf.checkpoints.huggingface.windows import SLIDING, all_but_nth, layer_kinds, window_of, windows
from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors, experts
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_EPS = Key("rms_norm_eps", "norm_eps", 1e-5)
_QKV_BIAS = Key("attention_bias", "qkv_bias", False)
GLM4_MOE = replace(
    LLAMA,
    name="GLM-4.5",
    model_type="glm4_moe",
    classes={"none": "Glm4MoeModel", "lm": "Glm4MoeForCausalLM"},
    settings=(
        *UNTURNED,
        _EPS,
        Key("head_dim", "d_head", 0),
        rope(share=0.5),
        *HEAD_AND_ACTIVATION,
        _QKV_BIAS,
        Key("use_qk_norm", "qk_norm", False),
        routed(first=1),
        sigmoid_router(),
    ),
    harmless=(*TRAINING, "num_nextn_predict_layers", "scoring_func", "topk_method"),
    stored={**LLAMA.stored, **MIXED},
    skipped=(*LLAMA.skipped, FURTHER_LAYERS),
)
"""GLM-4.5, 4.6 and 4.7 (Zhipu 2025)."""

SOLAR_OPEN = replace(
    GLM4_MOE,
    name="Solar Open",
    model_type="solar_open",
    classes={"none": "SolarOpenModel", "lm": "SolarOpenForCausalLM"},
    settings=(
        *(key for key in UNTURNED if not isinstance(key, Key) or key.name != "intermediate_size"),
        Key("moe_intermediate_size", "d_ff"),
        _EPS,
        Key("head_dim", "d_head", 128),
        rope(1_000_000.0),
        *HEAD_AND_ACTIVATION,
        _QKV_BIAS,
        routed(),
        sigmoid_router(),
    ),
    needs=("experts",),
    harmless=(*GLM4_MOE.harmless, "intermediate_size", "use_qk_norm"),
    skipped=LLAMA.skipped,
)

_LATE = layer_kinds(
    lambda fields, layer: window_of(fields, 4096) > 0 and layer >= fields.whole("max_window_layers", 62)
)
DOTS1 = replace(
    LLAMA,
    name="dots.llm1",
    model_type="dots1",
    classes={"none": "Dots1Model", "lm": "Dots1ForCausalLM"},
    fixed={**FIXED, "qk_norm": True},
    settings=(*SETTINGS, BIASES, windows(_LATE, 4096), routed(), sigmoid_router(renormed=False)),
    harmless=(*TRAINING, "scoring_func", "topk_method", "moe_layer_freq"),
    stored={**LLAMA.stored, **MIXED},
)
"""dots.llm1 (rednote 2025)."""

EXAONE_MOE = replace(
    EXAONE4,
    name="K-EXAONE",
    model_type="exaone_moe",
    classes={"none": "ExaoneMoeModel", "lm": "ExaoneMoeForCausalLM"},
    fixed={**FIXED, "qk_norm": True},
    settings=(
        *EXAONE4.settings,
        routed(first=1, kinds=True, count="num_experts", shared="num_shared_experts"),
        sigmoid_router(),
    ),
    harmless=(*TRAINING, "num_nextn_predict_layers", "scoring_func", "topk_method"),
    stored={
        **LLAMA.stored,
        **MIXED,
        "blocks.{n}.ffn.preference": Stored("layers.{n}.mlp.e_score_correction_bias", bare=True),
    },
    spellings=((r"mlp\.gate\.e_score", "mlp.e_score"),),
    skipped=(*LLAMA.skipped, FURTHER_NAMED),
)
"""K-EXAONE (LG 2026): EXAONE 4 with norms before each part, and experts."""

HY_V3 = replace(
    EXAONE_MOE,
    name="Hy3",
    model_type="hy_v3",
    classes={"none": "HYV3Model", "lm": "HYV3ForCausalLM"},
    fixed={**FIXED, **SIGMOID, "qk_norm": True},
    settings=(
        *UNTURNED,
        _EPS,
        Key("head_dim", "d_head", 128),
        rope(11_158_840.0),
        *HEAD_AND_ACTIVATION,
        BIASES,
        Key("mlp_bias", "ffn_bias", False),
        routed("", 1, kinds=True, count="num_experts", shared="num_shared_experts", scale="router_scaling_factor"),
    ),
    harmless=(*TRAINING, "enable_moe_fp32_combine"),
    stored={
        **EXAONE_MOE.stored,
        "blocks.{n}.ffn.router": Stored("layers.{n}.mlp.router.gate"),
        "blocks.{n}.ffn.preference": Stored("layers.{n}.mlp.expert_bias", bare=True),
        **shared_expert("layers.{n}.mlp.shared_mlp"),
    },
    spellings=(
        (r"mlp\.gate\.weight$", "mlp.router.gate.weight"),
        (r"mlp\.e_score_correction_bias", "mlp.expert_bias"),
        (r"mlp\.shared_experts\.", "mlp.shared_mlp."),
    ),
    skipped=(*LLAMA.skipped, FURTHER_LAYERS),
)
"""Hy3 (Tencent 2026)."""

_LOCAL = layer_kinds(all_but_nth("global_attn_every_n_layers", 4))


def _read_afmoe(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Layers with a window have RoPE, the others no positions; embeddings may be multiplied by √d_model."""
    kinds = _LOCAL(fields, draft)
    scale = math.sqrt(draft["d_model"]) if fields.flag("mup_enabled", False) else 1.0
    return {"embed_scale": scale, **by_layer("positions", ["rotary" if kind == SLIDING else "none" for kind in kinds])}


AFMOE = replace(
    LLAMA,
    name="Trinity",
    model_type="afmoe",
    classes={"none": "AfmoeModel", "lm": "AfmoeForCausalLM"},
    only={
        "attention_bias": (False,),
        "score_func": ("sigmoid",),
        "route_norm": (True,),
        "num_expert_groups": (1,),
        "num_limited_groups": (1,),
    },
    fixed={**FIXED, **SIGMOID, "norm_order": "both", "qk_norm": True, "attention_gate": True},
    needs=("experts",),
    settings=(
        *UNTURNED,
        _EPS,
        Key("head_dim", "d_head", 128),
        rope(),
        *HEAD_AND_ACTIVATION,
        windows(_LOCAL, 1024),
        Group(_read_afmoe, lambda config: {"mup_enabled": config.embed_scale != 1.0}),
        routed("num_dense_layers", 1, count="num_experts", shared="num_shared_experts", scale="route_scale"),
    ),
    harmless=(*TRAINING, "load_balance_coeff", "use_grouped_mm", "n_group", "topk_group"),
    stored={
        **LLAMA.stored,
        "blocks.{n}.attention.gate": Stored("layers.{n}.self_attn.gate_proj"),
        "blocks.{n}.attn_norm": Stored("layers.{n}.post_attention_layernorm"),
        "blocks.{n}.norm2": Stored("layers.{n}.pre_mlp_layernorm"),
        "blocks.{n}.ffn_norm": Stored("layers.{n}.post_mlp_layernorm"),
        "blocks.{n}.ffn.router": Stored("layers.{n}.mlp.router.gate"),
        "blocks.{n}.ffn.preference": Stored("layers.{n}.mlp.expert_bias", bare=True),
        **experts("layers.{n}.mlp.experts"),
        **shared_expert("layers.{n}.mlp.shared_experts"),
    },
)
"""Trinity (Arcee 2025): gated heads, norms before and after each part, and no positions in layers without a window."""


_IN_FILE = layer_kinds(lambda fields, layer: False)
_GATES = {True: True, "per-head": True, "per-element": False}


def _read_gates(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """What a gate multiplies, and how many query heads each layer has."""
    gating = fields.data.get("gating", True)
    fields.asked.add("gating")
    if gating not in _GATES:
        raise fields.fault(f"gating {gating!r} is not implemented")
    heads = fields.array("num_attention_heads_per_layer", int, None, count=draft["n_layers"])
    return {"gate_by_head": _GATES[gating], **by_layer("n_heads", heads or [draft["n_heads"]])}


def _write_gates(config: ModelConfig) -> dict[str, Any]:
    return {
        "gating": "per-head" if config.gate_by_head else "per-element",
        "num_attention_heads_per_layer": [config.at(layer).n_heads for layer in range(config.n_layers)],
    }


LAGUNA = replace(
    LLAMA,
    name="Laguna",
    model_type="laguna",
    classes={"none": "LagunaModel", "lm": "LagunaForCausalLM"},
    only={
        "attention_bias": (False,),
        "moe_apply_router_weight_on_input": (False,),
        "moe_router_logit_softcapping": (0.0,),
    },
    fixed={**FIXED, **SIGMOID, "qk_norm": True, "attention_gate": True, "gate_function": "softplus"},
    needs=("experts",),
    settings=(
        *UNTURNED,
        Key("head_dim", "d_head", 128),
        Group(require_rope),
        rope(500_000.0, share=1.0, kinds=_IN_FILE, local=lambda fields: 10_000.0),
        *HEAD_AND_ACTIVATION,
        windows(_IN_FILE, 512),
        Group(_read_gates, _write_gates),
        routed("", 1, kinds=True, count="num_experts", shared="", scale="moe_routed_scaling_factor"),
        Key("shared_expert_intermediate_size", "d_shared", 512),
    ),
    harmless=TRAINING,
    stored={
        **LLAMA.stored,
        "blocks.{n}.attention.gate": Stored("layers.{n}.self_attn.g_proj"),
        **MIXED,
        "blocks.{n}.ffn.preference": Stored("layers.{n}.mlp.experts.e_score_correction_bias", bare=True),
        **shared_expert("layers.{n}.mlp.shared_expert"),
    },
    spellings=((r"mlp\.gate\.e_score", "mlp.experts.e_score"), (r"mlp\.shared_experts\.", "mlp.shared_expert.")),
    routes_scaled_after=True,
)
"""Laguna (Poolside 2026): gated heads, whose number differs by layer."""


def _read_rotary_dim(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The rotary dimensions of a head as a number, if the rotary settings have no share."""
    rotated, rotary = fields.whole("rotary_dim", 0), fields.object("rope_parameters")
    has_share = "partial_rotary_factor" in fields.data or (rotary and "partial_rotary_factor" in rotary.data)
    if not rotated or has_share:
        return {}
    return rotary_pairs(fields, draft, rotated / draft["d_head"], draft["rope_theta"])


MINIMAX_M2 = replace(
    LLAMA,
    name="MiniMax M2",
    model_type="minimax_m2",
    classes={"none": "MiniMaxM2Model", "lm": "MiniMaxM2ForCausalLM"},
    only={"scoring_func": ("sigmoid",), "use_routing_bias": (True,), "shared_intermediate_size": (0,)},
    fixed={**FIXED, **SIGMOID, "qk_norm": True, "qk_norm_across": "all"},
    needs=("experts",),
    settings=(
        *UNTURNED,
        Key("head_dim", "d_head", 128),
        rope(5_000_000.0, share=1.0),
        Group(_read_rotary_dim),
        *HEAD_AND_ACTIVATION,
        Key("num_local_experts", "experts"),
        Key("num_experts_per_tok", "experts_per_token"),
    ),
    harmless=(
        *TRAINING, "attn_type_list", "use_qk_norm", "qk_norm_type", "use_mtp", "num_mtp_modules",
        "mtp_transformer_layers", "output_router_logits",
    ),
    stored={
        **MIXTRAL.stored,
        "blocks.{n}.ffn.preference": Stored("layers.{n}.block_sparse_moe.e_score_correction_bias", bare=True),
    },
    spellings=MIXTRAL.spellings,
)  # fmt: skip
"""MiniMax M2 (MiniMax 2025): queries and keys normed over all heads."""
