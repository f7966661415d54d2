"""OPT, BioGPT and XGLM: decoders from fairseq, whose first position is row 2 of the table.

Zhang et al. 2022, Luo et al. 2022, Lin et al. 2021.
"""

import math
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.buffers import fairseq_waves
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, SIZES, Family, lm_head
from tinytf.checkpoints.table import Draft, Group, Key, Skip, Stored, Tensors
from tinytf.fields import Fields


def _read_width(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Embeddings that are not as wide as the residual stream are projected to it."""
    width = fields.whole("word_embed_proj_dim", draft["d_model"], least=1)
    return {"d_embed": 0 if width == draft["d_model"] else width}


def _read_order(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    return {"norm_order": "pre" if fields.flag("do_layer_norm_before", True) else "post"}


_BLOCK = {
    "blocks.{n}.norm1": Stored("layers.{n}.self_attn_layer_norm"),
    "blocks.{n}.attention.q": Stored("layers.{n}.self_attn.q_proj"),
    "blocks.{n}.attention.k": Stored("layers.{n}.self_attn.k_proj"),
    "blocks.{n}.attention.v": Stored("layers.{n}.self_attn.v_proj"),
    "blocks.{n}.attention.o": Stored("layers.{n}.self_attn.out_proj"),
    "blocks.{n}.norm2": Stored("layers.{n}.final_layer_norm"),
    "blocks.{n}.ffn.up": Stored("layers.{n}.fc1"),
    "blocks.{n}.ffn.down": Stored("layers.{n}.fc2"),
}

OPT = Family(
    name="OPT",
    model_type="opt",
    prefix="model.decoder.",
    classes={"lm": "OPTForCausalLM"},
    only={"_remove_final_layer_norm": (False,)},
    fixed={"position_offset": 2},
    settings=(
        Key("vocab_size"),
        Key("hidden_size", "d_model"),
        Key("num_hidden_layers", "n_layers"),
        Key("num_attention_heads", "n_heads"),
        Key("ffn_dim", "d_ff"),
        Key("max_position_embeddings", "context"),
        Key("activation_function", "activation", "relu", ACTIVATIONS),
        Group(_read_order, lambda config: {"do_layer_norm_before": config.norm_order != "post"}),
        Key("enable_bias", "qkv_bias o_bias ffn_bias", True),
        Key("layer_norm_elementwise_affine", "norm_gain norm_bias", True),
        Key("tie_word_embeddings", "tied_head", True),
        Group(_read_width, lambda config: {"word_embed_proj_dim": config.embed_width}),
        lm_head(),
    ),
    written={"dropout": 0.0, "attention_dropout": 0.0},
    harmless=("activation_dropout", "init_std", "layerdrop", "prefix"),
    stored={
        "embed.tokens": Stored("embed_tokens"),
        "embed.projection": Stored("project_in"),
        "embed.positions": Stored("embed_positions"),
        **_BLOCK,
        "final_norm": Stored("final_layer_norm"),
        "head.projection": Stored("project_out"),
        "head.decoder": Stored("lm_head"),
    },
    skipped=(Skip(r"(score|qa_outputs)\..*", "a classification head", noted=True),),
    spellings=((r"^decoder\.", ""),),
    copies={"lm_head.weight": "embed_tokens.weight"},
    outside=("lm_head",),
)

_SCALE = Group(
    lambda fields, draft, tensors: {
        "embed_scale": math.sqrt(draft["d_model"]) if fields.flag("scale_embedding", True) else 1.0
    },
    lambda config: {"scale_embedding": config.embed_scale != 1.0},
)

BIOGPT = replace(
    OPT,
    name="BioGPT",
    model_type="biogpt",
    prefix="biogpt.",
    classes={"lm": "BioGptForCausalLM"},
    only={},
    settings=(
        *SIZES,
        Key("max_position_embeddings", "context"),
        Key("hidden_act", "activation", "gelu", ACTIVATIONS),
        Key("tie_word_embeddings", "tied_head", True),
        _SCALE,
        lm_head("output_projection.weight"),
    ),
    written={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    harmless=(*OPT.harmless, "layer_norm_eps"),  # its norms always use 1e-5
    stored={
        "embed.tokens": Stored("embed_tokens"),
        "embed.positions": Stored("embed_positions"),
        **_BLOCK,
        "final_norm": Stored("layer_norm"),
        "head.decoder": Stored("output_projection"),
    },
    copies={"output_projection.weight": "embed_tokens.weight"},
    outside=("output_projection",),
)

XGLM = replace(
    OPT,
    name="XGLM",
    model_type="xglm",
    prefix="model.",
    classes={"none": "XGLMModel", "lm": "XGLMForCausalLM"},
    only={"add_cross_attention": (False,), "pad_token_id": (0, 1)},  # the row of any other padding id is zeroed
    fixed={"positions": "sinusoidal_halves", "position_offset": 2},
    settings=(
        Key("vocab_size"),
        Key("d_model"),
        Key("num_layers", "n_layers"),
        Key("attention_heads", "n_heads"),
        Key("ffn_dim", "d_ff"),
        Key("max_position_embeddings", "context", 2048),
        Key("activation_function", "activation", "gelu", ACTIVATIONS),
        Key("tie_word_embeddings", "tied_head", True),
        _SCALE,
        lm_head(),
    ),
    harmless=(*OPT.harmless, "decoder_start_token_id"),
    stored={
        "embed.tokens": Stored("embed_tokens"),
        **_BLOCK,
        "final_norm": Stored("layer_norm"),
        "head.decoder": Stored("lm_head"),
    },
    skipped=(
        *OPT.skipped,
        Skip(r"embed_positions\.weights", "sines and cosines, a buffer", computed=fairseq_waves),
    ),
)
