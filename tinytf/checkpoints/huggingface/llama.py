"""Llama 2 and 3, Mistral, Qwen2 and Qwen3 (SmolLM2 is a Llama): RMSNorm, rotary, gated feed-forward."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.table import Family, Left, Place
from tinytf.checkpoints.huggingface.words import ACTIVATIONS, activation_word
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_PLACES = {
    "embed.tokens": Place("embed_tokens"),
    "blocks.{n}.norm1": Place("layers.{n}.input_layernorm"),
    "blocks.{n}.attention.q": Place("layers.{n}.self_attn.q_proj"),
    "blocks.{n}.attention.k": Place("layers.{n}.self_attn.k_proj"),
    "blocks.{n}.attention.v": Place("layers.{n}.self_attn.v_proj"),
    "blocks.{n}.attention.o": Place("layers.{n}.self_attn.o_proj"),
    "blocks.{n}.attention.q_norm": Place("layers.{n}.self_attn.q_norm"),
    "blocks.{n}.attention.k_norm": Place("layers.{n}.self_attn.k_norm"),
    "blocks.{n}.norm2": Place("layers.{n}.post_attention_layernorm"),
    "blocks.{n}.ffn.gate": Place("layers.{n}.mlp.gate_proj"),
    "blocks.{n}.ffn.up": Place("layers.{n}.mlp.up_proj"),
    "blocks.{n}.ffn.down": Place("layers.{n}.mlp.down_proj"),
    "final_norm": Place("norm"),
    "head.decoder": Place("lm_head"),
}
_SCALINGS = {"default": "none", "linear": "linear", "llama3": "llama3"}


def _rope(fields: Fields) -> dict[str, Any]:
    """Rotary settings in any of their spellings: rope_theta and rope_scaling, or rope_parameters."""
    fields.require("partial_rotary_factor", (1, 1.0))
    fields.require("rope_interleaved", (False,))
    fields.require("use_mrope", (False,))
    parameters = fields.object("rope_parameters")
    scaling = parameters or fields.object("rope_scaling") or Fields({}, fields.source)
    scaling.require("partial_rotary_factor", (1, 1.0))
    scaling.require("mrope_section", ())
    word = scaling.word("rope_type" if "rope_type" in scaling.data else "type", _SCALINGS, "default")
    theta = fields.number("rope_theta", 10_000.0)
    found: dict[str, Any] = {"rope_theta": parameters.number("rope_theta", theta) if parameters else theta}
    if word != "none":
        found |= {"rope_scaling": word, "rope_factor": scaling.number("factor")}
    if word == "llama3":
        found |= {
            "rope_low_frequency": scaling.number("low_freq_factor"),
            "rope_high_frequency": scaling.number("high_freq_factor"),
            "rope_original_context": scaling.whole("original_max_position_embeddings"),
        }
    return found


def _window(fields: Fields, used: bool) -> int:
    """The sliding window, if all layers have it; a mixture is refused."""
    window = fields.whole("sliding_window", 0)
    kinds = {str(kind) for kind in fields.array("layer_types", str, ())}
    if used and window and kinds == {"full_attention"}:
        return 0
    if kinds - {"full_attention", "sliding_attention"} or len(kinds) > 1:
        raise fields.fault(f"layer_types {', '.join(sorted(kinds))} in one model is not implemented")
    return window if used or kinds == {"sliding_attention"} else 0


def _decoder(fields: Fields, names: Collection[str], **more: Any) -> ModelConfig:
    tied = fields.flag("tie_word_embeddings", False)
    heads = fields.whole("num_attention_heads")
    return ModelConfig(
        **{
            "vocab_size": fields.whole("vocab_size"),
            "d_model": fields.whole("hidden_size"),
            "n_layers": fields.whole("num_hidden_layers"),
            "n_heads": heads,
            "n_kv_heads": fields.whole("num_key_value_heads", heads),
            "d_head": fields.whole("head_dim", 0),
            "d_ff": fields.whole("intermediate_size"),
            "context": fields.whole("max_position_embeddings"),
            "norm": "rmsnorm",
            "norm_eps": fields.number("rms_norm_eps", 1e-6),
            "positions": "rotary",
            **_rope(fields),
            "activation": fields.word("hidden_act", ACTIVATIONS, "silu"),
            "gated": True,
            "qkv_bias": False,
            "o_bias": False,
            "ffn_bias": False,
            "tied_head": tied,
            "head": "lm" if tied or "lm_head.weight" in names else "none",
            **more,
        }
    )


def _read_llama(fields: Fields, names: Collection[str]) -> ModelConfig:
    bias = fields.flag("attention_bias", False)
    return _decoder(fields, names, qkv_bias=bias, o_bias=bias, ffn_bias=fields.flag("mlp_bias", False))


def _read_mistral(fields: Fields, names: Collection[str]) -> ModelConfig:
    return _decoder(fields, names, window=_window(fields, used=True))


def _read_qwen2(fields: Fields, names: Collection[str]) -> ModelConfig:
    return _decoder(fields, names, qkv_bias=True, window=_window(fields, fields.flag("use_sliding_window", False)))


def _read_qwen3(fields: Fields, names: Collection[str]) -> ModelConfig:
    bias = fields.flag("attention_bias", False)
    window = _window(fields, fields.flag("use_sliding_window", False))
    width = fields.whole("head_dim", 128)
    return _decoder(fields, names, d_head=width, qk_norm=True, qkv_bias=bias, o_bias=bias, window=window)


def _written(config: ModelConfig, name: str, **more: Any) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_scaling != "none":
        rope |= {"rope_type": config.rope_scaling, "factor": config.rope_factor}
    if config.rope_scaling == "llama3":
        rope |= {
            "low_freq_factor": config.rope_low_frequency,
            "high_freq_factor": config.rope_high_frequency,
            "original_max_position_embeddings": config.rope_original_context,
        }
    return {
        "architectures": [f"{name}ForCausalLM" if config.head == "lm" else f"{name}Model"],
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.d_head,
        "intermediate_size": config.d_ff,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": rope,
        "rope_theta": config.rope_theta,
        "hidden_act": activation_word(config.activation),
        "tie_word_embeddings": config.tied_head,
        "attention_dropout": 0.0,
        **more,
    }


def _write_llama(config: ModelConfig) -> dict[str, Any] | None:
    return _written(config, "Llama", attention_bias=config.qkv_bias, mlp_bias=config.ffn_bias)


def _write_mistral(config: ModelConfig) -> dict[str, Any] | None:
    return _written(config, "Mistral", sliding_window=config.window or None)


def _write_qwen2(config: ModelConfig) -> dict[str, Any] | None:
    return _written(config, "Qwen2", **_windowed(config))


def _write_qwen3(config: ModelConfig) -> dict[str, Any] | None:
    return _written(config, "Qwen3", attention_bias=config.qkv_bias, **_windowed(config))


def _windowed(config: ModelConfig) -> dict[str, Any]:
    if not config.window:
        return {"use_sliding_window": False}
    return {"use_sliding_window": True, "sliding_window": config.window, "max_window_layers": 0}


LLAMA = Family(
    name="Llama",
    model_type="llama",
    prefix="model.",
    read=_read_llama,
    write=_write_llama,
    places=_PLACES,
    left=(
        Left(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq", "rotary frequencies, stored as a buffer"),
        Left(r"(score|classifier)\..*", "a classification head", said=True),
    ),
    copies={"lm_head.weight": "embed_tokens.weight"},
    outside=("lm_head",),
)
MISTRAL = replace(LLAMA, name="Mistral", model_type="mistral", read=_read_mistral, write=_write_mistral)
QWEN2 = replace(LLAMA, name="Qwen2", model_type="qwen2", read=_read_qwen2, write=_write_qwen2)
QWEN3 = replace(LLAMA, name="Qwen3", model_type="qwen3", read=_read_qwen3, write=_write_qwen3)
