"""Families that normalise queries and keys after RoPE: Llama 4 (Meta 2025) and HunYuan (Tencent 2025)."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.experts import TRAINING
from tinytf.checkpoints.huggingface.llama import BIASES, FIXED, HEAD_AND_ACTIVATION, LLAMA, UNTURNED
from tinytf.checkpoints.huggingface.rope import rope
from tinytf.checkpoints.huggingface.table import by_layer, merge_fields
from tinytf.checkpoints.huggingface.windows import FULL
from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Field, Fields

_CHUNKED = "chunked_attention"
_EPS = Key("rms_norm_eps", "norm_eps", 1e-5)


def _read_layers(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Which layers have RoPE, QK norms, scaled queries, chunks and experts."""
    count = draft["n_layers"]
    interval = fields.whole("no_rope_layer_interval", 4, least=1)
    default = [int((layer + 1) % interval != 0) for layer in range(count)]
    flags = fields.array("no_rope_layers", int, ()) and fields.array("no_rope_layers", int, count=count)
    rotary = [bool(flag) for flag in flags or default]
    kinds = fields.array("layer_types", str, [_CHUNKED if is_rotary else FULL for is_rotary in rotary], count=count)
    chunk = fields.whole("attention_chunk_size", 8192, least=1)
    qk_norm = fields.flag("use_qk_norm", True)
    query_scale = fields.number("attn_scale", 0.1) * _scales_queries(fields)
    step, experts = fields.whole("interleave_moe_layer_step", 1, least=1), fields.whole("num_local_experts", 16)
    expert_layers = set(fields.array("moe_layers", int, range(step - 1, count, step)))
    expert_counts = [experts if layer in expert_layers else 0 for layer in range(count)]
    if not any(expert_counts):
        raise fields.fault("moe_layers leaves no layer with experts")
    return merge_fields(
        {"experts": experts, "qk_norm": qk_norm},
        by_layer("positions", ["rotary" if is_rotary else "none" for is_rotary in rotary]),
        by_layer("chunk", [fields.meaning("layer_types", kind, {_CHUNKED: chunk, FULL: 0}) for kind in kinds]),
        by_layer("qk_norm", [qk_norm and is_rotary for is_rotary in rotary]),
        by_layer("query_scale", [0.0 if is_rotary else query_scale for is_rotary in rotary]),
        by_layer("experts", expert_counts),
        {"query_scale_every": fields.whole("floor_scale", 8192, least=1), "query_scale_first": 1},
    )


def _scales_queries(fields: Fields) -> bool:
    """Whether queries grow with their position; the first checkpoints store this as a number."""
    value = fields.data.get("attn_temperature_tuning", True)
    return bool(fields.get(Field("attn_temperature_tuning", int if type(value) is int else bool, True)))


def _write_layers(config: ModelConfig) -> dict[str, Any]:
    layers = [config.at(n) for n in range(config.n_layers)]
    query_scale = max(layer.query_scale for layer in layers)
    return {
        "no_rope_layers": [int(layer.positions == "rotary") for layer in layers],
        "layer_types": [_CHUNKED if layer.chunk else FULL for layer in layers],
        "attention_chunk_size": max(layer.chunk for layer in layers) or 8192,
        "use_qk_norm": any(layer.qk_norm for layer in layers),
        "attn_temperature_tuning": query_scale > 0,
        "attn_scale": query_scale,
        "floor_scale": config.query_scale_every or 8192,
        "num_local_experts": config.experts,
        "moe_layers": [n for n, layer in enumerate(layers) if layer.experts],
    }


_EXPERTS = "layers.{n}.feed_forward.experts"
_HALVES: dict[str, Any] = {"transposed": True, "bare": True, "parts": ("d_expert", "d_expert"), "axis": 1}
LLAMA4 = replace(
    LLAMA,
    name="Llama 4",
    model_type="llama4_text",
    classes={"none": "Llama4TextModel", "lm": "Llama4ForCausalLM"},
    fixed={
        **FIXED,
        "qk_norm_last": True,
        "qk_norm_gain": False,
        "router": "sigmoid",
        "routes_renormed": False,
        "routes_first": True,
    },
    needs=("experts",),
    only={},
    settings=(
        *(key for key in UNTURNED if not isinstance(key, Key) or key.name != "intermediate_size"),
        _EPS,
        Key("intermediate_size", "d_expert d_shared"),
        Key("intermediate_size_mlp", "d_ff", 16384),
        rope(500_000.0),
        Key("head_dim", "d_head", 128),
        *HEAD_AND_ACTIVATION,
        BIASES,
        Key("num_experts_per_tok", "experts_per_token", 1),
        Group(_read_layers, _write_layers),
    ),
    harmless=(*TRAINING, "for_llm_compressor"),
    stored={
        **{
            name: replace(layout, module=layout.module.replace(".mlp.", ".feed_forward."))
            for name, layout in LLAMA.stored.items()
        },
        "blocks.{n}.attention.q": Stored("layers.{n}.self_attn.q_proj", paired="n_heads"),
        "blocks.{n}.attention.k": Stored("layers.{n}.self_attn.k_proj", paired="n_kv_heads"),
        "blocks.{n}.ffn.router": Stored("layers.{n}.feed_forward.router"),
        "blocks.{n}.ffn.experts.gate": Stored(f"{_EXPERTS}.gate_up_proj", **_HALVES),
        "blocks.{n}.ffn.experts.up": Stored(f"{_EXPERTS}.gate_up_proj", part=1, **_HALVES),
        "blocks.{n}.ffn.experts.down": Stored(f"{_EXPERTS}.down_proj", transposed=True, bare=True),
        **{
            f"blocks.{{n}}.ffn.shared.{name}": Stored(f"layers.{{n}}.feed_forward.shared_expert.{name}_proj")
            for name in ("gate", "up", "down")
        },
    },
)
"""Llama 4: layers with chunked attention, layers without positions; experts whose inputs are weighted."""

_ROPE = rope(sections=True)


def _read_rope(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The usual rotary settings; "dynamic" with an alpha multiplies the base by alpha^(D / (D − 2)), at any length."""
    rotary = fields.object("rope_parameters") or fields.object("rope_scaling") or Fields({}, fields.source)
    alpha, width = rotary.number("alpha", 0.0), draft["d_head"] or draft["d_model"] // draft["n_heads"]
    if rotary.data.get("rope_type", rotary.data.get("type")) != "dynamic" or not alpha:
        return _ROPE.read(fields, draft, tensors)
    base = rotary.number("rope_theta", fields.number("rope_theta", 10_000.0))
    return {"rope_theta": base * alpha ** (width / (width - 2))}


HUNYUAN = replace(
    LLAMA,
    name="HunYuan",
    model_type="hunyuan_v1_dense",
    classes={"none": "HunYuanDenseV1Model", "lm": "HunYuanDenseV1ForCausalLM"},
    fixed={**FIXED, "qk_norm": True, "qk_norm_last": True},
    only={"use_qk_norm": (True,)},
    settings=(
        *UNTURNED,
        _EPS,
        Key("head_dim", "d_head", 0),
        Group(_read_rope, _ROPE.write),
        *HEAD_AND_ACTIVATION,
        BIASES,
    ),
    harmless=("eod_token_id",),
    stored={
        **LLAMA.stored,
        "blocks.{n}.attention.q_norm": Stored("layers.{n}.self_attn.query_layernorm"),
        "blocks.{n}.attention.k_norm": Stored("layers.{n}.self_attn.key_layernorm"),
    },
)
