"""LongCat-Flash (Meituan 2025): experts that take a shortcut around half of a layer, and some that change nothing.

A layer of transformers is three of ours: two with attention and a feed-forward each, then its experts. These read what
the first of the two feed-forwards reads, and are added last.
"""

import math
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.deepseek import DEEPSEEK_V3, LATENT, widths, written_divisor
from tinytf.checkpoints.huggingface.experts import TRAINING
from tinytf.checkpoints.huggingface.llama import HEAD_AND_ACTIVATION, LLAMA
from tinytf.checkpoints.huggingface.rope import rope
from tinytf.checkpoints.huggingface.routing import FURTHER_NAMED
from tinytf.checkpoints.huggingface.table import by_layer, merge_fields, mixers
from tinytf.checkpoints.table import Draft, Group, Key, Skip, Stored, Tensors, stacked_experts
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_MIXERS = ["attention", "attention", "none"]


def _read(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Three layers of ours for each of a file, and the scales of compressed queries and keys."""
    layers, width = draft["n_layers"], draft["d_model"]
    divisor = draft["attention_divisor"] or math.sqrt(draft["d_head"])
    fields.require("head_dim", (draft["rope_width"],))
    fields.require("qk_head_dim", (None, draft["d_head"]))
    same = fields.whole("zero_expert_num", 256, least=0)
    count = fields.whole("n_routed_experts", 512, least=1) + same
    sizes = {"none": dict.fromkeys(("n_heads", "n_kv_heads", "d_head", "d_value"), 0)}
    return {
        "n_layers": 3 * layers,
        "identity_experts": same,
        "kv_scale": math.sqrt(width / draft["kv_rank"]),
        "attention_divisor": divisor * math.sqrt(draft["q_rank"] / width),  # the scores of scaled queries
        **merge_fields(
            mixers(draft, _MIXERS * layers, sizes),
            by_layer("experts", [0, 0, count] * layers),
            by_layer("shortcut", [False, False, True] * layers),
        ),
    }


def _write(config: ModelConfig) -> dict[str, Any]:
    layers = config.n_layers // 3
    if [block.mixer.called for block in config.blocks] != _MIXERS * layers:
        return {}
    return {
        **written_divisor(config, config.score_divisor / math.sqrt(config.q_rank / config.d_model)),
        "num_layers": layers,
        "head_dim": config.rope_width,
        "n_routed_experts": config.experts - config.identity_experts,
        "zero_expert_num": config.identity_experts,
    }


def _of_two(ours: str, layout: Stored) -> Stored:
    """The place of a module that the first and the second layer of the three have."""
    module = layout.module.replace(".mlp.", ".mlps.")
    for name in ("self_attn", "mlps", "input_layernorm", "post_attention_layernorm"):
        module = module.replace(f".{name}", f".{name}.{{s}}")
    return replace(layout, module=module) if ours.startswith("blocks.") else layout


_EXPERTS = "layers.{n}.mlp.experts"
LONGCAT_FLASH = replace(
    DEEPSEEK_V3,
    name="LongCat-Flash",
    model_type="longcat_flash",
    classes={"none": "LongcatFlashModel", "lm": "LongcatFlashForCausalLM"},
    only={
        **dict.fromkeys(("attention_bias", "router_bias", "norm_topk_prob"), (False,)),
        **dict.fromkeys(("mla_scale_q_lora", "mla_scale_kv_lora"), (True,)),
        "zero_expert_type": ("identity",),
        "attention_method": ("MLA",),
        **dict.fromkeys(("intermediate_size", "moe_intermediate_size"), ()),  # they win over their own names
    },
    harmless=TRAINING,
    fixed={**LLAMA.fixed, "choice_bias": True, "routes_renormed": False},
    needs=("kv_rank", "q_rank", "experts"),
    settings=(
        Key("vocab_size"),
        Key("hidden_size", "d_model"),
        Key("num_layers", "n_layers"),
        Key("num_attention_heads", "n_heads"),
        Key("ffn_hidden_size", "d_ff"),
        Key("num_key_value_heads", "n_kv_heads", lambda draft: draft["n_heads"]),
        Key("max_position_embeddings", "context"),
        Key("rms_norm_eps", "norm_eps", 1e-5),
        rope(10_000_000.0),
        Key("kv_lora_rank", "kv_rank", 512),
        widths(),
        *HEAD_AND_ACTIVATION,
        Key("moe_topk", "experts_per_token", 12),
        Key("expert_ffn_hidden_size", "d_expert", 2048),
        Key("routed_scaling_factor", "routed_scale", 6.0),
        Group(_read, _write),
    ),
    stored={
        **{ours: _of_two(ours, layout) for ours, layout in {**LLAMA.stored, **LATENT}.items()},
        "blocks.{n}.ffn.router": Stored("layers.{n}.mlp.router.classifier"),
        "blocks.{n}.ffn.preference": Stored("layers.{n}.mlp.router.e_score_correction_bias", bare=True),
        **{
            ours: replace(
                layout,
                unread="" if ours.endswith("down") else "identity_experts",
                instead=Stored(f"{_EXPERTS}.{{e}}.{ours.rpartition('.')[2]}_proj"),
            )
            for ours, layout in stacked_experts(_EXPERTS).items()
        },
    },
    skipped=(
        *LLAMA.skipped,
        FURTHER_NAMED,
        Skip(r"layers\.\d+\.mlp\.experts\.\d+\.(gate|up)_proj\.weight", "matrices of experts that use none"),
    ),
    heads={},
    split=3,
)
