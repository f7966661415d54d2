"""Which configurations the fast decoder implements; all others are decoded by the model's own modules."""

from collections.abc import Callable, Mapping
from typing import Any

from tinytf.config import FIELDS, ModelConfig
from tinytf.fields import Field

Values = tuple[Any, ...] | Callable[[Any], bool]


def _whole(value: Any) -> bool:
    return type(value) is int


def _number(value: Any) -> bool:
    return type(value) in (int, float)


def _numbers(value: Any) -> bool:
    return isinstance(value, tuple) and all(map(_number, value))


_EITHER = (True, False)

IMPLEMENTED: Mapping[str, Values] = {
    # what the kernels compute
    "causal": (True,),
    "head": ("lm",),
    "norm": ("layernorm", "rmsnorm"),
    "norm_order": ("pre", "post", "both", "output"),
    "residual": ("sequential", "parallel"),
    "shared_norm": _EITHER,
    "activation": ("relu", "relu2", "gelu", "gelu_tanh", "silu"),
    "gated": _EITHER,
    "qkv_bias": _EITHER,
    "o_bias": _EITHER,
    "ffn_bias": _EITHER,
    "qk_norm": _EITHER,
    "tied_head": _EITHER,
    "head_bias": _EITHER,
    "norm_eps": _number,
    "logit_scale": _number,
    "norm_gain": _EITHER,
    "norm_bias": _EITHER,
    "window": _whole,
    # what they take from the model: its embeddings, its rotary table
    "positions": ("learned", "sinusoidal", "sinusoidal_halves", "rotary", "none"),
    "position_offset": _whole,
    "n_token_types": _whole,
    "embed_scale": _number,
    "embed_norm": _EITHER,
    "rope_scaling": ("none", "linear", "llama3", "yarn", "longrope"),
    "rope_theta": _number,
    "rope_factor": _number,
    "rope_low_frequency": _number,
    "rope_high_frequency": _number,
    "rope_original_context": _whole,
    "rope_attention_factor": _number,
    "rope_truncate": _EITHER,
    "rope_short_factors": _numbers,
    "rope_long_factors": _numbers,
}
"""The values, or a test of them, that the fast decoder implements. What is not listed is implemented at its default."""

WORDS: Mapping[str, str] = {
    "attention_divisor": "a divisor of scores other than √d_head",
    "attention_cap": "capped attention scores",
    "query_scale": "queries scaled by their position",
    "chunk": "attention within chunks",
    "qk_norm_last": "queries and keys normed after their rotation",
    "attention_sinks": "attention sinks",
    "choice_bias": "experts chosen with a bias",
    "glu_limit": "a clamped gate",
    "glu_alpha": "a clamped gate",
    "kv_rank": "latent attention",
    "q_rank": "queries of a rank",
    "d_value": "values of another width",
    "logit_cap": "capped logits",
    "clip_qkv": "clipped queries, keys and values",
    "positions": "ALiBi",
    "mask": "a decoder without its mask",
    "rope_width": "RoPE over a part of each head",
    "relative_buckets": "scores with a bias of distance",
    "distances": "scores of distances",
    "layer_groups": "layers that share their weights",
    "d_embed": "embeddings narrower than the stream",
    "by_layer": "layers that differ",
    "experts": "experts",
    "residual_scale": "a scale on what attention and the feed-forward add",
    "qk_norm_across": "query and key norms with a gain for each head",
}
"""What a value that is not implemented is called, by its field."""

UNRELATED: Mapping[str, Values] = {
    # sizes: the kernels read them off the matrices
    **dict.fromkeys(
        ("vocab_size", "d_model", "n_layers", "n_heads", "n_kv_heads", "d_head", "d_ff", "context"), _whole
    ),
    "dropout": _number,  # of training
    "alibi_max_bias": _number,
    "alibi_scale": _number,
    "alibi_rounded": _EITHER,  # of positions by ALiBi
    "projection_bias": _EITHER,  # of narrow embeddings
    "pooler": _EITHER,  # beside the logits
    "mask_id": _whole,  # of embeddings without masks
    **dict.fromkeys(("query_scale_every", "query_scale_first"), _whole),  # of scaled queries
    # of experts, which are not implemented themselves
    **dict.fromkeys(("experts_per_token", "d_expert", "d_shared"), _whole),
    **dict.fromkeys(("router_bias", "routes_renormed", "shared_gate", "routes_first"), _EITHER),
    "router": ("softmax", "sigmoid"),
    "routed_scale": _number,
    "head_activation": ("relu", "gelu", "gelu_tanh", "silu"),  # of masked-language-model heads
}
"""Fields that do not change what is computed. They still hold one number for all layers: a list is not implemented."""


def unimplemented(config: ModelConfig) -> tuple[str, ...]:
    """In words, what the fast decoder does not implement of a configuration: ``("capped logits",)``.

    A field that neither table names, such as one that was added since, has to be at its default.
    """
    values = ((field, config.setting(name)) for name, field in FIELDS.items())
    return tuple(
        WORDS.get(field.name, f"{field.name} {value!r}") for field, value in values if not _allowed(field, value)
    )


def _allowed(field: Field, value: Any) -> bool:
    allowed = IMPLEMENTED.get(field.name) or UNRELATED.get(field.name)
    if allowed is None:
        return bool(value == field.default)
    return allowed(value) if callable(allowed) else value in allowed
