"""GPT-NeoX and Pythia (Black et al. 2022, Biderman et al. 2023): a parallel residual."""

from typing import Any

from tinytf.checkpoints.huggingface.buffers import causal_mask, frequencies, hidden_score
from tinytf.checkpoints.huggingface.rope import rotary_width, written_share
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, SIZES, Family, lm_head
from tinytf.checkpoints.table import Draft, Group, Key, Skip, Stored, Tensors, fused
from tinytf.config import ModelConfig
from tinytf.fields import Fields


def _read_rope(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The base of RoPE and the fraction of a head that it rotates, in rope_parameters or outside it."""
    share, theta = fields.number("rotary_pct", 0.25), fields.number("rotary_emb_base", 10_000.0)
    parameters = fields.object("rope_parameters")
    if parameters is not None:
        parameters.require("rope_type", ("default",))
        share, theta = parameters.number("partial_rotary_factor", share), parameters.number("rope_theta", theta)
    return {"rope_theta": theta, "rope_width": rotary_width(fields, draft, share)}


def _write_rope(config: ModelConfig) -> dict[str, Any]:
    share = written_share(config)
    rope = {"rope_type": "default", "rope_theta": config.rope_theta, "partial_rotary_factor": share}
    return {"rope_parameters": rope, "rotary_pct": share, "rotary_emb_base": config.rope_theta}


def _read_residual(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    return {"residual": "parallel" if fields.flag("use_parallel_residual", True) else "sequential"}


NEOX = Family(
    name="GPT-NeoX",
    model_type="gpt_neox",
    prefix="gpt_neox.",
    classes={"none": "GPTNeoXModel", "lm": "GPTNeoXForCausalLM"},
    only={"rope_scaling": (), "is_decoder": (False,)},
    fixed={"positions": "rotary"},
    settings=(
        *SIZES,
        Key("max_position_embeddings", "context"),
        Key("layer_norm_eps", "norm_eps", 1e-5),
        Key("hidden_act", "activation", "gelu", ACTIVATIONS),
        Key("attention_bias", "qkv_bias o_bias", True),
        Key("tie_word_embeddings", "tied_head", False),
        Group(_read_residual, lambda config: {"use_parallel_residual": config.residual == "parallel"}),
        Group(_read_rope, _write_rope),
        lm_head("embed_out.weight"),
    ),
    written={"attention_dropout": 0.0, "hidden_dropout": 0.0},
    stored={
        "embed.tokens": Stored("embed_in"),
        "blocks.{n}.norm1": Stored("layers.{n}.input_layernorm"),
        **fused("layers.{n}.attention.query_key_value", by_head="n_kv_heads"),
        "blocks.{n}.attention.o": Stored("layers.{n}.attention.dense"),
        "blocks.{n}.norm2": Stored("layers.{n}.post_attention_layernorm"),
        "blocks.{n}.ffn.up": Stored("layers.{n}.mlp.dense_h_to_4h"),
        "blocks.{n}.ffn.down": Stored("layers.{n}.mlp.dense_4h_to_h"),
        "final_norm": Stored("final_layer_norm"),
        "head.decoder": Stored("embed_out"),
    },
    skipped=(
        Skip(r"layers\.\d+\.attention\.bias", "the causal mask, a buffer", computed=causal_mask),
        Skip(r"layers\.\d+\.attention\.masked_bias", "the score of a hidden pair, a buffer", computed=hidden_score),
        Skip(r"layers\.\d+\.attention\.rotary_emb\.inv_freq", "rotary frequencies, a buffer", computed=frequencies),
        Skip(r"(score|classifier|qa_outputs)\..*", "a classification head", noted=True),
    ),
    copies={"embed_out.weight": "embed_in.weight"},
    outside=("embed_out",),
    spellings=((r"^lm_head\.", "embed_out."),),
)
