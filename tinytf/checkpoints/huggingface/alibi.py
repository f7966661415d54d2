"""Decoders with ALiBi (Press et al. 2022): BLOOM, MPT and Falcon; larger Falcons have RoPE instead."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.buffers import ROTARY_FREQUENCIES
from tinytf.checkpoints.huggingface.rope import ROPE
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, Family, lm_head
from tinytf.checkpoints.table import Draft, Group, Key, Skip, Stored, Tensors, fused
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_FOURFOLD = Group(lambda fields, draft, tensors: {"d_ff": 4 * draft["d_model"]})
_TIED = Key("tie_word_embeddings", "tied_head", True)

BLOOM = Family(
    name="BLOOM",
    model_type="bloom",
    prefix="transformer.",
    classes={"none": "BloomModel", "lm": "BloomForCausalLM"},
    only={"apply_residual_connection_post_layernorm": (False,)},
    fixed={"positions": "alibi", "embed_norm": True, "activation": "gelu_tanh"},
    settings=(
        Key("vocab_size"),
        Key("hidden_size", "d_model", 64),
        Key("n_embed", "d_model", lambda draft: draft["d_model"]),
        Key("num_hidden_layers", "n_layers", 2),
        Key("num_attention_heads", "n_heads", 8),
        Key("seq_length", "context", 2048),
        Key("layer_norm_epsilon", "norm_eps", 1e-5),
        _FOURFOLD,
        _TIED,
        lm_head(),
    ),
    written={"attention_dropout": 0.0, "hidden_dropout": 0.0},
    harmless=(
        "attention_softmax_in_fp32",
        "bias_dropout_fusion",
        "masked_softmax_fusion",
        "n_inner",
        "offset_alibi",
        "skip_bias_add",
        "skip_bias_add_qkv",
        "slow_but_exact",
    ),
    stored={
        "embed.tokens": Stored("word_embeddings"),
        "embed.norm": Stored("word_embeddings_layernorm"),
        "blocks.{n}.norm1": Stored("h.{n}.input_layernorm"),
        **fused("h.{n}.self_attention.query_key_value", by_head="n_kv_heads"),
        "blocks.{n}.attention.o": Stored("h.{n}.self_attention.dense"),
        "blocks.{n}.norm2": Stored("h.{n}.post_attention_layernorm"),
        "blocks.{n}.ffn.up": Stored("h.{n}.mlp.dense_h_to_4h"),
        "blocks.{n}.ffn.down": Stored("h.{n}.mlp.dense_4h_to_h"),
        "final_norm": Stored("ln_f"),
        "head.decoder": Stored("lm_head"),
    },
    skipped=(Skip(r"(score|classifier|qa_outputs)\..*", "a classification head", noted=True),),
    copies={"lm_head.weight": "word_embeddings.weight"},
    outside=("lm_head",),
)
"""BigScience 2022: a norm on the embeddings."""


def _read_attention(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The keys of attn_config that transformers reads; those that it ignores must have their defaults."""
    attention = fields.object("attn_config") or Fields({}, fields.source)
    for name, default in (("alibi", True), ("alibi_bias_max", 8), ("prefix_lm", False), ("qk_ln", False)):
        attention.require(name, (default,))
    attention.require("attn_type", ("multihead_attention",))
    attention.require("attn_uses_sequence_id", (False,))
    scale = attention.number("softmax_scale", 0.0)
    if scale < 0:
        raise fields.fault(f"softmax_scale {scale:g} is below 0")
    return {"clip_qkv": attention.number("clip_qkv", 0.0), "attention_divisor": 1 / scale if scale else 0.0}


def _write_attention(config: ModelConfig) -> dict[str, Any]:
    divisor = config.attention_divisor
    return {"attn_config": {"clip_qkv": config.clip_qkv or None, "softmax_scale": 1 / divisor if divisor else None}}


MPT = Family(
    name="MPT",
    model_type="mpt",
    prefix="transformer.",
    classes={"none": "MptModel", "lm": "MptForCausalLM"},
    only={"expansion_ratio": (4,), "logit_scale": (), "no_bias": (True,)},
    fixed={"positions": "alibi", "norm_bias": False, **dict.fromkeys(("qkv_bias", "o_bias", "ffn_bias"), False)},
    settings=(
        Key("vocab_size"),
        Key("d_model"),
        Key("n_layers"),
        Key("n_heads"),
        Key("max_seq_len", "context", 2048),
        Key("layer_norm_epsilon", "norm_eps", 1e-5),
        Group(_read_attention, _write_attention),
        _FOURFOLD,
        _TIED,
        lm_head(),
    ),
    written={"emb_pdrop": 0.0, "resid_pdrop": 0.0},
    harmless=(
        "attn_config",
        "emb_pdrop",
        "embedding_fraction",
        "fc_type",
        "ffn_config",
        "init_config",
        "init_device",
        "learned_pos_emb",
        "norm_type",
        "verbose",
    ),
    stored={
        "embed.tokens": Stored("wte"),
        "blocks.{n}.norm1": Stored("blocks.{n}.norm_1"),
        **fused("blocks.{n}.attn.Wqkv"),
        "blocks.{n}.attention.o": Stored("blocks.{n}.attn.out_proj"),
        "blocks.{n}.norm2": Stored("blocks.{n}.norm_2"),
        "blocks.{n}.ffn.up": Stored("blocks.{n}.ffn.up_proj"),
        "blocks.{n}.ffn.down": Stored("blocks.{n}.ffn.down_proj"),
        "final_norm": Stored("norm_f"),
        "head.decoder": Stored("lm_head"),
    },
    skipped=(Skip(r"(score|classifier|qa_outputs)\..*", "a classification head", noted=True),),
    copies={"lm_head.weight": "wte.weight"},
    outside=("lm_head",),
)
"""MosaicML 2023: no biases; some models clip queries, keys and values."""


