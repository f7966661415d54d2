"""Gemma 1, 2 and 3, VaultGemma: gains are stored minus 1, embeddings multiplied by √hidden_size."""

import math
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.llama import LLAMA, SHARED, UNTURNED
from tinytf.checkpoints.huggingface.rope import rope
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, lm_head
from tinytf.checkpoints.huggingface.windows import all_but_nth, layer_kinds, windows
from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_EVERY_SECOND = layer_kinds(lambda fields, layer: layer % 2 == 0)


def cap(key: str, field: str, default: float) -> Group:
    """A soft cap; null means no cap."""
    return Group(
        lambda fields, draft, tensors: {field: fields.number(key, 0.0) if key in fields.data else default},
        lambda config: {key: getattr(config, field) or None},
    )


def _read_scales(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Scores are divided by √query_pre_attn_scalar, embeddings multiplied by √hidden_size."""
    scalar = fields.number("query_pre_attn_scalar", 256)
    if scalar <= 0:
        raise fields.fault(f"query_pre_attn_scalar {scalar:g} is not above 0")
    return {"attention_divisor": math.sqrt(scalar), "embed_scale": math.sqrt(draft["d_model"])}


def _write_scales(config: ModelConfig) -> dict[str, Any]:
    return {"query_pre_attn_scalar": round(config.score_divisor**2)}  # a whole number in transformers


_FIXED = {"norm": "rmsnorm", "norm_order": "both", "positions": "rotary", "gated": True, "ffn_bias": False}
_PRE = {name: replace(layout, offset=1.0) if "norm" in name else layout for name, layout in LLAMA.stored.items()}
_PRE_AND_POST = {
    **_PRE,
    "blocks.{n}.attn_norm": Stored("layers.{n}.post_attention_layernorm", offset=1.0),
    "blocks.{n}.norm2": Stored("layers.{n}.pre_feedforward_layernorm", offset=1.0),
    "blocks.{n}.ffn_norm": Stored("layers.{n}.post_feedforward_layernorm", offset=1.0),
}
_ENDS = (Key("attention_bias", "qkv_bias o_bias", False), Key("tie_word_embeddings", "tied_head", True), lm_head())

GEMMA = replace(
    LLAMA,
    name="Gemma",
    model_type="gemma",
    classes={"none": "GemmaModel", "lm": "GemmaForCausalLM"},
    only={"use_bidirectional_attention": (False,), "hidden_activation": ("gelu_pytorch_tanh",)},
    fixed={**_FIXED, "norm_order": "pre"},
    settings=(
        *SHARED,
        Key("head_dim", "d_head", 256),
        # transformers reads gelu as the tanh approximation, which Gemma was trained with
        Key("hidden_act", "activation", "gelu_pytorch_tanh", {**ACTIVATIONS, "gelu": "gelu_tanh"}),
        Group(lambda fields, draft, tensors: {"embed_scale": math.sqrt(draft["d_model"])}),
        *_ENDS,
    ),
    stored=_PRE,
)
"""Gemma 1 (Mesnard et al. 2024)."""

GEMMA2 = replace(
    LLAMA,
    name="Gemma 2",
    model_type="gemma2",
    classes={"none": "Gemma2Model", "lm": "Gemma2ForCausalLM"},
    only={"use_bidirectional_attention": (False,)},
    fixed=_FIXED,
    settings=(
        *SHARED,
        Key("head_dim", "d_head", 256),
        Key("hidden_activation", "activation", "gelu_pytorch_tanh", ACTIVATIONS),
        cap("attn_logit_softcapping", "attention_cap", 50.0),
        cap("final_logit_softcapping", "logit_cap", 30.0),
        Group(_read_scales, _write_scales),
        windows(_EVERY_SECOND, 4096),
        *_ENDS,
    ),
    stored=_PRE_AND_POST,
)
"""Gemma 2 (Riviere et al. 2024): norms before and after each part, soft caps, a window in every second layer."""

VAULTGEMMA = replace(
    GEMMA2,
    name="VaultGemma",
    model_type="vaultgemma",
    classes={"none": "VaultGemmaModel", "lm": "VaultGemmaForCausalLM"},
    fixed={**_FIXED, "norm_order": "pre"},
    stored={**_PRE, "blocks.{n}.norm2": Stored("layers.{n}.pre_feedforward_layernorm", offset=1.0)},
)
"""VaultGemma (Sinha et al. 2025): a pre-norm Gemma 2."""

_FIVE_OF_SIX = layer_kinds(all_but_nth("sliding_window_pattern", 6))
_OMITTED = {
    "vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131_072,
}  # fmt: skip
"""Keys that the multimodal Gemma 3 omits from its text_config."""
_WINDOWS = windows(_FIVE_OF_SIX, 4096)


def _read_sight(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The windows; a model that attends both ways (EmbeddingGemma) sees half of one to each side."""
    found = _WINDOWS.read(fields, draft, tensors)
    if not fields.flag("use_bidirectional_attention", False):
        return found
    fields.require("is_causal", ())  # the union of both masks
    halved = {"window": _half(found.get("window", 0))}
    by_layer = tuple((name, tuple(map(_half, values))) for name, values in found.get("by_layer", ()))
    has_head = any("CausalLM" in name for name in fields.array("architectures", str, ()))
    return {
        "causal": False,
        **({} if has_head else {"head": "none"}),
        **({"by_layer": by_layer} if by_layer else halved),
    }


def _half(window: int) -> int:
    return window // 2 + 1 if window else 0


def _write_sight(config: ModelConfig) -> dict[str, Any]:
    keys = _WINDOWS.write(config)
    if config.causal or not keys["sliding_window"]:
        return {**keys, "use_bidirectional_attention": not config.causal}
    return {**keys, "use_bidirectional_attention": True, "sliding_window": 2 * (keys["sliding_window"] - 1)}


GEMMA3 = replace(
    GEMMA2,
    name="Gemma 3",
    model_type="gemma3_text",
    classes={"none": "Gemma3TextModel", "lm": "Gemma3ForCausalLM"},
    only={"attn_logit_softcapping": ()},  # transformers ignores it
    fixed={**_FIXED, "qk_norm": True},
    settings=(
        *(replace(key, default=_OMITTED.get(key.name, key.default)) for key in UNTURNED),
        Key("head_dim", "d_head", 256),
        rope(1_000_000.0, kinds=_FIVE_OF_SIX, local=lambda fields: fields.number("rope_local_base_freq", 10_000.0)),
        Key("hidden_activation", "activation", "gelu_pytorch_tanh", ACTIVATIONS),
        cap("final_logit_softcapping", "logit_cap", 0.0),
        Group(_read_scales, _write_scales),
        *_ENDS,
        Group(_read_sight, _write_sight),
    ),
    harmless=("_sliding_window_pattern", "sliding_window_pattern"),
)
"""Gemma 3 (Kamath et al. 2025), text only, and EmbeddingGemma: QK norms, and windows with their own rotary base."""
