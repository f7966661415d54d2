"""GPT-NeoX and Pythia (Black et al. 2022, Biderman et al. 2023): a parallel residual. GPT-NeoX-Japanese."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.buffers import ROTARY_FREQUENCIES, causal_mask, hidden_score
from tinytf.checkpoints.huggingface.rope import rotary_pairs, written_share
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, SIZES, Family, by_layer, lm_head
from tinytf.checkpoints.table import Draft, Group, Key, Skip, Stored, Tensors, fused
from tinytf.config import ModelConfig
from tinytf.fields import Fields


def _rope(default_share: float) -> Group:
    """The base of RoPE and the fraction of a head that it rotates, in rope_parameters or outside it."""

    def read(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
        share, theta = fields.number("rotary_pct", default_share), fields.number("rotary_emb_base", 10_000.0)
        parameters = fields.object("rope_parameters")
        if parameters is not None:
            parameters.require("rope_type", ("default",))
            share, theta = parameters.number("partial_rotary_factor", share), parameters.number("rope_theta", theta)
        return rotary_pairs(fields, draft, share, theta)

    def write(config: ModelConfig) -> dict[str, Any]:
        share = written_share(config)
        rope = {"rope_type": "default", "rope_theta": config.rope_theta, "partial_rotary_factor": share}
        return {"rope_parameters": rope, "rotary_pct": share, "rotary_emb_base": config.rope_theta}

    return Group(read, write)


def _read_residual(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    return {"residual": "parallel" if fields.flag("use_parallel_residual", True) else "sequential"}


NEOX = Family(
    name="GPT-NeoX",
    model_type="gpt_neox",
    prefix="gpt_neox.",
    classes={"none": "GPTNeoXModel", "lm": "GPTNeoXForCausalLM"},
    only={"rope_scaling": (), "is_decoder": (False,)},
    fixed={"positions": "rotary"},
    settings=(
        *SIZES,
        Key("max_position_embeddings", "context"),
        Key("layer_norm_eps", "norm_eps", 1e-5),
        Key("hidden_act", "activation", "gelu", ACTIVATIONS),
        Key("attention_bias", "qkv_bias o_bias", True),
        Key("tie_word_embeddings", "tied_head", False),
        Group(_read_residual, lambda config: {"use_parallel_residual": config.residual == "parallel"}),
        _rope(0.25),
        lm_head("embed_out.weight"),
    ),
    written={"attention_dropout": 0.0, "hidden_dropout": 0.0},
    stored={
        "embed.tokens": Stored("embed_in"),
        "blocks.{n}.norm1": Stored("layers.{n}.input_layernorm"),
        **fused("layers.{n}.attention.query_key_value", by_head="n_kv_heads"),
        "blocks.{n}.attention.o": Stored("layers.{n}.attention.dense"),
        "blocks.{n}.norm2": Stored("layers.{n}.post_attention_layernorm"),
        "blocks.{n}.ffn.up": Stored("layers.{n}.mlp.dense_h_to_4h"),
        "blocks.{n}.ffn.down": Stored("layers.{n}.mlp.dense_4h_to_h"),
        "final_norm": Stored("final_layer_norm"),
        "head.decoder": Stored("embed_out"),
    },
    skipped=(
        Skip(r"layers\.\d+\.attention\.bias", "the causal mask, a buffer", computed=causal_mask),
        Skip(r"layers\.\d+\.attention\.masked_bias", "the score of a hidden pair, a buffer", computed=hidden_score),
        ROTARY_FREQUENCIES,
        Skip(r"(score|classifier|qa_outputs)\..*", "a classification head", noted=True),
    ),
    copies={"embed_out.weight": "embed_in.weight"},
    outside=("embed_out",),
    spellings=((r"^lm_head\.", "embed_out."),),
)


def _read_multiple(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    return {"d_ff": int(draft["d_model"] * fields.number("intermediate_multiple_size", 4.0))}


NEOX_JAPANESE = replace(
    NEOX,
    name="GPT-NeoX-Japanese",
    model_type="gpt_neox_japanese",
    prefix="gpt_neox_japanese.",
    classes={"none": "GPTNeoXJapaneseModel", "lm": "GPTNeoXJapaneseForCausalLM"},
    fixed={"positions": "rotary", "qkv_bias": False, "ffn_bias": False},
    settings=(
        *SIZES[:-1],
        Group(_read_multiple, lambda config: {"intermediate_multiple_size": config.d_ff // config.d_model}),
        Key("max_position_embeddings", "context"),
        Key("layer_norm_eps", "norm_eps", 1e-5),
        Key("hidden_act", "activation", "gelu", ACTIVATIONS),
        Key("tie_word_embeddings", "tied_head", True),
        _rope(1.0),
        Group(lambda _, draft, __: by_layer("o_bias", [*[False] * (draft["n_layers"] - 1), True])),
        lm_head("embed_out.weight"),
    ),
    stored={
        **NEOX.stored,
        "blocks.{n}.attention.o": Stored("layers.{n}.attention.dense", bias="layers.{n}.attention.dense_bias"),
    },
)
"""ABEJA 2022: only the last layer's attention has a bias, on its output."""
