"""EmbeddingGemma 2 (Google 2026), text only: a Gemma 4 that attends both ways; inputs of layers from embeddings alone.

Its last matrix projects each token, before their mean is taken; ours projects the mean, which is the same vector.
"""

import math
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.gemma import GEMMA2
from tinytf.checkpoints.huggingface.gemma4 import (
    GEMMA4,
    ROPE,
    UNSCALED,
    WINDOWS,
    heads_by_layer,
    kinds_of,
    written_heads,
)
from tinytf.checkpoints.huggingface.llama import UNTURNED
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, by_layer
from tinytf.checkpoints.huggingface.windows import SLIDING
from tinytf.checkpoints.table import Draft, Group, Key, Skip, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields


def _read_heads(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    usual = {"d_head": fields.whole("head_dim", 256, least=1), "n_kv_heads": fields.whole("num_key_value_heads", 2)}
    wide = {
        "d_head": fields.whole("global_head_dim", 512, least=1),
        "n_kv_heads": fields.whole("num_global_key_value_heads", 1),
    }
    return heads_by_layer(fields, kinds_of(fields, draft), usual, wide)


def _read_radius(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The windows, which the file counts to one side, without the query."""
    window = fields.whole("sliding_window", 512, least=0) + 1
    return by_layer("window", [window if kind == SLIDING else 0 for kind in kinds_of(fields, draft)])


def _write_radius(config: ModelConfig) -> dict[str, Any]:
    keys = WINDOWS.write(config)
    return {**keys, "sliding_window": keys["sliding_window"] - 1}


EMBEDDING_GEMMA2 = replace(
    GEMMA4,
    name="EmbeddingGemma 2",
    model_type="embedding_gemma2_text",
    classes={"none": "EmbeddingGemma2TextModel"},
    only={},
    harmless=(),
    fixed={
        **GEMMA4.fixed,
        "tied_head": False,
        "causal": False,
        "head": "none",
        "layer_tokens": False,
        "pooling": "mean",
        "pooled_bias": False,
    },
    needs=("d_layer_input", "pooled_dense"),
    settings=(
        *(key for key in UNTURNED if key.name != "num_key_value_heads"),
        Group(_read_heads, written_heads),
        Key("hidden_size_per_layer_input", "d_layer_input", 512),
        ROPE,
        Key("hidden_activation", "activation", "gelu_pytorch_tanh", ACTIVATIONS),
        Group(lambda fields, draft, tensors: {"embed_scale": math.sqrt(draft["d_model"])}),
        Group(_read_radius, _write_radius),
        Key("attention_bias", "qkv_bias o_bias", False),
        Group(
            lambda fields, draft, tensors: {"pooled_dense": (fields.whole("embedding_dim", 768, least=1),)},
            lambda config: {"embedding_dim": config.pooled_dense[0]},
        ),
    ),
    stored={
        **UNSCALED,
        "blocks.{n}.ple.context": Stored("ple.per_layer_model_projection", of_layers=True),
        "blocks.{n}.ple.norm": Stored("ple.per_layer_projection_norm"),
        "blocks.{n}.ple.gate": Stored("layers.{n}.ple_block.per_layer_input_gate"),
        "blocks.{n}.ple.out": Stored("layers.{n}.ple_block.per_layer_projection"),
        "blocks.{n}.ple.out_norm": Stored("layers.{n}.ple_block.post_per_layer_input_norm"),
        "blocks.{n}.scale": Stored("layers.{n}.layer_scalar", bare=True),
        "pooling.dense": Stored("embedding_projection"),
    },
    skipped=(
        *GEMMA2.skipped,
        Skip(
            r"(.+\.)?(vision_tower|audio_tower|embed_vision|embed_audio)\..*", "parts for images and sound", noted=True
        ),
    ),
    prefix="",
)