def _read_architecture(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The old architecture has one key head or all, the new one groups; one norm for both parts, or one each."""
    new, parallel = fields.flag("new_decoder_architecture", False), fields.flag("parallel_attn", True)
    norms = fields.whole("num_ln_in_parallel_attn", 2 if new else 1)
    if (norms, new, parallel) not in _ARCHITECTURES:
        raise fields.fault(
            f"new_decoder_architecture {new}, parallel_attn {parallel} and num_ln_in_parallel_attn {norms} exclude "
            "each other"
        )
    multi_query = fields.flag("multi_query", True)
    n_kv_heads = fields.whole("num_kv_heads", draft["n_heads"]) if new else 1 if multi_query else draft["n_heads"]
    residual = "parallel" if parallel else "sequential"
    return {"n_kv_heads": n_kv_heads, "residual": residual, "shared_norm": parallel and norms == 1}


_TWO_NORMS = {"input_layernorm": "ln_attn", "post_attention_layernorm": "ln_mlp"}
"""The names of the norms of parallel parts with one each."""
_ARCHITECTURES = ((1, False, True), (1, False, False), (1, True, True), (2, True, True))


def _has_two_norms(config: ModelConfig) -> bool:
    return config.residual == "parallel" and not config.shared_norm


def _write_architecture(config: ModelConfig) -> dict[str, Any]:
    return {
        "new_decoder_architecture": _has_two_norms(config) or config.n_kv_heads not in (1, config.n_heads),
        "parallel_attn": config.residual == "parallel",
        "multi_query": config.n_kv_heads == 1,
        "num_kv_heads": config.n_kv_heads,
        "num_ln_in_parallel_attn": 1 + _has_two_norms(config),
    }


def _read_positions(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """ALiBi or RoPE. Falcon adds the ALiBi bias before scaling the scores, and rounds slope · position to bfloat16."""
    if fields.flag("alibi", False):
        scale = max(1, draft["d_model"] // draft["n_heads"]) ** -0.5  # more heads than numbers are refused below
        return {"positions": "alibi", "alibi_scale": scale, "alibi_rounded": True}
    return {"positions": "rotary", **ROPE.read(fields, draft, tensors)}


def _write_positions(config: ModelConfig) -> dict[str, Any]:
    alibi = config.positions == "alibi"
    return {"alibi": alibi, **({} if alibi else ROPE.write(config))}


FALCON = replace(
    BLOOM,
    name="Falcon",
    model_type="falcon",
    classes={"none": "FalconModel", "lm": "FalconForCausalLM"},
    only={},
    fixed={},
    settings=(
        Key("vocab_size"),
        Key("hidden_size", "d_model"),
        Key("n_embed", "d_model", lambda draft: draft["d_model"]),
        Key("num_hidden_layers", "n_layers"),
        Key("num_attention_heads", "n_heads"),
        Key("ffn_hidden_size", "d_ff", lambda draft: 4 * draft["d_model"]),
        Key("max_position_embeddings", "context", 2048),
        Key("layer_norm_epsilon", "norm_eps", 1e-5),
        Key("activation", "activation", "gelu", ACTIVATIONS),
        Key("bias", "qkv_bias o_bias ffn_bias", False),
        Group(_read_architecture, _write_architecture),
        Group(_read_positions, _write_positions),
        _TIED,
        lm_head(),
    ),
    # the last five are read where the architecture has them
    harmless=(
        "apply_residual_connection_post_layernorm",
        "multi_query",
        "num_kv_heads",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
    ),
    stored={name: layout for name, layout in BLOOM.stored.items() if name != "embed.norm"},
    spellings=tuple((rf"\.{theirs}\.", f".{ours}.") for ours, theirs in _TWO_NORMS.items()),
    written_as=lambda config: _TWO_NORMS if _has_two_norms(config) else {},
    skipped=(
        *BLOOM.skipped,
        ROTARY_FREQUENCIES,
    ),
)
"""Almazrouei et al. 2023: a parallel residual; one key head for all query heads, or one for each group."""
