"""DeBERTa, v2 and v3: encoders with disentangled attention, which scores tokens and their distances separately."""

import math
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.bert import BERT, mlm_head
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, SIZES, by_layer
from tinytf.checkpoints.table import Draft, Group, Key, Skip, Stored, Tensors, fused
from tinytf.config import ModelConfig
from tinytf.fields import Fields, quoted

_ACTIVATIONS = {**{word: ours for word, ours in ACTIVATIONS.items() if ours != "relu2"}, "tanh": "tanh"}
_TERMS = {"c2p": "distance_keys", "p2c": "distance_queries"}


def _words(fields: Fields, name: str, implemented: tuple[str, ...]) -> set[str]:
    """The words of a key, as an array or separated by |; a word that is not implemented is refused by name."""
    value = fields.data.get(name)
    listed = fields.array(name, str) if isinstance(value, list) else fields.text(name, "").lower().split("|")
    words = {word.strip() for word in listed} - {"", "none"}
    for word in sorted(words - set(implemented)):
        raise fields.fault(f"{name} {quoted(word)} is not implemented")
    return words


def _read_distances(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Scores are divided by √(d·(1 + the number of distance terms)), even if distances have no embeddings."""
    terms = _words(fields, "pos_att_type", tuple(_TERMS))
    width = draft["d_model"] // draft["n_heads"]
    divisor = {"attention_divisor": math.sqrt(width * (1 + len(terms))) if terms else 0.0}
    has_norm = bool(_words(fields, "norm_rel_ebd", ("layer_norm",)))
    farthest, buckets = (fields.whole(name, -1) for name in ("max_relative_positions", "position_buckets"))
    farthest = farthest if farthest > 0 else fields.whole("max_position_embeddings", least=1)
    separate = not fields.flag("share_att_key", False)
    if not (fields.flag("relative_attention", False) and terms):
        return divisor
    return {
        **divisor,
        **{field: term in terms for term, field in _TERMS.items()},
        "distances": buckets if buckets > 0 else farthest,
        "farthest": farthest if buckets > 0 else 0,
        "distance_norm": has_norm,
        "distance_matrices": separate,
    }


def _write_distances(config: ModelConfig) -> dict[str, Any]:
    terms = [term for term, field in _TERMS.items() if getattr(config, field)]
    if not terms:  # the divisor counts them even so
        terms = list(_TERMS)[: round(config.score_divisor**2 / config.d_head) - 1]
    return {
        "relative_attention": config.distances > 0,
        "pos_att_type": terms,
        "position_buckets": config.distances if config.farthest else -1,
        "max_relative_positions": config.farthest or config.distances or -1,
        "norm_rel_ebd": "layer_norm" if config.distance_norm else "none",
        "share_att_key": not config.distance_matrices,
    }


def _write_own(config: ModelConfig) -> dict[str, Any]:
    kept = ("relative_attention", "pos_att_type", "max_relative_positions")
    return {name: value for name, value in _write_distances(config).items() if name in kept}


def _read_positions(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    return {"positions": "learned" if fields.flag("position_biased_input", True) else "none"}


def _read_widths(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Refuse widths other than that of the residual stream."""
    for name in ("embedding_size", "pooler_hidden_size"):
        fields.require(name, (draft["d_model"],))
    fields.require("attention_head_size", (draft["d_model"] // draft["n_heads"],))
    return {}


def _read_convolution(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The convolution beside the first layer (xlarge and xxlarge)."""
    width = fields.whole("conv_kernel_size", 0)
    if not width:
        return {}
    if width % 2 == 0:
        raise fields.fault(f"conv_kernel_size {width} is not implemented: it is even")
    fields.require("conv_groups", (1,))
    activation = fields.word("conv_act", _ACTIVATIONS, "tanh")
    first_only = by_layer("side_conv", [layer == 0 for layer in range(draft["n_layers"])])
    return {"side_width": width, "side_activation": activation, **first_only}


def _write_convolution(config: ModelConfig) -> dict[str, Any]:
    words = {ours: word for word, ours in reversed(_ACTIVATIONS.items())}
    keys = {"conv_kernel_size": config.side_width, "conv_act": words[config.side_activation]}
    return keys if config.side_width else {}


_SELF = "encoder.layer.{n}.attention.self"

_REPLACED = Skip(r"mask_predictions\..*", "the replaced-token head", noted=True)
DEBERTA_V2 = replace(
    BERT,
    name="DeBERTa-v2",
    model_type="deberta-v2",
    prefix="deberta.",
    classes={"none": "DebertaV2Model", "mlm": "DebertaV2ForMaskedLM"},
    needs=(),
    settings=(
        *SIZES,
        Key("hidden_act", "activation", "gelu", ACTIVATIONS),
        Key("layer_norm_eps", "norm_eps", 1e-7),
        Key("type_vocab_size", "n_token_types", 0),
        Key("tie_word_embeddings", "tied_head", True),
        Key("max_position_embeddings", "context", 512),
        Group(_read_positions, lambda config: {"position_biased_input": config.positions == "learned"}),
        Key("pooler_hidden_act", "head_activation", "gelu", {**ACTIVATIONS, "tanh": "tanh"}),
        Group(_read_widths),
        Group(_read_convolution, _write_convolution),
        Group(_read_distances, _write_distances),
        mlm_head("cls.predictions.transform.dense.weight"),
    ),
    harmless=("legacy", "pooler_dropout", "cls_dropout", "conv_act", "conv_groups", "z_steps", "padding_idx"),
    stored={
        **{name: layout for name, layout in BERT.stored.items() if name != "pooler"},
        "blocks.{n}.attention.q": Stored(f"{_SELF}.query_proj"),
        "blocks.{n}.attention.k": Stored(f"{_SELF}.key_proj"),
        "blocks.{n}.attention.v": Stored(f"{_SELF}.value_proj"),
        "blocks.{n}.attention.pos_k": Stored(f"{_SELF}.pos_key_proj"),
        "blocks.{n}.attention.pos_q": Stored(f"{_SELF}.pos_query_proj"),
        "blocks.{n}.attention.distances": Stored("encoder.rel_embeddings"),
        "blocks.{n}.attention.distances_norm": Stored("encoder.LayerNorm"),
        "blocks.{n}.side.conv": Stored("encoder.conv.conv", taps="side_width"),
        "blocks.{n}.side.norm": Stored("encoder.conv.LayerNorm"),
    },
    skipped=(
        *BERT.skipped,
        Skip(r"embeddings\.position_embeddings\.weight", "positions that are not added to the embeddings", noted=True),
        Skip(r"encoder\.(rel_embeddings|LayerNorm)\..*", "embeddings of distances that no score reads"),
        _REPLACED,
    ),
    spellings=(
        *BERT.spellings,
        (r"^lm_predictions\.lm_head\.(dense|LayerNorm)\.", r"cls.predictions.transform.\1."),
        (r"^lm_predictions\.lm_head\.bias$", "cls.predictions.bias"),
    ),
    outside=(*BERT.outside, "pooler.", "lm_predictions.", "mask_predictions."),
    heads={**BERT.heads, "sequence": replace(BERT.heads["sequence"], activation="")},
)
"""He et al. 2021 and 2023."""


def _read_own(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Distances of the first version: each for itself, with matrices of their own and without a norm."""
    values = _read_distances(fields, draft, tensors)
    return values | {"distance_matrices": True} if "distances" in values else values


_DEBERTA_IN = fused(f"{_SELF}.in_proj", by_head="n_heads")
DEBERTA = replace(
    DEBERTA_V2,
    name="DeBERTa",
    model_type="deberta",
    classes={"none": "DebertaModel", "mlm": "DebertaForMaskedLM"},
    only={
        "talking_head": (False,),
        **dict.fromkeys(("position_buckets", "norm_rel_ebd", "share_att_key", "conv_kernel_size"), ()),
    },
    fixed={**DEBERTA_V2.fixed, "k_bias": False},
    skipped=tuple(skip for skip in DEBERTA_V2.skipped if skip != _REPLACED),
    settings=(*DEBERTA_V2.settings[:-2], Group(_read_own, _write_own), DEBERTA_V2.settings[-1]),
    stored={
        **DEBERTA_V2.stored,
        **_DEBERTA_IN,
        "blocks.{n}.attention.q": replace(_DEBERTA_IN["blocks.{n}.attention.q"], bias=f"{_SELF}.q_bias"),
        "blocks.{n}.attention.v": replace(_DEBERTA_IN["blocks.{n}.attention.v"], bias=f"{_SELF}.v_bias"),
        "blocks.{n}.attention.pos_k": Stored(f"{_SELF}.pos_proj"),
        "blocks.{n}.attention.pos_q": Stored(f"{_SELF}.pos_q_proj"),
    },
)
"""He et al. 2020: queries and values have biases, keys none."""
