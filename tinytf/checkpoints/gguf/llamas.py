"""GGUF architectures with RMSNorm: Llama and its relatives."""

import re
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.gguf.keys import (
    HARMLESS,
    NO_WINDOW,
    ONLY,
    RMS_NORM,
    ROTARY,
    SIZES,
    by_layer,
    scores_of_gemma,
    windows,
)
from tinytf.checkpoints.gguf.scaling import FACTORS, read_longrope, read_scaling, scaling_from_keys
from tinytf.checkpoints.huggingface.buffers import constant
from tinytf.checkpoints.table import Draft, FamilyTable, Group, Key, Skip, Stored, Tensors
from tinytf.fields import Fields
from tinytf.steps.operations.xielu import BETA, NEAR_0

STORED = {
    "embed.tokens": Stored("token_embd"),
    "blocks.{n}.norm1": Stored("blk.{n}.attn_norm"),
    "blocks.{n}.attention.q": Stored("blk.{n}.attn_q"),
    "blocks.{n}.attention.k": Stored("blk.{n}.attn_k"),
    "blocks.{n}.attention.v": Stored("blk.{n}.attn_v"),
    "blocks.{n}.attention.o": Stored("blk.{n}.attn_output"),
    "blocks.{n}.norm2": Stored("blk.{n}.ffn_norm"),
    "blocks.{n}.ffn.gate": Stored("blk.{n}.ffn_gate"),
    "blocks.{n}.ffn.up": Stored("blk.{n}.ffn_up"),
    "blocks.{n}.ffn.down": Stored("blk.{n}.ffn_down"),
    "final_norm": Stored("output_norm"),
    "head.decoder": Stored("output"),
}
QK_NORMS = {
    "blocks.{n}.attention.q_norm": Stored("blk.{n}.attn_q_norm"),
    "blocks.{n}.attention.k_norm": Stored("blk.{n}.attn_k_norm"),
}
UP_AND_GATE = {
    "blocks.{n}.ffn.gate": Stored("blk.{n}.ffn_up", part=0, parts=("d_ff", "d_ff")),
    "blocks.{n}.ffn.up": Stored("blk.{n}.ffn_up", part=1, parts=("d_ff", "d_ff")),
}
PAIRED = {  # llama.cpp's RoPE rotates pairs of adjacent rows
    "blocks.{n}.attention.q": Stored("blk.{n}.attn_q", paired="n_heads"),
    "blocks.{n}.attention.k": Stored("blk.{n}.attn_k", paired="n_kv_heads"),
}
_GATED = {"norm": "rmsnorm", "positions": "rotary", "activation": "silu", "gated": True}
SCALING = Group(read_scaling)

QWEN2 = FamilyTable(
    name="qwen2",
    settings=(*SIZES, NO_WINDOW, RMS_NORM, *ROTARY, SCALING),
    fixed=_GATED,
    stored=STORED,
    only=ONLY,
    harmless=HARMLESS,
)
QWEN3 = replace(QWEN2, name="qwen3", fixed={**_GATED, "qk_norm": True}, stored={**STORED, **QK_NORMS})


LLAMA = replace(  # Mistral as well
    QWEN2,
    name="llama",
    stored={**STORED, **PAIRED},
    skipped=(Skip(re.escape(FACTORS), "read as the scaling of RoPE"),),
)

GEMMA = replace(  # its gains are stored with the 1 added
    QWEN2,
    name="gemma",
    settings=(*QWEN2.settings, scores_of_gemma(layers_of_27b=0)),
    fixed={**_GATED, "activation": "gelu_tanh"},
)
_windows_of_gemma2, _windows_of_gemma3 = windows(2, 4096), windows(6)
GEMMA2 = replace(
    GEMMA,
    name="gemma2",
    settings=(
        *(setting for setting in QWEN2.settings if setting is not NO_WINDOW),
        Key("attn_logit_softcapping", "attention_cap", 50.0),
        Key("final_logit_softcapping", "logit_cap", 30.0),
        scores_of_gemma(layers_of_27b=46),
        Group(lambda keys, draft, tensors: by_layer(window=_windows_of_gemma2(keys, draft))),
    ),
    fixed={**GEMMA.fixed, "norm_order": "both"},
    stored={
        **STORED,
        "blocks.{n}.attn_norm": Stored("blk.{n}.post_attention_norm"),
        "blocks.{n}.ffn_norm": Stored("blk.{n}.post_ffw_norm"),
    },
)


