"""Llama-like decoders whose RoPE rotates adjacent dimensions: GLM and GLM-4, Helium, ERNIE 4.5."""

from dataclasses import replace

from tinytf.checkpoints.huggingface.llama import FIXED, HEAD_AND_ACTIVATION, LLAMA, UNTURNED
from tinytf.checkpoints.huggingface.phi3 import GATE_AND_UP
from tinytf.checkpoints.huggingface.rope import rope
from tinytf.checkpoints.huggingface.table import lm_head
from tinytf.checkpoints.table import Key, Stored

_PAIRED = {
    **LLAMA.stored,
    "blocks.{n}.attention.q": Stored("layers.{n}.self_attn.q_proj", paired="n_heads"),
    "blocks.{n}.attention.k": Stored("layers.{n}.self_attn.k_proj", paired="n_kv_heads"),
}
_WIDTH = Key("head_dim", "d_head", 128)

GLM = replace(
    LLAMA,
    name="GLM",
    model_type="glm",
    classes={"none": "GlmModel", "lm": "GlmForCausalLM"},
    settings=(
        *UNTURNED,
        Key("rms_norm_eps", "norm_eps", 1.5625e-07),
        _WIDTH,
        rope(share=0.5),
        *HEAD_AND_ACTIVATION,
        Key("attention_bias", "qkv_bias", True),
    ),
    stored={**_PAIRED, **GATE_AND_UP},
)
"""GLM-4-9B (Zeng et al. 2024): RoPE rotates half of each head."""

GLM4 = replace(
    GLM,
    name="GLM-4",
    model_type="glm4",
    classes={"none": "Glm4Model", "lm": "Glm4ForCausalLM"},
    fixed={**FIXED, "norm_order": "both"},
    stored={
        **GLM.stored,
        "blocks.{n}.attn_norm": Stored("layers.{n}.post_self_attn_layernorm"),
        "blocks.{n}.ffn_norm": Stored("layers.{n}.post_mlp_layernorm"),
    },
)
"""GLM-4-0414 (Zhipu 2025): norms before and after each part."""

HELIUM = replace(
    LLAMA,
    name="Helium",
    model_type="helium",
    classes={"none": "HeliumModel", "lm": "HeliumForCausalLM"},
    settings=(
        *UNTURNED,
        Key("rms_norm_eps", "norm_eps", 1e-8),
        _WIDTH,
        rope(100_000.0),
        *HEAD_AND_ACTIVATION,
        Key("attention_bias", "qkv_bias", False),
        Key("mlp_bias", "ffn_bias", False),
    ),
    stored=_PAIRED,
)
"""Helium 1 (Kyutai 2025)."""

ERNIE4_5 = replace(
    LLAMA,
    name="ERNIE 4.5",
    model_type="ernie4_5",
    classes={"none": "Ernie4_5Model", "lm": "Ernie4_5ForCausalLM"},
    settings=(
        *UNTURNED,
        Key("rms_norm_eps", "norm_eps", 1e-5),
        _WIDTH,
        rope(500_000.0),
        *HEAD_AND_ACTIVATION,
        Key("tie_word_embeddings", "tied_head", True),
        lm_head(),
        Key("use_bias", "qkv_bias o_bias ffn_bias", False),
    ),
    stored=_PAIRED,
)
"""ERNIE 4.5, dense models (Baidu 2025)."""
