"""Gemma 3n in GGUF files: streams that predict each other, and a low-rank residual whose rank only tensors say."""

import math
from dataclasses import replace
from statistics import NormalDist
from typing import Any

from tinytf.checkpoints.gguf.gemma4 import LAYER_INPUTS, counts
from tinytf.checkpoints.gguf.keys import RMS_NORM, SIZES, by_layer, windows
from tinytf.checkpoints.gguf.llamas import GEMMA2, QK_NORMS
from tinytf.checkpoints.table import Draft, Group, Key, Skip, Stored, Tensors
from tinytf.fields import Fields

_windows = windows(5)
_LEFT, _TOKENS = "blk.0.laurel_l.weight", "per_layer_token_embd.weight"
"""The tensors whose rows are the rank, and the tokens that have embeddings of layers."""
_OWN_KEYS, _SPARSE = 20, 10
"""How many layers llama.cpp gives keys of their own, and sparse gates of 95 %, without asking the file."""


def _read(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    layers, layer_windows = draft["n_layers"], _windows(keys, draft)
    local, base = keys.number("rope.freq_base_swa", 10_000.0), keys.number("rope.freq_base", 1_000_000.0)
    shared = keys.whole("attention.shared_kv_layers", max(0, layers - _OWN_KEYS), least=0, most=layers - 1)
    usual = [NormalDist().inv_cdf(0.95) if layer < _SPARSE else -math.inf for layer in range(layers)]
    deviations = keys.array("activation_sparsity_scale", float, usual, count=layers)
    for name in (_LEFT, _TOKENS):
        if name not in tensors:
            raise keys.fault(f"there is no {name}")
    streams = keys.whole("altup.num_inputs", 4, least=2)
    rows = tensors[_TOKENS].shape[0]
    return {
        "embed_scale": math.sqrt(draft["d_model"]),
        "extra_streams": streams - 1,
        "active_stream": keys.whole("altup.active_idx", 0, least=0, most=streams - 1),
        "laurel_rank": tensors[_LEFT].shape[0],
        "d_layer_input": keys.whole("embedding_length_per_layer_input", 256, least=1),
        "layer_vocab": 0 if rows == draft["vocab_size"] else rows,
        **by_layer(
            window=layer_windows,
            d_ff=tuple(counts(keys, "feed_forward_length", layers)),
            gate_sparsity=tuple(NormalDist().cdf(number) for number in deviations),
            shares_keys=tuple(layer >= layers - shared for layer in range(layers)),
            rope_theta=tuple(local if window else base for window in layer_windows),
        ),
    }


GEMMA3N = replace(
    GEMMA2,
    name="gemma3n",
    settings=(
        *(key for key in SIZES if getattr(key, "name", "") != "feed_forward_length"),
        RMS_NORM,
        Key("final_logit_softcapping", "logit_cap", 30.0),
        Group(_read),
    ),
    fixed={**GEMMA2.fixed, "qk_norm": True, "v_norm": True, "attention_divisor": 1.0, "stream_gain": True},
    stored={
        **GEMMA2.stored,
        **QK_NORMS,
        **LAYER_INPUTS,
        "streams.projection": Stored("altup_proj", apart="extra_streams"),
        "blocks.{n}.altup.norm": Stored("blk.{n}.altup_router_norm"),
        "blocks.{n}.altup.router": Stored("blk.{n}.altup_router"),
        "blocks.{n}.altup.predict": Stored("blk.{n}.altup_predict_coef"),
        "blocks.{n}.altup.correct": Stored("blk.{n}.altup_correct_coef"),
        "blocks.{n}.altup.gain": Stored("blk.{n}.altup_correct_scale"),
        "blocks.{n}.laurel.left": Stored("blk.{n}.laurel_l"),
        "blocks.{n}.laurel.right": Stored("blk.{n}.laurel_r"),
        "blocks.{n}.laurel.norm": Stored("blk.{n}.laurel_post_norm"),
        "final_norm.projection": Stored("altup_unembd_proj", apart="extra_streams"),
        "final_norm.norm": Stored("output_norm"),
    },
    skipped=(Skip(r"blk\.\d+\.attn_(k|v|k_norm)\.weight", "keys of layers that share them"),),
)
