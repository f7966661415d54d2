"""Llama 2 and 3, Mistral, Qwen2 and Qwen3 (SmolLM2 is a Llama): RMSNorm, rotary, gated feed-forward."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.heads import DECODER_HEADS
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, SIZES, Family, lm_head
from tinytf.checkpoints.table import Found, Group, Key, Left, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_SCALINGS = {"default": "none", "linear": "linear", "llama3": "llama3"}
_LLAMA3 = (
    Key("low_freq_factor", "rope_low_frequency"),
    Key("high_freq_factor", "rope_high_frequency"),
    Key("original_max_position_embeddings", "rope_original_context"),
)
_WHOLE_WIDTH = (1, 1.0)  # the share of a head that RoPE turns


def _read_rope(fields: Fields, found: Found, tensors: Tensors) -> dict[str, Any]:
    """Rotary settings in any of their spellings: rope_theta and rope_scaling, or rope_parameters."""
    parameters = fields.object("rope_parameters")
    scaling = parameters or fields.object("rope_scaling") or Fields({}, fields.source)
    scaling.require("partial_rotary_factor", _WHOLE_WIDTH)
    scaling.require("mrope_section", ())
    word = scaling.word("rope_type" if "rope_type" in scaling.data else "type", _SCALINGS, "default")
    theta = fields.number("rope_theta", 10_000.0)
    said: dict[str, Any] = {"rope_theta": parameters.number("rope_theta", theta) if parameters else theta}
    if word != "none":
        said |= {"rope_scaling": word, "rope_factor": scaling.number("factor")}
    for key in _LLAMA3 if word == "llama3" else ():
        said |= key.read(scaling, said, tensors)
    return said


def _write_rope(config: ModelConfig) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_scaling != "none":
        rope |= {"rope_type": config.rope_scaling, "factor": config.rope_factor}
    for key in _LLAMA3 if config.rope_scaling == "llama3" else ():
        rope |= key.write(config)
    return {"rope_parameters": rope, "rope_theta": config.rope_theta}


ROPE = Group(_read_rope, _write_rope)


def _window(fields: Fields, used: bool) -> dict[str, Any]:
    """The sliding window, if all layers have it; a mixture is refused."""
    window = fields.whole("sliding_window", 0)
    kinds = set(fields.array("layer_types", str, ()))
    if used and window and kinds == {"full_attention"}:
        return {"window": 0}
    if kinds - {"full_attention", "sliding_attention"} or len(kinds) > 1:
        raise fields.fault(f"layer_types {', '.join(sorted(kinds))} in one model is not implemented")
    return {"window": window if used or kinds == {"sliding_attention"} else 0}


def _write_switch(config: ModelConfig) -> dict[str, Any]:
    if not config.window:
        return {"use_sliding_window": False}
    return {"use_sliding_window": True, "sliding_window": config.window, "max_window_layers": 0}


_WINDOW = Group(
    lambda fields, found, tensors: _window(fields, used=True),
    lambda config: {"sliding_window": config.window or None},
)
_WINDOW_WITH_SWITCH = Group(
    lambda fields, found, tensors: _window(fields, fields.flag("use_sliding_window", False)), _write_switch
)
_BIASES = Key("attention_bias", "qkv_bias o_bias", False)
SHARED = (
    *SIZES,
    Key("num_key_value_heads", "n_kv_heads", lambda found: found["n_heads"]),
    Key("max_position_embeddings", "context"),
    Key("rms_norm_eps", "norm_eps", 1e-6),
    ROPE,
)
"""Keys that Gemma 2 has too."""
_SETTINGS = (
    *SHARED,
    Key("head_dim", "d_head", 0),
    Key("hidden_act", "activation", "silu", ACTIVATIONS),
    Key("tie_word_embeddings", "tied_head", False),
    lm_head(),
)
_FIXED = {
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
    only={"partial_rotary_factor": _WHOLE_WIDTH, "rope_interleaved": (False,), "use_mrope": (False,)},
    fixed=_FIXED,
    settings=(*_SETTINGS, _BIASES, Key("mlp_bias", "ffn_bias", False)),
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
    left=(
        Left(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq", "rotary frequencies, stored as a buffer"),
        Left(r"(score|classifier)\..*", "a classification head", said=True),
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
    settings=(*_SETTINGS, _WINDOW),
)
QWEN2 = replace(
    LLAMA,
    name="Qwen2",
    model_type="qwen2",
    classes={"none": "Qwen2Model", "lm": "Qwen2ForCausalLM"},
    fixed={**_FIXED, "qkv_bias": True},
    settings=(*_SETTINGS, _WINDOW_WITH_SWITCH),
)
QWEN3 = replace(
    LLAMA,
    name="Qwen3",
    model_type="qwen3",
    classes={"none": "Qwen3Model", "lm": "Qwen3ForCausalLM"},
    fixed={**_FIXED, "qk_norm": True},
    settings=(*_SETTINGS, Key("head_dim", "d_head", 128), _BIASES, _WINDOW_WITH_SWITCH),
)
