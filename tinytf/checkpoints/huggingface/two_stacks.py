"""Models of two stacks, whose decoders read what their encoders give: what they share, and those of fairseq and Marian.

Lewis et al. 2019, Junczys-Dowmunt et al. 2018, Zhang et al. 2019, Fan et al. 2020.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.buffers import fairseq_waves, paper_waves
from tinytf.checkpoints.huggingface.heads import ClassHead
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, Family, by_layer, merge_fields
from tinytf.checkpoints.table import Draft, Group, Key, Skip, Stored, Tensors
from tinytf.config import FIELDS, ModelConfig
from tinytf.fields import Fields

TWO = {"is_encoder_decoder": (True,)}
_NOT_SHARED = ("head", "head_bias", "tied_head", "logit_scale", "start_id", "d_source", "shares_embeddings")
"""Settings of the stack with the head alone."""


CLASSES = {
    "sequence": ClassHead(
        {"head.dense": Stored("classification_head.dense"), "head.decoder": Stored("classification_head.out_proj")},
        "tanh",
        reads="last",
    )
}
"""The head of a model that reads a text in both stacks, and whose classes stand at the last token of the decoder."""


def encoder(
    sizes: Callable[[Fields, Draft], Mapping[str, Any]], write: Callable[[ModelConfig], dict[str, Any]]
) -> Group:
    """The stack that is read: as the other, but for its ``sizes`` and direction; ``write`` gives their keys of it."""

    def read(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
        shared = {name: value for name, value in draft.items() if name in FIELDS and name not in _NOT_SHARED}
        config = ModelConfig.of(**{**shared, **sizes(fields, draft), "causal": False, "head": "none"})
        return {"encoder": config, "d_source": config.d_model}

    return Group(read, lambda config: write(config.encoder) if config.encoder is not None else {})


def both(block: Mapping[str, Stored], cross: Mapping[str, Stored]) -> dict[str, Stored]:
    """The places of the modules of both stacks, from those of one with {stack} in their names."""
    placed = {**block, **cross}
    return {
        prefix + ours: replace(layout, module=layout.module.replace("{stack}", stack))
        for prefix, stack in (("", "decoder"), ("encoder.", "encoder"))
        for ours, layout in placed.items()
        if not (prefix and ours in cross)
    }


_SHARED = {"shares_embeddings": True}
_BART_BLOCK = {
    "embed.tokens": Stored("shared"),
    "embed.positions": Stored("{stack}.embed_positions"),
    "embed.norm": Stored("{stack}.layernorm_embedding"),
    **{f"blocks.{{n}}.attention.{name}": Stored(f"{{stack}}.layers.{{n}}.self_attn.{name}_proj") for name in "qkv"},
    "blocks.{n}.attention.o": Stored("{stack}.layers.{n}.self_attn.out_proj"),
    "blocks.{n}.norm1": Stored("{stack}.layers.{n}.self_attn_layer_norm"),
    "blocks.{n}.norm2": Stored("{stack}.layers.{n}.final_layer_norm"),
    "blocks.{n}.ffn.up": Stored("{stack}.layers.{n}.fc1"),
    "blocks.{n}.ffn.down": Stored("{stack}.layers.{n}.fc2"),
    "final_norm": Stored("{stack}.layer_norm"),
}
_BART_CROSS = {
    **{f"blocks.{{n}}.cross.{name}": Stored(f"{{stack}}.layers.{{n}}.encoder_attn.{name}_proj") for name in "qkv"},
    "blocks.{n}.cross.o": Stored("{stack}.layers.{n}.encoder_attn.out_proj"),
    "blocks.{n}.cross.norm": Stored("{stack}.layers.{n}.encoder_attn_layer_norm"),
}
EMBED_SCALE = Group(
    lambda fields, draft, tensors: {
        "embed_scale": math.sqrt(draft["d_model"]) if fields.flag("scale_embedding", False) else 1.0
    },
    lambda config: {"scale_embedding": config.embed_scale != 1.0},
)


def _read_bart_head(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    tied = fields.flag("tie_word_embeddings", True)
    return {"tied_head": tied, "head": "lm", "head_bias": "final_logits_bias" in tensors}


def _encoder_sizes(fields: Fields, draft: Draft) -> dict[str, Any]:
    return {
        "n_layers": fields.whole("encoder_layers", draft["n_layers"], least=1),
        "n_heads": fields.whole("encoder_attention_heads", draft["n_heads"], least=1),
        "d_ff": fields.whole("encoder_ffn_dim", draft["d_ff"], least=1),
    }


def _write_encoder(read: ModelConfig) -> dict[str, Any]:
    return {"encoder_layers": read.n_layers, "encoder_attention_heads": read.n_heads, "encoder_ffn_dim": read.d_ff}


def _require_one_vocabulary(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    fields.require("decoder_vocab_size", (draft["vocab_size"],))
    return {}


def _read_vocabulary_of_target(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    return {"vocab_size": fields.whole("decoder_vocab_size", fields.whole("vocab_size"), least=1)}


BART = Family(
    name="BART",
    model_type="bart",
    only=TWO,
    prefix="model.",
    classes={"lm": "BartForConditionalGeneration"},
    fixed={**_SHARED, "position_offset": 2, "embed_norm": True, "norm_order": "post"},
    settings=(
        Key("vocab_size"),
        Key("d_model"),
        Key("decoder_layers", "n_layers"),
        Key("decoder_attention_heads", "n_heads"),
        Key("decoder_ffn_dim", "d_ff"),
        Key("max_position_embeddings", "context", 1024),
        Key("activation_function", "activation", "gelu", ACTIVATIONS),
        Key("decoder_start_token_id", "start_id", 2),
        EMBED_SCALE,
        Group(_read_bart_head, lambda config: {"tie_word_embeddings": config.tied_head or bool(config.labels)}),
        encoder(_encoder_sizes, _write_encoder),
    ),
    written={"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0},
    harmless=(
        "init_std",
        "encoder_layerdrop",
        "decoder_layerdrop",
        "classifier_dropout",
        "classif_dropout",
        "is_decoder",
        "add_final_layer_norm",
        "add_bias_logits",
        "normalize_before",
        "normalize_embedding",
        "static_position_embeddings",
        "extra_pos_embeddings",
        "force_bos_token_to_be_generated",
        "do_blenderbot_90_layernorm",
        "layernorm_variant",
        "extra_layer_norm",
        "save_step",
        "replacing_rate",
        "student_encoder_layers",
        "student_decoder_layers",
    ),
    stored={
        **both(_BART_BLOCK, _BART_CROSS),
        "head.decoder": Stored("lm_head", bias="final_logits_bias", among_ones=(1, 0)),
    },
    skipped=(Skip(r"(encoder|decoder)\.version", "a version"),),
    copies={
        **dict.fromkeys(
            ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"), "shared.weight"
        ),
    },
    outside=("lm_head", "final_logits_bias", "classification_head"),
)
MBART = replace(
    BART,
    name="mBART",
    model_type="mbart",
    classes={"lm": "MBartForConditionalGeneration"},
    fixed={**_SHARED, "position_offset": 2, "embed_norm": True},
)
PLBART = replace(BART, name="PLBart", model_type="plbart", classes={"lm": "PLBartForConditionalGeneration"})
MVP = replace(
    BART,
    name="MVP",
    model_type="mvp",
    classes={"lm": "MvpForConditionalGeneration"},
    only={**TWO, "use_prompt": (False,)},
    harmless=(*BART.harmless, "prompt_length", "prompt_mid_dim"),
)
BLENDERBOT = replace(
    BART,
    name="Blenderbot",
    model_type="blenderbot",
    classes={"lm": "BlenderbotForConditionalGeneration"},
    fixed=_SHARED,
)
BLENDERBOT_SMALL = replace(
    BART,
    name="BlenderbotSmall",
    model_type="blenderbot-small",
    classes={"lm": "BlenderbotSmallForConditionalGeneration"},
    fixed={**_SHARED, "embed_norm": True, "positions_unnormed": True, "norm_order": "post"},
    settings=(
        *(setting for setting in BART.settings[:-1] if setting is not EMBED_SCALE),
        encoder(
            lambda fields, draft: {
                **_encoder_sizes(fields, draft),
                **EMBED_SCALE.read(fields, draft, {}),
                "positions_unnormed": False,
            },
            lambda read: {**_write_encoder(read), **EMBED_SCALE.write(read)},
        ),
    ),
)
"""BlenderbotSmall, whose decoder norms its embeddings before it adds positions, and never scales them."""
_WAVES = (
    *BART.skipped,
    Skip(r"(encoder|decoder)\.embed_positions\.weights?", "sines and cosines, a buffer", computed=paper_waves),
)
PEGASUS = replace(
    BART,
    name="Pegasus",
    model_type="pegasus",
    classes={"lm": "PegasusForConditionalGeneration"},
    fixed={**_SHARED, "positions": "sinusoidal_concat"},
    skipped=_WAVES,
)
_EACH_ITS_OWN = {**_BART_BLOCK, "embed.tokens": Stored("{stack}.embed_tokens")}
_MARIAN = replace(
    PEGASUS,
    name="Marian",
    model_type="marian",
    classes={"lm": "MarianMTModel"},
    fixed={**_SHARED, "positions": "sinusoidal_concat", "norm_order": "post"},
)
MARIAN_OF_TWO_VOCABULARIES = replace(
    _MARIAN,
    fixed={**_MARIAN.fixed, "shares_embeddings": False},
    settings=(
        Group(_read_vocabulary_of_target, lambda config: {"decoder_vocab_size": config.vocab_size}),
        *BART.settings[1:-1],
        encoder(
            lambda fields, draft: {**_encoder_sizes(fields, draft), "vocab_size": fields.whole("vocab_size")},
            lambda read: {**_write_encoder(read), "vocab_size": read.vocab_size},
        ),
    ),
    written={**BART.written, "share_encoder_decoder_embeddings": False},
    harmless=(*BART.harmless, "share_encoder_decoder_embeddings"),
    stored={**both(_EACH_ITS_OWN, _BART_CROSS), "head.decoder": BART.stored["head.decoder"]},
    copies={"lm_head.weight": "decoder.embed_tokens.weight"},
)
MARIAN = replace(
    _MARIAN,
    only={**TWO, "share_encoder_decoder_embeddings": (True,)},
    settings=(*BART.settings, Group(_require_one_vocabulary)),
    variants={("share_encoder_decoder_embeddings", False): MARIAN_OF_TWO_VOCABULARIES},
)
_FIRST_POSITION = Group(
    lambda fields, draft, tensors: {"position_offset": fields.whole("pad_token_id", 1) + 1},
    lambda config: {"pad_token_id": config.position_offset - 1},
)
M2M_100 = replace(
    BART,
    name="M2M-100",
    model_type="m2m_100",
    classes={"lm": "M2M100ForConditionalGeneration"},
    fixed={**_SHARED, "positions": "sinusoidal_halves"},
    settings=(*BART.settings[:-1], _FIRST_POSITION, BART.settings[-1]),
    skipped=(
        *BART.skipped,
        Skip(r"(encoder|decoder)\.embed_positions\.weights?", "sines and cosines, a buffer", computed=fairseq_waves),
    ),
)
_IN_STACKS = {
    name: replace(place, module=place.module.replace("fc", "ffn.fc").replace("final_layer_norm", "ff_layer_norm"))
    for name, place in _BART_BLOCK.items()
}
_EXPERTS = "{stack}.layers.{n}.ffn.experts.expert_{e}"


def _sparse(fields: Fields, stack: str, layers: int) -> dict[str, Any]:
    """The experts in every so many layers of a stack."""
    count, every = fields.whole("num_experts", 128, least=2), fields.whole(f"{stack}_sparse_step", 4, least=0)
    return by_layer("experts", [count if every and (n + 1) % every == 0 else 0 for n in range(layers)])


def _every(config: ModelConfig) -> int:
    sparse = [layer for layer in range(config.n_layers) if config.at(layer).experts]
    return sparse[0] + 1 if sparse else 0


def _read_experts(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    found = {
        "experts_per_token": 2,
        "d_expert": draft["d_ff"],
        "router_bias": fields.flag("router_bias", False),
        "routed_scale": 1 - fields.number("moe_token_dropout", 0.2),  # evaluation too multiplies by it
    }
    return merge_fields(found, _sparse(fields, "decoder", draft["n_layers"]))


def _write_experts(config: ModelConfig) -> dict[str, Any]:
    return {
        "num_experts": config.experts or (config.encoder.experts if config.encoder is not None else 0),
        "decoder_sparse_step": _every(config),
        "router_bias": config.router_bias,
        "moe_token_dropout": 1 - config.routed_scale,
    }


NLLB_MOE = replace(
    M2M_100,
    name="NLLB-MoE",
    model_type="nllb-moe",
    classes={"lm": "NllbMoeForConditionalGeneration"},
    only={
        **TWO,
        "second_expert_policy": ("all",),
        "moe_eval_capacity_token_fraction": (1.0,),  # room for every token
    },
    settings=(
        *M2M_100.settings[:-1],
        Group(_read_experts, _write_experts),
        encoder(
            lambda fields, draft: (
                (sizes := _encoder_sizes(fields, draft))
                | {"by_layer": (), "d_expert": sizes["d_ff"], **_sparse(fields, "encoder", sizes["n_layers"])}
            ),
            lambda read: {**_write_encoder(read), "encoder_sparse_step": _every(read)},
        ),
    ),
    harmless=(
        *BART.harmless,
        "router_dtype",
        "router_ignore_padding_tokens",
        "expert_capacity",
        "normalize_router_prob_before_dropping",
        "batch_prioritized_routing",
        "router_z_loss_coef",
        "router_aux_loss_coef",
        "output_router_logits",
    ),
    stored={
        **both(
            {
                **_IN_STACKS,
                "blocks.{n}.ffn.router": Stored("{stack}.layers.{n}.ffn.router.classifier"),
                "blocks.{n}.ffn.experts.up": Stored(f"{_EXPERTS}.fc1"),
                "blocks.{n}.ffn.experts.down": Stored(f"{_EXPERTS}.fc2"),
            },
            {
                name: replace(place, module=place.module.replace("encoder_attn", "cross_attention"))
                for name, place in _BART_CROSS.items()
            },
        ),
        "head.decoder": Stored("lm_head"),
    },
)
"""NLLB-MoE, as fairseq trained it and transformers 4 ran it: 5.23 sends tokens to the experts 0 and 1 alone."""


def _read_joined(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    tied = fields.flag("tie_word_embeddings", False)
    return {"head": "lm", "tied_head": tied, "shares_embeddings": tied}


FSMT = replace(
    M2M_100,
    name="FSMT",
    model_type="fsmt",
    classes={"lm": "FSMTForConditionalGeneration"},
    fixed={"positions": "sinusoidal_halves", "norm_order": "post"},
    settings=(
        Key("tgt_vocab_size", "vocab_size"),
        *BART.settings[1:4],
        Key("decoder_ffn_dim", "d_ff"),
        Key("max_position_embeddings", "context", 1024),
        Key("activation_function", "activation", "relu", ACTIVATIONS),
        Key("decoder_start_token_id", "start_id", 2),
        EMBED_SCALE,
        Group(_read_joined, lambda config: {"tie_word_embeddings": config.tied_head}),
        _FIRST_POSITION,
        encoder(
            lambda fields, draft: {**_encoder_sizes(fields, draft), "vocab_size": fields.whole("src_vocab_size")},
            lambda read: {**_write_encoder(read), "src_vocab_size": read.vocab_size},
        ),
    ),
    harmless=(*BART.harmless, "langs", "decoder", "vocab_size"),
    stored={
        **both(_EACH_ITS_OWN, _BART_CROSS),
        "head.decoder": Stored("decoder.output_projection"),
    },
    copies=dict.fromkeys(
        ("encoder.embed_tokens.weight", "decoder.output_projection.weight"), "decoder.embed_tokens.weight"
    ),
    outside=(),
)
"""FSMT (Ng et al. 2019), with a vocabulary for each of its two languages."""
FROM_FAIRSEQ = (
    replace(BART, heads=CLASSES), MBART, PLBART, replace(MVP, heads=CLASSES), BLENDERBOT, BLENDERBOT_SMALL, PEGASUS,
    MARIAN, M2M_100, NLLB_MOE, FSMT,
)  # fmt: skip
