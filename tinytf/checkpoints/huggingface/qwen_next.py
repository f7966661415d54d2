"""Qwen3-Next and Qwen3.5, text only (Qwen 2025, 2026): gated delta rule, gated attention in every fourth layer."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.experts import QWEN2_MOE, SOME_LAYERS, TRAINING
from tinytf.checkpoints.huggingface.llama import BIASES, FIXED, HEAD_AND_ACTIVATION, LLAMA, UNTURNED
from tinytf.checkpoints.huggingface.rope import rope
from tinytf.checkpoints.huggingface.routing import FURTHER_MODULES
from tinytf.checkpoints.huggingface.table import mixers
from tinytf.checkpoints.huggingface.windows import FULL
from tinytf.checkpoints.table import Draft, Group, Key, Skip, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields

LINEAR = "linear_attention"
DELTA_KINDS = {FULL: "attention", LINEAR: "gated_delta", "indexed_attention": "attention"}
_OF_DELTA = {
    "n_heads": ("linear_num_value_heads", 32),
    "n_kv_heads": ("linear_num_key_heads", 16),
    "d_head": ("linear_key_head_dim", 128),
    "d_value": ("linear_value_head_dim", 128),
}


def read_mixers(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The mixer of each layer, and the number and widths of its heads."""
    interval, layers = fields.whole("full_attention_interval", 4, least=1), range(draft["n_layers"])
    default = [LINEAR if (layer + 1) % interval else FULL for layer in layers]
    layer_types = fields.array("layer_types", str, default, count=len(layers))
    kinds = [fields.meaning("layer_types", kind, DELTA_KINDS) for kind in layer_types]
    if "gated_delta" in kinds and draft["activation"] != "silu":
        raise fields.fault("a hidden_act that is not silu is not implemented beside layers of linear_attention")
    delta = {ours: fields.whole(key, default, least=1) for ours, (key, default) in _OF_DELTA.items()}
    width = fields.whole("linear_conv_kernel_dim", 4, least=1)
    return {**mixers(draft, kinds, {"gated_delta": delta}), "conv_width": width}


def write_mixers(config: ModelConfig) -> dict[str, Any]:
    layers = [config.at(layer) for layer in range(config.n_layers)]
    words = {ours: kind for kind, ours in reversed(DELTA_KINDS.items())}
    delta = next((layer for layer in layers if layer.mixer == "gated_delta"), None)
    sizes = {} if delta is None else {key: getattr(delta, ours) for ours, (key, _) in _OF_DELTA.items()}
    width = {} if delta is None else {"linear_conv_kernel_dim": delta.conv_width}
    return {"layer_types": [words.get(layer.mixer) for layer in layers], **sizes, **width}


_PARTS = ("n_kv_heads·d_head", "n_kv_heads·d_head", "n_heads·d_value")
_IN = "layers.{n}.linear_attn"
CONVOLUTIONS = {
    **{
        f"blocks.{{n}}.delta.{name}_conv": Stored(f"{_IN}.conv1d", part=part, parts=_PARTS, convolution=True)
        for part, name in enumerate("qkv")
    },
    "blocks.{n}.delta.dt": Stored(f"{_IN}.dt", bare=True),
    "blocks.{n}.delta.decay": Stored(f"{_IN}.A_log", bare=True),
}
"""The parts of a gated delta rule that are stored in the same way in every family."""
_ATTENTION = {
    **{name: replace(layout, offset=1.0) if "norm" in name else layout for name, layout in LLAMA.stored.items()},
    **{
        f"blocks.{{n}}.attention.{name}": Stored(
            "layers.{n}.self_attn.q_proj", part=part, parts=("d_head", "d_head"), by_head="n_heads"
        )
        for part, name in enumerate(("q", "gate"))
    },
    **CONVOLUTIONS,
    "blocks.{n}.delta.norm": Stored(f"{_IN}.norm", gives="head_gated"),
    "blocks.{n}.delta.o": Stored(f"{_IN}.out_proj"),
}
_SETTINGS = (
    *UNTURNED,
    Key("head_dim", "d_head", 256),
    rope(10_000.0, share=0.25, sections=True),
    *HEAD_AND_ACTIVATION,
    BIASES,
)
MIXERS = Group(read_mixers, write_mixers)
_FIXED = {**FIXED, "qk_norm": True, "attention_gate": True}

