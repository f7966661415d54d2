"""BERT, RoBERTa, ELECTRA and DistilBERT: post-norm encoders with learned positions and an embedding norm."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.buffers import POSITIONS, zeros
from tinytf.checkpoints.huggingface.heads import ClassHead
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, SIZES, Family
from tinytf.checkpoints.table import Draft, Group, Key, Skip, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields


def mlm_head(tensor: str, activation: str = "") -> Group:
    """A masked-language-model head, if ``tensor`` is stored; with its own ``activation`` or that of the body."""

    def read(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
        if tensor not in tensors:
            return {"head": "none", "tied_head": True}
        return {"head": "mlm", "head_bias": True, "head_activation": activation or draft["activation"]}

    return Group(read)


def _read_positions(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """RoBERTa numbers positions from the padding id + 1."""
    offset = fields.whole("pad_token_id", 1) + 1
    return {"position_offset": offset, "context": fields.whole("max_position_embeddings") - offset}


def _write_positions(config: ModelConfig) -> dict[str, Any]:
    offset = config.position_offset
    return {"max_position_embeddings": config.context + offset, "pad_token_id": offset - 1}


_FIXED = {"causal": False, "norm_order": "post", "embed_norm": True}
_ONLY = {"position_embedding_type": ("absolute",), "is_decoder": (False,), "add_cross_attention": (False,)}
_SETTINGS = (
    *SIZES,
    Key("hidden_act", "activation", "gelu", ACTIVATIONS),
    Key("layer_norm_eps", "norm_eps", 1e-12),
    Key("type_vocab_size", "n_token_types", 2),
    Key("tie_word_embeddings", "tied_head", True),
    Group(lambda fields, draft, tensors: {"pooler": "pooler.dense.weight" in tensors}),
)
_EMBEDDINGS = {
    "embed.tokens": Stored("embeddings.word_embeddings"),
    "embed.positions": Stored("embeddings.position_embeddings"),
    "embed.norm": Stored("embeddings.LayerNorm"),
}
_BODY = {
    **_EMBEDDINGS,
    "embed.types": Stored("embeddings.token_type_embeddings"),
    "blocks.{n}.attention.q": Stored("encoder.layer.{n}.attention.self.query"),
    "blocks.{n}.attention.k": Stored("encoder.layer.{n}.attention.self.key"),
    "blocks.{n}.attention.v": Stored("encoder.layer.{n}.attention.self.value"),
    "blocks.{n}.attention.o": Stored("encoder.layer.{n}.attention.output.dense"),
    "blocks.{n}.norm1": Stored("encoder.layer.{n}.attention.output.LayerNorm"),
    "blocks.{n}.ffn.up": Stored("encoder.layer.{n}.intermediate.dense"),
    "blocks.{n}.ffn.down": Stored("encoder.layer.{n}.output.dense"),
    "blocks.{n}.norm2": Stored("encoder.layer.{n}.output.LayerNorm"),
    "pooler": Stored("pooler.dense"),
}

_CLASSIFIER = {"head.decoder": Stored("classifier")}
_OF_TOKENS = {"token": ClassHead(_CLASSIFIER), "question": ClassHead({"head.decoder": Stored("qa_outputs")})}
_OUTSIDE = ("classifier.", "qa_outputs.")
_DENSE_AND_OUT = {"head.dense": Stored("classifier.dense"), "head.decoder": Stored("classifier.out_proj")}

BERT = Family(
    name="BERT",
    model_type="bert",
    prefix="bert.",
    classes={"none": "BertModel", "mlm": "BertForMaskedLM"},
    only=_ONLY,
    needs=("n_token_types",),
    fixed=_FIXED,
    settings=(
        *_SETTINGS,
        Key("max_position_embeddings", "context"),
        mlm_head("cls.predictions.transform.dense.weight"),
    ),
    written={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    stored={
        **_BODY,
        "head.dense": Stored("cls.predictions.transform.dense"),
        "head.norm": Stored("cls.predictions.transform.LayerNorm"),
        "head.decoder": Stored("cls.predictions.decoder"),
    },
    skipped=(
        POSITIONS,
        Skip(r"embeddings\.token_type_ids", "type ids, a buffer", computed=zeros),
        Skip(r"cls\.seq_relationship\..*", "the next-sentence head", noted=True),
        Skip(r"(classifier|pre_classifier|qa_outputs)\..*", "a task head", noted=True),
    ),
    copies={
        "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
        "cls.predictions.bias": "cls.predictions.decoder.bias",
    },
    spellings=((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias")),
    outside=("cls.", *_OUTSIDE),
    heads={"sequence": ClassHead({"head.dense": Stored("pooler.dense"), **_CLASSIFIER}, "tanh"), **_OF_TOKENS},
)
ROBERTA = Family(
    name="RoBERTa",
    model_type="roberta",
    prefix="roberta.",
    classes={"none": "RobertaModel", "mlm": "RobertaForMaskedLM"},
    only=_ONLY,
    needs=("n_token_types", "position_offset"),
    fixed=_FIXED,
    settings=(*_SETTINGS, Group(_read_positions, _write_positions), mlm_head("lm_head.dense.weight", "gelu")),
    written=BERT.written,
    stored={
        **_BODY,
        "head.dense": Stored("lm_head.dense"),
        "head.norm": Stored("lm_head.layer_norm"),
        "head.decoder": Stored("lm_head.decoder"),
    },
    skipped=BERT.skipped,
    copies={"lm_head.decoder.weight": "embeddings.word_embeddings.weight", "lm_head.bias": "lm_head.decoder.bias"},
    spellings=BERT.spellings,
    outside=("lm_head.", *_OUTSIDE),
    heads={"sequence": ClassHead(_DENSE_AND_OUT, "tanh"), **_OF_TOKENS},
)
MPNET = replace(
    ROBERTA,
    name="MPNet",
    model_type="mpnet",
    prefix="mpnet.",
    classes={"none": "MPNetModel", "mlm": "MPNetForMaskedLM"},
    only={"relative_attention_num_buckets": (32,)},
    needs=("relative_buckets",),
    fixed={**_FIXED, "relative_buckets": 32, "position_offset": 2},
    settings=(
        *SIZES,
        Key("hidden_act", "activation", "gelu", ACTIVATIONS),
        Key("layer_norm_eps", "norm_eps", 1e-12),
        Key("tie_word_embeddings", "tied_head", True),
        Group(
            lambda fields, draft, tensors: {"context": fields.whole("max_position_embeddings") - 2},
            lambda config: {"max_position_embeddings": config.context + 2},
        ),
        Group(lambda fields, draft, tensors: {"pooler": "pooler.dense.weight" in tensors}),
        mlm_head("lm_head.dense.weight", "gelu"),
    ),
    stored={
        **_BODY,
        "blocks.{n}.attention.relative": Stored("encoder.relative_attention_bias"),
        "blocks.{n}.attention.q": Stored("encoder.layer.{n}.attention.attn.q"),
        "blocks.{n}.attention.k": Stored("encoder.layer.{n}.attention.attn.k"),
        "blocks.{n}.attention.v": Stored("encoder.layer.{n}.attention.attn.v"),
        "blocks.{n}.attention.o": Stored("encoder.layer.{n}.attention.attn.o"),
        "blocks.{n}.norm1": Stored("encoder.layer.{n}.attention.LayerNorm"),
        "head.dense": Stored("lm_head.dense"),
        "head.norm": Stored("lm_head.layer_norm"),
        "head.decoder": Stored("lm_head.decoder"),
    },
)
"""Song et al. 2020: RoBERTa with a relative position bias on scores, shared by all layers."""
XLM_ROBERTA = replace(
    ROBERTA,
    name="XLM-RoBERTa",
    model_type="xlm-roberta",
    classes={"none": "XLMRobertaModel", "mlm": "XLMRobertaForMaskedLM"},
)
CAMEMBERT = replace(
    ROBERTA,
    name="CamemBERT",
    model_type="camembert",
    classes={"none": "CamembertModel", "mlm": "CamembertForMaskedLM"},
)


def _read_width(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Embeddings that are not as wide as the residual stream are projected to it."""
    width = fields.whole("embedding_size", 128, least=1)
    projected = width != draft["d_model"]
    return {"d_embed": width if projected else 0, "projection_bias": projected}


