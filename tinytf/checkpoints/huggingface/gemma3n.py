"""Gemma 3n, text only: streams that predict each other, a low-rank residual, sparse gates, embeddings of layers."""

import math
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.gemma import GEMMA2, cap
from tinytf.checkpoints.huggingface.gemma4 import LAYER_INPUTS, NOT_OWN, UNSCALED
from tinytf.checkpoints.huggingface.llama import UNTURNED
from tinytf.checkpoints.huggingface.rope import rope
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, by_layer, lm_head, merge_fields
from tinytf.checkpoints.huggingface.windows import layer_kinds, windows
from tinytf.checkpoints.table import Draft, Group, Key, Skip, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_FOUR_OF_FIVE = layer_kinds(lambda fields, layer: (layer + 1) % 5 != 0)


def _read_layers(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The widths and sparsities of the layers, and the last ones, which share the keys of earlier ones."""
    layers = draft["n_layers"]
    if isinstance(fields.data.get("intermediate_size"), list):
        widths = fields.array("intermediate_size", int, count=layers)
    else:
        widths = [fields.whole("intermediate_size", 16_384)] * layers
    sparse = 10 if layers > 10 else 0
    sparsity = fields.array("activation_sparsity_pattern", float, None, count=layers)
    if sparsity is None:
        sparsity = [0.95] * sparse + [0.0] * (layers - sparse)
    own = layers - fields.whole("num_kv_shared_layers", 15, least=0, most=layers - 1)
    return merge_fields(
        by_layer("d_ff", widths),
        by_layer("gate_sparsity", [max(0.0, float(share)) for share in sparsity]),
        by_layer("shares_keys", [layer >= own for layer in range(layers)]),
    )


def _write_layers(config: ModelConfig) -> dict[str, Any]:
    layers = [config.at(layer) for layer in range(config.n_layers)]
    return {
        "intermediate_size": [layer.d_ff for layer in layers],
        "activation_sparsity_pattern": [layer.gate_sparsity for layer in layers],
        "num_kv_shared_layers": sum(layer.shares_keys for layer in layers),
    }


def _read_streams(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    streams = fields.whole("altup_num_inputs", 4, least=2)
    rows = fields.whole("vocab_size_per_layer_input", 262_144, least=1)
    return {
        "extra_streams": streams - 1,
        "active_stream": fields.whole("altup_active_idx", 0, least=0, most=streams - 1),
        "d_layer_input": fields.whole("hidden_size_per_layer_input", 256, least=1),
        "layer_vocab": 0 if rows == draft["vocab_size"] else rows,
        "laurel_rank": fields.whole("laurel_rank", 64, least=1),
    }


def _write_streams(config: ModelConfig) -> dict[str, Any]:
    return {
        "altup_num_inputs": config.extra_streams + 1,
        "altup_active_idx": config.active_stream,
        "hidden_size_per_layer_input": config.d_layer_input,
        "vocab_size_per_layer_input": config.layer_vocab or config.vocab_size,
        "laurel_rank": config.laurel_rank,
    }


GEMMA3N = replace(
    GEMMA2,
    name="Gemma 3n",
    model_type="gemma3n_text",
    classes={"none": "Gemma3nTextModel", "lm": "Gemma3nForCausalLM"},
    only={},
    harmless=("altup_coef_clip", "altup_lr_multiplier"),  # in training
    needs=("extra_streams", "laurel_rank", "logit_cap"),
    fixed={**GEMMA2.fixed, "qk_norm": True, "v_norm": True, "attention_divisor": 1.0},
    settings=(
        *(key for key in UNTURNED if key.name not in ("intermediate_size", "num_key_value_heads")),
        Key("num_key_value_heads", "n_kv_heads", 2),
        Key("head_dim", "d_head", 256),
        Group(_read_layers, _write_layers),
        Group(_read_streams, _write_streams),
        Key("altup_correct_scale", "stream_gain", True),
        rope(1_000_000.0, kinds=_FOUR_OF_FIVE, local=lambda fields: fields.number("rope_local_base_freq", 10_000.0)),
        Key("hidden_activation", "activation", "gelu_pytorch_tanh", ACTIVATIONS),
        cap("final_logit_softcapping", "logit_cap", 30.0),
        Group(lambda fields, draft, tensors: {"embed_scale": math.sqrt(draft["d_model"])}),
        windows(_FOUR_OF_FIVE, 512),
        Key("attention_bias", "qkv_bias o_bias", False),
        Key("tie_word_embeddings", "tied_head", True),
        lm_head(),
    ),
    stored={
        **UNSCALED,
        **LAYER_INPUTS,
        "streams.projection": Stored("altup_projections.{e}", by_row="extra_streams"),
        "blocks.{n}.altup.norm": Stored("layers.{n}.altup.router_norm"),
        "blocks.{n}.altup.router": Stored("layers.{n}.altup.modality_router"),
        "blocks.{n}.altup.predict": Stored("layers.{n}.altup.prediction_coefs"),
        "blocks.{n}.altup.correct": Stored("layers.{n}.altup.correction_coefs"),
        "blocks.{n}.altup.gain": Stored("layers.{n}.altup.correct_output_scale", bare=True),
        "blocks.{n}.laurel.left": Stored("layers.{n}.laurel.linear_left"),
        "blocks.{n}.laurel.right": Stored("layers.{n}.laurel.linear_right"),
        "blocks.{n}.laurel.norm": Stored("layers.{n}.laurel.post_laurel_norm"),
        "final_norm.projection": Stored("altup_unembed_projections.{e}", by_row="extra_streams"),
        "final_norm.norm": Stored("norm"),
    },
    skipped=(
        *GEMMA2.skipped,
        NOT_OWN,
        Skip(r"layers\.\d+\.altup\.correct_output_scale", "a gain that altup_correct_scale turns off"),
    ),
)
"""Gemma 3n (Google 2025)."""
