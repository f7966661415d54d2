"""Encoders that differ from BERT or RoBERTa only in a norm, their positions or names: variants of those tables."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.bert import BERT, ROBERTA, mlm_head
from tinytf.checkpoints.huggingface.buffers import ROTARY_FREQUENCIES, rotary_waves
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, SIZES
from tinytf.checkpoints.table import Draft, Group, Key, Skip, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_LAYER = "encoder.layer.{n}"

ERNIE = replace(
    BERT,
    name="ERNIE",
    model_type="ernie",
    prefix="ernie.",
    classes={"none": "ErnieModel", "mlm": "ErnieForMaskedLM"},
    only={**BERT.only, "use_task_id": (False,)},
    harmless=("task_type_vocab_size",),
)
"""Sun et al. 2020, without task embeddings."""

SPLINTER = replace(BERT, name="Splinter", model_type="splinter", prefix="splinter.", classes={"none": "SplinterModel"})
"""Ram et al. 2021: BERT, without the head that picks spans."""

VISUAL_BERT = replace(
    BERT,
    name="VisualBERT",
    model_type="visual_bert",
    prefix="visual_bert.",
    classes={"none": "VisualBertModel", "mlm": "VisualBertForPreTraining"},
    harmless=("bypass_transformer", "special_visual_initialize", "visual_embedding_dim"),
    skipped=(*BERT.skipped, Skip(r"embeddings\.visual_.*", "the embeddings of images", noted=True)),
)
"""Li et al. 2019: BERT on a text alone."""

LUKE = replace(
    ROBERTA,
    name="LUKE",
    model_type="luke",
    prefix="luke.",
    classes={"none": "LukeModel", "mlm": "LukeForMaskedLM"},
    settings=(
        *ROBERTA.settings,
        Group(lambda fields, draft, tensors: {"tied_head": draft["head"] != "mlm"}),  # whatever the file says
    ),
    copies={"lm_head.bias": "lm_head.decoder.bias"},
    harmless=("entity_emb_size", "entity_vocab_size", "use_entity_aware_attention", "cls_entity_prediction"),
    skipped=(
        *ROBERTA.skipped,
        Skip(
            r"entity_.*|encoder\.layer\.\d+\.attention\.self\.(w2e|e2w|e2e)_query\..*",
            "what reads entities beside the text",
            noted=True,
        ),
    ),
    outside=(*ROBERTA.outside, "entity_predictions."),
)
"""Yamada et al. 2020: RoBERTa on a text without entities."""

DATA2VEC = replace(
    ROBERTA,
    name="data2vec",
    model_type="data2vec-text",
    prefix="data2vec_text.",
    classes={"none": "Data2VecTextModel", "mlm": "Data2VecTextForMaskedLM"},
)
"""Baevski et al. 2022, for text."""

IBERT = replace(
    ROBERTA,
    name="I-BERT",
    model_type="ibert",
    prefix="ibert.",
    classes={"none": "IBertModel", "mlm": "IBertForMaskedLM"},
    only={"quant_mode": (False,)},
    harmless=("force_dequant",),
    skipped=(
        *ROBERTA.skipped,
        Skip(
            r".*(_integer|_scaling_factor|\.x_min|\.x_max|\.shift)", "the scales of whole numbers, which are not used"
        ),
    ),
)
"""Kim et al. 2021, before its numbers become whole: RoBERTa."""


def _read_last_head(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    return (
        {"head": "lm", "head_bias": True} if "lm_head.decoder.bias" in tensors else {"head": "none", "tied_head": True}
    )


BERT_GENERATION = replace(
    BERT,
    name="BERT-generation",
    model_type="bert-generation",
    classes={"none": "BertGenerationEncoder", "lm": "BertGenerationDecoder"},
    only={"add_cross_attention": (False,), "position_embedding_type": ("absolute",)},
    needs=(),
    fixed={"norm_order": "post", "embed_norm": True},
    settings=(
        *SIZES,
        Key("max_position_embeddings", "context"),
        Key("hidden_act", "activation", "gelu", ACTIVATIONS),
        Key("layer_norm_eps", "norm_eps", 1e-12),
        Key("is_decoder", "causal", False),
        Key("tie_word_embeddings", "tied_head", True),
        Group(_read_last_head),
    ),
    stored={**BERT.stored, "head.decoder": Stored("lm_head.decoder")},
    copies={"lm_head.decoder.weight": "embeddings.word_embeddings.weight", "lm_head.bias": "lm_head.decoder.bias"},
    outside=("lm_head.",),
    heads={},
)
"""Rothe et al. 2020: a BERT of either direction that is unembedded at once."""

ROBERTA_PRENORM = replace(
    ROBERTA,
    name="RoBERTa-PreLayerNorm",
    model_type="roberta-prelayernorm",
    prefix="roberta_prelayernorm.",
    classes={"none": "RobertaPreLayerNormModel", "mlm": "RobertaPreLayerNormForMaskedLM"},
    fixed={**ROBERTA.fixed, "norm_order": "pre"},
    stored={
        **ROBERTA.stored,
        "blocks.{n}.norm1": Stored(f"{_LAYER}.attention.LayerNorm"),
        "blocks.{n}.norm2": Stored(f"{_LAYER}.intermediate.LayerNorm"),
        "final_norm": Stored("LayerNorm"),
    },
)

XLM_ROBERTA_XL = replace(
    ROBERTA,
    name="XLM-RoBERTa-XL",
    model_type="xlm-roberta-xl",
    classes={"none": "XLMRobertaXLModel", "mlm": "XLMRobertaXLForMaskedLM"},
    fixed={**ROBERTA.fixed, "norm_order": "pre", "embed_norm": False},
    settings=(*ROBERTA.settings, Key("layer_norm_eps", "norm_eps", 1e-5)),
    stored={
        **{name: layout for name, layout in ROBERTA.stored.items() if name != "embed.norm"},
        "blocks.{n}.norm1": Stored(f"{_LAYER}.attention.self_attn_layer_norm"),
        "blocks.{n}.norm2": Stored(f"{_LAYER}.LayerNorm"),
        "final_norm": Stored("encoder.LayerNorm"),
    },
)
"""Goyal et al. 2021: pre-norm, without an embedding norm."""

MEGATRON_BERT = replace(
    BERT,
    name="Megatron-BERT",
    model_type="megatron-bert",
    classes={"none": "MegatronBertModel", "mlm": "MegatronBertForMaskedLM"},
    fixed={**BERT.fixed, "norm_order": "pre", "embed_norm": False},
    stored={
        **{name: layout for name, layout in BERT.stored.items() if name != "embed.norm"},
        "blocks.{n}.norm1": Stored(f"{_LAYER}.attention.ln"),
        "blocks.{n}.norm2": Stored(f"{_LAYER}.ln"),
        "final_norm": Stored("encoder.ln"),
    },
)
"""Shoeybi et al. 2019: pre-norm, without an embedding norm."""


def _read_width(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Embeddings that are not as wide as the residual stream are projected to it."""
    width = fields.whole("embedding_size", draft["d_model"], least=1)
    projected = width != draft["d_model"]
    return {"d_embed": width if projected else 0, "projection_bias": projected}


