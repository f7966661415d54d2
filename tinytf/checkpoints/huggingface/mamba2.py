"""Mamba and Mamba-2 by themselves (Gu and Dao 2023, 2024): no attention, no positions, no feed-forward."""

import math
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.llama import FIXED, LLAMA
from tinytf.checkpoints.huggingface.mamba import NO_LIMIT, STATE_SPACE
from tinytf.checkpoints.huggingface.table import lm_head
from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields


def _read_inner(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Refuse heads that are not as wide together as the model is expanded; a text has no longest length."""
    inner, width = int(fields.number("expand", 2) * draft["d_model"]), draft["n_heads"] * draft["d_value"]
    if inner != width:
        raise fields.fault(f"num_heads · head_dim is {width:,}, and expand · hidden_size {inner:,}")
    return {"context": 2**20}


TRAINING_OF_STEPS = (
    "rescale_prenorm_residual", "residual_in_fp32", "time_step_floor", "time_step_max", "time_step_min",
    "time_step_scale", "time_step_init_scheme",
)  # fmt: skip
"""Keys that have no effect in evaluation, or only on how numbers are rounded."""
_AROUND = {
    "embed.tokens": Stored("embeddings"),
    "blocks.{n}.norm1": Stored("layers.{n}.norm"),
    "final_norm": Stored("norm_f"),
    "head.decoder": Stored("lm_head"),
}

MAMBA2 = replace(
    LLAMA,
    name="Mamba-2",
    model_type="mamba2",
    prefix="backbone.",
    classes={"none": "Mamba2Model", "lm": "Mamba2ForCausalLM"},
    only={"use_bias": (False,), "hidden_act": ("silu", "swish"), "rms_norm": (True,), "time_step_limit": NO_LIMIT},
    fixed={**FIXED, "activation": "silu", "positions": "none", "mixer": "mamba2", "d_ff": 0},
    harmless=("chunk_size", "time_step_rank", *TRAINING_OF_STEPS),
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
        **_AROUND,
        **{name: replace(layout, module=layout.module.replace("mamba", "mixer"))
           for name, layout in STATE_SPACE.items()},
    },
    skipped=(),
    copies={"lm_head.weight": "embeddings.weight"},
    heads={},
)  # fmt: skip


def channels(inner: int, state: int) -> dict[str, int]:
    """The heads of that many channels: groups of up to 64, which change no number."""
    width = math.gcd(inner, 64)
    return {"n_heads": inner // width, "d_head": state, "d_value": width}


def read_rank(fields: Fields, name: str, draft: Draft) -> int:
    """The rank of the steps under a key; by default a sixteenth of the width, rounded up."""
    fields.asked.add(name)
    return (
        -(-draft["d_model"] // 16) if fields.data.get(name, "auto") in (None, "auto") else fields.whole(name, least=1)
    )


def _read_channels(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    inner = int(fields.number("expand", 2) * draft["d_model"])
    fields.require("intermediate_size", (inner,))
    rank = read_rank(fields, "time_step_rank", draft)
    return {**channels(inner, draft["d_head"]), "dt_rank": rank, "context": 2**20}


def _write_channels(config: ModelConfig) -> dict[str, Any]:
    inner = config.n_heads * config.value_width
    keys = {"expand": inner // config.d_model, "intermediate_size": inner, "time_step_rank": config.dt_rank}
    return keys if config.mixer == "mamba" else {}


_IN, _INNER = "layers.{n}.mixer", "n_heads·d_value"
_STEPS = ("dt_rank", "d_head", "d_head")
MAMBA = replace(
    MAMBA2,
    name="Mamba",
    model_type="mamba",
    classes={"none": "MambaModel", "lm": "MambaForCausalLM"},
    only={"use_bias": (False,), "hidden_act": ("silu", "swish")},
    fixed={**MAMBA2.fixed, "mixer": "mamba"},
    harmless=("use_mambapy", "use_associative_scan", *TRAINING_OF_STEPS),
    settings=(
        *MAMBA2.settings[:3],
        Key("state_size", "d_head", 16),
        Key("conv_kernel", "conv_width", 4),
        Key("use_conv_bias", "conv_bias", True),
        Key("layer_norm_epsilon", "norm_eps", 1e-5),
        Key("tie_word_embeddings", "tied_head", True),
        lm_head(),
        Group(_read_channels, _write_channels),
    ),
    stored={
        **_AROUND,
        "blocks.{n}.mamba.v": Stored(f"{_IN}.in_proj", part=0, parts=(_INNER, _INNER)),
        "blocks.{n}.mamba.gate": Stored(f"{_IN}.in_proj", part=1, parts=(_INNER, _INNER)),
        "blocks.{n}.mamba.v_conv": Stored(f"{_IN}.conv1d", convolution=True),
        "blocks.{n}.mamba.dt_low": Stored(f"{_IN}.x_proj", part=0, parts=_STEPS),
        "blocks.{n}.mamba.k": Stored(f"{_IN}.x_proj", part=1, parts=_STEPS),
        "blocks.{n}.mamba.q": Stored(f"{_IN}.x_proj", part=2, parts=_STEPS),
        "blocks.{n}.mamba.dt_in": Stored(f"{_IN}.dt_proj"),
        "blocks.{n}.mamba.dt": Stored(f"{_IN}.dt_proj"),
        "blocks.{n}.mamba.scan": Stored(f"{_IN}.A_log", bare=True, bias=f"{_IN}.D"),
        "blocks.{n}.mamba.o": Stored(f"{_IN}.out_proj"),
    },
)

FALCON_MAMBA = replace(
    MAMBA,
    name="Falcon-Mamba",
    model_type="falcon_mamba",
    classes={"none": "FalconMambaModel", "lm": "FalconMambaForCausalLM"},
    fixed={**MAMBA.fixed, "inner_norm": "plain"},
    settings=(*MAMBA.settings, Key("mixer_rms_eps", "inner_norm_eps", 1e-6)),
)
"""Falcon-Mamba (TII 2024): queries, keys and steps are normed."""
