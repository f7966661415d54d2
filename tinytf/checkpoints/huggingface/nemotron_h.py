"""Nemotron-H (NVIDIA 2025): each layer is Mamba-2, attention without positions, a feed-forward, or experts."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.experts import TRAINING
from tinytf.checkpoints.huggingface.llama import FIXED, LLAMA
from tinytf.checkpoints.huggingface.mamba2 import MAMBA2, TRAINING_OF_STEPS
from tinytf.checkpoints.huggingface.routing import FURTHER_NAMED, SIGMOID, groups_of, written_groups
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, by_layer, lm_head, merge_fields, mixers
from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_KINDS = {"linear_attention": "mamba2", "mamba": "mamba2", "full_attention": "attention", "attention": "attention",
          "mlp": "mlp", "moe": "moe"}  # fmt: skip
_LETTERS = {"M": "mamba2", "*": "attention", "-": "mlp", "E": "moe"}


def _read_kinds(fields: Fields) -> list[str]:
    """The kind of every layer: a word, or in older files a letter of a pattern."""
    name = "layer_types" if "layer_types" in fields.data else "layers_block_type"
    if fields.data.get(name) is not None:
        return [fields.meaning(name, word, _KINDS) for word in fields.array(name, str)]
    return [
        fields.meaning("hybrid_override_pattern", letter, _LETTERS) for letter in fields.text("hybrid_override_pattern")
    ]


def _read(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    kinds = _read_kinds(fields)
    mamba = {
        "n_heads": fields.whole("mamba_num_heads", 128, least=1),
        "n_kv_heads": fields.whole("n_groups", 8, least=1),
        "d_head": fields.whole("ssm_state_size", 128, least=1),
        "d_value": fields.whole("mamba_head_dim", 64, least=1),
    }
    mixing = ["none" if kind in ("mlp", "moe") else kind for kind in kinds]
    sizes = {"mamba2": mamba, "none": {**dict.fromkeys(mamba, 0), "n_heads": 0}}
    width, count = fields.whole("intermediate_size", 21_504, least=1), fields.whole("n_routed_experts", 8, least=1)
    read = {
        "n_layers": len(kinds),
        **merge_fields(
            mixers(draft, mixing, sizes),
            by_layer("d_ff", [width * (kind in ("mlp", "moe")) for kind in kinds]),
            by_layer("experts", [count * (kind == "moe") for kind in kinds]),
        ),
    }
    if "moe" not in kinds:
        return read
    return {
        **read,
        **SIGMOID,
        "experts_per_token": fields.whole("num_experts_per_tok", 2, least=1),
        "d_expert": fields.whole("moe_intermediate_size", 7688, least=1),
        "d_shared": fields.whole("moe_shared_expert_intermediate_size", 7688, least=1),
        "routed_scale": fields.number("routed_scaling_factor", 1.0),
        "routes_renormed": fields.flag("norm_topk_prob", True),
        **groups_of(fields, 1, 1, best=2),
    }


def _write(config: ModelConfig) -> dict[str, Any]:
    layers = [config.at(layer) for layer in range(config.n_layers)]
    mamba = next((layer for layer in layers if layer.mixer == "mamba2"), None)
    if mamba is None or any(layer.mixer != "none" and layer.d_ff for layer in layers):
        return {}
    words = {"mamba2": "linear_attention", "attention": "full_attention"}
    return {
        "layers_block_type": [words.get(layer.mixer, "moe" if layer.experts else "mlp") for layer in layers],
        "mamba_num_heads": mamba.n_heads,
        "n_groups": mamba.n_kv_heads,
        "ssm_state_size": mamba.d_head,
        "mamba_head_dim": mamba.value_width,
        "intermediate_size": config.d_ff,
        "n_routed_experts": config.experts or 1,
        "num_experts_per_tok": config.experts_per_token or 1,
        "moe_intermediate_size": config.d_expert or 1,
        "moe_shared_expert_intermediate_size": config.d_shared or 1,
        "routed_scaling_factor": config.routed_scale,
        **written_groups(config),
    }


_OF_EXPERTS = (
    "num_experts_per_tok", "moe_intermediate_size", "moe_shared_expert_intermediate_size", "routed_scaling_factor",
    "norm_topk_prob", "n_group", "topk_group",
)  # fmt: skip
"""Keys that files without experts have, too."""
_OTHER_NAMES = (
    "mamba_n_groups", "mamba_d_conv", "mamba_expand", "mamba_dt_min", "mamba_dt_max", "mamba_dt_limit",
    "mamba_dt_init_floor", "mamba_conv_bias", "mamba_chunk_size",
)  # fmt: skip
"""Names that win over n_groups, conv_kernel and so on in transformers."""
_IN = "layers.{n}.mixer"
NEMOTRON_H = replace(
    LLAMA,
    name="Nemotron-H",
    model_type="nemotron_h",
    prefix="backbone.",
    classes={"none": "NemotronHModel", "lm": "NemotronHForCausalLM"},
    only={
        **dict.fromkeys(("attention_bias", "mlp_bias", "use_bias", "mamba_proj_bias"), (False,)),
        "mamba_hidden_act": ("silu", "swish"),
        **dict.fromkeys(_OTHER_NAMES, ()),
        "moe_latent_size": (None,),
        "sliding_window": (None,),
    },
    fixed={**FIXED, "positions": "none", "gated": False},
    harmless=(*TRAINING, *TRAINING_OF_STEPS, *_OF_EXPERTS, "hybrid_override_pattern", "chunk_size", "expand",
              "use_mamba_kernels", "num_logits_to_keep", "mamba_ssm_cache_dtype",
              "moe_shared_expert_overlap", "num_nextn_predict_layers",
              "n_shared_experts", "mtp_layers_block_type", "num_hidden_layers"),
    settings=(
        Key("vocab_size"),
        Key("hidden_size", "d_model"),
        Key("num_attention_heads", "n_heads", 32),
        Key("num_key_value_heads", "n_kv_heads", 8),
        Key("head_dim", "d_head", 128),
        Key("max_position_embeddings", "context", 4096),
        Key("layer_norm_epsilon", "norm_eps", 1e-5),
        Key("mlp_hidden_act", "activation", "relu2", ACTIVATIONS),
        Key("conv_kernel", "conv_width", 4),
        Key("use_conv_bias", "conv_bias", True),
        Key("time_step_min", "dt_floor", 1e-3),
        Key("tie_word_embeddings", "tied_head", False),
        lm_head(),
        Group(_read, _write),
    ),
    stored={
        "embed.tokens": Stored("embeddings"),
        "blocks.{n}.norm1": Stored("layers.{n}.norm"),
        "blocks.{n}.norm2": Stored("layers.{n}.norm"),
        **{f"blocks.{{n}}.attention.{name}": Stored(f"{_IN}.{name}_proj") for name in "qkvo"},
        **{name: layout for name, layout in MAMBA2.stored.items() if ".mamba." in name},
        **{f"blocks.{{n}}.ffn.{name}": Stored(f"{_IN}.{name}_proj") for name in ("up", "down")},
        "blocks.{n}.ffn.router": Stored(f"{_IN}.gate"),
        "blocks.{n}.ffn.preference": Stored(f"{_IN}.gate.e_score_correction_bias", bare=True),
        **{
            f"blocks.{{n}}.ffn.experts.{name}": Stored(
                f"{_IN}.experts.{{e}}.{name}_proj", instead=Stored(f"{_IN}.experts.{name}_proj", bare=True)
            )
            for name in ("up", "down")
        },
        **{f"blocks.{{n}}.ffn.shared.{name}": Stored(f"{_IN}.shared_experts.{name}_proj") for name in ("up", "down")},
        "final_norm": Stored("norm_f"),
        "head.decoder": Stored("lm_head"),
    },
    spellings=((r"^model\.", ""),),
    skipped=(FURTHER_NAMED,),
    copies={"lm_head.weight": "embeddings.weight"},
    heads={},
)  # fmt: skip
