"""XLM and FlauBERT: post-norm encoders with learned positions, unembedded at once."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.buffers import POSITIONS
from tinytf.checkpoints.huggingface.table import Family
from tinytf.checkpoints.table import Draft, Group, Key, Skip, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields


def _read_sizes(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The vocabulary, under its old name in older files, and a feed-forward four times as wide as the stream."""
    words = fields.whole("n_words", fields.whole("vocab_size", 0), least=1)
    return {"vocab_size": words, "d_ff": 4 * draft["d_model"]}


def _read_activation(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    return {"activation": "gelu" if fields.flag("gelu_activation", True) else "relu"}


def _write_activation(config: ModelConfig) -> dict[str, Any]:
    return {"gelu_activation": config.activation == "gelu"}


def _read_head(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    present = "pred_layer.proj.bias" in tensors
    return {"head": "lm", "head_bias": True} if present else {"head": "none", "tied_head": True}


XLM = Family(
    name="XLM",
    model_type="xlm",
    prefix="transformer.",
    classes={"none": "XLMModel", "lm": "XLMWithLMHeadModel"},
    only={"causal": (False,), "asm": (False,), "is_encoder": (True,)},
    fixed={"causal": False, "norm_order": "post", "embed_norm": True},
    settings=(
        Key("emb_dim", "d_model"),
        Key("n_layers"),
        Key("n_heads"),
        Key("max_position_embeddings", "context", 512),
        Key("layer_norm_eps", "norm_eps", 1e-12),
        Key("tie_word_embeddings", "tied_head", True),
        Group(_read_sizes, lambda config: {"vocab_size": config.vocab_size}),
        Group(_read_activation, _write_activation),
        Group(_read_head),
    ),
    harmless=(
        *("asm_cutoffs", "asm_div_value"),  # of a softmax that asm chooses
        *("bos_index", "embed_init_std", "end_n_top", "eos_index", "id2lang", "init_std", "lang2id", "lang_id"),
        *("mask_index", "max_vocab", "min_count", "n_langs", "pad_index", "same_enc_dec", "share_inout_emb"),
        *("sinusoidal_embeddings", "start_n_top", "unk_index", "use_lang_emb", "encoder_only"),
    ),  # sinusoidal positions are stored like learned ones
    # XLM takes the number of tokens that are not this one for the length of a text
    written={"dropout": 0.0, "attention_dropout": 0.0, "pad_token_id": -1},
    stored={
        "embed.tokens": Stored("embeddings"),
        "embed.positions": Stored("position_embeddings"),
        "embed.norm": Stored("layer_norm_emb"),
        "blocks.{n}.attention.q": Stored("attentions.{n}.q_lin"),
        "blocks.{n}.attention.k": Stored("attentions.{n}.k_lin"),
        "blocks.{n}.attention.v": Stored("attentions.{n}.v_lin"),
        "blocks.{n}.attention.o": Stored("attentions.{n}.out_lin"),
        "blocks.{n}.norm1": Stored("layer_norm1.{n}"),
        "blocks.{n}.ffn.up": Stored("ffns.{n}.lin1"),
        "blocks.{n}.ffn.down": Stored("ffns.{n}.lin2"),
        "blocks.{n}.norm2": Stored("layer_norm2.{n}"),
        "head.decoder": Stored("pred_layer.proj"),
    },
    skipped=(
        POSITIONS,
        Skip(r"lang_embeddings\.weight", "embeddings of languages, which a text without them does not use", noted=True),
        Skip(r"(sequence_summary|qa_outputs|classifier|logits_proj)\..*", "a task head", noted=True),
    ),
    copies={"pred_layer.proj.weight": "embeddings.weight"},
    outside=("pred_layer.", "sequence_summary.", "qa_outputs.", "classifier.", "logits_proj."),
)
"""Lample and Conneau 2019, of a text in no named language."""

FLAUBERT = replace(
    XLM,
    name="FlauBERT",
    model_type="flaubert",
    classes={"none": "FlaubertModel", "lm": "FlaubertWithLMHeadModel"},
    only={**XLM.only, "pre_norm": (False,)},
    harmless=(*XLM.harmless, "layerdrop"),
)
"""Le et al. 2020: XLM for French. Models with norms before have none at their end, which is not implemented."""
