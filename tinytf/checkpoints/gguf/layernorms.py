"""Architectures of GGUF files with LayerNorm: GPT-2, its descendants, and BERT.

GGUF files do not say whether GELU is exact. Where llama.cpp uses the tanh approximation for a model trained with the
exact GELU, these tables have the exact one.
"""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.gguf.keys import (
    HARMLESS,
    LAYER_NORM,
    NO_WINDOW,
    ONLY,
    ROTARY,
    SIZES,
    by_layer,
    except_keys,
    windows,
)
from tinytf.checkpoints.gguf.llamas import PAIRED, SCALING, STORED, UP_AND_GATE
from tinytf.checkpoints.table import Draft, FamilyTable, Group, Key, Skip, Stored, Tensors
from tinytf.fields import Fields

HEAD_BIAS = Group(lambda keys, draft, tensors: {"head_bias": "output.bias" in tensors})
_CLAMPED = Key("attention.clamp_kqv", "clip_qkv", 0.0)


def _residual(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """A parallel or sequential residual; a parallel feed-forward without its own norm shares that of attention."""
    parallel = keys.flag("use_parallel_residual", True)
    shared = parallel and "blk.0.ffn_norm.weight" not in tensors
    return {"residual": "parallel" if parallel else "sequential", "shared_norm": shared}


GPT2 = FamilyTable(
    name="gpt2",
    settings=(*SIZES, LAYER_NORM),
    fixed={"norm": "layernorm", "activation": "gelu_tanh"},
    stored={**STORED, "embed.positions": Stored("position_embd")},
    only=ONLY,
    harmless=HARMLESS,
)
STARCODER = replace(GPT2, name="starcoder")
NEOX = replace(
    GPT2,
    name="gptneox",
    settings=(*GPT2.settings, *ROTARY, SCALING, Group(_residual)),
    fixed={"norm": "layernorm", "positions": "rotary"},
    only=except_keys("use_parallel_residual"),
)
FALCON = replace(
    GPT2,
    name="falcon",
    settings=(*GPT2.settings, *ROTARY, SCALING),
    fixed={"norm": "layernorm", "positions": "rotary", "residual": "parallel", "shared_norm": True},
    only={**ONLY, "tensor_data_layout": ("jploski",)},
)
FALCON_NEW = replace(  # 40 B and 180 B: attn_norm belongs to the feed-forward, attn_norm_2 to attention
    FALCON,
    fixed={"norm": "layernorm", "positions": "rotary", "residual": "parallel"},
    stored={
        **STORED,
        "blocks.{n}.norm1": Stored("blk.{n}.attn_norm_2"),
        "blocks.{n}.norm2": Stored("blk.{n}.attn_norm"),
    },
)
PHI2 = replace(
    FALCON,
    name="phi2",
    settings=(*FALCON.settings, HEAD_BIAS),
    fixed={**FALCON.fixed, "activation": "gelu_tanh"},
    only=ONLY,
)
STARCODER2 = replace(
    GPT2,
    name="starcoder2",
    settings=(*GPT2.settings, NO_WINDOW, *ROTARY, SCALING),
    fixed={**GPT2.fixed, "positions": "rotary"},
)
BLOOM = replace(
    GPT2,
    name="bloom",
    fixed={**GPT2.fixed, "positions": "alibi", "embed_norm": True},
    stored={**STORED, "embed.norm": Stored("token_embd_norm")},
)
MPT = replace(
    GPT2,
    name="mpt",
    settings=(*GPT2.settings, _CLAMPED, Key("attention.max_alibi_bias", "alibi_max_bias")),
    fixed={"norm": "layernorm", "positions": "alibi"},
    only=except_keys("attention.clamp_kqv", "attention.max_alibi_bias"),
)

NEMOTRON = replace(  # its gains are stored with the 1 added
    GPT2,
    name="nemotron",
    settings=(*GPT2.settings, *ROTARY, SCALING),
    fixed={"norm": "layernorm", "positions": "rotary", "activation": "relu2"},
)

_GATED = {"norm": "layernorm", "positions": "rotary", "activation": "silu", "gated": True}
STABLELM = replace(
    GPT2,
    name="stablelm",
    settings=(
        *GPT2.settings,
        *ROTARY,
        SCALING,
        Group(_residual),
        Group(
            lambda keys, draft, tensors: (
                {"qk_norm": True, "qk_norm_across": "heads", "qk_norm_bias": False}
                if "blk.0.attn_q_norm.weight" in tensors
                else {}
            )
        ),
    ),
    stored={
        **GPT2.stored,
        "blocks.{n}.attention.q_norm": Stored("blk.{n}.attn_q_norm", by_row="n_heads"),
        "blocks.{n}.attention.k_norm": Stored("blk.{n}.attn_k_norm", by_row="n_kv_heads"),
    },
    fixed=_GATED,
    only=except_keys("use_parallel_residual"),
)
OLMO = replace(  # its norms have no parameters
    GPT2,
    name="olmo",
    settings=(*GPT2.settings, *ROTARY, SCALING, _CLAMPED),
    fixed={**_GATED, "norm_gain": False},
    stored={**STORED, **PAIRED},
    only=except_keys("attention.clamp_kqv"),
)


def _head_norms(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    return {"qk_norm": True, "qk_norm_across": "heads"} if "blk.0.attn_q_norm.weight" in tensors else {}


COMMAND_R = replace(
    GPT2,
    name="command-r",
    settings=(*GPT2.settings, *ROTARY, SCALING, Key("logit_scale", "logit_scale", 1.0), Group(_head_norms)),
    fixed={**_GATED, "residual": "parallel", "shared_norm": True},
    stored={
        **STORED,
        **PAIRED,
        "blocks.{n}.attention.q_norm": Stored("blk.{n}.attn_q_norm", paired="n_heads", by_row="n_heads"),
        "blocks.{n}.attention.k_norm": Stored("blk.{n}.attn_k_norm", paired="n_kv_heads", by_row="n_kv_heads"),
    },
)
_windows_of_cohere2 = windows(4)


def _layers_of_cohere2(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Layers with a window have RoPE, the others no positions."""
    layer_windows = _windows_of_cohere2(keys, draft)
    return by_layer(window=layer_windows, positions=tuple("rotary" if window else "none" for window in layer_windows))


COHERE2 = replace(
    COMMAND_R,
    name="cohere2",
    settings=(*COMMAND_R.settings, Group(_layers_of_cohere2)),
)


def _token_types(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    types = tensors.get("token_types.weight")
    return {"n_token_types": types.shape[0] if types else 0, "tied_head": True}


BERT = FamilyTable(
    name="bert",
    settings=(*SIZES, LAYER_NORM, Group(_token_types)),
    fixed={"norm": "layernorm", "causal": False, "norm_order": "post", "embed_norm": True, "head": "none"},
    stored={
        **STORED,
        "embed.positions": Stored("position_embd"),
        "embed.types": Stored("token_types"),
        "embed.norm": Stored("token_embd_norm"),
        "blocks.{n}.norm1": Stored("blk.{n}.attn_output_norm"),
        "blocks.{n}.norm2": Stored("blk.{n}.layer_output_norm"),
    },
    only={**ONLY, "attention.causal": (False,)},
    harmless=HARMLESS,
    skipped=(Skip(r"cls(\.output)?\..*", "a task head", noted=True),),
)
NOMIC_BERT = replace(
    BERT,
    name="nomic-bert",
    settings=(*BERT.settings, *ROTARY, SCALING),
    fixed={**BERT.fixed, "positions": "rotary", "activation": "silu", "gated": True},
)


def _layers_of_modern_bert(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Every third layer, starting with the first, has full attention; the others half of the window on each side."""
    layers = range(draft["n_layers"])
    window = keys.whole("attention.sliding_window", 0, least=0)
    interval = keys.whole("attention.sliding_window_pattern", 3, least=1)
    local_theta = keys.number("rope.freq_base_swa", 10_000.0)
    has_window = tuple(window > 0 and layer % interval > 0 for layer in layers)
    return by_layer(
        window=tuple(window // 2 + 1 if local else 0 for local in has_window),
        rope_theta=tuple(local_theta if local else draft["rope_theta"] for local in has_window),
        input_norm=tuple(layer > 0 for layer in layers),
    )


MODERN_BERT = replace(
    BERT,
    name="modern-bert",
    settings=(*SIZES, LAYER_NORM, *ROTARY, SCALING, Group(_layers_of_modern_bert)),
    fixed={
        "norm": "layernorm",
        "causal": False,
        "embed_norm": True,
        "head": "none",
        "positions": "rotary",
        "gated": True,
    },
    stored={
        **STORED,
        **UP_AND_GATE,
        "embed.norm": Stored("token_embd_norm"),
    },
)