def _read_unembedded(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The width that a masked-token head unembeds."""
    if draft["head"] != "mlm":
        return {}
    width = fields.whole("output_embedding_size", 1664, least=1)
    return {"d_unembed": 0 if width == draft["d_embed"] else width}


REMBERT = replace(
    BERT,
    name="RemBERT",
    model_type="rembert",
    prefix="rembert.",
    classes={"none": "RemBertModel", "mlm": "RemBertForMaskedLM"},
    needs=("n_token_types", "d_embed"),
    fixed={**BERT.fixed, "tied_head": False, "projection_bias": True},
    settings=(
        *(setting for setting in BERT.settings[:-1] if getattr(setting, "name", "") != "tie_word_embeddings"),
        Key("input_embedding_size", "d_embed", 256),
        mlm_head("cls.predictions.dense.weight"),
        Group(_read_unembedded, lambda config: {"output_embedding_size": config.head_width}),
    ),
    harmless=("classifier_dropout_prob", "tie_word_embeddings"),
    stored={
        **BERT.stored,
        "embed.projection": Stored("encoder.embedding_hidden_mapping_in"),
        "head.dense": Stored("cls.predictions.dense"),
        "head.norm": Stored("cls.predictions.LayerNorm"),
    },
    copies={},
)
"""Chung et al. 2021: narrow embeddings, and wide ones, of their own, to unembed."""


ROFORMER = replace(
    BERT,
    name="RoFormer",
    model_type="roformer",
    prefix="roformer.",
    classes={"none": "RoFormerModel", "mlm": "RoFormerForMaskedLM"},
    only={**BERT.only, "rotary_value": (False,)},
    fixed={**BERT.fixed, "positions": "rotary"},
    settings=(*BERT.settings, Group(_read_width, lambda config: {"embedding_size": config.embed_width})),
    stored={
        **{name: layout for name, layout in BERT.stored.items() if name not in ("embed.positions", "pooler")},
        "embed.projection": Stored("embeddings_project"),
        "blocks.{n}.attention.q": Stored(f"{_LAYER}.attention.self.query", paired="n_heads"),
        "blocks.{n}.attention.k": Stored(f"{_LAYER}.attention.self.key", paired="n_heads"),
    },
    skipped=(
        *BERT.skipped,
        Skip(r"encoder\.embed_positions\.weight", "sines and cosines, a buffer", computed=rotary_waves),
    ),
)
"""Su et al. 2021: rotary positions in a post-norm encoder."""


def _read_esm(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Positions of either kind, and the rescaling for masked tokens (token_dropout)."""
    max_positions, offset = fields.whole("max_position_embeddings", 1026, least=1), fields.whole("pad_token_id", 1) + 1
    kinds: dict[str, dict[str, Any]] = {
        "rotary": {
            "positions": "rotary",
            "context": max_positions,
            "rope_theta": fields.number("rope_theta", 10_000.0),
        },
        "absolute": {"positions": "learned", "context": max_positions - offset, "position_offset": offset},
    }
    positions: dict[str, Any] = fields.word("position_embedding_type", kinds, "absolute")
    if not fields.flag("token_dropout", False):
        return positions
    # 0.15 · 0.8: the share of mask tokens in the training of every ESM
    return {**positions, "masked_share": 0.12, "mask_id": fields.whole("mask_token_id", least=0)}


def _write_esm(config: ModelConfig) -> dict[str, Any]:
    rotary, token_dropout = config.positions == "rotary", config.masked_share > 0
    return {
        "position_embedding_type": "rotary" if rotary else "absolute",
        "max_position_embeddings": config.context + config.position_offset,
        "rope_theta": config.rope_theta,
        "pad_token_id": 1 if rotary else config.position_offset - 1,
        "token_dropout": token_dropout,
        "mask_token_id": config.mask_id if token_dropout else None,
    }


ESM = replace(
    ROBERTA,
    name="ESM",
    model_type="esm",
    prefix="esm.",
    classes={"none": "EsmModel", "mlm": "EsmForMaskedLM"},
    only={
        **dict.fromkeys(("is_decoder", "add_cross_attention", "is_folding_model"), (False,)),
        "rope_parameters": (),
    },
    needs=(),
    fixed={"causal": False, "norm_order": "pre", "activation": "gelu"},
    settings=(
        *SIZES,
        Key("layer_norm_eps", "norm_eps", 1e-12),
        Key("tie_word_embeddings", "tied_head", True),
        Key("emb_layer_norm_before", "embed_norm", False),
        Group(lambda fields, draft, tensors: {"pooler": "pooler.dense.weight" in tensors}),
        Group(_read_esm, _write_esm),
        mlm_head("lm_head.dense.weight", "gelu"),
    ),
    harmless=("hidden_act", "esmfold_config", "vocab_list"),
    stored={
        **ROBERTA.stored,
        "embed.norm": Stored("embeddings.layer_norm"),
        "blocks.{n}.norm1": Stored(f"{_LAYER}.attention.LayerNorm"),
        "blocks.{n}.norm2": Stored(f"{_LAYER}.LayerNorm"),
        "final_norm": Stored("encoder.emb_layer_norm_after"),
    },
    skipped=(
        *ROBERTA.skipped,
        ROTARY_FREQUENCIES,
        Skip(r"contact_head\..*", "the residue-contact head", noted=True),
        Skip(r"embeddings\.position_embeddings\.weight", "positions, which RoPE replaces", noted=True),
    ),
    heads={name: head for name, head in ROBERTA.heads.items() if name != "question"},
)
"""ESM-1b and ESM-2 (Rives et al. 2021, Lin et al. 2023): proteins, one token a residue; masks embed as zeros."""
