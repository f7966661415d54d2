"""Configurations by name: architectures to look at with random weights, for shapes and counts."""

import math
from collections.abc import Mapping
from typing import Any

from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.fields import quoted
from tinytf.nearest import did_you_mean

BUILT_IN = ("tiny", "tiny-encoder", "tiny-translator")
"""The models that come with tinytf, by their folder among the assets."""
PRESETS: dict[str, ModelConfig] = {
    # Vaswani et al. 2017, table 3, the encoder stack of the base model.
    "paper": ModelConfig.of(
        vocab_size=37_000,
        d_model=512,
        n_layers=6,
        n_heads=8,
        d_ff=2048,
        context=512,
        causal=False,
        norm_order="post",
        positions="sinusoidal",
        embed_scale=math.sqrt(512),
        activation="relu",
        qkv_bias=False,
        o_bias=False,
        head="none",
    ),
    # Radford et al. 2019, the 124 M model.
    "gpt2": ModelConfig.of(
        vocab_size=50_257, d_model=768, n_layers=12, n_heads=12, d_ff=3072, context=1024, activation="gelu_tanh"
    ),
    # The same parts as GPT-2, small: for code modelled on GPT-2.
    "gpt2-tiny": ModelConfig.of(
        vocab_size=50_257, d_model=128, n_layers=4, n_heads=4, d_ff=512, context=256, activation="gelu_tanh"
    ),
    # Devlin et al. 2019, uncased, with the pooler and without a masked-language-model head.
    "bert-base": ModelConfig.of(
        vocab_size=30_522,
        d_model=768,
        n_layers=12,
        n_heads=12,
        d_ff=3072,
        context=512,
        causal=False,
        norm_eps=1e-12,
        norm_order="post",
        activation="gelu",
        n_token_types=2,
        embed_norm=True,
        pooler=True,
        head="none",
    ),
    # The Llama 2 and 3 part list (RMSNorm, rotary, grouped queries, SwiGLU, no biases), small.
    "llama-tiny": ModelConfig.of(
        vocab_size=32_000,
        d_model=256,
        n_layers=4,
        n_heads=8,
        n_kv_heads=2,
        d_ff=688,
        context=2048,
        norm="rmsnorm",
        positions="rotary",
        activation="silu",
        gated=True,
        qkv_bias=False,
        o_bias=False,
        ffn_bias=False,
        tied_head=False,
    ),
}
# Vaswani et al. 2017, both stacks of the base model, with one table of embeddings for both and the head.
PRESETS["paper-translation"] = PRESETS["paper"].but(
    causal=True, head="lm", d_source=512, shares_embeddings=True, encoder=PRESETS["paper"].to_dict()
)  # fmt: skip
# Jiang et al. 2024, Mixtral's part list (every feed-forward eight experts, two a token), small.
PRESETS["mixtral-tiny"] = PRESETS["llama-tiny"].but(
    d_model=128, n_heads=4, d_head=32, d_ff=256, d_expert=256, experts=8, experts_per_token=2
)
# Qwen 2026, Qwen3.5's part list (gated delta rules, and gated attention in every fourth layer), small.
_DELTA = ("gated_delta", "gated_delta", "gated_delta", "attention")
PRESETS["qwen3.5-tiny"] = PRESETS["llama-tiny"].but(
    d_model=128, n_layers=4, d_ff=256, qk_norm=True, attention_gate=True, rope_width=8,
    by_layer=(
        ("mixer", _DELTA), ("n_heads", (6, 6, 6, 4)), ("n_kv_heads", (3, 3, 3, 2)), ("d_head", (16, 16, 16, 32)),
        ("d_value", (24, 24, 24, 32)),
    ),
)  # fmt: skip

# Liquid AI 2025, LFM2's part list (short convolutions, and attention in every third layer), small.
_CONVOLUTIONS = ("short_convolution", "short_convolution", "attention")
PRESETS["lfm2-tiny"] = PRESETS["llama-tiny"].but(
    d_model=128, n_layers=3, d_ff=256, conv_width=3, qk_norm=True, tied_head=True,
    n_heads=4, d_head=32, by_layer=(("mixer", _CONVOLUTIONS),),
)  # fmt: skip

# IBM 2025, Granite 4's part list (Mamba-2, and attention without positions in every third layer), small.
_STATE_SPACES = ("mamba2", "mamba2", "attention")
PRESETS["granite4-tiny"] = PRESETS["llama-tiny"].but(
    d_model=128, n_layers=3, d_ff=256, positions="none", tied_head=True, conv_width=4, conv_bias=True,
    by_layer=(
        ("mixer", _STATE_SPACES), ("n_heads", (8, 8, 4)), ("n_kv_heads", (1, 1, 2)), ("d_head", (16, 16, 32)),
        ("d_value", (32, 32, 32)),
    ),
)  # fmt: skip

# Gu and Dao 2023, Mamba's part list (selective state spaces alone), small.
PRESETS["mamba-tiny"] = PRESETS["llama-tiny"].but(
    d_model=128, n_layers=4, d_ff=0, positions="none", tied_head=True, mixer="mamba", n_heads=4, n_kv_heads=0,
    d_head=16, d_value=64, conv_width=4, conv_bias=True, dt_rank=8,
)  # fmt: skip


def preset(name: str) -> ModelConfig:
    """The configuration of a preset. Raises UsageError, with the nearest name, where there is none."""
    if name not in PRESETS:
        raise UsageError(f"there is no preset {quoted(name)}", did_you_mean(name, PRESETS))
    return PRESETS[name]


def settings_of(name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a preset with ``changes``, by flat name.

    What the preset only derives from another setting follows that setting, and its widths stay in proportion to
    ``d_model``. Layers of several kinds repeat in their order. Raises UsageError like ``preset``.
    """
    config = preset(name)
    width, layers = changes.get("d_model", config.d_model), changes.get("n_layers", config.n_layers)
    fields = config.stated()
    for size in ("d_ff", "d_expert"):
        if fields.get(size):
            fields[size] = max(1, round(fields[size] * width / config.d_model))
    if config.embed_scale == math.sqrt(config.d_model):
        fields["embed_scale"] = math.sqrt(width)
    fields["by_layer"] = [
        (setting, [values[layer % len(values)] for layer in range(layers)])
        for setting, values in config.by_layer
        if setting not in changes
    ]
    if config.encoder is not None:  # an encoder is like the decoder, apart from its own settings
        encoder, decoder = config.encoder.to_dict(), config.to_dict()
        fields["encoder"] = {name: _as_read(value) for name, value in encoder.items() if value != decoder[name]}
    return {**{setting: _as_read(value) for setting, value in fields.items()}, **changes}


def _as_read(value: Any) -> Any:
    """A value as JSON has it, so that a resumed run finds what it stored."""
    return list(map(_as_read, value)) if isinstance(value, tuple | list) else value
