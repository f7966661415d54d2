"""Encoders that are BERT or RoBERTa but for a norm, their positions or a name: tables over theirs."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.bert import BERT, ROBERTA
from tinytf.checkpoints.table import Found, Group, Key, Left, Stored, Tensors
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
"""Sun et al. 2020, without the embedding of a task."""

DATA2VEC = replace(
    ROBERTA,
    name="data2vec",
    model_type="data2vec-text",
    prefix="data2vec_text.",
    classes={"none": "Data2VecTextModel", "mlm": "Data2VecTextForMaskedLM"},
)
"""Baevski et al. 2022, for text."""

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
        **{ours: how for ours, how in ROBERTA.stored.items() if ours != "embed.norm"},
        "blocks.{n}.norm1": Stored(f"{_LAYER}.attention.self_attn_layer_norm"),
        "blocks.{n}.norm2": Stored(f"{_LAYER}.LayerNorm"),
        "final_norm": Stored("encoder.LayerNorm"),
    },
)
"""Goyal et al. 2021: norms before each part, and none of the embeddings."""

MEGATRON_BERT = replace(
    BERT,
    name="Megatron-BERT",
    model_type="megatron-bert",
    classes={"none": "MegatronBertModel", "mlm": "MegatronBertForMaskedLM"},
    fixed={**BERT.fixed, "norm_order": "pre", "embed_norm": False},
    stored={
        **{ours: how for ours, how in BERT.stored.items() if ours != "embed.norm"},
        "blocks.{n}.norm1": Stored(f"{_LAYER}.attention.ln"),
        "blocks.{n}.norm2": Stored(f"{_LAYER}.ln"),
        "final_norm": Stored("encoder.ln"),
    },
)
"""Shoeybi et al. 2019: norms before each part, and none of the embeddings."""


def _read_width(fields: Fields, found: Found, tensors: Tensors) -> dict[str, Any]:
    """Embeddings of another width than the stream are projected to it."""
    width = fields.whole("embedding_size", found["d_model"], least=1)
    narrow = width != found["d_model"]
    return {"d_embed": width if narrow else 0, "projection_bias": narrow}


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
        **{ours: how for ours, how in BERT.stored.items() if ours not in ("embed.positions", "pooler")},
        "embed.projection": Stored("embeddings_project"),
        "blocks.{n}.attention.q": Stored(f"{_LAYER}.attention.self.query", paired="n_heads"),
        "blocks.{n}.attention.k": Stored(f"{_LAYER}.attention.self.key", paired="n_heads"),
    },
    left=(*BERT.left, Left(r"encoder\.embed_positions\.weight", "sines and cosines, stored as a table")),
)
"""Su et al. 2021: rotary positions in a post-norm encoder."""