def _rope_of_gemma3(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Layers with a window have their own RoPE base, and no scaling."""
    scaling = scaling_from_keys(keys)
    layer_windows = _windows_of_gemma3(keys, draft)
    local_theta = keys.number("rope.freq_base_swa", 10_000.0)
    return by_layer(
        window=layer_windows,
        rope_theta=tuple(local_theta if window else draft["rope_theta"] for window in layer_windows),
        rope_scaling=tuple("none" if window else scaling.get("rope_scaling", "none") for window in layer_windows),
        rope_factor=tuple(1.0 if window else scaling.get("rope_factor", 1.0) for window in layer_windows),
    )


GEMMA3 = replace(
    GEMMA2,
    name="gemma3",
    settings=(
        *(SIZES),
        RMS_NORM,
        *ROTARY,
        Key("final_logit_softcapping", "logit_cap", 0.0),
        scores_of_gemma(layers_of_27b=62),
        Group(_rope_of_gemma3),
    ),
    fixed={**GEMMA2.fixed, "qk_norm": True},
    stored={**GEMMA2.stored, **QK_NORMS},
)

OLMO2 = replace(
    QWEN2,
    name="olmo2",
    fixed={**_GATED, "norm_order": "output", "qk_norm": True, "qk_norm_across": "all"},
    stored={
        **STORED,
        **QK_NORMS,
        "blocks.{n}.attn_norm": Stored("blk.{n}.post_attention_norm"),
        "blocks.{n}.ffn_norm": Stored("blk.{n}.post_ffw_norm"),
    },
)
_windows_of_exaone4 = windows(4)


def _layers_of_exaone4(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Layers with a window have RoPE, the others no positions; without any windows, all layers have RoPE."""
    layer_windows = _windows_of_exaone4(keys, draft)
    positions = tuple("rotary" if window or not any(layer_windows) else "none" for window in layer_windows)
    return by_layer(window=layer_windows, positions=positions)


EXAONE4 = replace(
    OLMO2,
    name="exaone4",
    settings=(*SIZES, RMS_NORM, *ROTARY, SCALING, Group(_layers_of_exaone4)),
    fixed={**_GATED, "norm_order": "output", "qk_norm": True},
)
PHI3 = replace(
    QWEN2,
    name="phi3",
    settings=(
        *SIZES,
        Key("attention.sliding_window", "window", 0),
        RMS_NORM,
        *ROTARY,
        Group(read_longrope),
    ),
    stored={
        **STORED,
        **UP_AND_GATE,
    },
    skipped=(Skip(r"rope_factors_(short|long)\.weight", "read with the keys"),),
)
SMOLLM3 = replace(
    LLAMA,
    name="smollm3",
    settings=(
        *LLAMA.settings,
        Group(lambda keys, draft, tensors: by_layer(positions=_positions_of_smollm3(draft["n_layers"]))),
    ),
)


def _positions_of_smollm3(n_layers: int) -> tuple[str, ...]:
    """Every fourth layer has no positions; there is no key for this."""
    return tuple("none" if layer % 4 == 3 else "rotary" for layer in range(n_layers))


def _scales_of_granite(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Scores are multiplied by attention.scale, logits divided by logit_scale."""
    scores, logits = keys.number("attention.scale", 0.0), keys.number("logit_scale", 1.0)
    if scores < 0 or logits <= 0:
        raise keys.fault(f"attention.scale {scores:g} and logit_scale {logits:g} have to be above 0")
    return {"attention_divisor": 1 / scores if scores else 0.0, "logit_scale": 1 / logits}


GRANITE = replace(
    LLAMA,
    name="granite",
    settings=(
        *LLAMA.settings,
        Key("embedding_scale", "embed_scale", 1.0),
        Key("residual_scale", "residual_scale", 1.0),
        Group(_scales_of_granite),
    ),
)
ERNIE4_5 = replace(LLAMA, name="ernie4_5")
HUNYUAN = replace(QWEN3, name="hunyuan-dense", fixed={**QWEN3.fixed, "qk_norm_last": True})
ARCEE = replace(LLAMA, name="arcee", fixed={**_GATED, "activation": "relu2", "gated": False})
APERTUS = replace(
    QWEN3,
    name="apertus",
    fixed={**QWEN3.fixed, "activation": "xielu", "gated": False},
    stored={
        **QWEN3.stored,
        "blocks.{n}.ffn.act": Stored("xielu.alpha_p", bare=True, bias="xielu.alpha_n", of_layers=True),
    },
    skipped=(
        *LLAMA.skipped,
        Skip(r"xielu\.beta", "the slope at 0", computed=constant(BETA)),
        Skip(r"xielu\.eps", "a constant, rounded to bfloat16", computed=constant(NEAR_0, error=-NEAR_0 / 2**8)),
    ),
)
SEED_OSS = replace(
    QWEN2,
    name="seed_oss",
    stored={**STORED, "blocks.{n}.norm2": Stored("blk.{n}.post_attention_norm")},
)
