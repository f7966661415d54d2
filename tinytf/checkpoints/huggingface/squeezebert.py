"""SqueezeBERT (Iandola et al. 2020): a BERT whose matrices are convolutions of width 1, most of them in groups."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.bert import BERT
from tinytf.checkpoints.table import Draft, Group, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_LAYER = "encoder.layers.{n}"
_QKV, _FFN = ("q_groups", "k_groups", "v_groups"), ("intermediate_groups", "output_groups")


def _read_groups(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Groups of queries, keys and values, and of the feed-forward: other numbers within either are refused."""
    fields.require("embedding_size", (draft["d_model"],))
    groups = {}
    for name, (first, *others) in (("qkv_groups", _QKV), ("ffn_groups", _FFN)):
        groups[name] = fields.whole(first, 4, least=1)
        for other in others:
            if fields.whole(other, 4, least=1) != groups[name]:
                raise fields.fault(f"{other} {fields.whole(other, 4)} is not implemented beside {first} {groups[name]}")
    return groups


def _write_groups(config: ModelConfig) -> dict[str, Any]:
    groups = {**dict.fromkeys(_QKV, config.qkv_groups), **dict.fromkeys(_FFN, config.ffn_groups)}
    return {**groups, "post_attention_groups": 1, "embedding_size": config.d_model}


SQUEEZEBERT = replace(
    BERT,
    name="SqueezeBERT",
    model_type="squeezebert",
    prefix="transformer.",
    classes={"none": "SqueezeBertModel", "mlm": "SqueezeBertForMaskedLM"},
    only={"layer_norm_eps": (1e-12,), "post_attention_groups": (1,)},  # that ε is not of the layers' norms
    fixed={**BERT.fixed, "norm_eps": 1e-12},
    settings=(
        *(setting for setting in BERT.settings if getattr(setting, "name", "") != "layer_norm_eps"),
        Group(_read_groups, _write_groups),
    ),
    stored={
        **BERT.stored,
        **{
            f"blocks.{{n}}.{ours}": Stored(f"{_LAYER}.{theirs}", taps="1")
            for ours, theirs in {
                "attention.q": "attention.query",
                "attention.k": "attention.key",
                "attention.v": "attention.value",
                "attention.o": "post_attention.conv1d",
                "ffn.up": "intermediate.conv1d",
                "ffn.down": "output.conv1d",
            }.items()
        },
        "blocks.{n}.norm1": Stored(f"{_LAYER}.post_attention.layernorm"),
        "blocks.{n}.norm2": Stored(f"{_LAYER}.output.layernorm"),
    },
)
