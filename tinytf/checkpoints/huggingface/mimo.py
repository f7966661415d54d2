"""MiMo-V2-Flash (Xiaomi 2026): windows with attention sinks and twice the key heads, values times a number, experts."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.experts import TRAINING
from tinytf.checkpoints.huggingface.llama import FIXED, HEAD_AND_ACTIVATION, LLAMA, UNTURNED
from tinytf.checkpoints.huggingface.rope import rope
from tinytf.checkpoints.huggingface.routing import FURTHER_MODULES, MIXED, routed, sigmoid_router
from tinytf.checkpoints.huggingface.table import by_layer, merge_fields
from tinytf.checkpoints.huggingface.windows import SLIDING, layer_kinds, window_of, windows
from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_KINDS = layer_kinds(lambda fields, layer: layer > 0 and (layer + 1) % 6 != 0)


def _read_windows(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """What layers with a window have: sinks, and twice the key heads; sliding_window_size leaves out the query."""
    window = window_of(fields, 129)
    if fields.data.get("sliding_window_size") is not None:  # without it, sliding_window would be read by its name
        window = fields.whole("sliding_window_size", 0, least=0) + 1
    sliding = [kind == SLIDING for kind in _KINDS(fields, draft)]
    _require_usual(fields, draft, sliding)
    return merge_fields(
        by_layer("window", [window * slides for slides in sliding]),
        by_layer("attention_sinks", sliding),
        by_layer("n_kv_heads", [draft["n_kv_heads"] * (1 + slides) for slides in sliding]),
    )


def _require_usual(fields: Fields, draft: Draft, sliding: list[bool]) -> None:
    """Refuse other values of keys that the published file has and transformers does not read."""
    usual = {
        "swa_num_attention_heads": draft["n_heads"],
        "swa_num_key_value_heads": 2 * draft["n_kv_heads"],
        "swa_head_dim": draft["d_head"],
        "swa_v_head_dim": draft["d_value"],
        "layernorm_epsilon": draft["norm_eps"],
        "hybrid_layer_pattern": [int(slides) for slides in sliding],
        "moe_layer_freq": [int(word != "dense") for word in _mlp_kinds(fields, draft["n_layers"])],
    }
    for name, value in usual.items():
        fields.require(name, (value,))


def _mlp_kinds(fields: Fields, layers: int) -> list[str]:
    return list(fields.array("mlp_layer_types", str, ["dense"] + ["sparse"] * (layers - 1), count=layers))


def _write_windows(config: ModelConfig) -> dict[str, Any]:
    first = config.at(0)
    return {**windows(_KINDS).write(config), "num_key_value_heads": first.n_kv_heads // (2 if first.window else 1)}


def _factors(fields: Fields) -> dict[str, float]:
    """What values are multiplied by, null for nothing; the last matrix is instead, so that v is what v_proj gives."""
    is_null = fields.data.get("attention_value_scale", 0.707) is None
    return {"blocks.{n}.attention.o": fields.number("attention_value_scale", 1.0 if is_null else 0.707)}


MIMO_V2_FLASH = replace(
    LLAMA,
    name="MiMo-V2-Flash",
    model_type="mimo_v2_flash",
    classes={"none": "MiMoV2FlashModel", "lm": "MiMoV2FlashForCausalLM"},
    only={
        # transformers reads rope_parameters alone
        "rope_theta": (5_000_000.0,),
        "swa_rope_theta": (10_000.0,),
        "partial_rotary_factor": (0.334,),
        "add_swa_attention_sink_bias": (True,),
        "add_full_attention_sink_bias": (False,),
        "scoring_func": ("sigmoid",),
        "topk_method": ("noaux_tc",),
        "n_shared_experts": (),
    },
    fixed=FIXED,
    settings=(
        *UNTURNED,
        Key("rms_norm_eps", "norm_eps", 1e-5),
        Key("head_dim", "d_head", 192),
        Key("v_head_dim", "d_value", 128),
        rope(5_000_000.0, share=0.334, kinds=_KINDS, local=lambda fields: 10_000.0),
        *HEAD_AND_ACTIVATION,
        Group(_read_windows, _write_windows),
        Key("attention_bias", "qkv_bias", False),
        routed("", 1, kinds=True, shared="", scale=""),
        Key("routed_scaling_factor", "routed_scale", 1.0),
        sigmoid_router(),
    ),
    needs=("experts",),
    written={"attention_value_scale": 1.0},
    harmless=(*TRAINING, "attention_chunk_size", "hybrid_block_size", "attention_projection_layout"),
    stored={
        **LLAMA.stored,
        **MIXED,
        "blocks.{n}.attention.sink": Stored("layers.{n}.self_attn.sinks", bare=True),
    },
    spellings=((r"self_attn\.attention_sink_bias$", "self_attn.sinks"),),
    skipped=(*LLAMA.skipped, FURTHER_MODULES),
    factors=_factors,
)
