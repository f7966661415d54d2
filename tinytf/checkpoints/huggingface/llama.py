"""Llama 2 and 3, Mistral, Qwen2 and Qwen3 (SmolLM2 is a Llama): RMSNorm, rotary, gated feed-forward."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.buffers import ROTARY_FREQUENCIES
from tinytf.checkpoints.huggingface.heads import DECODER_HEADS
from tinytf.checkpoints.huggingface.rope import ROPE
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, SIZES, Family, lm_head
from tinytf.checkpoints.huggingface.windows import FULL, SLIDING, layer_kinds, window_of, windows
from tinytf.checkpoints.table import Draft, Group, Key, Skip, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields


def _uses_windows(fields: Fields) -> bool:
    return fields.flag("use_sliding_window", False) or SLIDING in fields.array("layer_types", str, ())


def _has_late_window(fields: Fields, layer: int) -> bool:
    """Whether a layer of Qwen2 has a window: the layers from max_window_layers on."""
    return _uses_windows(fields) and layer >= fields.whole("max_window_layers", 28)


def _read_switched(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    values = windows(layer_kinds(_has_late_window), 4096).read(fields, draft, tensors)
    return values if _uses_windows(fields) else {"window": 0}


def _write_switched(config: ModelConfig) -> dict[str, Any]:
    keys = windows(layer_kinds(_has_late_window)).write(config)
    return {"use_sliding_window": keys["sliding_window"] is not None, **keys}


def _read_window(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The window of all layers; transformers ignores the layer_types of a Mistral."""
    kinds_used = set(fields.array("layer_types", str, ()))
    if len(kinds_used) > 1 or kinds_used - {SLIDING, FULL}:
        raise fields.fault(
            f"layer_types {', '.join(sorted(kinds_used))} are not implemented for this architecture",
            'transformers ignores them; a model trained with them has "model_type": "ministral"',
        )
    return {"window": 0 if kinds_used == {FULL} else window_of(fields, 0)}


WINDOW = Group(_read_window, lambda config: {"sliding_window": config.window or None})
SWITCHED_WINDOWS = Group(_read_switched, _write_switched)
BIASES = Key("attention_bias", "qkv_bias o_bias", False)
UNTURNED = (
    *SIZES,
    Key("num_key_value_heads", "n_kv_heads", lambda draft: draft["n_heads"]),
    Key("max_position_embeddings", "context"),
    Key("rms_norm_eps", "norm_eps", 1e-6),
)
"""Keys without the rotary settings, for families that have their own."""
SHARED = (*UNTURNED, ROPE)
"""Keys with the usual rotary settings, shared by most families."""
HEAD_AND_ACTIVATION = (
    Key("hidden_act", "activation", "silu", ACTIVATIONS),
    Key("tie_word_embeddings", "tied_head", False),
    lm_head(),
)
SETTINGS = (*SHARED, Key("head_dim", "d_head", 0), *HEAD_AND_ACTIVATION)
FIXED = {
    "norm": "rmsnorm",
    "positions": "rotary",
    "gated": True,
    "qkv_bias": False,
    "o_bias": False,
    "ffn_bias": False,
}

LLAMA = Family(
    name="Llama",
    model_type="llama",
    prefix="model.",
    classes={"none": "LlamaModel", "lm": "LlamaForCausalLM"},
    only={"rope_interleaved": (False,), "use_mrope": (False,)},
    fixed=FIXED,
    settings=(*SETTINGS, BIASES, Key("mlp_bias", "ffn_bias", False)),
    written={"attention_dropout": 0.0},
    stored={
        "embed.tokens": Stored("embed_tokens"),
        "blocks.{n}.norm1": Stored("layers.{n}.input_layernorm"),
        "blocks.{n}.attention.q": Stored("layers.{n}.self_attn.q_proj"),
        "blocks.{n}.attention.k": Stored("layers.{n}.self_attn.k_proj"),
        "blocks.{n}.attention.v": Stored("layers.{n}.self_attn.v_proj"),
        "blocks.{n}.attention.o": Stored("layers.{n}.self_attn.o_proj"),
        "blocks.{n}.attention.q_norm": Stored("layers.{n}.self_attn.q_norm"),
        "blocks.{n}.attention.k_norm": Stored("layers.{n}.self_attn.k_norm"),
        "blocks.{n}.norm2": Stored("layers.{n}.post_attention_layernorm"),
        "blocks.{n}.ffn.gate": Stored("layers.{n}.mlp.gate_proj"),
        "blocks.{n}.ffn.up": Stored("layers.{n}.mlp.up_proj"),
        "blocks.{n}.ffn.down": Stored("layers.{n}.mlp.down_proj"),
        "final_norm": Stored("norm"),
        "head.decoder": Stored("lm_head"),
    },
    skipped=(
        ROTARY_FREQUENCIES,
        Skip(r"(score|classifier)\..*", "a classification head", noted=True),
    ),
    copies={"lm_head.weight": "embed_tokens.weight"},
    outside=("lm_head", "score"),
    heads=DECODER_HEADS,
)
MISTRAL = replace(
    LLAMA,
    name="Mistral",
    model_type="mistral",
    classes={"none": "MistralModel", "lm": "MistralForCausalLM"},
    settings=(*SETTINGS, WINDOW),
)
QWEN2 = replace(
    LLAMA,
    name="Qwen2",
    model_type="qwen2",
    classes={"none": "Qwen2Model", "lm": "Qwen2ForCausalLM"},
    fixed={**FIXED, "qkv_bias": True},
    settings=(*SETTINGS, SWITCHED_WINDOWS),
)
QWEN3 = replace(
    LLAMA,
    name="Qwen3",
    model_type="qwen3",
    classes={"none": "Qwen3Model", "lm": "Qwen3ForCausalLM"},
    fixed={**FIXED, "qk_norm": True},
    settings=(*SETTINGS, Key("head_dim", "d_head", 128), BIASES, SWITCHED_WINDOWS),
)
