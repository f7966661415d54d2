"""Step 3.5 and 3.7 Flash (StepFun 2026): gated heads, more of them in layers with a window, limits in some layers."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.llama import BIASES, FIXED, HEAD_AND_ACTIVATION, LLAMA, UNTURNED
from tinytf.checkpoints.huggingface.rope import rope
from tinytf.checkpoints.huggingface.routing import FURTHER_LAYERS, SIGMOID, routed, shared_expert
from tinytf.checkpoints.huggingface.table import by_layer, merge_fields
from tinytf.checkpoints.huggingface.windows import FULL, SLIDING, layer_kinds, windows
from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors, stacked_experts
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_KINDS = layer_kinds(lambda fields, layer: False)
_WINDOWS = windows(_KINDS)
_BY_LAYER = (
    "layer_types", "mlp_layer_types", "swiglu_limits", "swiglu_limits_shared", "rope_theta", "partial_rotary_factors",
)  # fmt: skip
_LIMITS = ("swiglu_limits", "swiglu_limits_shared")


def _keys_now(data: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of transformers from those of the published file, whose lists count layers beyond the last, too."""
    layers, further = data.get("num_hidden_layers", 45), data.get("num_nextn_predict_layers") or 0
    keys = dict(data)
    if not isinstance(layers, int) or not isinstance(further, int):
        return keys
    for name in _BY_LAYER:
        if isinstance(value := keys.get(name), list) and len(value) == layers + further:
            keys[name] = value[:layers]
    keys |= {name: [limit or 0.0 for limit in keys[name]] for name in _LIMITS if isinstance(keys.get(name), list)}
    other, sparse = keys.pop("attention_other_setting", None), keys.pop("moe_layers_enum", None)
    if isinstance(other, dict) and keys.get("num_sliding_attention_heads") is None:
        keys["num_sliding_attention_heads"] = other.get("num_attention_heads")
    if isinstance(sparse, str | list) and keys.get("mlp_layer_types") is None:
        numbers = {str(number).strip() for number in (sparse.split(",") if isinstance(sparse, str) else sparse)}
        keys["mlp_layer_types"] = ["sparse" if str(layer) in numbers else "dense" for layer in range(layers)]
    return keys


_ROPE = rope(share=1.0, kinds=_KINDS)


