"""Small models of every kind, with weights that are large enough for a wrong detail to show."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tinytf.api import Model
from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.model.transformer import Source, Transformer, reading
from tinytf.parts.row import Step
from tinytf.steps.table import StepTable
from tinytf.text.tokenizer import Encoding, Token
from tinytf.trace.record import record

SIZES: dict[str, Any] = {"vocab_size": 31, "d_model": 24, "n_layers": 2, "n_heads": 4, "d_ff": 40, "context": 32}
BERT: dict[str, Any] = {
    "causal": False,
    "norm_order": "post",
    "norm_eps": 1e-12,
    "n_token_types": 2,
    "embed_norm": True,
}
CLASSES: dict[str, Any] = {
    **BERT,
    "head": "sequence",
    "labels": tuple(f"class {number}" for number in range(12)),
    "head_reads": "first",
    "head_bias": True,
    "tied_head": False,
}
LLAMA: dict[str, Any] = {
    "norm": "rmsnorm",
    "norm_eps": 1e-6,
    "positions": "rotary",
    "activation": "silu",
    "gated": True,
    "qkv_bias": False,
    "o_bias": False,
    "ffn_bias": False,
    "tied_head": False,
}
HYPER: dict[str, Any] = {"hyper": True, "hyper_eps": 0.05, "norm_eps": 0.1}
"""Streams that are equal have no gradient but what ε leaves, in their mix and, where a norm follows, in their sum."""

KINDS: dict[str, dict[str, Any]] = {
    "t5, two stacks": {
        "norm": "rmsnorm",
        "norm_eps": 1e-6,
        "positions": "none",
        "relative_buckets": 8,
        "relative_farthest": 9,
        "attention_divisor": 1.0,
        "qkv_bias": False,
        "o_bias": False,
        "ffn_bias": False,
        "logit_scale": 24**-0.5,
        "shares_embeddings": True,
        "d_source": 24,
        "encoder": {"n_layers": 1},
    },
    "bart, two stacks": {
        "norm_order": "post",
        "embed_norm": True,
        "position_offset": 2,
        "head_bias": True,
        "d_source": 20,
        "start_id": 2,
        "encoder": {"d_model": 20, "n_heads": 2, "d_head": 10},
    },
    "two stacks that norm what they add, with a cap": {
        **LLAMA,
        "norm_order": "both",
        "attention_cap": 20.0,
        "n_kv_heads": 2,
        "d_source": 24,
        "encoder": {},
    },
    "bert and gpt-2, two stacks of two widths": {
        "activation": "gelu_tanh",
        "d_source": 20,
        "source_projection": True,
        "encoder": {"norm_order": "post", "embed_norm": True, "d_model": 20, "n_heads": 2, "d_head": 10},
    },
    "gpt2": {"activation": "gelu_tanh"},
    "blenderbot-small, positions after the norm": {
        "norm_order": "post",
        "embed_norm": True,
        "positions_unnormed": True,
    },
    "bert with a masked head": {**BERT, "head": "mlm", "head_bias": True},
    "bert with a pooler": {**BERT, "head": "none", "pooler": True},
    "minilm, the mean of the tokens at length 1": {**BERT, "head": "mlm", "pooling": "mean", "unit_embedding": True},
    "labse, the first token through a dense layer": {
        **BERT,
        "head": "mlm",
        "pooling": "first",
        "pooled_dense": (10,),
        "pooled_activation": "tanh",
    },
    "e5, the last token of a decoder": {**LLAMA, "pooling": "last", "unit_embedding": True},
    "the maximum, through two dense layers": {
        "pooling": "max",
        "pooled_dense": (9, 7),
        "pooled_activation": "gelu",
        "unit_embedding": True,
    },
    "sgpt, later tokens weighted more": {"pooling": "weighted", "pooled_dense": (9, 7), "pooled_bias": False},
    "colbert, a vector of each token": {
        **BERT,
        "head": "mlm",
        "pooling": "tokens",
        "pooled_dense": (9, 7),
        "unit_embedding": True,
    },
    "the sum over the root of the length": {**BERT, "head": "mlm", "pooling": "sqrt"},
    "the paper's encoder": {
        "causal": False,
        "norm_order": "post",
        "positions": "sinusoidal",
        "activation": "relu",
        "embed_scale": 24**0.5,
        "qkv_bias": False,
        "o_bias": False,
        "head": "none",
    },
    "llama, grouped": {**LLAMA, "n_kv_heads": 2},
    "qwen3, normed queries and wide heads": {**LLAMA, "n_kv_heads": 2, "qk_norm": True, "d_head": 10},
    "ctrl, sines before cosines": {
        "positions": "sinusoidal_concat",
        "activation": "relu",
        "norm_eps": 1e-6,
        "embed_scale": 24**0.5,
        "tied_head": False,
        "head_bias": True,
    },
    "one key head for all": {"n_kv_heads": 1, "positions": "sinusoidal", "head_bias": True},
    "mistral, a window and stretched waves": {
        **LLAMA,
        "n_kv_heads": 2,
        "window": 4,
        "rope_scaling": "llama3",
        "rope_factor": 8.0,
        "rope_original_context": 16,
    },
    "roberta, positions from the third row": {
        **BERT,
        "n_token_types": 1,
        "position_offset": 2,
        "head": "mlm",
        "head_bias": True,
        "head_activation": "relu",
    },
    "rotary and both ways": {"causal": False, "positions": "rotary", "n_kv_heads": 2, "qk_norm": True},
    "gemma 2, norms around each part and windows by layer": {
        **LLAMA,
        "n_kv_heads": 2,
        "activation": "gelu_tanh",
        "norm_order": "both",
        "attention_divisor": 4.5,
        "attention_cap": 2.0,
        "logit_cap": 3.0,
        "embed_scale": 24**0.5,
        "by_layer": (("window", (4, 0)),),
        "tied_head": True,
    },
    "gemma 4, wider heads whose values are keys, shared keys, and embeddings of layers": {
        **LLAMA,
        "n_layers": 4,
        "d_layer_input": 7,
        "activation": "gelu_tanh",
        "norm_order": "both",
        "attention_divisor": 1.0,
        "qk_norm": True,
        "v_norm": True,
        "layer_scale": True,
        "rope_turned": 3,
        "embed_scale": 24**0.5,
        "by_layer": (
            ("d_ff", (40, 40, 80, 80)),
            ("d_head", (6, 10, 6, 10)),
            ("n_kv_heads", (2, 1, 2, 1)),
            ("values_of_keys", (False, True, False, True)),
            ("shares_keys", (False, False, True, True)),
            ("window", (4, 0, 4, 0)),
            ("rope_scaling", ("none", "proportional", "none", "proportional")),
            ("rope_theta", (300.0, 700.0, 300.0, 700.0)),
        ),
        "tied_head": True,
    },
    "gemma 4, experts beside the feed-forward, with norms of their own": {
        **LLAMA,
        "n_kv_heads": 2,
        "activation": "gelu_tanh",
        "norm_order": "both",
        "layer_scale": True,
        "experts": 5,
        "experts_per_token": 2,
        "d_expert": 7,
        "d_shared": 9,
        "expert_norms": True,
    },
    "gemma 3n, streams that predict each other, a low-rank residual, and sparse gates": {
        **LLAMA,
        "n_layers": 4,
        "n_kv_heads": 2,
        "extra_streams": 2,
        "stream_gain": True,
        "laurel_rank": 5,
        "d_layer_input": 7,
        "layer_vocab": 29,
        "activation": "gelu_tanh",
        "norm_order": "both",
        "attention_divisor": 1.0,
        "qk_norm": True,
        "v_norm": True,
        "embed_scale": 24**0.5,
        "logit_cap": 3.0,
        "by_layer": (
            ("d_ff", (40, 40, 48, 40)),
            ("gate_sparsity", (0.7, 0.0, 0.3, 0.0)),
            ("shares_keys", (False, False, True, True)),
            ("window", (4, 0, 4, 0)),
            ("rope_theta", (300.0, 700.0, 300.0, 700.0)),
        ),
        "tied_head": True,
    },
    "streams of which the second is computed, without its gain": {
        **LLAMA,
        "extra_streams": 1,
        "active_stream": 1,
        "d_layer_input": 5,
        "norm_order": "both",
    },
    "hunyuan 4, streams that are read and written": {**LLAMA, **HYPER, "extra_streams": 2},
    "deepseek v4, streams that are mixed": {**LLAMA, **HYPER, "extra_streams": 3, "sinkhorn_rounds": 3},
    "glm 5.3, streams that are averaged": {
        **LLAMA,
        **HYPER,
        "extra_streams": 1,
        "sinkhorn_rounds": 2,
        "streams_averaged": True,
    },
    "glm 5.3, decays that are bounded, and pools of keys that an indexer chooses": {
        **LLAMA,
        **HYPER,
        "n_layers": 3,
        "extra_streams": 1,
        "sinkhorn_rounds": 2,
        "streams_averaged": True,
        "positions": "none",
        "q_rank": 9,
        "kv_rank": 7,
        "latent_eps": 0.01,
        "conv_width": 3,
        "decay_bound": 2.5,
        "index_keys": 4,
        "index_heads": 9,
        "index_width": 6,
        "index_block": 2,
        "index_pooled": True,
        "experts_per_token": 2,
        "d_expert": 9,
        "d_shared": 9,
        "router": "sigmoid",
        "choice_bias": True,
        "glu_limit": 0.8,
        "glu_added": 0.0,
        "by_layer": (
            ("mixer", ("kimi_delta", "attention", "attention")),
            ("n_heads", (3, 4, 4)),
            ("n_kv_heads", (3, 4, 4)),
            ("d_head", (5, 10, 10)),
            ("d_value", (5, 7, 7)),
            ("shares_index", (False, False, True)),
            ("experts", (0, 4, 4)),
        ),
    },
    "blocks of keys that an indexer chooses, whole ones alone": {
        **LLAMA,
        "n_kv_heads": 2,
        "index_keys": 4,
        "index_heads": 5,
        "index_width": 6,
        "index_block": 2,
        "index_tail": False,
    },
    "qwen4-exp, gated streams, n-grams, and keys that an indexer chooses in blocks": {
        **LLAMA,
        "n_kv_heads": 2,
        "attention_gate": True,
        "qk_norm": True,
        "rope_width": 4,
        "conv_width": 3,
        "read_gate": "sigmoid",
        "extra_streams": 2,
        "stream_rank": 5,
        "ngram_heads": 2,
        "ngram_rows": 7,
        "ngram_multiple": 4,
        "ngram_end": 3,
        "ngram_conv": 2,
        "d_ngram": 12,
        "index_keys": 4,
        "index_block": 2,
        "index_heads": 5,
        "index_width": 6,
        "by_layer": (("mixer", ("gated_delta", "attention")), ("ngram_number", (1, 0))),
    },
    "inkling, convolutions of outputs, profiles of distance, and experts for every token": {
        **LLAMA,
        "positions": "none",
        "embed_norm": True,
        "qk_norm": True,
        "added_conv": 3,
        "ffn_scale": True,
        "profiles": 3,
        "score_scale_from": 3,
        "experts_per_token": 3,
        "always_experts": 1,
        "d_expert": 9,
        "router": "sigmoid",
        "choice_bias": True,
        "routed_scale": 1.5,
        "padding_rows": 2,
        "by_layer": (
            ("n_heads", (8, 4)),
            ("n_kv_heads", (4, 2)),
            ("d_head", (4, 6)),
            ("window", (3, 0)),
            ("profile_extent", (3, 5)),
            ("attention_divisor", (4.0, 6.0)),
            ("score_scale", (0.0, 0.3)),
            ("experts", (0, 5)),
        ),
    },
    "deepseek, latent keys and values": {
        **LLAMA,
        "d_head": 10,
        "d_value": 5,
        "q_rank": 9,
        "kv_rank": 7,
        "rope_width": 4,
    },
    "deepseek v3.2, keys that an indexer chooses": {
        **LLAMA,
        "n_layers": 2,
        "d_head": 10,
        "d_value": 5,
        "q_rank": 9,
        "kv_rank": 7,
        "rope_width": 4,
        "index_keys": 3,
        "index_heads": 9,
        "index_width": 6,
        "by_layer": (("shares_index", (False, True)),),
    },
    "mistral large 4, latent keys of an earlier layer, and queries that each head learned to scale": {
        **LLAMA,
        "n_layers": 4,
        "d_head": 10,
        "d_value": 5,
        "kv_rank": 7,
        "latent_eps": 1e-5,
        "rope_width": 4,
        "head_growth": True,
        "index_keys": 3,
        "index_heads": 9,
        "index_width": 6,
        "index_norm": True,
        "by_layer": (
            ("positions", ("rotary", "none", "rotary", "none")),
            ("rope_width", (4, 0, 4, 0)),
            ("shares_latent", (False, False, True, True)),
            ("shares_index", (False, False, False, True)),
        ),
    },
    "minimax m3, blocks of keys that an indexer chooses in some layers": {
        **LLAMA,
        "n_kv_heads": 2,
        "qk_norm": True,
        "rope_width": 4,
        "glu_limit": 5.0,
        "glu_alpha": 1.5,
        "index_heads": 2,
        "index_width": 5,
        "index_block": 2,
        "index_by_head": True,
        "index_near": 1,
        "by_layer": (("index_keys", (4, 0)),),
    },
    "deepseek v4, windows beside blocks, of which an indexer chooses, and experts by id": {
        **LLAMA,
        **HYPER,
        "n_layers": 3,
        "extra_streams": 1,
        "sinkhorn_rounds": 2,
        "n_kv_heads": 1,
        "q_rank": 9,
        "latent_eps": 0.01,
        "d_head": 10,
        "rope_width": 4,
        "window": 6,
        "qk_norm": True,
        "q_norm_gain": False,
        "values_turned": True,
        "attention_sinks": True,
        "o_groups": 2,
        "o_rank": 6,
        "index_heads": 7,
        "index_width": 6,
        "experts": 4,
        "experts_per_token": 2,
        "d_expert": 9,
        "d_shared": 9,
        "router": "sqrtsoftplus",
        "choice_bias": True,
        "glu_limit": 0.8,
        "glu_added": 0.0,
        "by_layer": (
            ("block_size", (0, 2, 3)),
            ("block_overlap", (False, True, False)),
            ("index_keys", (0, 1, 0)),
            ("rope_theta", (300.0, 700.0, 700.0)),
            ("chosen_by_id", (True, False, False)),
        ),
    },
    "hunyuan 4, streams around a gate, sinks and an indexer, and gates of experts limited": {
        **LLAMA,
        **HYPER,
        "extra_streams": 1,
        "attention_gate": True,
        "attention_sinks": True,
        "d_head": 10,
        "d_value": 5,
        "q_rank": 9,
        "kv_rank": 7,
        "rope_width": 4,
        "index_keys": 3,
        "index_heads": 9,
        "index_width": 6,
        "index_eps": 0.01,
        "experts": 4,
        "experts_per_token": 2,
        "d_expert": 9,
        "d_shared": 9,
        "router": "sigmoid",
        "choice_bias": True,
        "glu_limit": 0.8,
        "glu_added": 0.0,
        "glu_of_experts": True,
    },
    "gpt-oss, sinks and windows by layer": {
        **LLAMA,
        "n_kv_heads": 2,
        "qkv_bias": True,
        "o_bias": True,
        "attention_sinks": True,
        "glu_limit": 5.0,
        "glu_alpha": 1.5,
        "by_layer": (("window", (3, 0)),),
    },
    "embeddinggemma 2, inputs of layers from embeddings, the mean projected": {
        **LLAMA,
        "causal": False,
        "head": "none",
        "norm_order": "both",
        "qk_norm": True,
        "v_norm": True,
        "layer_scale": True,
        "attention_divisor": 1.0,
        "d_layer_input": 7,
        "layer_tokens": False,
        "pooling": "mean",
        "pooled_bias": False,
        "pooled_dense": (9,),
        "by_layer": (("window", (3, 0)), ("n_kv_heads", (2, 1)), ("d_head", (6, 8))),
    },
    "mimo, sinks and more key heads in layers with a window": {
        **LLAMA,
        "d_value": 5,
        "by_layer": (("window", (3, 0)), ("attention_sinks", (True, False)), ("n_kv_heads", (2, 1))),
    },
    "step 3.7, more heads in a layer with a window, and limits of activated units": {
        **LLAMA,
        "n_kv_heads": 2,
        "qk_norm": True,
        "attention_gate": True,
        "gate_by_head": True,
        "experts": 4,
        "experts_per_token": 2,
        "d_expert": 9,
        "d_shared": 9,
        "router": "sigmoid",
        "choice_bias": True,
        "by_layer": (
            ("experts", (0, 4)),
            ("n_heads", (6, 4)),
            ("window", (3, 0)),
            ("act_limit", (0.2, 0.3)),
            ("shared_limit", (0.0, 0.25)),
        ),
    },
    "pythia, side by side and turned in part": {
        "positions": "rotary",
        "rope_width": 2,
        "residual": "parallel",
        "tied_head": False,
    },
    "olmo, norms that learn nothing": {
        "norm_gain": False,
        "norm_bias": False,
        "positions": "rotary",
        "activation": "relu2",
        "clip_qkv": 0.8,
    },
    "opt 350m, narrow embeddings after the sum": {
        "norm_order": "post",
        "d_embed": 10,
        "position_offset": 2,
        "activation": "relu",
    },
    "mpnet, a bias of distance": {
        **BERT,
        "n_token_types": 0,
        "position_offset": 2,
        "relative_buckets": 8,
        "head": "mlm",
        "head_bias": True,
    },
    "umt5, a bias of distance in each layer": {
        **BERT,
        "n_token_types": 0,
        "position_offset": 2,
        "relative_buckets": 8,
        "head": "mlm",
        "head_bias": True,
        "relative_by_layer": True,
    },
    "squeezebert, matrices in groups": {
        **BERT,
        "qkv_groups": 3,
        "ffn_groups": 4,
        "head": "mlm",
        "head_bias": True,
    },
    "deberta v3, distances through the matrices of tokens": {
        **BERT,
        "n_token_types": 0,
        "positions": "none",
        "distances": 4,
        "farthest": 16,
        "distance_norm": True,
        "distance_keys": True,
        "distance_queries": True,
        "attention_divisor": 18**0.5,
        "head": "mlm",
        "head_bias": True,
    },
    "deberta v2, distances through their own": {
        **BERT,
        "distances": 3,
        "distance_keys": True,
        "distance_queries": True,
        "distance_matrices": True,
        "attention_divisor": 18**0.5,
        "head": "mlm",
    },
    "deberta v2 xlarge, a convolution beside the first layer": {
        **BERT,
        "n_token_types": 0,
        "positions": "none",
        "distances": 4,
        "distance_keys": True,
        "distance_queries": True,
        "attention_divisor": 18**0.5,
        "side_width": 3,
        "side_activation": "gelu",
        "by_layer": (("side_conv", (True, False)),),
        "head": "mlm",
        "head_bias": True,
    },
    "deberta, keys without biases": {
        **BERT,
        "n_token_types": 0,
        "k_bias": False,
        "distances": 3,
        "distance_keys": True,
        "distance_queries": True,
        "distance_matrices": True,
        "attention_divisor": 18**0.5,
        "head": "mlm",
        "head_bias": True,
    },
    "bitnet, norms before the last matrices": {**LLAMA, "activation": "relu2", "out_norm": True, "act_norm": True},
    "apertus, slopes that are learned": {**LLAMA, "gated": False, "activation": "xielu", "qk_norm": True},
    "rembert, another width to unembed": {
        **BERT,
        "d_embed": 10,
        "projection_bias": True,
        "head": "mlm",
        "head_bias": True,
        "tied_head": False,
        "d_unembed": 14,
    },
    "gte, a bias on the last matrix of the feed-forward": {
        **BERT,
        "n_token_types": 1,
        "positions": "rotary",
        "gated": True,
        "up_bias": False,
        "head": "mlm",
        "head_bias": True,
    },
    "electra, narrow embeddings that are normed": {
        **BERT,
        "d_embed": 10,
        "projection_bias": True,
        "head": "mlm",
        "head_bias": True,
    },
    "bloom, less by distance": {"positions": "alibi", "embed_norm": True, "n_heads": 6, "alibi_scale": 0.5},
    "modernbert, windows to both sides": {
        "causal": False,
        "embed_norm": True,
        "norm_bias": False,
        "positions": "rotary",
        "gated": True,
        "qkv_bias": False,
        "o_bias": False,
        "ffn_bias": False,
        "head": "mlm",
        "head_bias": True,
        "head_dense_bias": False,
        "by_layer": (("input_norm", (False, True)), ("rope_theta", (900.0, 100.0)), ("window", (0, 4))),
    },
    "norms of what is added": {"norm_order": "output", "positions": "rotary"},
    "gpt-j, a norm for both": {
        "positions": "rotary",
        "rope_width": 4,
        "residual": "parallel",
        "shared_norm": True,
        "qkv_bias": False,
        "o_bias": False,
        "norm_bias": False,
        "tied_head": False,
        "head_bias": True,
        "logit_scale": 0.7,
    },
    "experts, two a token": {
        **LLAMA,
        "n_kv_heads": 2,
        "ffn_bias": True,
        "experts": 5,
        "experts_per_token": 2,
        "router_bias": True,
    },
    "experts beside a shared one, after a dense layer": {
        **LLAMA,
        "experts": 4,
        "experts_per_token": 2,
        "d_expert": 7,
        "routes_renormed": False,
        "d_shared": 9,
        "shared_gate": True,
        "by_layer": (("experts", (0, 4)),),
    },
    "phimoe, experts weighed against near ones": {
        "gated": True,
        "ffn_bias": False,
        "experts": 5,
        "experts_per_token": 2,
        "route_margin": 0.6,
    },
    "experts by sigmoids, in the best groups, without a gate": {
        "norm": "rmsnorm",
        "ffn_bias": False,
        "experts": 6,
        "experts_per_token": 3,
        "expert_groups": 3,
        "groups_per_token": 2,
        "group_best": 2,
        "router": "sigmoid",
        "choice_bias": True,
        "routed_scale": 2.5,
        "d_shared": 9,
    },
    "experts chosen with a bias, norms of heads without one": {
        "qk_norm": True,
        "qk_norm_across": "heads",
        "qk_norm_bias": False,
        "ffn_bias": False,
        "experts": 4,
        "experts_per_token": 2,
        "router": "sigmoid",
        "choice_bias": True,
    },
    "olmo 2, queries and keys normed over all heads": {
        **LLAMA,
        "n_kv_heads": 2,
        "norm_order": "output",
        "qk_norm": True,
        "qk_norm_across": "all",
    },
    "olmo 3, windows turned as they are and the others by yarn": {
        **LLAMA,
        "n_kv_heads": 2,
        "rope_theta": 500.0,
        "rope_factor": 3.0,
        "rope_low_frequency": 0.5,
        "rope_high_frequency": 2.0,
        "rope_original_context": 16,
        "rope_attention_factor": 1.2,
        "by_layer": (("window", (4, 0)), ("rope_scaling", ("none", "yarn"))),
    },
    "llama, a base that grows with a longer text": {
        **LLAMA,
        "context": 32,
        "rope_scaling": "dynamic",
        "rope_factor": 4.0,
        "rope_original_context": 8,
    },
    "phi 3, long texts turned by other factors": {
        **LLAMA,
        "d_head": 8,
        "rope_width": 6,
        "rope_scaling": "longrope",
        "rope_original_context": 6,
        "rope_attention_factor": 1.1,
        "rope_short_factors": (1.0, 1.1, 1.3),
        "rope_long_factors": (1.5, 4.0, 9.0),
    },
    "smollm 3, layers without positions": {
        **LLAMA,
        "n_kv_heads": 2,
        "by_layer": (("positions", ("rotary", "none")),),
    },
    "granite, what is added multiplied": {
        **LLAMA,
        "residual_scale": 0.3,
        "logit_scale": 0.5,
        "embed_scale": 3.0,
        "attention_divisor": 3.0,
    },
    "ministral 3, queries scaled by their position": {
        **LLAMA,
        "n_kv_heads": 2,
        "query_scale": 0.4,
        "query_scale_every": 3,
    },
    "llama 4, chunks, and experts that take weighed tokens": {
        **LLAMA,
        "n_kv_heads": 2,
        "qk_norm": True,
        "qk_norm_last": True,
        "qk_norm_gain": False,
        "query_scale_every": 2,
        "query_scale_first": 1,
        "experts": 4,
        "experts_per_token": 2,
        "d_expert": 9,
        "d_shared": 9,
        "router": "sigmoid",
        "routes_renormed": False,
        "routes_first": True,
        "by_layer": (
            ("chunk", (4, 0)),
            ("experts", (4, 0)),
            ("positions", ("rotary", "none")),
            ("qk_norm", (True, False)),
            ("query_scale", (0.0, 0.3)),
        ),
    },
    "hunyuan, normed after the rotation": {**LLAMA, "n_kv_heads": 2, "qk_norm": True, "qk_norm_last": True},
    "nanochat, turned the other way": {
        **LLAMA,
        "n_kv_heads": 2,
        "norm_gain": False,
        "embed_norm": True,
        "rope_scaling": "reversed",
        "qk_norm": True,
        "qk_norm_last": True,
        "qk_norm_gain": False,
        "gated": False,
        "activation": "relu2",
        "logit_cap": 15.0,
    },
    "esm, masks without embeddings": {
        "causal": False,
        "positions": "rotary",
        "norm_eps": 0.1,  # the norm of a mask, which is 0, is steep where ε is small
        "masked_share": 0.12,
        "mask_id": 15,
        "embed_norm": True,
        "head": "mlm",
        "head_bias": True,
    },
    "a norm for each head": {"positions": "rotary", "n_kv_heads": 2, "qk_norm": True, "qk_norm_across": "heads"},
    "talking heads": {**LLAMA, "n_kv_heads": 2, "talking_heads": True},
    "jetmoe, experts that are heads, and a bias on the sum of experts": {
        **LLAMA,
        "n_heads": 10,
        "n_kv_heads": 2,
        "d_head": 6,
        "o_bias": True,
        "head_experts": True,
        "experts": 5,
        "experts_per_token": 2,
        "sum_bias": True,
        "final_norm_eps": 1e-5,
        "tied_head": True,
    },
    "diffllama, maps subtracted in pairs of heads": {
        **LLAMA,
        "n_kv_heads": 2,
        "by_layer": (("lambda_init", (0.8 - 0.6, 0.8 - 0.6 * math.exp(-0.3))),),
    },
    "gated delta, and gated heads in one layer": {
        **LLAMA,
        "n_layers": 2,
        "n_kv_heads": 2,
        "attention_gate": True,
        "rope_width": 2,
        "qk_norm": True,
        "by_layer": (
            ("mixer", ("gated_delta", "attention")),
            ("n_heads", (6, 4)),
            ("n_kv_heads", (3, 2)),
            ("d_head", (5, 6)),
            ("d_value", (7, 6)),
        ),
    },
    "olmo hybrid, strong writing, and norms elsewhere in each kind of layer": {
        **LLAMA,
        "qk_norm": True,
        "qk_norm_across": "all",
        "beta_scale": 2.0,
        "head_norm_eps": 1e-5,
        "by_layer": (
            ("mixer", ("gated_delta", "attention")),
            ("norm_order", ("pre", "output")),
            ("n_heads", (6, 4)),
            ("n_kv_heads", (3, 4)),
            ("d_head", (5, 6)),
            ("d_value", (7, 6)),
        ),
    },
    "lfm2, short convolutions around grouped attention": {
        **LLAMA,
        "qk_norm": True,
        "conv_width": 3,
        "tied_head": True,
        "n_kv_heads": 2,
        "by_layer": (("mixer", ("short_convolution", "attention")),),
    },
    "lfm3, a window after a convolution, gates without a bias": {
        **LLAMA,
        "qk_norm": True,
        "qkv_bias": True,
        "gate_bias": False,
        "attention_gate": True,
        "gate_by_head": True,
        "norm_order": "both",
        "conv_width": 3,
        "n_kv_heads": 2,
        "by_layer": (("mixer", ("short_convolution", "attention")), ("window", (0, 3)), ("o_bias", (False, True))),
    },
    "mamba 2, a state space before a layer of attention": {
        **LLAMA,
        "n_kv_heads": 2,
        "conv_width": 3,
        "conv_bias": True,
        "by_layer": (
            ("mixer", ("mamba2", "attention")),
            ("n_heads", (6, 4)),
            ("n_kv_heads", (2, 2)),
            ("d_head", (5, 6)),
            ("d_value", (8, 6)),
        ),
    },
    "heads gated as a whole": {
        **LLAMA,
        "n_kv_heads": 2,
        "d_value": 5,
        "attention_gate": True,
        "gate_by_head": True,
        "gate_function": "softplus",
    },
    "mamba, a selective state space before a layer of attention": {
        **LLAMA,
        "n_kv_heads": 1,
        "conv_width": 3,
        "conv_bias": True,
        "dt_rank": 3,
        "by_layer": (
            ("mixer", ("mamba", "attention")),
            ("n_heads", (6, 4)),
            ("d_head", (5, 6)),
            ("d_value", (8, 6)),
        ),
    },
    "jamba, a selective state space that is normed, and experts beside attention": {
        **LLAMA,
        "n_kv_heads": 2,
        "positions": "none",
        "conv_width": 3,
        "dt_rank": 3,
        "inner_norm": "learned",
        "experts_per_token": 2,
        "d_expert": 9,
        "routes_renormed": False,
        "by_layer": (
            ("mixer", ("mamba", "attention")),
            ("n_heads", (6, 4)),
            ("d_head", (5, 6)),
            ("d_value", (8, 6)),
            ("experts", (0, 4)),
        ),
    },
    "minimax, lightning attention, and residuals of normed inputs": {
        **LLAMA,
        "n_kv_heads": 2,
        "residual_of": "normed",
        "kept_scale": 3.5,
        "experts": 4,
        "experts_per_token": 2,
        "d_expert": 9,
        "by_layer": (("mixer", ("lightning", "attention")), ("decay_scale", (1.00001, 1.0))),
    },
    "mamba-2 and attention side by side": {
        **LLAMA,
        "conv_width": 3,
        "state_norm": False,
        "by_layer": (
            ("mixer", ("mamba2", "attention")),
            ("norm_below", (False, True)),
            ("d_ff", (0, 40)),
            ("n_heads", (6, 4)),
            ("n_kv_heads", (2, 2)),
            ("d_head", (5, 6)),
            ("d_value", (8, 6)),
        ),
    },
    "zamba2, attention beside the stream, with shared weights and adapters": {
        **LLAMA,
        "n_layers": 6,
        "conv_width": 3,
        "memory_sets": 1,
        "adapter_rank": 5,
        "adapted_attention": True,
        "by_layer": (
            ("mixer", ("mamba2", "attention", "mamba2") * 2),
            ("memory", ("none", "gives", "takes") * 2),
            ("d_ff", (0, 40, 0) * 2),
            ("n_heads", (6, 4, 6) * 2),
            ("n_kv_heads", (2, 4, 2) * 2),
            ("d_head", (5, 12, 5) * 2),
            ("d_value", (8, 12, 8) * 2),
        ),
    },
    "zamba, attention beside the stream, and a selective state space in heads": {
        **LLAMA,
        "n_layers": 3,
        "positions": "none",
        "conv_width": 3,
        "memory_sets": 1,
        "dt_rank": 3,
        "scan_heads": 2,
        "by_layer": (
            ("mixer", ("mamba", "attention", "mamba")),
            ("memory", ("none", "gives", "takes")),
            ("d_ff", (0, 40, 0)),
            ("n_heads", (6, 4, 6)),
            ("d_head", (5, 12, 5)),
            ("d_value", (8, 12, 8)),
        ),
    },
    "kimi delta, a decay for each channel before latent attention without positions": {
        **LLAMA,
        "positions": "none",
        "kv_rank": 7,
        "rope_width": 2,
        "conv_width": 3,
        "by_layer": (
            ("mixer", ("kimi_delta", "attention")),
            ("d_head", (5, 6)),
            ("d_value", (5, 7)),
        ),
    },
    "griffin, gated linear recurrences before attention": {
        **LLAMA,
        "conv_width": 3,
        "o_bias": True,
        "ffn_bias": True,
        "activation": "gelu_tanh",
        "embed_scale": 4.90625,
        "logit_cap": 30.0,
        "tied_head": True,
        "by_layer": (("mixer", ("griffin", "attention")), ("d_head", (8, 6))),
    },
    "residuals of normed inputs": {**LLAMA, "n_kv_heads": 2, "residual_of": "normed"},
    "nemotron-h, a mixer or a feed-forward a layer": {
        **LLAMA,
        "n_layers": 4,
        "n_kv_heads": 2,
        "positions": "none",
        "gated": False,
        "conv_width": 3,
        "dt_floor": 0.4,
        "by_layer": (
            ("mixer", ("mamba2", "attention", "none", "attention")),
            ("d_ff", (40, 40, 40, 0)),
            ("n_heads", (6, 4, 0, 4)),
            ("n_kv_heads", (2, 2, 0, 2)),
            ("d_head", (5, 6, 0, 6)),
            ("d_value", (8, 6, 0, 6)),
        ),
    },
    "longcat, a shortcut around two layers to experts, some without matrices": {
        **LLAMA,
        "n_layers": 3,
        "d_value": 5,
        "kv_rank": 7,
        "kv_scale": (24 / 7) ** 0.5,
        "q_rank": 10,
        "rope_width": 2,
        "attention_divisor": 6**0.5 * (10 / 24) ** 0.5,
        "experts_per_token": 3,
        "identity_experts": 2,
        "d_expert": 9,
        "choice_bias": True,
        "routes_renormed": False,
        "routed_scale": 6.0,
        "by_layer": (
            ("mixer", ("attention", "attention", "none")),
            ("n_heads", (4, 4, 0)),
            ("d_head", (6, 6, 0)),
            ("experts", (0, 0, 5)),
            ("shortcut", (False, False, True)),
        ),
    },
    "xlnet, waves of distances and segments": {
        "causal": False,
        "norm_order": "post",
        "norm_eps": 1e-12,
        "positions": "none",
        "head_bias": True,
        **dict.fromkeys(("qkv_bias", "o_bias"), False),
        "distances": 32,
        **dict.fromkeys(("distance_keys", "distance_matrices", "distance_waves", "query_biases", "segments"), True),
    },
    "narrow heads, after the sum": {"norm_order": "post", "d_head": 3, "activation": "relu", "tied_head": False},
}

HEADS_OF_CLASSES: dict[str, dict[str, Any]] = {
    "bert with classes of the text": {**CLASSES, "head_dense": True, "head_activation": "tanh"},
    "bert with classes of the mean of the tokens": {**CLASSES, "head_dense": True, "head_reads": "mean"},
    "classes of the mean, after a final norm": {**CLASSES, "norm_order": "pre", "head_reads": "mean"},
    "bert with several classes at once": {**CLASSES, "decides": "several"},
    "bert with a question head": {**CLASSES, "head": "question", "head_reads": "every", "labels": ("start", "end")},
}
"""Those with no logits over the vocabulary, which most questions are about."""


@cache
def config_of(kind: str, **changes: Any) -> ModelConfig:
    """A small configuration of a kind; what differs by layer goes round and round where there are more layers."""
    fields = {**SIZES, **(KINDS | HEADS_OF_CLASSES)[kind], **changes}
    count = fields["n_layers"]
    fields["by_layer"] = tuple((name, (values * count)[:count]) for name, values in fields.get("by_layer", ()))
    if "encoder" in fields:
        alike = {
            name: value
            for name, value in fields.items()
            if name not in ("d_source", "source_projection", "start_id", "shares_embeddings")
        }
        read = {"causal": False, "head": "none", "head_bias": False, "tied_head": True, "logit_scale": 1.0}
        fields["encoder"] = ModelConfig.of(**{**alike, **read, "encoder": None, **fields["encoder"]})
    return ModelConfig.of(**fields)


def way(step: Step) -> tuple[Any, ...]:
    """How a row is computed, whatever the model's sizes and constants: two with one way are the same code."""
    settings = vars(step.operation or step).items()
    chosen = sorted((name, value) for name, value in settings if isinstance(value, bool | str) or name == "groups")
    return step.name, step.title, step.axes, step.inputs, type(step.operation), str(chosen), step.to_loss, step.runs


