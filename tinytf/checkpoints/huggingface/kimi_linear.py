"""Kimi Linear (Moonshot AI 2025): Kimi delta attention, and latent attention without positions in some layers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.deepseek import DEEPSEEK_V3, widths, write_widths
from tinytf.checkpoints.huggingface.experts import TRAINING
from tinytf.checkpoints.huggingface.llama import FIXED, HEAD_AND_ACTIVATION, LLAMA, UNTURNED
from tinytf.checkpoints.huggingface.qwen_next import LINEAR
from tinytf.checkpoints.huggingface.routing import SIGMOID, routed, shared_expert
from tinytf.checkpoints.huggingface.table import mixers
from tinytf.checkpoints.huggingface.windows import FULL
from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors, experts
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_OF_DELTA = {
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
"""Keys of linear_attn_config in published files, and what transformers calls them."""


def delta_layers(kinds: Mapping[str, str], heads: int, usual: Callable[[Fields, int], Sequence[str]]) -> Group:
    """The mixer of each layer, and the sizes of its heads; in published files they stand in a group of their own.

    ``kinds`` are our mixers by the words of layer_types, of which ``usual`` are those of so many layers without the
    key; ``heads`` are those of Kimi delta attention by default.
    """

    def read(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
        layers, nested = draft["n_layers"], fields.object("linear_attn_config")

        def size(name: str, default: int) -> int:
            if nested is not None and name in nested.data:
                return nested.whole(name, least=1)
            return fields.whole(_OF_DELTA[name], default, least=1)

        words = fields.array("layer_types", str, usual(fields, layers), count=layers)
        mixed = [fields.meaning("layer_types", word, kinds) for word in words]
        count, width = size("num_heads", heads), size("head_dim", 128)
        delta = {"n_heads": count, "n_kv_heads": count, "d_head": width, "d_value": width}
        return {**mixers(draft, mixed, {"kimi_delta": delta}), "conv_width": size("short_conv_kernel_size", 4)}

    return Group(read, lambda config: _write_mixers(config, kinds))


def _write_mixers(config: ModelConfig, kinds: Mapping[str, str]) -> dict[str, Any]:
    layers = [config.at(layer) for layer in range(config.n_layers)]
    words = {ours: kind for kind, ours in [*kinds.items()][::-1]}
    found: dict[str, Any] = {"layer_types": [words.get(layer.mixer) for layer in layers]}
    for layer in layers:
        if layer.mixer == "attention":
            found |= write_widths(layer) | dict.fromkeys(("num_attention_heads", "num_key_value_heads"), layer.n_heads)
        else:
            sizes = (layer.d_head, layer.n_heads, layer.conv_width)
            found |= dict(zip(_OF_DELTA.values(), sizes, strict=True))
    return found


def _usual_mixers(fields: Fields, layers: int) -> list[str]:
    """The layers that published files list, counted from 1, or every fourth after the first."""
    nested = fields.object("linear_attn_config")
    if nested is not None and "layer_types" not in fields.data:
        full = nested.array("full_attn_layers", int, ())
        return [FULL if layer + 1 in full else LINEAR for layer in range(layers)]
    return [FULL if layer and layer % 4 == 0 else LINEAR for layer in range(layers)]


def _read_router(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    groups, kept = fields.whole("num_expert_group", 1), fields.whole("topk_group", 1)
    chosen = {"expert_groups": groups, "groups_per_token": kept, "group_best": 2} if kept < groups else {}
    found = {**SIGMOID, "routes_renormed": fields.flag("moe_renormalize", True), **chosen}
    return found if draft.get("experts") else {}


def _write_router(config: ModelConfig) -> dict[str, Any]:
    return {
        "num_expert_group": config.expert_groups or 1,
        "topk_group": config.groups_per_token or 1,
        "moe_renormalize": config.routes_renormed,
    }


_IN, _MOE = "layers.{n}.self_attn", "layers.{n}.block_sparse_moe"
_PROJECTIONS = {
    **{name: f"{name}_proj" for name in "qkvo"},
    "decay_low": "f_a_proj",
    "decay_in": "f_b_proj",
    "beta_in": "b_proj",
    "gate_low": "g_a_proj",
    "gate": "g_b_proj",
}
DELTA = {
    **{f"blocks.{{n}}.delta.{ours}": Stored(f"{_IN}.{name}") for ours, name in _PROJECTIONS.items()},
    **{
        f"blocks.{{n}}.delta.{name}_conv": Stored(
            f"{_IN}.{name}_conv1d",
            convolution=True,
            instead=Stored(f"{_IN}.conv1d", part=part, parts=("n_heads·d_head",) * 3, convolution=True),
        )
        for part, name in enumerate("qkv")
    },
    "blocks.{n}.delta.dt": Stored(f"{_IN}.dt", bare=True),
    "blocks.{n}.delta.norm": Stored(f"{_IN}.o_norm", gives="head_gated"),
}
"""The modules of Kimi delta attention, whose names begin with forget_gate where transformers writes some of them."""
_LAYOUTS = {name: layout for name, layout in DEEPSEEK_V3.stored.items() if ".q_a" not in name}

KIMI_LINEAR = replace(
    DEEPSEEK_V3,
    name="Kimi Linear",
    model_type="kimi_linear",
    classes={"none": "KimiLinearModel", "lm": "KimiLinearForCausalLM"},
    only={
        "attention_bias": (False,), "q_lora_rank": (None,), "mla_use_nope": (True,), "moe_layer_freq": (1,),
        "moe_router_activation_func": ("sigmoid",), "use_grouped_topk": (True,), "num_nextn_predict_layers": (0,),
    },
    fixed={**FIXED, "positions": "none"},
    needs=("kv_rank",),
    settings=(
        *(replace(key, name="model_max_length", default=2**20) if key.ours == "context" else key for key in UNTURNED),
        Key("rms_norm_eps", "norm_eps", 1e-5),
        Key("kv_lora_rank", "kv_rank", 512),
        widths(64, 128, 128, 0),
        *HEAD_AND_ACTIVATION,
        delta_layers({FULL: "attention", LINEAR: "kimi_delta"}, 32, _usual_mixers),
        routed(
            first=1, kinds=True, count="num_experts", shared="num_shared_experts", per_token="num_experts_per_token"
        ),
        Group(_read_router, _write_router),
    ),
    harmless=(*TRAINING, "head_dim", "qk_head_dim", "num_experts", "rope_theta", "rope_scaling"),
    stored={
        **_LAYOUTS,
        "blocks.{n}.attention.q": Stored(f"{_IN}.q_proj", rotary_last="n_heads"),
        "blocks.{n}.attention.k_shared": replace(_LAYOUTS["blocks.{n}.attention.k_shared"], paired=""),
        **DELTA,
        "blocks.{n}.delta.decay": Stored(f"{_IN}.A_log", bare=True, among_ones=(2, 1)),
        "blocks.{n}.ffn.router": Stored(f"{_MOE}.gate"),
        "blocks.{n}.ffn.preference": Stored(f"{_MOE}.gate.e_score_correction_bias", bare=True),
        **experts(f"{_MOE}.experts", ("w1", "w3", "w2")),
        **shared_expert(f"{_MOE}.shared_experts"),
    },
    spellings=(
        (r"\.mlp\.(gate\b|experts|shared)", r".block_sparse_moe.\1"),
        (r"\.forget_gate\.", "."),
        (r"\.block_sparse_moe\.(gate|up|down)_proj\.", r".mlp.\1_proj."),  # as transformers writes a dense layer
    ),
    skipped=LLAMA.skipped,
)  # fmt: skip
