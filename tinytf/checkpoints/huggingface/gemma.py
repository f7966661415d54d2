"""Gemma 1, 2 and 3, VaultGemma: gains are stored less 1, embeddings multiplied by √hidden_size."""

import math
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.llama import LLAMA, SHARED, UNTURNED
from tinytf.checkpoints.huggingface.rope import rope
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, lm_head
from tinytf.checkpoints.huggingface.windows import every, kinds, windows
from tinytf.checkpoints.table import Found, Group, Key, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_EVERY_SECOND = kinds(lambda fields, layer: layer % 2 == 0)


def cap(key: str, ours: str, default: float) -> Group:
    """A soft cap; null is none."""
    return Group(
        lambda fields, found, tensors: {ours: fields.number(key, 0.0) if key in fields.data else default},
        lambda config: {key: getattr(config, ours) or None},
    )


def _read_scales(fields: Fields, found: Found, tensors: Tensors) -> dict[str, Any]:
    """Scores are divided by √query_pre_attn_scalar, embeddings multiplied by √hidden_size."""
    scalar = fields.number("query_pre_attn_scalar", 256)
    if scalar <= 0:
        raise fields.fault(f"query_pre_attn_scalar {scalar:g} is not above 0")
    return {"attention_divisor": math.sqrt(scalar), "embed_scale": math.sqrt(found["d_model"])}


def _write_scales(config: ModelConfig) -> dict[str, Any]:
    return {"query_pre_attn_scalar": round(config.score_divisor**2)}  # a whole number in transformers


_FIXED = {"norm": "rmsnorm", "norm_order": "both", "positions": "rotary", "gated": True, "ffn_bias": False}
_PRE = {ours: replace(how, offset=1.0) if "norm" in ours else how for ours, how in LLAMA.stored.items()}
_BOTH = {
    **_PRE,
    "blocks.{n}.attn_norm": Stored("layers.{n}.post_attention_layernorm", offset=1.0),
    "blocks.{n}.norm2": Stored("layers.{n}.pre_feedforward_layernorm", offset=1.0),
    "blocks.{n}.ffn_norm": Stored("layers.{n}.post_feedforward_layernorm", offset=1.0),
}
_ENDS = (Key("attention_bias", "qkv_bias o_bias", False), Key("tie_word_embeddings", "tied_head", True), lm_head())

GEMMA = replace(
    LLAMA,
    name="Gemma",
    model_type="gemma",
    classes={"none": "GemmaModel", "lm": "GemmaForCausalLM"},
    only={"use_bidirectional_attention": (False,), "hidden_activation": ("gelu_pytorch_tanh",)},
    fixed={**_FIXED, "norm_order": "pre"},
    settings=(
        *SHARED,
        Key("head_dim", "d_head", 256),
        # transformers takes Gemma's gelu for its approximation, which the model was trained with
        Key("hidden_act", "activation", "gelu_pytorch_tanh", {**ACTIVATIONS, "gelu": "gelu_tanh"}),
        Group(lambda fields, found, tensors: {"embed_scale": math.sqrt(found["d_model"])}),
        *_ENDS,
    ),
    stored=_PRE,
)
"""Gemma 1 (Mesnard et al. 2024)."""

GEMMA2 = replace(
    LLAMA,
    name="Gemma 2",
    model_type="gemma2",
    classes={"none": "Gemma2Model", "lm": "Gemma2ForCausalLM"},
    only={"use_bidirectional_attention": (False,)},
    fixed=_FIXED,
    settings=(
        *SHARED,
        Key("head_dim", "d_head", 256),
        Key("hidden_activation", "activation", "gelu_pytorch_tanh", ACTIVATIONS),
        cap("attn_logit_softcapping", "attention_cap", 50.0),
        cap("final_logit_softcapping", "logit_cap", 30.0),
        Group(_read_scales, _write_scales),
        windows(_EVERY_SECOND, 4096),
        *_ENDS,
    ),
    stored=_BOTH,
)
"""Gemma 2 (Riviere et al. 2024): norms around each part, soft caps, every second layer with a window."""

VAULTGEMMA = replace(
    GEMMA2,
    name="VaultGemma",
    model_type="vaultgemma",
    classes={"none": "VaultGemmaModel", "lm": "VaultGemmaForCausalLM"},
    fixed={**_FIXED, "norm_order": "pre"},
    stored={**_PRE, "blocks.{n}.norm2": Stored("layers.{n}.pre_feedforward_layernorm", offset=1.0)},
)
"""VaultGemma (Sinha et al. 2025): Gemma 2 with norms before each part alone."""

_FIVE_OF_SIX = kinds(every("sliding_window_pattern", 6))
_LEFT_OUT = {
    "vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131_072,
}  # fmt: skip
"""What the files of Gemma 3 that takes images leave out of their text_config."""

GEMMA3 = replace(
    GEMMA2,
    name="Gemma 3",
    model_type="gemma3_text",
    classes={"none": "Gemma3TextModel", "lm": "Gemma3ForCausalLM"},
    only={**GEMMA2.only, "attn_logit_softcapping": ()},  # transformers ignores it
    fixed={**_FIXED, "qk_norm": True},
    settings=(
        *(replace(key, default=_LEFT_OUT.get(key.name, key.default)) for key in UNTURNED),
        Key("head_dim", "d_head", 256),
        rope(1_000_000.0, kinds=_FIVE_OF_SIX, local=lambda fields: fields.number("rope_local_base_freq", 10_000.0)),
        Key("hidden_activation", "activation", "gelu_pytorch_tanh", ACTIVATIONS),
        cap("final_logit_softcapping", "logit_cap", 0.0),
        Group(_read_scales, _write_scales),
        windows(_FIVE_OF_SIX, 4096),
        *_ENDS,
    ),
    harmless=("_sliding_window_pattern",),
)
"""Gemma 3, its text (Kamath et al. 2025): normed queries and keys, windows with a rotary base of their own."""