@cache
def first_places(choosing: bool = False) -> dict[tuple[Any, ...], tuple[str, int | None]]:
    """Where each way of computing a row comes first: the kind and the layer; of the kinds that choose, if asked."""
    found: dict[tuple[Any, ...], tuple[str, int | None]] = {}
    for kind in (*KINDS, *HEADS_OF_CLASSES):
        table = StepTable(config_of(kind))
        if table.chooses or not choosing:
            for step, layer in table.rows:
                found.setdefault(way(step), (kind, layer))
    return found


@torch.no_grad()
def enliven(module: torch.nn.Module, seed: int) -> None:
    """Matrices that keep the size of what they map, gains around 1 and biases around 0, all different.

    A model may have matrices of another ``size``, in which rounding grows less from layer to layer.
    """
    size = getattr(module, "size", 1.5)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() >= 2 and not name.endswith("bias"):
            pointwise = parameter.dim() == 3 and parameter.shape[-1] == 1  # a convolution of width 1
            summed = parameter.shape[-2 if pointwise else -1]
            parameter.copy_(noise / summed**0.5 * (size if "embed" not in name else 1.0))
        elif name.endswith("weight"):
            parameter.copy_(1 + 0.3 * noise)
        else:
            parameter.copy_(0.3 * noise)
    for name, buffer in module.named_buffers():
        if name.endswith("scale.weight"):
            buffer.copy_(1 + 0.3 * torch.randn(buffer.shape, generator=generator))


