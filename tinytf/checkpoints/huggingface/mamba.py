"""Models with the state space of Mamba-2 (Dao and Gu 2024): Bamba and Granite 4, with attention in some layers."""

import math
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.experts import GRANITE_MOE, MULTIPLIERS, TRAINING
from tinytf.checkpoints.huggingface.llama import BIASES, FIXED, HEAD_AND_ACTIVATION, LLAMA, SHARED, UNTURNED
from tinytf.checkpoints.huggingface.rope import rope
from tinytf.checkpoints.huggingface.table import mixers
from tinytf.checkpoints.huggingface.windows import FULL
from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_LINEAR = "linear_attention"
_KINDS = {_LINEAR: "mamba2", "mamba": "mamba2", FULL: "attention", "attention": "attention"}
NO_LIMIT = tuple(kind([0.0, most]) for kind in (list, tuple) for most in (math.inf, {"__float__": "Infinity"}))
"""What files say where steps Δ are not limited."""
_ONLY = {"mamba_proj_bias": (False,), "time_step_limit": NO_LIMIT}


def _read_sizes(fields: Fields, draft: Draft) -> dict[str, int]:
    """The heads of a state space; by default they are together mamba_expand times as wide as the model."""
    heads = fields.whole("mamba_n_heads", 128, least=1)
    inner = fields.whole("mamba_d_ssm", fields.whole("mamba_expand", 2, least=1) * draft["d_model"], least=1)
    width = inner // heads if fields.data.get("mamba_d_head") in (None, "auto") else fields.whole("mamba_d_head")
    groups, state = fields.whole("mamba_n_groups", 1, least=1), fields.whole("mamba_d_state", 256, least=1)
    return {"n_heads": heads, "n_kv_heads": groups, "d_head": state, "d_value": width}


