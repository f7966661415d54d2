"""GGUF architectures with a mixture of experts, each matrix stacked in one tensor (experts, units, d_model)."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.gguf.keys import NO_WINDOW, by_layer, except_keys, windows
from tinytf.checkpoints.gguf.layernorms import HEAD_BIAS, OLMO, STABLELM
from tinytf.checkpoints.gguf.llamas import GRANITE, HUNYUAN, LLAMA, PHI3, QK_NORMS, QWEN2, QWEN3, STORED
from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors
from tinytf.fields import Fields

COUNTS = ("expert_count", "expert_used_count")
STACKED = {
    "blocks.{n}.ffn.router": Stored("blk.{n}.ffn_gate_inp"),
    "blocks.{n}.ffn.experts.gate": Stored("blk.{n}.ffn_gate_exps"),
    "blocks.{n}.ffn.experts.up": Stored("blk.{n}.ffn_up_exps"),
    "blocks.{n}.ffn.experts.down": Stored("blk.{n}.ffn_down_exps"),
}
SHARED = {
    "blocks.{n}.ffn.shared.gate": Stored("blk.{n}.ffn_gate_shexp"),
    "blocks.{n}.ffn.shared.up": Stored("blk.{n}.ffn_up_shexp"),
    "blocks.{n}.ffn.shared.down": Stored("blk.{n}.ffn_down_shexp"),
}


def _experts(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Experts in the layers that have their tensors; a count of 0 means a dense feed-forward."""
    count = keys.whole("expert_count", 0, least=0)
    experts_per_token = keys.whole("expert_used_count", 0, least=0)
    if not count:
        return {}
    expert_counts = tuple(count if f"blk.{n}.ffn_up_exps.weight" in tensors else 0 for n in range(draft["n_layers"]))
    if not any(expert_counts):
        raise keys.fault(
            f"expert_count is {count:,}, but no layer has blk.N.ffn_up_exps.weight", "convert the model again"
        )
    return {"experts": count, "experts_per_token": experts_per_token, **by_layer(experts=expert_counts)}


EXPERTS = Group(_experts)
WIDTHS = (
    Key("expert_feed_forward_length", "d_expert", lambda draft: draft["d_ff"]),
    Key("expert_shared_feed_forward_length", "d_shared", 0),
)
MIXTRAL = replace(
    LLAMA,
    settings=(*LLAMA.settings, EXPERTS),
    stored={**LLAMA.stored, **STACKED},
    only=except_keys(*COUNTS),
)
QWEN3_MOE = replace(
    QWEN3,
    name="qwen3moe",
    settings=(*QWEN3.settings, EXPERTS, WIDTHS[0]),
    stored={**QWEN3.stored, **STACKED},
    only=except_keys(*COUNTS),
)
QWEN2_MOE = replace(
    QWEN2,
    name="qwen2moe",
    settings=(*QWEN2.settings, EXPERTS, *WIDTHS),
    fixed={**QWEN2.fixed, "routes_renormed": False, "shared_gate": True},
    stored={**QWEN2.stored, **STACKED, **SHARED, "blocks.{n}.ffn.shared_score": Stored("blk.{n}.ffn_gate_inp_shexp")},
    only=except_keys(*COUNTS),
)
OLMOE = replace(
    QWEN2,
    name="olmoe",
    settings=(*QWEN2.settings, Key("attention.clamp_kqv", "clip_qkv", 0.0), EXPERTS),
    fixed={**QWEN2.fixed, "qk_norm": True, "qk_norm_across": "all", "routes_renormed": False},
    stored={**QWEN2.stored, **QK_NORMS, **STACKED},
    only=except_keys(*COUNTS, "attention.clamp_kqv"),
)
GRANITE_MOE = replace(
    GRANITE,
    name="granitemoe",
    settings=(*GRANITE.settings, EXPERTS, WIDTHS[1]),
    stored={**GRANITE.stored, **STACKED, **SHARED},
    only=except_keys(*COUNTS),
)
HUNYUAN_MOE = replace(
    HUNYUAN,
    name="hunyuan-moe",
    settings=(*HUNYUAN.settings, EXPERTS, *WIDTHS),
    stored={**HUNYUAN.stored, **STACKED, **SHARED},
    only=except_keys(*COUNTS),
    harmless=(*HUNYUAN.harmless, "expert_shared_count"),
)
DBRX = replace(
    OLMO,
    name="dbrx",
    settings=(*OLMO.settings, EXPERTS, WIDTHS[0]),
    fixed=STABLELM.fixed,
    stored={**STABLELM.stored, **STACKED, "blocks.{n}.norm2": Stored("blk.{n}.attn_output_norm")},
    only=except_keys(*COUNTS, "attention.clamp_kqv"),
)
_LENGTH_OF_PHI = 1.243163121016122
"""short_mscale and long_mscale of Phi-3.5-MoE; no key stores them, and rope.scaling.attn_factor is another number."""


def _length_of_phi(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    return {"rope_attention_factor": _LENGTH_OF_PHI} if draft.get("rope_scaling") == "longrope" else {}


PHIMOE = replace(
    PHI3,
    name="phimoe",
    settings=(*PHI3.settings, Group(_length_of_phi), HEAD_BIAS, EXPERTS),
    fixed={**STABLELM.fixed, "route_margin": 0.02},
    stored={**STORED, **STACKED},
    only={**except_keys(*COUNTS), "expert_used_count": (2,)},
)
"""LayerNorm, although the key of its ε is RMSNorm's. No key stores the margin, twice the default jitter of 0.01."""
_windows_of_gpt_oss = windows(2)
GPT_OSS = replace(
    QWEN2,
    name="gpt-oss",
    settings=(
        *(setting for setting in QWEN2.settings if setting is not NO_WINDOW),
        Group(lambda keys, draft, tensors: by_layer(window=_windows_of_gpt_oss(keys, draft))),
        EXPERTS,
        WIDTHS[0],
    ),
    fixed={
        **QWEN2.fixed,
        "attention_sinks": True,
        "router_bias": True,
        "glu_limit": 7.0,
        "glu_alpha": 1.702,
        "rope_truncate": False,
    },
    stored={
        **QWEN2.stored,
        **STACKED,
        "blocks.{n}.attention.sink": Stored("blk.{n}.attn_sinks"),
        "blocks.{n}.norm2": Stored("blk.{n}.post_attention_norm"),
    },
    only=except_keys(*COUNTS),
)
"""No key stores the limit of its gate; the softmax of router scores is over the chosen experts."""
