"""BERT, RoBERTa and DistilBERT: post-norm encoders with learned positions and a normed embedding sum."""

from collections.abc import Collection
from typing import Any

from tinytf.checkpoints.huggingface.table import Family, Left, Place
from tinytf.checkpoints.huggingface.words import ACTIVATIONS, activation_word
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_EMBEDDINGS = {
    "embed.tokens": Place("embeddings.word_embeddings"),
    "embed.positions": Place("embeddings.position_embeddings"),
    "embed.norm": Place("embeddings.LayerNorm"),
}
_BODY = {
    **_EMBEDDINGS,
    "embed.types": Place("embeddings.token_type_embeddings"),
    "blocks.{n}.attention.q": Place("encoder.layer.{n}.attention.self.query"),
    "blocks.{n}.attention.k": Place("encoder.layer.{n}.attention.self.key"),
    "blocks.{n}.attention.v": Place("encoder.layer.{n}.attention.self.value"),
    "blocks.{n}.attention.o": Place("encoder.layer.{n}.attention.output.dense"),
    "blocks.{n}.norm1": Place("encoder.layer.{n}.attention.output.LayerNorm"),
    "blocks.{n}.ffn.up": Place("encoder.layer.{n}.intermediate.dense"),
    "blocks.{n}.ffn.down": Place("encoder.layer.{n}.output.dense"),
    "blocks.{n}.norm2": Place("encoder.layer.{n}.output.LayerNorm"),
    "pooler": Place("pooler.dense"),
}
_BERT_HEAD = {
    "head.dense": Place("cls.predictions.transform.dense"),
    "head.norm": Place("cls.predictions.transform.LayerNorm"),
    "head.decoder": Place("cls.predictions.decoder"),
}
_ROBERTA_HEAD = {
    "head.dense": Place("lm_head.dense"),
    "head.norm": Place("lm_head.layer_norm"),
    "head.decoder": Place("lm_head.decoder"),
}
_DISTILBERT = {
    **_EMBEDDINGS,
    "blocks.{n}.attention.q": Place("transformer.layer.{n}.attention.q_lin"),
    "blocks.{n}.attention.k": Place("transformer.layer.{n}.attention.k_lin"),
    "blocks.{n}.attention.v": Place("transformer.layer.{n}.attention.v_lin"),
    "blocks.{n}.attention.o": Place("transformer.layer.{n}.attention.out_lin"),
    "blocks.{n}.norm1": Place("transformer.layer.{n}.sa_layer_norm"),
    "blocks.{n}.ffn.up": Place("transformer.layer.{n}.ffn.lin1"),
    "blocks.{n}.ffn.down": Place("transformer.layer.{n}.ffn.lin2"),
    "blocks.{n}.norm2": Place("transformer.layer.{n}.output_layer_norm"),
    "head.dense": Place("vocab_transform"),
    "head.norm": Place("vocab_layer_norm"),
    "head.decoder": Place("vocab_projector"),
}
_LEFT = (
    Left(r"embeddings\.(position_ids|token_type_ids)", "positions or types counted out, stored as a buffer"),
    Left(r"cls\.seq_relationship\..*", "the next-sentence head", said=True),
    Left(r"(classifier|pre_classifier|qa_outputs)\..*", "a task head", said=True),
)
_OLD_NAMES = ((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias"))


def _encoder(fields: Fields, **more: Any) -> ModelConfig:
    fields.require("position_embedding_type", ("absolute",))
    fields.require("is_decoder", (False,))
    fields.require("add_cross_attention", (False,))
    return ModelConfig(
        vocab_size=fields.whole("vocab_size"),
        causal=False,
        norm_order="post",
        embed_norm=True,
        **{"tied_head": fields.flag("tie_word_embeddings", True), **more},
    )


def _sizes(fields: Fields) -> dict[str, Any]:
    return {
        "d_model": fields.whole("hidden_size"),
        "n_layers": fields.whole("num_hidden_layers"),
        "n_heads": fields.whole("num_attention_heads"),
        "d_ff": fields.whole("intermediate_size"),
        "activation": fields.word("hidden_act", ACTIVATIONS, "gelu"),
        "norm_eps": fields.number("layer_norm_eps", 1e-12),
    }


def _head(present: bool, activation: str) -> dict[str, Any]:
    if not present:
        return {"head": "none", "tied_head": True}
    return {"head": "mlm", "head_bias": True, "head_activation": activation}


def _read_bert(fields: Fields, names: Collection[str]) -> ModelConfig:
    sizes = _sizes(fields)
    return _encoder(
        fields,
        **sizes,
        context=fields.whole("max_position_embeddings"),
        n_token_types=fields.whole("type_vocab_size", 2),
        pooler="pooler.dense.weight" in names,
        **_head("cls.predictions.transform.dense.weight" in names, sizes["activation"]),
    )


def _read_roberta(fields: Fields, names: Collection[str]) -> ModelConfig:
    offset = fields.whole("pad_token_id", 1) + 1  # the first position is counted from behind the padding's
    return _encoder(
        fields,
        **_sizes(fields),
        position_offset=offset,
        context=fields.whole("max_position_embeddings") - offset,
        n_token_types=fields.whole("type_vocab_size", 2),
        pooler="pooler.dense.weight" in names,
        **_head("lm_head.dense.weight" in names, "gelu"),
    )


def _read_distilbert(fields: Fields, names: Collection[str]) -> ModelConfig:
    fields.flag("sinusoidal_pos_embds", False)  # the waves are stored like any other table
    activation = fields.word("activation", ACTIVATIONS, "gelu")
    return _encoder(
        fields,
        d_model=fields.whole("dim"),
        n_layers=fields.whole("n_layers"),
        n_heads=fields.whole("n_heads"),
        d_ff=fields.whole("hidden_dim"),
        context=fields.whole("max_position_embeddings"),
        activation=activation,
        norm_eps=1e-12,
        **_head("vocab_transform.weight" in names, activation),
    )


_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _written(config: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "intermediate_size": config.d_ff,
        "hidden_act": activation_word(config.activation),
        "layer_norm_eps": config.norm_eps,
        "max_position_embeddings": config.context + config.position_offset,
        "type_vocab_size": config.n_token_types,
        "tie_word_embeddings": config.tied_head,
        **_NO_DROPOUT,
    }


def _write_bert(config: ModelConfig) -> dict[str, Any] | None:
    if not config.n_token_types:
        return None
    return {"architectures": ["BertForMaskedLM" if config.head == "mlm" else "BertModel"], **_written(config)}


def _write_roberta(config: ModelConfig) -> dict[str, Any] | None:
    if not config.position_offset or not config.n_token_types:
        return None
    words = ["RobertaForMaskedLM" if config.head == "mlm" else "RobertaModel"]
    return {"architectures": words, **_written(config), "pad_token_id": config.position_offset - 1}


def _write_distilbert(config: ModelConfig) -> dict[str, Any] | None:
    return {
        "architectures": ["DistilBertForMaskedLM" if config.head == "mlm" else "DistilBertModel"],
        "vocab_size": config.vocab_size,
        "dim": config.d_model,
        "n_layers": config.n_layers,
        "n_heads": config.n_heads,
        "hidden_dim": config.d_ff,
        "max_position_embeddings": config.context,
        "activation": activation_word(config.activation),
        "tie_word_embeddings": config.tied_head,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    }


BERT = Family(
    name="BERT",
    model_type="bert",
    prefix="bert.",
    read=_read_bert,
    write=_write_bert,
    places={**_BODY, **_BERT_HEAD},
    left=_LEFT,
    copies={
        "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
        "cls.predictions.bias": "cls.predictions.decoder.bias",
    },
    spellings=_OLD_NAMES,
    outside=("cls.",),
)
ROBERTA = Family(
    name="RoBERTa",
    model_type="roberta",
    prefix="roberta.",
    read=_read_roberta,
    write=_write_roberta,
    places={**_BODY, **_ROBERTA_HEAD},
    left=_LEFT,
    copies={
        "lm_head.decoder.weight": "embeddings.word_embeddings.weight",
        "lm_head.bias": "lm_head.decoder.bias",
    },
    spellings=_OLD_NAMES,
    outside=("lm_head.",),
)
DISTILBERT = Family(
    name="DistilBERT",
    model_type="distilbert",
    prefix="distilbert.",
    read=_read_distilbert,
    write=_write_distilbert,
    places=_DISTILBERT,
    left=_LEFT,
    copies={"vocab_projector.weight": "embeddings.word_embeddings.weight"},
    spellings=_OLD_NAMES,
    outside=("vocab_",),
)
