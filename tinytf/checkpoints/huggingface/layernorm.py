"""Decoders with Llama's parts and names, but with LayerNorms: Cohere's Command R and OLMo 1."""

from dataclasses import replace

from tinytf.checkpoints.huggingface.llama import LLAMA, SHARED
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, lm_head
from tinytf.checkpoints.table import Group, Key, Stored

_SHARED = tuple(setting for setting in SHARED if not (isinstance(setting, Key) and setting.ours == "norm_eps"))
_EPS = Key("layer_norm_eps", "norm_eps", 1e-5)
_FIXED = {"positions": "rotary", "gated": True, "qkv_bias": False, "o_bias": False, "ffn_bias": False}
_BIASES = Key("attention_bias", "qkv_bias o_bias", False)

OLMO = replace(
    LLAMA,
    name="OLMo",
    model_type="olmo",
    classes={"none": "OlmoModel", "lm": "OlmoForCausalLM"},
    fixed={**_FIXED, "norm_gain": False, "norm_bias": False},
    settings=(
        *_SHARED,
        Key("hidden_act", "activation", "silu", ACTIVATIONS),
        Key("tie_word_embeddings", "tied_head", False),
        _BIASES,
        Group(
            lambda fields, found, tensors: {"clip_qkv": fields.number("clip_qkv", 0.0)},
            lambda config: {"clip_qkv": config.clip_qkv or None},
        ),
        lm_head(),
    ),
)
"""OLMo 1 (Groeneveld et al. 2024): norms that learn nothing; queries, keys and values are clipped in some."""

COHERE = replace(
    LLAMA,
    name="Cohere",
    model_type="cohere",
    classes={"none": "CohereModel", "lm": "CohereForCausalLM"},
    fixed={**_FIXED, "residual": "parallel", "shared_norm": True, "norm_bias": False},
    settings=(
        *_SHARED,
        _EPS,
        Key("hidden_act", "activation", "silu", ACTIVATIONS),
        Key("tie_word_embeddings", "tied_head", True),
        Key("logit_scale", "logit_scale", 0.0625),
        _BIASES,
        Group(
            lambda fields, found, tensors: (
                {"qk_norm": True, "qk_norm_across": "heads"} if fields.flag("use_qk_norm", False) else {}
            ),
            lambda config: {"use_qk_norm": config.qk_norm},
        ),
        lm_head(),
    ),
    stored={
        **LLAMA.stored,
        "blocks.{n}.attention.q": Stored("layers.{n}.self_attn.q_proj", paired="n_heads"),
        "blocks.{n}.attention.k": Stored("layers.{n}.self_attn.k_proj", paired="n_kv_heads"),
        "blocks.{n}.attention.q_norm": Stored("layers.{n}.self_attn.q_norm", paired="n_heads", by_row=True),
        "blocks.{n}.attention.k_norm": Stored("layers.{n}.self_attn.k_norm", paired="n_kv_heads", by_row=True),
    },
)
"""Command R (Cohere 2024): attention and feed-forward share a norm without bias, logits are scaled."""
