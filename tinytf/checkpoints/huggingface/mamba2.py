"""Mamba-2 by itself (Dao and Gu 2024; Codestral Mamba): no attention, no positions, no feed-forward."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.llama import FIXED, LLAMA
from tinytf.checkpoints.huggingface.mamba import NO_LIMIT, STATE_SPACE
from tinytf.checkpoints.huggingface.table import lm_head
from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors
from tinytf.fields import Fields


def _read_inner(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Refuse heads that are not as wide together as the model is expanded; a text has no longest length."""
    inner, width = int(fields.number("expand", 2) * draft["d_model"]), draft["n_heads"] * draft["d_value"]
    if inner != width:
        raise fields.fault(f"num_heads · head_dim is {width:,}, and expand · hidden_size {inner:,}")
    return {"context": 2**20}


MAMBA2 = replace(
    LLAMA,
    name="Mamba-2",
    model_type="mamba2",
    prefix="backbone.",
    classes={"none": "Mamba2Model", "lm": "Mamba2ForCausalLM"},
    only={"use_bias": (False,), "hidden_act": ("silu", "swish"), "rms_norm": (True,), "time_step_limit": NO_LIMIT},
    fixed={**FIXED, "activation": "silu", "positions": "none", "mixer": "mamba2", "d_ff": 0},
    harmless=(
        "chunk_size", "rescale_prenorm_residual", "residual_in_fp32", "time_step_floor", "time_step_max",
        "time_step_min", "time_step_rank", "time_step_scale", "time_step_init_scheme",
    ),
    settings=(
        Key("vocab_size"),
        Key("hidden_size", "d_model"),
        Key("num_hidden_layers", "n_layers"),
        Key("num_heads", "n_heads", 128),
        Key("n_groups", "n_kv_heads", 8),
        Key("state_size", "d_head", 128),
        Key("head_dim", "d_value", 64),
        Key("conv_kernel", "conv_width", 4),
        Key("use_conv_bias", "conv_bias", True),
        Key("layer_norm_epsilon", "norm_eps", 1e-5),
        Key("tie_word_embeddings", "tied_head", False),
        lm_head(),
        Group(_read_inner, lambda config: {"expand": config.n_heads * config.value_width // config.d_model}),
    ),
    written={"use_bias": False},
    stored={
        "embed.tokens": Stored("embeddings"),
        "blocks.{n}.norm1": Stored("layers.{n}.norm"),
        **{name: replace(layout, module=layout.module.replace("mamba", "mixer"))
           for name, layout in STATE_SPACE.items()},
        "final_norm": Stored("norm_f"),
        "head.decoder": Stored("lm_head"),
    },
    skipped=(),
    copies={"lm_head.weight": "embeddings.weight"},
    heads={},
)  # fmt: skip
