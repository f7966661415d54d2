"""Gemma 2 (Riviere et al. 2024): norms around each part, soft caps, every second layer with a window."""

import math
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.llama import LLAMA, SHARED
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, lm_head
from tinytf.checkpoints.huggingface.windows import kinds, windows
from tinytf.checkpoints.table import Found, Group, Key, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_EVERY_SECOND = kinds(lambda fields, layer: layer % 2 == 0)
_CAPS = (("attn_logit_softcapping", "attention_cap", 50.0), ("final_logit_softcapping", "logit_cap", 30.0))


def _read_caps(fields: Fields, found: Found, tensors: Tensors) -> dict[str, Any]:
    """A missing cap has its default; null is no cap."""
    given = {name: fields.number(name, 0.0) for name, _, _ in _CAPS}
    return {ours: given[name] if name in fields.data else default for name, ours, default in _CAPS}


def _read_scales(fields: Fields, found: Found, tensors: Tensors) -> dict[str, Any]:
    """Scores are divided by √query_pre_attn_scalar, embeddings multiplied by √hidden_size."""
    scalar = fields.number("query_pre_attn_scalar", 256)
    if scalar <= 0:
        raise fields.fault(f"query_pre_attn_scalar {scalar:g} is not above 0")
    return {"attention_divisor": math.sqrt(scalar), "embed_scale": math.sqrt(found["d_model"])}


def _write_scales(config: ModelConfig) -> dict[str, Any]:
    return {"query_pre_attn_scalar": round(config.score_divisor**2)}  # a whole number in transformers


GEMMA2 = replace(
    LLAMA,
    name="Gemma 2",
    model_type="gemma2",
    classes={"none": "Gemma2Model", "lm": "Gemma2ForCausalLM"},
    only={"use_bidirectional_attention": (False,)},
    fixed={"norm": "rmsnorm", "norm_order": "both", "positions": "rotary", "gated": True, "ffn_bias": False},
    settings=(
        *SHARED,
        Key("head_dim", "d_head", 256),
        Key("hidden_activation", "activation", "gelu_pytorch_tanh", ACTIVATIONS),
        Key("attention_bias", "qkv_bias o_bias", False),
        Group(_read_caps, lambda config: {key: getattr(config, ours) or None for key, ours, _ in _CAPS}),
        Group(_read_scales, _write_scales),
        windows(_EVERY_SECOND, 4096),
        Key("tie_word_embeddings", "tied_head", True),
        lm_head(),
    ),
    stored={
        **{ours: replace(how, offset=1.0) if "norm" in ours else how for ours, how in LLAMA.stored.items()},
        "blocks.{n}.attn_norm": Stored("layers.{n}.post_attention_layernorm", offset=1.0),
        "blocks.{n}.norm2": Stored("layers.{n}.pre_feedforward_layernorm", offset=1.0),
        "blocks.{n}.ffn_norm": Stored("layers.{n}.post_feedforward_layernorm", offset=1.0),
    },
)