def zeroed(tensor: Tensor, columns: slice) -> Tensor:
    """A copy with some columns 0."""
    copied = tensor.clone()
    copied[..., columns] = 0.0
    return copied


def mixer_of(block: Any) -> Any:
    """The attention of a block, or the mixer that it has instead; None without either."""
    children = dict(block.named_children())
    return next(
        (
            children[name]
            for name in ("attention", "delta", "conv", "mamba", "lightning", "griffin")
            if name in children
        ),
        None,
    )


def output_matrix(attention: Any) -> Tensor:
    """The matrix from heads side by side to the output, (C, H·D): W_O, or the product of two."""
    matrix: Tensor = attention.o.weight.detach()
    return matrix @ attention.o_a.operation.matrix(attention.o_a).detach() if hasattr(attention, "o_a") else matrix


def lively(config: ModelConfig, seed: int = 0) -> Transformer:
    model = Transformer.initialised(config, seed)
    model.size = 0.75 if config.memory_sets else 1.5
    enliven(model, seed)
    return facing(model)


SOURCE = [4, 9, 16, 25, 6, 7, 30]
"""What models of two stacks read: a text of another length than the usual ones."""


@torch.no_grad()
def facing(model: Transformer) -> Transformer:
    """A model of two stacks that has read SOURCE; any other as it is."""
    if model.encoder is None:
        return model
    trace = record(model.encoder, encoding_of(SOURCE))
    return reading(model, Source(trace.last_hidden[None], trace=trace))


