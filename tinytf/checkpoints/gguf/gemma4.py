"""Gemma 4 in GGUF files: wide heads in layers without a window, shared keys and values, embeddings of layers."""

import math
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.gguf.experts import COUNTS
from tinytf.checkpoints.gguf.keys import RMS_NORM, SIZES, VALUE_WIDTH, by_layer, except_keys, windows
from tinytf.checkpoints.gguf.llamas import GEMMA2, QK_NORMS
from tinytf.checkpoints.gguf.scaling import FACTORS
from tinytf.checkpoints.gguf.weights import read_tensor
from tinytf.checkpoints.table import Draft, Group, Key, Skip, Stored, Tensors
from tinytf.fields import Fields

_windows = windows(6)
_PER_LAYER = ("attention.head_count_kv", "feed_forward_length")
_NEVER = 1e29
"""What divides the frequency of a pair that is not turned is larger."""


def counts(keys: Fields, name: str, layers: int) -> list[int]:
    """A number of each layer; a single one is that of all."""
    if isinstance(keys.data.get(f"{keys.prefix}{name}"), list | tuple):
        counts: list[int] = keys.array(name, int, count=layers)
        return counts
    return [keys.whole(name)] * layers


def _read(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    layers, layer_windows = draft["n_layers"], _windows(keys, draft)
    wide = keys.whole("attention.key_length")
    narrow = keys.whole("attention.key_length_swa", wide)
    for name, width in (("value_length", wide), ("value_length_swa", narrow)):
        keys.require(f"attention.{name}", (width,))
    widths = [narrow if window else wide for window in layer_windows]
    for name, width in (("dimension_count", wide), ("dimension_count_swa", narrow)):
        keys.require(f"rope.{name}", (width,))
    local, base = keys.number("rope.freq_base_swa", 10_000.0), keys.number("rope.freq_base", 1_000_000.0)
    own = layers - keys.whole("attention.shared_kv_layers", 0, least=0, most=layers - 1)
    turned = _turned(tensors)
    return {
        "embed_scale": math.sqrt(draft["d_model"]),
        "rope_turned": turned or 0,
        "d_layer_input": keys.whole("embedding_length_per_layer_input", 0, least=0),
        **by_layer(
            window=layer_windows,
            d_head=tuple(widths),
            n_kv_heads=tuple(counts(keys, _PER_LAYER[0], layers)),
            d_ff=tuple(counts(keys, _PER_LAYER[1], layers)),
            rope_theta=tuple(local if window else base for window in layer_windows),
            rope_scaling=tuple("none" if window or turned is None else "proportional" for window in layer_windows),
            shares_keys=tuple(layer >= own for layer in range(layers)),
            values_of_keys=tuple(
                f"blk.{n}.attn_k.weight" in tensors and f"blk.{n}.attn_v.weight" not in tensors and n < own
                for n in range(layers)
            ),
        ),
    }


def _turned(tensors: Tensors) -> int | None:
    """How many pairs of a wide head are turned: those whose frequency is divided by 1. None without such a table."""
    if FACTORS not in tensors:
        return None
    return int((read_tensor(tensors[FACTORS]) < _NEVER).sum())


def _experts(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The experts, beside a feed-forward for every token, which is the shared expert."""
    count = keys.whole("expert_count", 0, least=0)
    if not count:
        return {}
    return {
        "experts": count,
        "experts_per_token": keys.whole("expert_used_count", least=1),
        "d_expert": keys.whole("expert_feed_forward_length", least=1),
        "d_shared": draft["d_ff"],
        "expert_norms": True,
    }


LAYER_INPUTS = {
    "blocks.{n}.ple.tokens": Stored("per_layer_token_embd", of_layers=True, axis=1),
    "blocks.{n}.ple.context": Stored("per_layer_model_proj", of_layers=True),
    "blocks.{n}.ple.norm": Stored("per_layer_proj_norm"),
    "blocks.{n}.ple.gate": Stored("blk.{n}.inp_gate"),
    "blocks.{n}.ple.out": Stored("blk.{n}.proj"),
    "blocks.{n}.ple.out_norm": Stored("blk.{n}.post_norm"),
}
"""The embeddings of layers."""
_HALVES: dict[str, Any] = {"parts": ("d_expert", "d_expert"), "axis": 1}
_GATE_UP = "blk.{n}.ffn_gate_up_exps"
GEMMA4 = replace(
    GEMMA2,
    name="gemma4",
    settings=(
        *(
            key
            for key in SIZES
            if key is not VALUE_WIDTH and getattr(key, "name", "") not in (*_PER_LAYER, "attention.key_length")
        ),
        RMS_NORM,
        Key("final_logit_softcapping", "logit_cap", 0.0),
        Group(_read),
        Group(_experts),
    ),
    fixed={**GEMMA2.fixed, "qk_norm": True, "v_norm": True, "layer_scale": True, "attention_divisor": 1.0},
    stored={
        **GEMMA2.stored,
        **QK_NORMS,
        **LAYER_INPUTS,
        "blocks.{n}.scale": Stored("blk.{n}.layer_output_scale"),
        **{f"blocks.{{n}}.ffn.shared.{name}": Stored(f"blk.{{n}}.ffn_{name}") for name in ("gate", "up", "down")},
        "blocks.{n}.ffn.router": Stored("blk.{n}.ffn_gate_inp"),
        "blocks.{n}.ffn.router_norm": Stored("blk.{n}.ffn_gate_inp.scale", bare=True),
        "blocks.{n}.ffn.weights": Stored("blk.{n}.ffn_down_exps.scale", bare=True),
        "blocks.{n}.ffn.experts_norm": Stored("blk.{n}.pre_ffw_norm_2"),
        "blocks.{n}.ffn.mixed_norm": Stored("blk.{n}.post_ffw_norm_2"),
        "blocks.{n}.ffn.shared_norm": Stored("blk.{n}.post_ffw_norm_1"),
        "blocks.{n}.ffn.experts.gate": Stored(_GATE_UP, **_HALVES, instead=Stored("blk.{n}.ffn_gate_exps")),
        "blocks.{n}.ffn.experts.up": Stored(_GATE_UP, part=1, **_HALVES, instead=Stored("blk.{n}.ffn_up_exps")),
        "blocks.{n}.ffn.experts.down": Stored("blk.{n}.ffn_down_exps"),
    },
    only=except_keys(*COUNTS),
    skipped=(
        Skip(FACTORS.replace(".", r"\."), "read as the share of a head that is turned"),
        Skip(r"blk\.\d+\.attn_(k|v|k_norm)\.weight", "keys of layers that share them"),
    ),
)
