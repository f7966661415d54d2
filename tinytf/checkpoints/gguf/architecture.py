"""From the metadata of a GGUF file to our configuration, one table per architecture; unknown keys are refused."""

import re
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.gguf.keys import (
    HARMLESS,
    LAYER_NORM,
    NO_WINDOW,
    ONLY,
    RMS_NORM,
    ROTARY,
    SIZES,
    by_layer,
    scores_of_gemma,
    windows,
)
from tinytf.checkpoints.gguf.scaling import FACTORS, read_scaling, scaling_from_keys
from tinytf.checkpoints.table import FamilyTable, Found, Group, Key, Left, Stored, Tensors, fused
from tinytf.fields import Fields

_STORED = {
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
_QK_NORMS = {
    "blocks.{n}.attention.q_norm": Stored("blk.{n}.attn_q_norm"),
    "blocks.{n}.attention.k_norm": Stored("blk.{n}.attn_k_norm"),
}
_PAIRED = {  # llama.cpp's RoPE turns pairs of adjacent rows
    "blocks.{n}.attention.q": Stored("blk.{n}.attn_q", paired="n_heads"),
    "blocks.{n}.attention.k": Stored("blk.{n}.attn_k", paired="n_kv_heads"),
}
_GATED = {"norm": "rmsnorm", "positions": "rotary", "activation": "silu", "gated": True}
_SCALING = Group(read_scaling)

_QWEN2 = FamilyTable(
    name="qwen2",
    settings=(*SIZES, NO_WINDOW, RMS_NORM, *ROTARY, _SCALING),
    fixed=_GATED,
    stored=_STORED,
    only=ONLY,
    harmless=HARMLESS,
)
_QWEN3 = replace(_QWEN2, name="qwen3", fixed={**_GATED, "qk_norm": True}, stored={**_STORED, **_QK_NORMS})


def _whole_heads(keys: Fields, found: Found, tensors: Tensors) -> dict[str, Any]:
    if found["rope_width"]:
        said = f"rope.dimension_count {found['rope_width']:,} is not implemented"
        raise keys.fault(f"{said} with a head width of {found['d_head']:,} in this architecture")
    return {}


_LLAMA = replace(  # Mistral as well
    _QWEN2,
    name="llama",
    settings=(*_QWEN2.settings, Group(_whole_heads)),
    stored={**_STORED, **_PAIRED},
    left=(Left(re.escape(FACTORS), "made into the scaling of RoPE"),),
)

_GEMMA = replace(  # its norms are stored with the 1 added
    _QWEN2,
    name="gemma",
    settings=(*_QWEN2.settings, scores_of_gemma(layers_of_27b=0)),
    fixed={**_GATED, "activation": "gelu_tanh"},
)
_windows_of_gemma2, _windows_of_gemma3 = windows(2, 4096), windows(6)
_GEMMA2 = replace(
    _GEMMA,
    name="gemma2",
    settings=(
        *(setting for setting in _QWEN2.settings if setting is not NO_WINDOW),
        Key("attn_logit_softcapping", "attention_cap", 50.0),
        Key("final_logit_softcapping", "logit_cap", 30.0),
        scores_of_gemma(layers_of_27b=46),
        Group(lambda keys, found, tensors: by_layer(window=_windows_of_gemma2(keys, found))),
    ),
    fixed={**_GEMMA.fixed, "norm_order": "both"},
    stored={
        **_STORED,
        "blocks.{n}.attn_norm": Stored("blk.{n}.post_attention_norm"),
        "blocks.{n}.ffn_norm": Stored("blk.{n}.post_ffw_norm"),
    },
)


def _rope_of_gemma3(keys: Fields, found: Found, tensors: Tensors) -> dict[str, Any]:
    """Layers with a window have a base of their own, and no scaling."""
    scaling = scaling_from_keys(keys)
    each = _windows_of_gemma3(keys, found)
    local = keys.number("rope.freq_base_swa", 10_000.0)
    return by_layer(
        window=each,
        rope_theta=tuple(local if window else found["rope_theta"] for window in each),
        rope_scaling=tuple("none" if window else scaling.get("rope_scaling", "none") for window in each),
        rope_factor=tuple(1.0 if window else scaling.get("rope_factor", 1.0) for window in each),
    )


_GEMMA3 = replace(
    _GEMMA2,
    name="gemma3",
    settings=(
        *(SIZES),
        RMS_NORM,
        *ROTARY,
        Key("final_logit_softcapping", "logit_cap", 0.0),
        scores_of_gemma(layers_of_27b=62),
        Group(_rope_of_gemma3),
    ),
    fixed={**_GEMMA2.fixed, "qk_norm": True},
    stored={**_GEMMA2.stored, **_QK_NORMS},
)


def _residual(keys: Fields, found: Found, tensors: Tensors) -> dict[str, Any]:
    return {"residual": "parallel" if keys.flag("use_parallel_residual", True) else "sequential"}


_FUSED = fused("blk.{n}.attn_qkv")
_GPT2 = FamilyTable(
    name="gpt2",
    settings=(*SIZES, LAYER_NORM),
    fixed={"norm": "layernorm", "activation": "gelu_tanh"},
    stored={**_STORED, **_FUSED, "embed.positions": Stored("position_embd")},
    only=ONLY,
    harmless=HARMLESS,
    copies={"output.weight": "token_embd.weight"},
)
_NEOX = FamilyTable(
    name="gptneox",
    settings=(
        *SIZES,
        LAYER_NORM,
        *ROTARY,
        _SCALING,
        Group(_residual),
    ),
    fixed={"norm": "layernorm", "positions": "rotary"},
    stored={**_STORED, **_FUSED},
    only={key: values for key, values in ONLY.items() if key != "use_parallel_residual"},
    harmless=HARMLESS,
)


def _token_types(keys: Fields, found: Found, tensors: Tensors) -> dict[str, Any]:
    types = tensors.get("token_types.weight")
    return {"n_token_types": types.shape[0] if types else 0, "tied_head": True}


_BERT = FamilyTable(
    name="bert",
    settings=(*SIZES, LAYER_NORM, Group(_token_types)),
    fixed={"norm": "layernorm", "causal": False, "norm_order": "post", "embed_norm": True, "head": "none"},
    stored={
        **_STORED,
        "embed.positions": Stored("position_embd"),
        "embed.types": Stored("token_types"),
        "embed.norm": Stored("token_embd_norm"),
        "blocks.{n}.norm1": Stored("blk.{n}.attn_output_norm"),
        "blocks.{n}.norm2": Stored("blk.{n}.layer_output_norm"),
    },
    only={**ONLY, "attention.causal": (False,)},
    harmless=HARMLESS,
    left=(Left(r"cls(\.output)?\..*", "a task head", said=True),),
)
ARCHITECTURES = {
    architecture.name: architecture
    for architecture in (_LLAMA, _QWEN2, _QWEN3, _GEMMA, _GEMMA2, _GEMMA3, _GPT2, _NEOX, _BERT)
}
