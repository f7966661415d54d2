"""GGUF architectures with layers that are not attention: LFM2, Mamba, Granite 4, Qwen3-Next and Qwen3.5."""

import math
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.gguf.experts import COUNTS
from tinytf.checkpoints.gguf.keys import RMS_NORM, ROTARY, SIZES, by_layer, except_keys
from tinytf.checkpoints.gguf.llamas import QK_NORMS, QWEN2, SCALING, STORED
from tinytf.checkpoints.gguf.routed import MIXED, read_router
from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors
from tinytf.fields import Fields

_KV = "attention.head_count_kv"
_SIZES = tuple(key for key in SIZES if not (isinstance(key, Key) and key.name == _KV))


def read_kv_heads(keys: Fields, draft: Draft, other: str) -> dict[str, Any]:
    """Key and value heads a layer; a layer with 0 has the ``other`` mixer."""
    counts = keys.array(_KV, int, count=draft["n_layers"])
    if not any(counts):
        raise keys.fault(f"{_KV} leaves no layer with attention")
    return {"n_kv_heads": max(counts), **by_layer(mixer=tuple("attention" if count else other for count in counts))}


def _convolutions(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    return {"conv_width": keys.whole("shortconv.l_cache", least=1), **read_kv_heads(keys, draft, "short_convolution")}


LFM2 = replace(
    QWEN2,
    name="lfm2",
    settings=(*_SIZES, RMS_NORM, *ROTARY, SCALING, Group(_convolutions)),
    fixed={**QWEN2.fixed, "qk_norm": True},
    stored={
        **STORED,
        **QK_NORMS,
        **{
            f"blocks.{{n}}.conv.{name}": Stored("blk.{n}.shortconv.in_proj", part=part, parts=("d_model",) * 3)
            for part, name in enumerate(("gate_in", "gate", "v"))
        },
        "blocks.{n}.conv.v_conv": Stored("blk.{n}.shortconv.conv"),
        "blocks.{n}.conv.o": Stored("blk.{n}.shortconv.out_proj"),
        "final_norm": Stored("token_embd_norm", instead=Stored("output_norm")),
    },
)
LFM2_MOE = replace(
    LFM2,
    name="lfm2moe",
    settings=(*LFM2.settings, Group(read_router), Group(lambda *_: {"routes_renormed": True, "routes_epsilon": 1e-6})),
    stored={**LFM2.stored, **MIXED},
    only=except_keys(*COUNTS),
    harmless=(*LFM2.harmless, "leading_dense_block_count"),
)