def _read_groups(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    groups = fields.whole("num_hidden_groups", 1, least=1)
    return {"layer_groups": 0 if groups == draft["n_layers"] else groups}


ELECTRA = replace(
    BERT,
    name="ELECTRA",
    model_type="electra",
    prefix="electra.",
    classes={"none": "ElectraModel", "mlm": "ElectraForMaskedLM"},
    settings=(
        *_SETTINGS,
        Key("max_position_embeddings", "context"),
        Group(_read_width, lambda config: {"embedding_size": config.embed_width}),
        mlm_head("generator_predictions.dense.weight", "gelu"),
    ),
    harmless=("summary_last_dropout",),
    stored={
        **_BODY,
        "embed.projection": Stored("embeddings_project"),
        "head.dense": Stored("generator_predictions.dense"),
        "head.norm": Stored("generator_predictions.LayerNorm"),
        "head.decoder": Stored("generator_lm_head"),
    },
    skipped=(*BERT.skipped, Skip(r"discriminator_predictions\..*", "the replaced-token head", noted=True)),
    copies={"generator_lm_head.weight": "embeddings.word_embeddings.weight"},
    outside=("generator_", "discriminator_", *_OUTSIDE),
    heads={
        "sequence": ClassHead(_DENSE_AND_OUT, "gelu"),
        "replaced": ClassHead(
            {
                "head.dense": Stored("discriminator_predictions.dense"),
                "head.decoder": Stored("discriminator_predictions.dense_prediction"),
            },
            head="token",
            ends="ForPreTraining",
            labels=("replaced",),
        ),
        **_OF_TOKENS,
    },
)
_ALBERT_LAYER = "encoder.albert_layer_groups.{n}.albert_layers.0"
ALBERT = replace(
    BERT,
    name="ALBERT",
    model_type="albert",
    prefix="albert.",
    classes={"none": "AlbertModel", "mlm": "AlbertForMaskedLM"},
    only={**_ONLY, "inner_group_num": (1,)},
    needs=("n_token_types", "d_embed"),
    settings=(
        *SIZES,
        Key("hidden_act", "activation", "gelu_new", {"gelu_new": "gelu_tanh", **ACTIVATIONS}),
        Key("layer_norm_eps", "norm_eps", 1e-12),
        Key("type_vocab_size", "n_token_types", 2),
        Key("tie_word_embeddings", "tied_head", True),
        Key("max_position_embeddings", "context"),
        Key("embedding_size", "d_embed", 128),
        Group(_read_groups, lambda config: {"num_hidden_groups": config.layer_groups or config.n_layers}),
        Group(lambda fields, draft, tensors: {"pooler": "pooler.weight" in tensors, "projection_bias": True}),
        mlm_head("predictions.dense.weight"),
    ),
    harmless=("classifier_dropout_prob", "down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks"),
    stored={
        **_EMBEDDINGS,
        "embed.types": Stored("embeddings.token_type_embeddings"),
        "embed.projection": Stored("encoder.embedding_hidden_mapping_in"),
        "blocks.{n}.attention.q": Stored(f"{_ALBERT_LAYER}.attention.query"),
        "blocks.{n}.attention.k": Stored(f"{_ALBERT_LAYER}.attention.key"),
        "blocks.{n}.attention.v": Stored(f"{_ALBERT_LAYER}.attention.value"),
        "blocks.{n}.attention.o": Stored(f"{_ALBERT_LAYER}.attention.dense"),
        "blocks.{n}.norm1": Stored(f"{_ALBERT_LAYER}.attention.LayerNorm"),
        "blocks.{n}.ffn.up": Stored(f"{_ALBERT_LAYER}.ffn"),
        "blocks.{n}.ffn.down": Stored(f"{_ALBERT_LAYER}.ffn_output"),
        "blocks.{n}.norm2": Stored(f"{_ALBERT_LAYER}.full_layer_layer_norm"),
        "pooler": Stored("pooler"),
        "head.dense": Stored("predictions.dense"),
        "head.norm": Stored("predictions.LayerNorm"),
        "head.decoder": Stored("predictions.decoder"),
    },
    skipped=(*BERT.skipped, Skip(r"sop_classifier\..*", "the sentence-order head", noted=True)),
    copies={
        "predictions.decoder.weight": "embeddings.word_embeddings.weight",
        "predictions.bias": "predictions.decoder.bias",
    },
    outside=("predictions.", *_OUTSIDE),
    heads={"sequence": ClassHead({"head.dense": Stored("pooler"), **_CLASSIFIER}, "tanh"), **_OF_TOKENS},
)
"""Lan et al. 2020: narrow embeddings, and groups of layers that share their weights."""
DISTILBERT = Family(
    name="DistilBERT",
    model_type="distilbert",
    prefix="distilbert.",
    classes={"none": "DistilBertModel", "mlm": "DistilBertForMaskedLM"},
    only={**_ONLY, "sinusoidal_pos_embds": (False, True)},  # sinusoidal positions are stored like learned ones
    fixed={**_FIXED, "norm_eps": 1e-12},
    settings=(
        Key("vocab_size"),
        Key("dim", "d_model"),
        Key("n_layers"),
        Key("n_heads"),
        Key("hidden_dim", "d_ff"),
        Key("max_position_embeddings", "context"),
        Key("activation", default="gelu", words=ACTIVATIONS),
        Key("tie_word_embeddings", "tied_head", True),
        mlm_head("vocab_transform.weight"),
    ),
    written={"dropout": 0.0, "attention_dropout": 0.0},
    stored={
        **_EMBEDDINGS,
        "blocks.{n}.attention.q": Stored("transformer.layer.{n}.attention.q_lin"),
        "blocks.{n}.attention.k": Stored("transformer.layer.{n}.attention.k_lin"),
        "blocks.{n}.attention.v": Stored("transformer.layer.{n}.attention.v_lin"),
        "blocks.{n}.attention.o": Stored("transformer.layer.{n}.attention.out_lin"),
        "blocks.{n}.norm1": Stored("transformer.layer.{n}.sa_layer_norm"),
        "blocks.{n}.ffn.up": Stored("transformer.layer.{n}.ffn.lin1"),
        "blocks.{n}.ffn.down": Stored("transformer.layer.{n}.ffn.lin2"),
        "blocks.{n}.norm2": Stored("transformer.layer.{n}.output_layer_norm"),
        "head.dense": Stored("vocab_transform"),
        "head.norm": Stored("vocab_layer_norm"),
        "head.decoder": Stored("vocab_projector"),
    },
    skipped=BERT.skipped,
    copies={"vocab_projector.weight": "embeddings.word_embeddings.weight"},
    spellings=BERT.spellings,
    outside=("vocab_", "pre_classifier.", *_OUTSIDE),
    heads={"sequence": ClassHead({"head.dense": Stored("pre_classifier"), **_CLASSIFIER}, "relu"), **_OF_TOKENS},
)
