"""T5Gemma: two stacks of Gemma 2, each with a configuration of its own (Zhang et al. 2025)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.gemma import GEMMA2
from tinytf.checkpoints.huggingface.keys import part_of
from tinytf.checkpoints.huggingface.table import by_layer
from tinytf.checkpoints.huggingface.two_stacks import TWO, both
from tinytf.checkpoints.table import Draft, Group, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_SETTINGS = GEMMA2.settings[:-2]
"""Those of a stack: all but the head's."""


_OF_STACK = replace(GEMMA2, harmless=(*GEMMA2.harmless, "cross_attention_hidden_size", "classifier_dropout_rate"))


def _stack(name: str, fields: Fields, tensors: Tensors) -> dict[str, Any]:
    """Our settings of the stack that the key ``name`` describes."""
    own = part_of(fields, name, _OF_STACK)
    draft = dict(GEMMA2.fixed)
    for setting in _SETTINGS:
        draft |= setting.read(own, draft, tensors)
    return draft


def _written(config: ModelConfig) -> dict[str, Any]:
    keys: dict[str, Any] = {"model_type": "t5_gemma_module", "attention_dropout": 0.0}
    for setting in _SETTINGS:
        keys |= setting.write(config)
    return keys


def _widened(config: ModelConfig, by: int) -> dict[str, Any]:
    """The windows of an encoder, in which theirs counts no token itself."""
    windows = [config.at(layer).window for layer in range(config.n_layers)]
    return by_layer("window", [window + by if window else 0 for window in windows])


def _read(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    encoder = ModelConfig.of(**_stack("encoder", fields, tensors), causal=False, head="none")
    encoder = encoder.but(**_widened(encoder, 1))
    decoder = fields.data["decoder"] if isinstance(fields.data.get("decoder"), Mapping) else {}
    return {
        **_stack("decoder", fields, tensors),
        "encoder": encoder,
        "d_source": encoder.d_model,
        "start_id": fields.whole("decoder_start_token_id", decoder.get("bos_token_id") or 2),
        "head": "lm",
        "tied_head": fields.flag("tie_word_embeddings", True),
    }


def _write(config: ModelConfig) -> dict[str, Any]:
    if config.encoder is None or config.norm_order != "both":
        return {}
    return {
        "encoder": _written(config.encoder.but(causal=True, **_widened(config.encoder, -1))),
        "decoder": {**_written(config), "cross_attention_hidden_size": config.d_source},
        "decoder_start_token_id": config.start_id,
        "tie_word_embeddings": config.tied_head,
    }


_PLACES = {
    name: replace(place, module=f"{{stack}}.{place.module}")
    for name, place in GEMMA2.stored.items()
    if name != "head.decoder" and "_norm" not in name.removeprefix("blocks.{n}.attention.")
}
_NORMS = {
    f"blocks.{{n}}.{ours}": Stored(f"{{stack}}.layers.{{n}}.{theirs}_layernorm", offset=1.0)
    for ours, theirs in (
        ("norm1", "pre_self_attn"),
        ("attn_norm", "post_self_attn"),
        ("norm2", "pre_feedforward"),
        ("ffn_norm", "post_feedforward"),
        ("cross.norm", "pre_cross_attn"),
        ("cross.attn_norm", "post_cross_attn"),
    )
}
_CROSS = {f"blocks.{{n}}.cross.{name}": Stored(f"{{stack}}.layers.{{n}}.cross_attn.{name}_proj") for name in "qkvo"} | {
    name: place for name, place in _NORMS.items() if ".cross." in name
}
_FINAL = {"final_norm": Stored("{stack}.norm", offset=1.0)}

T5GEMMA = replace(
    GEMMA2,
    name="T5Gemma",
    model_type="t5gemma",
    classes={"lm": "T5GemmaForConditionalGeneration"},
    only=TWO,
    fixed={**GEMMA2.fixed},
    settings=(Group(_read, _write),),
    written={"dropout_rate": 0.0, "attention_dropout": 0.0},
    harmless=("vocab_size", "classifier_dropout_rate"),
    stored={**both({**_PLACES, **_NORMS, **_FINAL}, _CROSS), "head.decoder": Stored("lm_head.out_proj")},
    copies={"lm_head.out_proj.weight": "decoder.embed_tokens.weight"},
    heads={},
    skipped=(),
)
