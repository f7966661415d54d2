"""Llama-like decoders with windows, and attention sinks: Granite 4 with windows, and its experts."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.cousins import GRANITE
from tinytf.checkpoints.huggingface.softmax_experts import GRANITE_MOE_SHARED
from tinytf.checkpoints.huggingface.table import by_layer, lm_head, merge_fields
from tinytf.checkpoints.huggingface.windows import layer_kinds, windows
from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors, stacked_experts
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_SINK = {"blocks.{n}.attention.sink": Stored("layers.{n}.self_attn.sinks", bare=True)}


def _read_bases(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The rotary base of each layer, which has no positions where that is 0."""
    common = draft["rope_theta"]
    bases = fields.array("layer_rope_theta", float, None, count=draft["n_layers"]) or [common] * draft["n_layers"]
    usual = max(bases) or common
    return merge_fields(
        by_layer("positions", ["rotary" if base else "none" for base in bases]),
        by_layer("rope_theta", [base or usual for base in bases]),
    )


def _write_bases(config: ModelConfig) -> dict[str, Any]:
    layers = [config.at(layer) for layer in range(config.n_layers)]
    return {"layer_rope_theta": [layer.rope_theta if layer.positions == "rotary" else 0 for layer in layers]}


_WINDOWS = (windows(layer_kinds(lambda fields, layer: layer % 4 != 0), 128), Group(_read_bases, _write_bases))

GRANITE_SWA = replace(
    GRANITE,
    name="Granite with windows",
    model_type="granite_swa",
    classes={"none": "GraniteSWAModel", "lm": "GraniteSWAForCausalLM"},
    fixed={**GRANITE.fixed, "attention_sinks": True},
    settings=(
        *GRANITE.settings,
        Key("rms_norm_eps", "norm_eps", 1e-5),
        Key("tie_word_embeddings", "tied_head", True),
        lm_head(),
        *_WINDOWS,
    ),
    stored={**GRANITE.stored, **_SINK},
)
"""IBM 2026: full attention in every fourth layer."""

GRANITE_MOE_SWA = replace(
    GRANITE_MOE_SHARED,
    name="Granite-MoE with windows",
    model_type="granitemoe_swa",
    classes={"none": "GraniteMoeSWAModel", "lm": "GraniteMoeSWAForCausalLM"},
    fixed={**GRANITE_MOE_SHARED.fixed, "attention_sinks": True},
    settings=(*GRANITE_MOE_SHARED.settings, *_WINDOWS),
    stored={
        **GRANITE_MOE_SHARED.stored,
        **_SINK,
        "blocks.{n}.ffn.router": Stored("layers.{n}.block_sparse_moe.router"),
        **stacked_experts("layers.{n}.block_sparse_moe.experts"),
    },
    spellings=(),
)
