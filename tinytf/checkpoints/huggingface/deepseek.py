"""DeepSeek-V2 and V3: latent attention, and experts after the first layers (DeepSeek-AI 2024)."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.llama import LLAMA, SHARED
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, lm_head
from tinytf.checkpoints.table import Found, Group, Key, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields


def _read_widths(fields: Fields, found: Found, tensors: Tensors) -> dict[str, Any]:
    """The widths of a head: what RoPE turns, what it does not, and the values."""
    if found["n_kv_heads"] != found["n_heads"]:
        raise fields.fault(f"num_key_value_heads {found['n_kv_heads']} is not num_attention_heads {found['n_heads']}")
    turned, plain, values = (
        fields.whole(name, default)
        for name, default in (("qk_rope_head_dim", 64), ("qk_nope_head_dim", 128), ("v_head_dim", 128))
    )
    width = turned + plain
    said = {"rope_width": turned, "d_head": width, "d_value": 0 if values == width else values}
    rank = fields.whole("q_lora_rank", 0) if "q_lora_rank" in fields.data else 1536  # null is none
    return {**said, "q_rank": rank}


def _write_widths(config: ModelConfig) -> dict[str, Any]:
    return {
        "qk_rope_head_dim": config.rope_width,
        "qk_nope_head_dim": config.d_own,
        "v_head_dim": config.value_width,
        "q_lora_rank": config.q_rank or None,
    }


_KV_A, _KV_B = "layers.{n}.self_attn.kv_a_proj_with_mqa", "layers.{n}.self_attn.kv_b_proj"
_RANKS, _WIDTHS = ("kv_rank", "rope_width"), ("d_own", "value_width")
_LATENT = {
    "blocks.{n}.attention.q_a": Stored("layers.{n}.self_attn.q_a_proj"),
    "blocks.{n}.attention.q_a_norm": Stored("layers.{n}.self_attn.q_a_layernorm"),
    "blocks.{n}.attention.q": Stored("layers.{n}.self_attn.q_b_proj", paired="n_heads", turned_last=True),
    "blocks.{n}.attention.kv_a": Stored(_KV_A, parts=_RANKS),
    "blocks.{n}.attention.k_shared": Stored(_KV_A, part=1, parts=_RANKS, paired="1"),
    "blocks.{n}.attention.kv_a_norm": Stored("layers.{n}.self_attn.kv_a_layernorm"),
    "blocks.{n}.attention.k": Stored(_KV_B, parts=_WIDTHS, by_head="n_heads"),
    "blocks.{n}.attention.v": Stored(_KV_B, part=1, parts=_WIDTHS, by_head="n_heads"),
}

DEEPSEEK_V3 = replace(
    LLAMA,
    name="DeepSeek-V3",
    model_type="deepseek_v3",
    classes={"none": "DeepseekV3Model", "lm": "DeepseekV3ForCausalLM"},
    only={"attention_bias": (False,), "rope_interleave": (True,)},
    harmless=("aux_loss_alpha", "seq_aux", "ep_size", "moe_layer_freq", "head_dim", "qk_head_dim"),
    settings=(
        *SHARED,
        Key("kv_lora_rank", "kv_rank", 512),
        Group(_read_widths, _write_widths),
        Key("hidden_act", "activation", "silu", ACTIVATIONS),
        Key("tie_word_embeddings", "tied_head", False),
        lm_head(),
    ),
    needs=("kv_rank", "q_rank"),
    stored={**LLAMA.stored, **_LATENT},
    spellings=((r"self_attn\.q_proj\.", "self_attn.q_b_proj."),),  # where queries are not compressed
)
DEEPSEEK_V2 = replace(
    DEEPSEEK_V3,
    name="DeepSeek-V2",
    model_type="deepseek_v2",
    classes={"none": "DeepseekV2Model", "lm": "DeepseekV2ForCausalLM"},
    only={"attention_bias": (False,)},
    settings=(*DEEPSEEK_V3.settings, Key("mlp_bias", "ffn_bias", False)),
)
