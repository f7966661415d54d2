"""OLMo Hybrid (Ai2 2026): gated delta rules with norms before each part, and OLMo 3's attention in some layers."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.cousins import OLMO3
from tinytf.checkpoints.huggingface.llama import BIASES, HEAD_AND_ACTIVATION, LLAMA, SHARED
from tinytf.checkpoints.huggingface.qwen_next import CONVOLUTIONS, DELTA_KINDS, LINEAR, write_mixers
from tinytf.checkpoints.huggingface.routing import FURTHER_MODULES
from tinytf.checkpoints.huggingface.table import by_layer, merge_fields, mixers
from tinytf.checkpoints.huggingface.windows import FULL
from tinytf.checkpoints.table import Draft, Group, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields


def _read_mixers(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The mixer of each layer, its norms, and its heads."""
    layers = draft["n_layers"]
    default = [FULL if layer % 4 == 3 or layer == layers - 1 < 3 else LINEAR for layer in range(layers)]
    layer_types = fields.array("layer_types", str, default, count=layers)
    kinds = [fields.meaning("layer_types", kind, DELTA_KINDS) for kind in layer_types]
    heads, attention = draft["n_heads"], {**draft, "d_head": draft["d_model"] // draft["n_heads"]}
    groups = fields.whole("linear_num_key_heads", heads, least=1)
    width = fields.whole("linear_key_head_dim", int(0.75 * draft["d_model"] / groups), least=1)
    delta = {
        "n_heads": fields.whole("linear_num_value_heads", heads, least=1),
        "n_kv_heads": groups,
        "d_head": width,
        "d_value": fields.whole("linear_value_head_dim", 2 * width, least=1),
    }
    orders = ["output" if kind == "attention" else "pre" for kind in kinds]
    return {
        **merge_fields(mixers(attention, kinds, {"gated_delta": delta}), by_layer("norm_order", orders)),
        "conv_width": fields.whole("linear_conv_kernel_dim", 4, least=1),
        "beta_scale": 2.0 if fields.flag("linear_allow_neg_eigval", True) else 1.0,
    }


def _write_mixers(config: ModelConfig) -> dict[str, Any]:
    return {**write_mixers(config), "linear_allow_neg_eigval": config.beta_scale != 1}


def _read_positions(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Without a base, attention has no positions."""
    rotary = fields.object("rope_parameters")
    return {"positions": "none" if rotary is None or rotary.data.get("rope_theta") is None else "rotary"}


def _write_positions(config: ModelConfig) -> dict[str, Any]:
    return {"rope_parameters": None, "rope_theta": None} if config.positions == "none" else {}


_IN = "layers.{n}.linear_attn"
_DELTA = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "decay_in": "a_proj", "beta_in": "b_proj", "gate": "g_proj",
          "o": "o_proj"}  # fmt: skip

OLMO_HYBRID = replace(
    OLMO3,
    name="OLMo Hybrid",
    model_type="olmo_hybrid",
    classes={"none": "OlmoHybridModel", "lm": "OlmoHybridForCausalLM"},
    only={},
    fixed={**LLAMA.fixed, "qk_norm": True, "qk_norm_across": "all", "head_norm_eps": 1e-5},
    harmless=tuple(f"linear_{name}" for name in ("a_log_min", "a_log_max", "dt_min", "dt_max", "dt_init_floor")),
    settings=(
        *SHARED,
        Group(_read_positions, _write_positions),
        *HEAD_AND_ACTIVATION,
        BIASES,
        Group(_read_mixers, _write_mixers),
    ),
    stored={
        **OLMO3.stored,
        **{f"blocks.{{n}}.delta.{ours}": Stored(f"{_IN}.{name}") for ours, name in _DELTA.items()},
        **{
            f"blocks.{{n}}.delta.{name}_conv": replace(
                CONVOLUTIONS[f"blocks.{{n}}.delta.{name}_conv"],
                instead=Stored(f"{_IN}.{name}_conv1d", convolution=True),
            )
            for name in "qkv"
        },
        **{name: layout for name, layout in CONVOLUTIONS.items() if not name.endswith("_conv")},
        "blocks.{n}.delta.norm": Stored(f"{_IN}.o_norm", gives="head_gated"),
    },
    skipped=(*LLAMA.skipped, FURTHER_MODULES),
    spellings=(
        (r"\.attention_layer_norm\.", ".input_layernorm."),
        (r"\.feedforward_layer_norm\.", ".post_attention_layernorm."),
    ),
)
