"""gpt-oss (OpenAI 2025): attention sinks, windows, experts with biases and a clamped gate, MXFP4. Privacy Filter."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.experts import TRAINING, WITHOUT_DENSE
from tinytf.checkpoints.huggingface.llama import LLAMA, UNTURNED
from tinytf.checkpoints.huggingface.rope import rope
from tinytf.checkpoints.huggingface.table import lm_head
from tinytf.checkpoints.huggingface.windows import layer_kinds, window_of, windows
from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors
from tinytf.fields import Fields


def _require_rope(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Refuse missing rotary settings: transformers would scale RoPE by defaults of its own."""
    if not (fields.object("rope_parameters") or fields.object("rope_scaling")):
        raise fields.fault("rope_parameters is missing")
    return {}


_GATE_UP: dict[str, Any] = {"parts": ("experts", "experts"), "by_head": "d_expert", "axis": 1}
"""Gate and up rows alternate, unit by unit."""
_EXPERTS = "layers.{n}.mlp.experts"

_SETTINGS = (
    *UNTURNED,
    Key("rms_norm_eps", "norm_eps", 1e-5),
    Group(_require_rope),
    rope(150_000.0),
    Key("head_dim", "d_head", 64),
    Key("attention_bias", "qkv_bias o_bias", True),
    Key("num_local_experts", "experts"),
    Key("num_experts_per_tok", "experts_per_token", 4),
    Key("swiglu_limit", "glu_limit", 7.0),
    Key("swiglu_alpha", "glu_alpha", 1.702),
)
GPT_OSS = replace(
    LLAMA,
    name="gpt-oss",
    model_type="gpt_oss",
    classes={"none": "GptOssModel", "lm": "GptOssForCausalLM"},
    fixed={
        "norm": "rmsnorm",
        "positions": "rotary",
        "activation": "silu",
        "gated": True,
        "ffn_bias": True,
        "attention_sinks": True,
        "router_bias": True,
    },
    needs=("experts",),
    settings=(
        *_SETTINGS,
        windows(layer_kinds(lambda fields, layer: layer % 2 == 0), 128),
        Key("tie_word_embeddings", "tied_head", False),
        lm_head(),
    ),
    harmless=(*TRAINING, "hidden_act", "initial_context_length", "experts_per_token"),
    stored={
        **WITHOUT_DENSE,
        "blocks.{n}.attention.sink": Stored("layers.{n}.self_attn.sinks", bare=True),
        "blocks.{n}.ffn.router": Stored("layers.{n}.mlp.router"),
        "blocks.{n}.ffn.experts.gate": Stored(f"{_EXPERTS}.gate_up_proj", transposed=True, bare=True, **_GATE_UP),
        "blocks.{n}.ffn.experts.up": Stored(f"{_EXPERTS}.gate_up_proj", transposed=True, bare=True, part=1, **_GATE_UP),
        "blocks.{n}.ffn.experts.down": Stored(f"{_EXPERTS}.down_proj", transposed=True, bare=True),
    },
)


def _read_both_sides(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """A window of so many tokens to each side, and no head over the vocabulary."""
    width = window_of(fields, 128)
    if not width:
        raise fields.fault("no sliding_window is not implemented for this architecture")
    return {"window": width + 1, "head": "none", "tied_head": True}


_HALVES: dict[str, Any] = {"parts": ("d_expert", "d_expert"), "axis": 1}
PRIVACY_FILTER = replace(
    GPT_OSS,
    name="Privacy Filter",
    model_type="openai_privacy_filter",
    classes={"none": "OpenAIPrivacyFilterModel"},
    fixed={**GPT_OSS.fixed, "causal": False},
    settings=(
        *_SETTINGS,
        Group(_read_both_sides, lambda config: {"sliding_window": config.window - 1}),
    ),
    harmless=(*GPT_OSS.harmless, "classifier_dropout", "tie_word_embeddings"),
    stored={
        **GPT_OSS.stored,
        "blocks.{n}.attention.q": Stored("layers.{n}.self_attn.q_proj", paired="n_heads"),
        "blocks.{n}.attention.k": Stored("layers.{n}.self_attn.k_proj", paired="n_kv_heads"),
        "blocks.{n}.ffn.experts.gate": Stored(f"{_EXPERTS}.gate_up_proj", transposed=True, bare=True, **_HALVES),
        "blocks.{n}.ffn.experts.up": Stored(f"{_EXPERTS}.gate_up_proj", transposed=True, bare=True, part=1, **_HALVES),
    },
    routes_scaled_after=True,
)
"""OpenAI 2026: an encoder that marks personal data, with windows to both sides."""