def read_mamba(fields: Fields, draft: Draft, kinds: list[str]) -> dict[str, Any]:
    """The settings of layers of these kinds."""
    attention = {**draft, "d_head": draft["d_model"] // draft["n_heads"]}
    convolution = {
        "conv_width": fields.whole("mamba_d_conv", 4, least=1),
        "conv_bias": fields.flag("mamba_conv_bias", True),
    }
    return {**mixers(attention, kinds, {"mamba2": _read_sizes(fields, draft)}), **convolution}


def write_mamba(config: ModelConfig) -> dict[str, Any]:
    layers = [config.at(layer) for layer in range(config.n_layers)]
    mamba = next((layer for layer in layers if layer.mixer == "mamba2"), None)
    if mamba is None:
        return {}
    return {
        "mamba_n_heads": mamba.n_heads,
        "mamba_n_groups": mamba.n_kv_heads,
        "mamba_d_state": mamba.d_head,
        "mamba_d_head": mamba.value_width,
        "mamba_expand": mamba.n_heads * mamba.value_width // config.d_model,
        "mamba_d_conv": mamba.conv_width,
        "mamba_conv_bias": mamba.conv_bias,
    }


def _attention_indices(config: ModelConfig) -> list[int]:
    return [layer for layer in range(config.n_layers) if config.at(layer).mixer == "attention"]


def _read_bamba(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    attending = fields.array("attn_layer_indices", int, ())
    return read_mamba(fields, draft, ["attention" if n in attending else "mamba2" for n in range(draft["n_layers"])])


_IN = "layers.{n}.mamba"
_INNER, _STATE = "n_heads·d_value", "n_kv_heads·d_head"
STATE_SPACE = {
    **{
        f"blocks.{{n}}.mamba.{name}": Stored(
            f"{_IN}.in_proj", part=part, parts=(_INNER, _INNER, _STATE, _STATE, "n_heads")
        )
        for part, name in enumerate(("gate", "v", "k", "q", "dt_in"))
    },
    **{
        f"blocks.{{n}}.mamba.{name}_conv": Stored(
            f"{_IN}.conv1d", part=part, parts=(_INNER, _STATE, _STATE), convolution=True
        )
        for part, name in enumerate("vkq")
    },
    "blocks.{n}.mamba.dt": Stored(f"{_IN}.dt", bare=True),
    "blocks.{n}.mamba.decay": Stored(f"{_IN}.A_log", bare=True),
    "blocks.{n}.mamba.read": Stored(f"{_IN}.D", bare=True),
    "blocks.{n}.mamba.norm": Stored(f"{_IN}.norm"),
    "blocks.{n}.mamba.o": Stored(f"{_IN}.out_proj"),
}

BAMBA = replace(
    LLAMA,
    name="Bamba",
    model_type="bamba",
    classes={"none": "BambaModel", "lm": "BambaForCausalLM"},
    only={**_ONLY, "layer_types": (), "layers_block_type": ()},  # attn_layer_indices says it
    harmless=("mamba_chunk_size", "num_logits_to_keep", "z_loss_coefficient"),
    settings=(
        *UNTURNED,
        rope(10_000.0, share=0.5),
        *HEAD_AND_ACTIVATION,
        BIASES,
        Key("mlp_bias", "ffn_bias", False),
        Group(_read_bamba, lambda config: {**write_mamba(config), "attn_layer_indices": _attention_indices(config)}),
    ),
    stored={
        **LLAMA.stored,
        **STATE_SPACE,
        "blocks.{n}.norm2": Stored("layers.{n}.pre_ff_layernorm"),
        **{
            f"blocks.{{n}}.ffn.{name}": Stored(f"layers.{{n}}.feed_forward.{name}_proj")
            for name in ("gate", "up", "down")
        },
        "final_norm": Stored("final_layernorm"),
    },
)


def _read_granite(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Mixers, positions, and a feed-forward for every token, which is the shared expert where there are experts."""
    layer_types = fields.array("layer_types", str, [_LINEAR] * draft["n_layers"], count=draft["n_layers"])
    shared, experts = fields.whole("shared_intermediate_size", 1024), fields.whole("num_local_experts", 8)
    mixed = {"experts": experts, "d_shared": shared, "experts_per_token": fields.whole("num_experts_per_tok", 2)}
    return {
        **read_mamba(fields, draft, [fields.meaning("layer_types", kind, _KINDS) for kind in layer_types]),
        **(mixed if experts else {"d_ff": shared}),
    }


def _write_granite(config: ModelConfig) -> dict[str, Any]:
    words = {ours: word for word, ours in reversed(_KINDS.items())}
    layers = [words.get(config.at(layer).mixer) for layer in range(config.n_layers)]
    shared = config.d_shared if config.experts else config.d_ff
    mixed = {"num_local_experts": config.experts, "num_experts_per_tok": config.experts_per_token or 1}
    return {**write_mamba(config), "layer_types": layers, "shared_intermediate_size": shared, **mixed}


_BOTH = "layers.{n}.shared_mlp.input_linear"
_SHARED = {
    "gate": Stored(_BOTH, part=0, parts=("d_ff", "d_ff")),
    "up": Stored(_BOTH, part=1, parts=("d_ff", "d_ff")),
    "down": Stored("layers.{n}.shared_mlp.output_linear"),
}
GRANITE_HYBRID = replace(
    GRANITE_MOE,
    name="Granite 4",
    model_type="granitemoehybrid",
    classes={"none": "GraniteMoeHybridModel", "lm": "GraniteMoeHybridForCausalLM"},
    only=_ONLY,
    harmless=(*TRAINING, "mamba_chunk_size"),
    needs=(),
    fixed=FIXED,
    settings=(
        *SHARED,
        Key("position_embedding_type", "positions", "nope", {"rope": "rotary", "nope": "none"}),
        *HEAD_AND_ACTIVATION,
        BIASES,
        MULTIPLIERS,
        Group(_read_granite, _write_granite),
    ),
    stored={
        **GRANITE_MOE.stored,
        **STATE_SPACE,
        **{f"blocks.{{n}}.ffn.{name}": layout for name, layout in _SHARED.items()},
        **{f"blocks.{{n}}.ffn.shared.{name}": layout for name, layout in _SHARED.items()},
    },
)
