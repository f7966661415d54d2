"""GPT-2 (Radford et al. 2019) and decoders like it: pre-norm, learned positions, mostly with joint QKV matrices."""

import math
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.buffers import POSITIONS, causal_mask, hidden_score
from tinytf.checkpoints.huggingface.heads import DECODER_HEADS, ClassHead
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, Family, by_layer, lm_head
from tinytf.checkpoints.table import Draft, Group, Key, Skip, Stored, Tensors, fused
from tinytf.config import ModelConfig
from tinytf.fields import Fields


def _read_divisors(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Scores are divided by √d_head (scale_attn_weights) and by the layer's number from 1 (…_by_inverse_layer_idx)."""
    scaled = fields.flag("scale_attn_weights", True)
    if not fields.flag("scale_attn_by_inverse_layer_idx", False):
        return {"attention_divisor": 0.0 if scaled else 1.0}
    root = math.sqrt(draft["d_model"] // draft["n_heads"]) if scaled else 1.0
    return by_layer("attention_divisor", [root * (layer + 1) for layer in range(draft["n_layers"])])


def _write_divisors(config: ModelConfig) -> dict[str, Any]:
    return {
        "scale_attn_weights": config.at(0).attention_divisor != 1.0,
        "scale_attn_by_inverse_layer_idx": bool(config.by_layer),
    }


_SHARED = (
    Key("vocab_size"),
    Key("n_embd", "d_model"),
    Key("n_layer", "n_layers"),
    Key("n_head", "n_heads"),
    Key("layer_norm_epsilon", "norm_eps", 1e-5),
    Key("tie_word_embeddings", "tied_head", True),
    lm_head(),
)
_SETTINGS = (
    *_SHARED,
    Key("n_inner", "d_ff", lambda draft: 4 * draft["d_model"]),
    Key("n_ctx", "context", 1024),
    Key("n_positions", "context", lambda draft: draft["context"]),
)

GPT2 = Family(
    name="GPT-2",
    model_type="gpt2",
    prefix="transformer.",
    classes={"lm": "GPT2LMHeadModel"},
    only={"add_cross_attention": (False,)},
    settings=(
        *_SETTINGS,
        Key("activation_function", "activation", "gelu_new", {"gelu_new": "gelu_tanh", **ACTIVATIONS}),
        Group(_read_divisors, _write_divisors),
    ),
    written={"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
    stored={
        "embed.tokens": Stored("wte"),
        "embed.positions": Stored("wpe"),
        "blocks.{n}.norm1": Stored("h.{n}.ln_1"),
        **fused("h.{n}.attn.c_attn", transposed=True),
        "blocks.{n}.attention.o": Stored("h.{n}.attn.c_proj", transposed=True),
        "blocks.{n}.norm2": Stored("h.{n}.ln_2"),
        "blocks.{n}.ffn.up": Stored("h.{n}.mlp.c_fc", transposed=True),
        "blocks.{n}.ffn.down": Stored("h.{n}.mlp.c_proj", transposed=True),
        "final_norm": Stored("ln_f"),
        "head.decoder": Stored("lm_head"),
    },
    skipped=(
        Skip(r"h\.\d+\.(attn|crossattention)\.bias", "the causal mask, a buffer", computed=causal_mask),
        Skip(r"h\.\d+\.attn\.masked_bias", "the score of a hidden pair, a buffer", computed=hidden_score),
        Skip(r"(score|classifier|multiple_choice_head\.summary)\..*", "a classification head", noted=True),
    ),
    copies={"lm_head.weight": "wte.weight"},
    outside=("lm_head", "score", "classifier"),
    heads={**DECODER_HEADS, "token": ClassHead({"head.decoder": Stored("classifier")})},
)
GPT_BIGCODE = replace(
    GPT2,
    name="GPT-BigCode",
    model_type="gpt_bigcode",
    classes={"lm": "GPTBigCodeForCausalLM"},
    settings=(
        *_SETTINGS,
        Key(
            "activation_function", "activation", "gelu_pytorch_tanh", {"gelu_pytorch_tanh": "gelu_tanh", **ACTIVATIONS}
        ),
        Group(
            lambda fields, draft, tensors: {"n_kv_heads": 1 if fields.flag("multi_query", True) else draft["n_heads"]},
            lambda config: {"multi_query": config.n_kv_heads == 1},
        ),
        Group(
            lambda fields, draft, tensors: {
                "attention_divisor": 0.0 if fields.flag("scale_attn_weights", True) else 1.0
            },
            lambda config: {"scale_attn_weights": config.attention_divisor != 1.0},
        ),
    ),
    harmless=("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"),
    stored={
        name: replace(layout, transposed=False)
        for name, layout in {**GPT2.stored, **fused("h.{n}.attn.c_attn", by_head="n_kv_heads")}.items()
    },
)
"""SantaCoder and StarCoder (Ben Allal et al. 2023, Li et al. 2023): one key and value head for all query heads."""


def _read_windows(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The window of each layer, from groups of kinds and how often each group repeats."""
    window, count = fields.whole("window_size", 256, least=1), draft["n_layers"]
    groups = fields.array("attention_types", list, [[["global", "local"], 12]])
    try:
        kinds = [kind for group, times in groups for kind in group * min(times, count)]
    except (TypeError, ValueError):
        raise fields.fault("attention_types has to be pairs of kinds and a repeat count") from None
    if len(kinds) != count:
        raise fields.fault(f"attention_types has {len(kinds):,} layers, and num_layers is {count:,}")
    windows = {"global": 0, "local": window}
    return by_layer("window", [fields.meaning("attention_types", str(kind), windows) for kind in kinds])


def _write_windows(config: ModelConfig) -> dict[str, Any]:
    windows = [config.at(layer).window for layer in range(config.n_layers)]
    kinds = ["local" if window else "global" for window in windows]
    return {"attention_types": [[kinds, 1]], "window_size": max(windows) or 256}


GPT_NEO = replace(
    GPT2,
    name="GPT-Neo",
    model_type="gpt_neo",
    classes={"lm": "GPTNeoForCausalLM"},
    only={"is_causal": (True,)},  # it masks by a buffer of its own
    fixed={"attention_divisor": 1.0, "qkv_bias": False},
    settings=(
        Key("vocab_size"),
        Key("hidden_size", "d_model"),
        Key("num_layers", "n_layers"),
        Key("num_heads", "n_heads"),
        Key("intermediate_size", "d_ff", lambda draft: 4 * draft["d_model"]),
        Key("max_position_embeddings", "context", 2048),
        Key("layer_norm_epsilon", "norm_eps", 1e-5),
        Key("activation_function", "activation", "gelu_new", {"gelu_new": "gelu_tanh", **ACTIVATIONS}),
        Key("tie_word_embeddings", "tied_head", True),
        Group(_read_windows, _write_windows),
        lm_head(),
    ),
    written={"attention_dropout": 0.0, "embed_dropout": 0.0, "resid_dropout": 0.0},
    harmless=("attention_layers", "embed_dropout", "resid_dropout"),  # the first is derived from attention_types
    stored={
        **{name: replace(layout, transposed=False) for name, layout in GPT2.stored.items()},
        "blocks.{n}.attention.q": Stored("h.{n}.attn.attention.q_proj"),
        "blocks.{n}.attention.k": Stored("h.{n}.attn.attention.k_proj"),
        "blocks.{n}.attention.v": Stored("h.{n}.attn.attention.v_proj"),
        "blocks.{n}.attention.o": Stored("h.{n}.attn.attention.out_proj"),
    },
    skipped=(
        Skip(r"h\.\d+\.attn\.attention\.bias", "the causal mask, a buffer", computed=causal_mask),
        Skip(r"h\.\d+\.attn\.attention\.masked_bias", "the score of a hidden pair, a buffer", computed=hidden_score),
        Skip(r"(score|classifier|qa_outputs)\..*", "a classification head", noted=True),
    ),
)
"""GPT-Neo and TinyStories (Black et al. 2021): unscaled scores, and a window in every second layer."""

OPENAI_GPT = replace(
    GPT2,
    name="GPT-1",
    model_type="openai-gpt",
    classes={"lm": "OpenAIGPTLMHeadModel"},
    only={"is_causal": (True,)},
    fixed={"norm_order": "post"},
    settings=(
        *_SHARED,
        Key("n_positions", "context", 512),
        Group(lambda fields, draft, tensors: {"d_ff": 4 * draft["d_model"]}),
        Key("afn", "activation", "gelu", {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}),
    ),
    stored={
        **{name: layout for name, layout in GPT2.stored.items() if name != "final_norm"},
        "embed.tokens": Stored("tokens_embed"),
        "embed.positions": Stored("positions_embed"),
    },
    skipped=(*GPT2.skipped, POSITIONS),
    copies={"lm_head.weight": "tokens_embed.weight"},
)
"""Radford et al. 2018: post-norm, so no norm follows the last block."""
