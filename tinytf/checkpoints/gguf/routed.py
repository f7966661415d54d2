"""GGUF architectures with DeepSeek-V3's router: deepseek2 with its latent attention, glm4moe, dots1, minimax-m2 …"""

import math
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.gguf.experts import COUNTS, EXPERTS, SHARED, STACKED
from tinytf.checkpoints.gguf.keys import (
    NO_WINDOW,
    RMS_NORM,
    ROTARY,
    SIZES,
    VALUE_WIDTH,
    by_layer,
    except_keys,
    windows,
)
from tinytf.checkpoints.gguf.llamas import EXAONE4, GEMMA2, LLAMA, PHI3, QK_NORMS, QWEN2, SCALING, STORED
from tinytf.checkpoints.gguf.scaling import read_longrope, scaling_from_keys
from tinytf.checkpoints.table import Draft, Group, Key, Skip, Stored, Tensors
from tinytf.fields import REQUIRED, Fields

_SOFTMAX, _SIGMOID = 1, 2
"""Values of expert_gating_func."""


def read_router(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Experts with their router; several shared ones are read as one wide expert."""
    read = EXPERTS.read(keys, draft, tensors)
    if not read:
        return {}
    width = keys.whole("expert_feed_forward_length", draft.get("d_ff", REQUIRED))
    score = keys.whole("expert_gating_func", _SOFTMAX)
    if score not in (_SOFTMAX, _SIGMOID):
        raise keys.fault(f"expert_gating_func {score} is not implemented", "1 (softmax) and 2 (sigmoid) are")
    groups, kept = keys.whole("expert_group_count", 1), keys.whole("expert_group_used_count", 1)
    grouped = {"expert_groups": groups, "groups_per_token": kept, "group_best": score}  # 1 in V2, the best 2 in V3
    return {
        **read,
        "d_expert": width,
        "d_shared": width * keys.whole("expert_shared_count", 0, least=0),
        "router": "sigmoid" if score == _SIGMOID else "softmax",
        "routes_renormed": keys.flag("expert_weights_norm", False),
        "routed_scale": keys.number("expert_weights_scale", 0.0) or 1.0,
        "choice_bias": any(name.endswith(".exp_probs_b.bias") for name in tensors),
        **(grouped if kept < groups else {}),
    }


def _without_further(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """block_count includes the layers that predict further tokens."""
    return {"n_layers": draft["n_layers"] - keys.whole("nextn_predict_layers", 0, least=0)}


_SKIPPED = (Skip(r"blk\.(?P<layer>\d+)\..*", "layers that predict further tokens", noted=True),)
MIXED = {
    **STACKED,
    **SHARED,
    "blocks.{n}.ffn.preference": Stored("blk.{n}.exp_probs_b.bias", bare=True),
}
_HARMLESS = (*QWEN2.harmless, "leading_dense_block_count")


def _latent(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The widths of a head. Newer files describe the heads that llama.cpp computes with; *_mla are the model's."""
    width = keys.whole("attention.key_length_mla", 0) or keys.whole("attention.key_length")
    d_value = keys.whole("attention.value_length_mla", 0) or keys.whole("attention.value_length")
    keys.asked |= {f"{keys.prefix}attention.{name}" for name in ("key_length", "value_length", "head_count_kv")}
    return {
        "n_kv_heads": draft["n_heads"],
        "d_head": width,
        "d_value": 0 if d_value == width else d_value,
        "rope_width": keys.whole("rope.dimension_count"),
        "q_rank": keys.whole("attention.q_lora_rank", 0, least=0),
    }


def _scaling(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """YaRN leaves queries and keys as long as they are, and multiplies scores by (m · ln factor + 1)² instead."""
    scaling = scaling_from_keys(keys, log_multiplier=True)
    multiplier = keys.number("rope.scaling.yarn_log_multiplier", 0.0)
    if scaling.get("rope_scaling") != "yarn":
        return scaling
    keys.require("rope.scaling.attn_factor", (1.0,))
    growth = multiplier * math.log(scaling["rope_factor"]) + 1
    return {**scaling, "rope_attention_factor": 1.0, "attention_divisor": math.sqrt(draft["d_head"]) / growth**2}


_HEADS = ("attention.head_count_kv", "attention.key_length")
_KV_A, _KV_B = "blk.{n}.attn_kv_a_mqa", "blk.{n}.attn_kv_b"
_RANKS = ("kv_rank", "rope_width")
_OWN: dict[str, Any] = {"parts": ("d_own", "value_width"), "by_head": "n_heads"}
_ROTATED: dict[str, Any] = {"paired": "n_heads", "rotary_last": "n_heads"}
LATENT = (
    *(key for key in SIZES if not (isinstance(key, Key) and key.name in _HEADS) and key is not VALUE_WIDTH),
    Key("attention.kv_lora_rank", "kv_rank"),
    Group(_latent),
)
"""The sizes of a model with latent attention."""
DEEPSEEK2 = replace(
    QWEN2,
    name="deepseek2",
    settings=(
        *LATENT,
        NO_WINDOW,
        RMS_NORM,
        Key("rope.freq_base", "rope_theta", 10_000.0),
        Group(_without_further),
        Group(_scaling),
        Group(read_router),
    ),
    stored={
        **STORED,
        "blocks.{n}.attention.q_a": Stored("blk.{n}.attn_q_a"),
        "blocks.{n}.attention.q_a_norm": Stored("blk.{n}.attn_q_a_norm"),
        "blocks.{n}.attention.q": Stored("blk.{n}.attn_q_b", **_ROTATED, instead=Stored("blk.{n}.attn_q", **_ROTATED)),
        "blocks.{n}.attention.kv_a": Stored(_KV_A, parts=_RANKS),
        "blocks.{n}.attention.k_shared": Stored(_KV_A, part=1, parts=_RANKS, paired="1"),
        "blocks.{n}.attention.kv_a_norm": Stored("blk.{n}.attn_kv_a_norm"),
        "blocks.{n}.attention.k": Stored(
            "blk.{n}.attn_k_b", apart="n_heads", transposed=True, instead=Stored(_KV_B, **_OWN)
        ),
        "blocks.{n}.attention.v": Stored("blk.{n}.attn_v_b", apart="n_heads", instead=Stored(_KV_B, part=1, **_OWN)),
        **MIXED,
    },
    only=except_keys(*COUNTS),
    harmless=_HARMLESS,
    skipped=_SKIPPED,
)
"""DeepSeek-V2, V3 and R1, Kimi K2, GLM-4.7-Flash."""

GLM4_MOE = replace(
    QWEN2,
    name="glm4moe",
    settings=(
        *QWEN2.settings,
        Group(_without_further),
        Group(lambda keys, draft, tensors: {"qk_norm": "blk.0.attn_q_norm.weight" in tensors}),
        Group(read_router),
    ),
    stored={**STORED, **QK_NORMS, **MIXED, "blocks.{n}.norm2": Stored("blk.{n}.post_attention_norm")},
    only=except_keys(*COUNTS),
    harmless=_HARMLESS,
    skipped=_SKIPPED,
)
DOTS1 = replace(
    QWEN2,
    name="dots1",
    settings=(*QWEN2.settings, Group(read_router)),
    fixed={**QWEN2.fixed, "qk_norm": True},
    stored={**STORED, **QK_NORMS, **MIXED},
    only=except_keys(*COUNTS),
    harmless=_HARMLESS,
)
RENORMED = Group(lambda keys, draft, tensors: {"routes_renormed": True})
MINIMAX_M2 = replace(
    DOTS1,
    name="minimax-m2",
    settings=(*DOTS1.settings, RENORMED),
    fixed={**DOTS1.fixed, "qk_norm_across": "all"},
)
ERNIE4_5_MOE = replace(
    LLAMA,
    name="ernie4_5-moe",
    settings=(*LLAMA.settings, Group(read_router), RENORMED),
    stored={**LLAMA.stored, **MIXED},
    only=except_keys(*COUNTS),
    harmless=(*_HARMLESS, "interleave_moe_layer_step", "expert_shared_feed_forward_length"),
)
_windows_of_afmoe = windows(4)


def _layers_of_afmoe(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Sigmoids, whatever the file says; layers with a window have RoPE, the others no positions."""
    layer_windows = _windows_of_afmoe(keys, draft)
    positions = tuple("rotary" if window else "none" for window in layer_windows)
    scale = math.sqrt(draft["d_model"])  # there is no key for this
    return {"router": "sigmoid", "embed_scale": scale, **by_layer(window=layer_windows, positions=positions)}


AFMOE = replace(
    QWEN2,
    name="afmoe",
    settings=(*SIZES, RMS_NORM, *ROTARY, SCALING, Group(read_router), Group(_layers_of_afmoe)),
    fixed={**QWEN2.fixed, "norm_order": "both", "qk_norm": True, "attention_gate": True},
    stored={**GEMMA2.stored, **QK_NORMS, **MIXED, "blocks.{n}.attention.gate": Stored("blk.{n}.attn_gate")},
    only=except_keys(*COUNTS),
    harmless=_HARMLESS,
)

EXAONE_MOE = replace(
    EXAONE4,
    name="exaone-moe",
    settings=(*EXAONE4.settings, Group(_without_further), Group(read_router)),
    fixed={**QWEN2.fixed, "qk_norm": True},
    stored={**STORED, **QK_NORMS, **MIXED},
    only=except_keys(*COUNTS),
    harmless=_HARMLESS,
    skipped=_SKIPPED,
)


def _scales_of_minicpm3(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """There are no keys for these: as in llama.cpp they are those of the one model."""
    depth = 1.4 / math.sqrt(draft["n_layers"])
    return {"embed_scale": 12.0, "residual_scale": depth, "logit_scale": 256 / draft["d_model"]}


MINICPM3 = replace(
    DEEPSEEK2,
    name="minicpm3",
    settings=(
        *LATENT,
        RMS_NORM,
        *ROTARY[:1],
        Group(read_longrope),
        Group(_scales_of_minicpm3),
    ),
    stored={
        **DEEPSEEK2.stored,
        "blocks.{n}.attention.q": Stored("blk.{n}.attn_q_b", rotary_last="n_heads"),
        "blocks.{n}.attention.k_shared": Stored(_KV_A, part=1, parts=_RANKS),
    },
    only=QWEN2.only,
    harmless=QWEN2.harmless,
    skipped=PHI3.skipped,
)
