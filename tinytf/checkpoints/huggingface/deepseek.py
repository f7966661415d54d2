"""DeepSeek-V2 and V3: latent attention, and experts in all but the first layers (DeepSeek-AI 2024)."""

import math
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.experts import TRAINING
from tinytf.checkpoints.huggingface.llama import LLAMA, SHARED
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, lm_head
from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors, experts
from tinytf.config import ModelConfig
from tinytf.fields import Fields


def _read_widths(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The widths of a head: its rotary dimensions, its other dimensions, and its values."""
    if draft["n_kv_heads"] != draft["n_heads"]:
        raise fields.fault(f"num_key_value_heads {draft['n_kv_heads']} is not num_attention_heads {draft['n_heads']}")
    rotated, unrotated, values = (
        fields.whole(name, default)
        for name, default in (("qk_rope_head_dim", 64), ("qk_nope_head_dim", 128), ("v_head_dim", 128))
    )
    width = rotated + unrotated
    widths = {"rope_width": rotated, "d_head": width, "d_value": 0 if values == width else values}
    rank = fields.whole("q_lora_rank", 0) if "q_lora_rank" in fields.data else 1536  # null means no compression
    return {**widths, "q_rank": rank, "attention_divisor": _divisor(fields, width)}


def _divisor(fields: Fields, width: int) -> float:
    """The divisor of scores if RoPE is scaled with mscale_all_dim; else 0, for the root of a head's width."""
    rotary = fields.object("rope_parameters") or fields.object("rope_scaling")
    if rotary is None or rotary.data.get("rope_type", rotary.data.get("type", "default")) == "default":
        return 0.0
    mscale, factor = rotary.number("mscale_all_dim", 0.0), rotary.number("factor", 1.0)
    if not mscale or factor <= 1:
        return 0.0
    return math.sqrt(width) / (0.1 * mscale * math.log(factor) + 1) ** 2


def _write_widths(config: ModelConfig) -> dict[str, Any]:
    return {
        "qk_rope_head_dim": config.rope_width,
        "qk_nope_head_dim": config.d_own,
        "v_head_dim": config.value_width,
        "q_lora_rank": config.q_rank or None,
    }


def _read_experts(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The experts of all but the first layers; n_shared_experts shared ones are read as one wide expert."""
    dense, layers = fields.whole("first_k_dense_replace", 0, least=0), draft["n_layers"]
    if dense >= layers:
        return {}
    count = fields.whole("n_routed_experts")
    if draft.get("ffn_bias"):
        raise fields.fault("mlp_bias is true, and experts have no biases")
    width = fields.whole("moe_intermediate_size", 1407)
    expert_counts = tuple(0 if layer < dense else count for layer in range(layers))
    return {
        "experts": count,
        "experts_per_token": fields.whole("num_experts_per_tok"),
        "d_expert": width,
        "d_shared": width * fields.whole("n_shared_experts", 2),
        "routed_scale": fields.number("routed_scaling_factor", 1.0),
        **({"by_layer": (*draft.get("by_layer", ()), ("experts", expert_counts))} if dense else {}),
    }


def _write_experts(config: ModelConfig) -> dict[str, Any]:
    if not config.experts:
        return {"first_k_dense_replace": config.n_layers, "n_routed_experts": 1}
    return {
        "first_k_dense_replace": sum(not config.at(layer).experts for layer in range(config.n_layers)),
        "n_routed_experts": config.experts,
        "num_experts_per_tok": config.experts_per_token,
        "moe_intermediate_size": config.d_expert,
        "n_shared_experts": config.d_shared // config.d_expert,
        "routed_scaling_factor": config.routed_scale,
        "n_group": config.expert_groups or 1,
        "topk_group": config.groups_per_token or 1,
        "norm_topk_prob": config.routes_renormed,
    }


def read_groups(fields: Fields, groups: int, kept: int, best: int) -> dict[str, int]:
    """The groups that experts are chosen from, where not all are open; ``groups`` and ``kept`` are the defaults."""
    found = {"expert_groups": fields.whole("n_group", groups), "groups_per_token": fields.whole("topk_group", kept)}
    return {**found, "group_best": best} if found["groups_per_token"] < found["expert_groups"] else {}


def _read_method(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Experts chosen by the router's softmax among all of them, or in the groups with the largest."""
    grouped = fields.word("topk_method", {"greedy": False, "group_limited_greedy": True}, "greedy")
    groups = read_groups(fields, 1, 1, best=1) if grouped and draft.get("experts") else {}
    return {"routes_renormed": False, **groups}


def _write_method(config: ModelConfig) -> dict[str, Any]:
    return {"topk_method": "group_limited_greedy" if config.expert_groups else "greedy"}


_KV_A, _KV_B = "layers.{n}.self_attn.kv_a_proj_with_mqa", "layers.{n}.self_attn.kv_b_proj"
_RANKS, _WIDTHS = ("kv_rank", "rope_width"), ("d_own", "value_width")


def _read_sigmoid(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Experts chosen by a sigmoid plus a bias, in the groups whose best two are largest; weighted by the sigmoid."""
    if not draft.get("experts"):
        return {}
    renormed = fields.flag("norm_topk_prob", True)
    return {"router": "sigmoid", "choice_bias": True, "routes_renormed": renormed, **read_groups(fields, 8, 4, best=2)}


_LINEARS = ("gate", "up", "down")
_LATENT = {
    "blocks.{n}.attention.q_a": Stored("layers.{n}.self_attn.q_a_proj"),
    "blocks.{n}.attention.q_a_norm": Stored("layers.{n}.self_attn.q_a_layernorm"),
    "blocks.{n}.attention.q": Stored("layers.{n}.self_attn.q_b_proj", paired="n_heads", rotary_last=True),
    "blocks.{n}.attention.kv_a": Stored(_KV_A, parts=_RANKS),
    "blocks.{n}.attention.k_shared": Stored(_KV_A, part=1, parts=_RANKS, paired="1"),
    "blocks.{n}.attention.kv_a_norm": Stored("layers.{n}.self_attn.kv_a_layernorm"),
    "blocks.{n}.attention.k": Stored(_KV_B, parts=_WIDTHS, by_head="n_heads"),
    "blocks.{n}.attention.v": Stored(_KV_B, part=1, parts=_WIDTHS, by_head="n_heads"),
}

_MIXED = {
    "blocks.{n}.ffn.router": Stored("layers.{n}.mlp.gate"),
    **experts("layers.{n}.mlp.experts"),
    **{f"blocks.{{n}}.ffn.shared.{name}": Stored(f"layers.{{n}}.mlp.shared_experts.{name}_proj") for name in _LINEARS},
}

_DENSE = replace(
    LLAMA,
    name="DeepSeek-V3",
    model_type="deepseek_v3",
    classes={"none": "DeepseekV3Model", "lm": "DeepseekV3ForCausalLM"},
    only={"attention_bias": (False,), "rope_interleave": (True,)},
    harmless=("aux_loss_alpha", "seq_aux", "ep_size", "moe_layer_freq", "head_dim", "qk_head_dim", "n_routed_experts"),
    settings=(
        *SHARED,
        Key("kv_lora_rank", "kv_rank", 512),
        Group(_read_widths, _write_widths),
        Key("hidden_act", "activation", "silu", ACTIVATIONS),
        Key("tie_word_embeddings", "tied_head", False),
        lm_head(),
    ),
    needs=("kv_rank", "q_rank"),
    stored={**LLAMA.stored, **_LATENT},
    spellings=((r"self_attn\.q_proj\.", "self_attn.q_b_proj."),),  # for queries that are not compressed
)
DEEPSEEK_V2 = replace(
    _DENSE,
    name="DeepSeek-V2",
    model_type="deepseek_v2",
    classes={"none": "DeepseekV2Model", "lm": "DeepseekV2ForCausalLM"},
    only={"attention_bias": (False,)},
    harmless=(*_DENSE.harmless, *TRAINING, "norm_topk_prob", "scoring_func", "n_group", "topk_group"),
    settings=(
        *_DENSE.settings,
        Key("mlp_bias", "ffn_bias", False),
        Group(_read_experts, _write_experts),
        Group(_read_method, _write_method),
    ),
    stored={**LLAMA.stored, **_LATENT, **_MIXED},
)
DEEPSEEK_V3 = replace(
    _DENSE,
    harmless=(*_DENSE.harmless, *TRAINING, "topk_method", "scoring_func", "num_nextn_predict_layers"),
    settings=(*_DENSE.settings, Group(_read_experts, _write_experts), Group(_read_sigmoid)),
    stored={
        **LLAMA.stored,
        **_LATENT,
        **_MIXED,
        "blocks.{n}.ffn.preference": Stored("layers.{n}.mlp.gate.e_score_correction_bias", bare=True),
    },
)