QWEN3_5 = replace(
    LLAMA,
    name="Qwen3.5",
    model_type="qwen3_5_text",
    classes={"none": "Qwen3_5TextModel", "lm": "Qwen3_5ForCausalLM"},
    only={},
    needs=("attention_gate", "qk_norm"),
    fixed=_FIXED,
    settings=(*_SETTINGS, MIXERS),
    harmless=("mamba_ssm_dtype",),
    stored={
        **_ATTENTION,
        **{
            f"blocks.{{n}}.delta.{name}": Stored(f"{_IN}.in_proj_qkv", part=part, parts=_PARTS)
            for part, name in enumerate("qkv")
        },
        "blocks.{n}.delta.gate": Stored(f"{_IN}.in_proj_z"),
        "blocks.{n}.delta.beta_in": Stored(f"{_IN}.in_proj_b"),
        "blocks.{n}.delta.decay_in": Stored(f"{_IN}.in_proj_a"),
    },
    skipped=(*LLAMA.skipped, FURTHER_MODULES, Skip(r"visual\..*", "the parts for images or sound", noted=True)),
)
_EXPERTS = {name: layout for name, layout in QWEN2_MOE.stored.items() if ".ffn." in name}
QWEN3_5_MOE = replace(
    QWEN3_5,
    name="Qwen3.5-MoE",
    model_type="qwen3_5_moe_text",
    classes={"none": "Qwen3_5MoeTextModel", "lm": "Qwen3_5MoeForCausalLM"},
    fixed={**_FIXED, "shared_gate": True},
    needs=("attention_gate", "experts", "shared_gate", "routes_renormed"),
    settings=(
        Key("moe_intermediate_size", "d_expert d_ff", 512),  # no layer is dense
        *(setting for setting in _SETTINGS if getattr(setting, "name", "") != "intermediate_size"),
        Key("num_experts", "experts", 256),
        Key("num_experts_per_tok", "experts_per_token", 8),
        Key("shared_expert_intermediate_size", "d_shared", 512),
        MIXERS,
    ),
    harmless=(*QWEN3_5.harmless, *TRAINING),
    stored={**QWEN3_5.stored, **_EXPERTS},
)
QWEN3_NEXT = replace(
    QWEN3_5,
    name="Qwen3-Next",
    model_type="qwen3_next",
    classes={"none": "Qwen3NextModel", "lm": "Qwen3NextForCausalLM"},
    fixed={**_FIXED, "shared_gate": True},
    needs=("attention_gate", "experts", "shared_gate"),
    settings=(
        *_SETTINGS,
        SOME_LAYERS,
        Key("num_experts_per_tok", "experts_per_token", 10),
        Key("moe_intermediate_size", "d_expert", 512),
        Key("shared_expert_intermediate_size", "d_shared", 512),
        Key("norm_topk_prob", "routes_renormed", True),
        MIXERS,
    ),
    harmless=TRAINING,
    skipped=(*LLAMA.skipped, FURTHER_MODULES),
    stored={
        **_EXPERTS,
        **_ATTENTION,
        **{
            f"blocks.{{n}}.delta.{name}": Stored(
                f"{_IN}.in_proj_qkvz", part=part, parts=(*_PARTS, _PARTS[-1]), by_head="n_kv_heads"
            )
            for part, name in enumerate(("q", "k", "v", "gate"))
        },
        **{
            f"blocks.{{n}}.delta.{name}": Stored(
                f"{_IN}.in_proj_ba", part=part, parts=("n_heads", "n_heads"), by_head="n_kv_heads"
            )
            for part, name in enumerate(("beta_in", "decay_in"))
        },
    },
)