def some_ids(config: ModelConfig, batch: int = 3, length: int = 11, seed: int = 5) -> Tensor:
    return torch.randint(0, config.vocab_size, (batch, length), generator=torch.Generator().manual_seed(seed))


def padding(side: str, batch: int, length: int) -> Tensor | None:
    """(B, T), True for a real token: row 0 is whole, every next one lacks two more tokens on that side."""
    if side == "none":
        return None
    missing = 2 * torch.arange(batch)[:, None]
    place = torch.arange(length)
    return place >= missing if side == "left" else place < length - missing


def encoding_of(ids: Sequence[int], words: Sequence[str] = ()) -> Encoding:
    """An encoding without a tokenizer: each id is shown as the word given for it, or as ``#id``."""
    names = list(words) or [f"#{token_id}" for token_id in ids]
    tokens = tuple(Token(i, name, 0, 0, b"", False) for i, name in zip(ids, names, strict=True))
    return Encoding("", tokens, "")


class Numbers:
    """A tokenizer without words: a token is named by its number, as ``#5``."""

    special_ids: frozenset[int] = frozenset()
    end_ids: tuple[int, ...] = ()

    def __init__(self, vocab_size: int, mask_id: int | None) -> None:
        self.vocab_size, self.mask_id = vocab_size, mask_id

    @property
    def library(self) -> "Numbers":
        return self

    @property
    def of_source(self) -> "Numbers":
        return self

    def id_of(self, piece: str) -> None:
        return None

    def get_vocab(self) -> dict[str, int]:
        return {f"#{number}": number for number in range(self.vocab_size)}

    def encode(self, text: str, **settings: bool) -> Encoding:
        return replace(encoding_of([int(word) for word in text.split() if word.isdecimal()]), text=text)

    def encode_ids(self, ids: Sequence[int]) -> Encoding:
        return encoding_of(ids)

    def converse(self, conversation: object, **settings: Any) -> Encoding:
        raise UsageError("this model has no chat template")

    def surrounding_ids(self) -> tuple[list[int], list[int]]:
        return [], []

    def shown(self, token_id: int) -> str:
        return f"#{token_id}"