def _read_rope(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Rotary settings by kind of layer, or as published: by layer, and scaled where there is no window."""
    names = ("rope_parameters", "rope_theta", "partial_rotary_factors", "rope_scaling")
    fields.asked.update(names)
    parameters, bases, shares, scaling = (fields.data.get(name) for name in names)
    layers = _KINDS(fields, draft)
    if not isinstance(parameters, dict) or not {*layers} <= parameters.keys():
        given = bases if isinstance(bases, list) else [10_000.0 if bases is None else bases] * len(layers)
        parts = shares if isinstance(shares, list) and shares else [1.0] * len(layers)
        if {len(given), len(parts)} != {len(layers)}:
            raise fields.fault(f"rope_theta and partial_rotary_factors are not of {len(layers):,} layers")
        parameters = {
            kind: {"rope_theta": base, "partial_rotary_factor": part}
            for kind, base, part in reversed([*zip(layers, given, parts, strict=True)])  # the first of a kind counts
        }
        if isinstance(scaling, dict) and FULL in parameters:
            parameters[FULL] |= scaling
    now = {**fields.data, "rope_parameters": {kind: parameters[kind] for kind in {*layers}}}
    settings = Fields({name: value for name, value in now.items() if name not in names[1:]}, fields.source)
    return _ROPE.read(settings, draft, tensors)


def _read_heads(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The query heads of each layer, by layer or as many in all with a window; √query_pre_attn_scalar of scores."""
    own, usual = fields.object("per_layer_config"), draft["n_heads"]
    sliding = fields.whole("num_sliding_attention_heads", usual)
    heads = [sliding if kind == SLIDING else usual for kind in _KINDS(fields, draft)]
    if own is not None:
        heads = [usual] * len(heads)
        for layer in own.data:
            if not layer.isdecimal() or int(layer) >= len(heads):
                raise fields.fault(f"per_layer_config has no layer {layer}")
            settings = own.object(layer) or Fields({}, fields.source)
            heads[int(layer)] = settings.whole("num_attention_heads", usual)
            settings.refuse_unknown(())
    scalar = fields.number("query_pre_attn_scalar", draft["d_head"])
    if scalar <= 0:
        raise fields.fault(f"query_pre_attn_scalar {scalar:g} is not above 0")
    return {
        "attention_divisor": math.sqrt(scalar),
        "gate_bias": not draft["qkv_bias"],
        **by_layer("n_heads", heads),
    }


def _write_heads(config: ModelConfig) -> dict[str, Any]:
    layers = [config.at(layer) for layer in range(config.n_layers)]
    return {
        "num_attention_heads": layers[0].n_heads,
        "per_layer_config": {str(n): {"num_attention_heads": layer.n_heads} for n, layer in enumerate(layers)},
        "query_pre_attn_scalar": config.score_divisor**2,
    }


def _read_limits(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Limits of activated units by layer, 0 for none: of routed experts, and of all else."""
    layers = draft["n_layers"]
    routed_limits, limits = (fields.array(name, float, [0.0] * layers, count=layers) for name in _LIMITS)
    mixed = dict(draft.get("by_layer", ())).get("experts", [draft.get("experts", 0)] * layers)
    each = [
        (own, other) if experts else (other, 0.0)
        for own, other, experts in zip(routed_limits, limits, mixed, strict=True)
    ]
    act_limits, shared_limits = zip(*each, strict=True)
    return merge_fields(by_layer("act_limit", act_limits), by_layer("shared_limit", shared_limits))


def _write_limits(config: ModelConfig) -> dict[str, Any]:
    layers = [config.at(layer) for layer in range(config.n_layers)]
    return {
        "swiglu_limits": [layer.act_limit if layer.experts else 0.0 for layer in layers],
        "swiglu_limits_shared": [layer.shared_limit if layer.experts else layer.act_limit for layer in layers],
    }


_EXPERTS = "layers.{n}.mlp.experts"
_PUBLISHED = {name: Stored(f"layers.{{n}}.moe.{name}_proj") for name in ("gate", "up", "down")}
STEP3P5 = replace(
    LLAMA,
    name="Step 3.7",
    model_type="step3p5",
    classes={"none": "Step3p7TextModel"},
    only={"use_bidirectional_attention": (False,), "gating": (True, "per-head")},
    fixed={**FIXED, **SIGMOID, "qk_norm": True, "attention_gate": True, "gate_by_head": True},
    settings=(
        *UNTURNED,
        Key("rms_norm_eps", "norm_eps", 1e-5),
        Key("head_dim", "d_head", 128),
        Group(_read_rope, _ROPE.write),
        *HEAD_AND_ACTIVATION,
        BIASES,
        Key("mlp_bias", "ffn_bias", False),
        _WINDOWS,
        Group(_read_heads, _write_heads),
        routed("", 3, kinds=True, shared="", scale=""),
        Key("moe_router_scaling_factor", "routed_scale", 1.0),
        Key("share_expert_dim", "d_shared", 1280),
        Group(_read_limits, _write_limits),
    ),
    written={"pad_token_id": 0},  # null is refused
    harmless=(
        # of MiniMax M3: transformers takes layers from them only without lists of kinds, and has made both by then
        "moe_layer_freq",
        "sparse_attention_config",
        "output_router_logits",
        "use_moe",
        "moe_layer_offset",
        "moe_every_n_layer",
        "norm_expert_weight",
        "moe_router_activation",
        "use_moe_router_bias",
        "need_fp32_gate",
        "att_impl_type",
        "use_head_wise_attn_gate",
        "use_qk_norm",
        "use_rope_layers",
        "yarn_only_types",
        "zero_centered",
    ),
    stored={
        **{name: replace(layout, offset=1.0) if "norm" in name else layout for name, layout in LLAMA.stored.items()},
        "blocks.{n}.attention.gate": Stored("layers.{n}.self_attn.g_proj"),
        "blocks.{n}.ffn.router": Stored("layers.{n}.mlp.gate"),
        "blocks.{n}.ffn.preference": Stored("layers.{n}.mlp.gate.e_score_correction_bias", bare=True),
        **{
            ours: replace(layout, instead=_PUBLISHED[ours.rpartition(".")[2]])
            for ours, layout in stacked_experts(_EXPERTS).items()
        },
        **shared_expert("layers.{n}.mlp.shared_experts"),
    },
    spellings=(
        (r"\.moe\.gate\.", ".mlp.gate."),
        (r"\.moe\.router_bias$", ".mlp.gate.e_score_correction_bias"),
        (r"\.share_expert\.", ".mlp.shared_experts."),
    ),
    skipped=(*LLAMA.skipped, FURTHER_LAYERS),
    keys_now=_keys_now,
    routes_scaled_after=True,
)
