"""GPT-J and CodeGen: a parallel residual with one norm, RoPE on adjacent pairs in part of each head."""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.huggingface.buffers import causal_mask, hidden_score, rotary_waves
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, Family, lm_head
from tinytf.checkpoints.table import Draft, Group, Key, Skip, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields


def _read_width(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The number of rotary dimensions of a head; transformers reads null as the width of all heads together."""
    if "rotary_dim" in fields.data and fields.data["rotary_dim"] is None:
        raise fields.fault("rotary_dim null is not implemented")
    rotated, width = fields.whole("rotary_dim", 64, least=1), draft["d_model"] // draft["n_heads"]
    return {"rope_width": 0 if rotated == width else rotated}


def _write_width(config: ModelConfig) -> dict[str, Any]:
    return {"rotary_dim": config.rope.width}


GPTJ = Family(
    name="GPT-J",
    model_type="gptj",
    prefix="transformer.",
    classes={"none": "GPTJModel", "lm": "GPTJForCausalLM"},
    fixed={"positions": "rotary", "residual": "parallel", "shared_norm": True, "qkv_bias": False, "o_bias": False},
    settings=(
        Key("vocab_size"),
        Key("n_embd", "d_model"),
        Key("n_layer", "n_layers"),
        Key("n_head", "n_heads"),
        Key("n_inner", "d_ff", lambda draft: 4 * draft["d_model"]),
        Key("n_positions", "context", 2048),
        Key("layer_norm_epsilon", "norm_eps", 1e-5),
        Key("activation_function", "activation", "gelu_new", {"gelu_new": "gelu_tanh", **ACTIVATIONS}),
        Key("tie_word_embeddings", "tied_head", False),
        Group(_read_width, _write_width),
        lm_head(biased=True),
    ),
    written={"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
    harmless=("rotary", "scale_attn_weights"),
    stored={
        "embed.tokens": Stored("wte"),
        "blocks.{n}.norm1": Stored("h.{n}.ln_1"),
        "blocks.{n}.attention.q": Stored("h.{n}.attn.q_proj", paired="n_heads"),
        "blocks.{n}.attention.k": Stored("h.{n}.attn.k_proj", paired="n_kv_heads"),
        "blocks.{n}.attention.v": Stored("h.{n}.attn.v_proj"),
        "blocks.{n}.attention.o": Stored("h.{n}.attn.out_proj"),
        "blocks.{n}.ffn.up": Stored("h.{n}.mlp.fc_in"),
        "blocks.{n}.ffn.down": Stored("h.{n}.mlp.fc_out"),
        "final_norm": Stored("ln_f"),
        "head.decoder": Stored("lm_head"),
    },
    skipped=(
        Skip(r"h\.\d+\.attn\.(bias|causal_mask)", "the causal mask, a buffer", computed=causal_mask),
        Skip(r"h\.\d+\.attn\.masked_bias", "the score of a hidden pair, a buffer", computed=hidden_score),
        Skip(r"h\.\d+\.attn\.embed_positions", "sines and cosines, a buffer", computed=rotary_waves),
        Skip(r"(score|classifier|qa_outputs)\..*", "a classification head", noted=True),
    ),
    copies={"lm_head.weight": "wte.weight"},
    outside=("lm_head",),
)
"""Wang and Komatsuzaki 2021."""

_BLOCKS = 4


def _require_blocks(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    if draft["n_heads"] % _BLOCKS:
        raise fields.fault(f"n_head {draft['n_heads']:,} is not divisible by {_BLOCKS}, the blocks of its joint matrix")
    return {}


_PARTS: dict[str, Any] = {"parts": ("n_heads",) * 3, "by_head": str(_BLOCKS)}
CODEGEN = replace(
    GPTJ,
    name="CodeGen",
    model_type="codegen",
    classes={"none": "CodeGenModel", "lm": "CodeGenForCausalLM"},
    settings=(*GPTJ.settings, Group(_require_blocks)),
    stored={
        **GPTJ.stored,
        "blocks.{n}.attention.q": Stored("h.{n}.attn.qkv_proj", part=0, paired="n_heads", **_PARTS),
        "blocks.{n}.attention.v": Stored("h.{n}.attn.qkv_proj", part=1, **_PARTS),
        "blocks.{n}.attention.k": Stored("h.{n}.attn.qkv_proj", part=2, paired="n_heads", **_PARTS),
    },
)
"""Nijkamp et al. 2022: a joint matrix in four blocks, each with the queries, values and keys of its heads."""