def asked(transformer: Transformer, mask_id: int | None = None) -> Model:
    """A model of ``transformer`` whose texts are numbers of tokens, as ``3 14 15``."""
    tokenizer: Any = Numbers(transformer.config.vocab_size, mask_id)
    return Model("test", transformer, tokenizer, "weights of a test")


def bias_of_distance(table: np.ndarray, length: int) -> np.ndarray:
    """What each head adds to its scores, (H, Q, K), from a table (buckets, H), one distance at a time.

    Raffel et al. 2020: buckets of one distance, then wider ones up to 128, and as many again for keys after the query.
    """
    half, exact = len(table) // 2, len(table) // 4
    bias = np.zeros((table.shape[1], length, length))
    for query, key in np.ndindex(length, length):
        apart = abs(key - query)
        far = exact + int(math.log(max(apart, 1) / exact) / math.log(128 / exact) * (half - exact))
        bucket = apart if apart < exact else min(far, half - 1)
        bias[:, query, key] = table[bucket + half * (key > query)]
    return bias


def rows_of_distance(reach: int, farthest: int, length: int) -> np.ndarray:
    """Which of 2·reach embeddings each distance (Q, K) has, one at a time (He et al. 2021, equation 3, DeBERTa-v2)."""
    rows, exact = np.zeros((length, length), dtype=int), reach // 2
    for query, key in np.ndindex(length, length):
        apart, sign = abs(query - key), 1 if query > key else -1
        if farthest and apart > exact:
            share = np.float32(math.log(apart / exact)) / np.float32(math.log((farthest - 1) / exact))
            apart = exact + math.ceil(share * np.float32(exact - 1))
        rows[query, key] = min(max(reach + sign * apart, 0), 2 * reach - 1)
    return rows


def furthest(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest value where that is above 1."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    found, expected = found.detach(), expected.detach()
    return float((found - expected).abs().max() / max(1.0, float(expected.abs().max())))
