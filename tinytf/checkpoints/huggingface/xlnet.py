"""XLNet (Yang et al. 2019): its stream of contents, which looks both ways; the one of queries is not opened."""

from typing import Any

from tinytf.checkpoints.huggingface.table import ACTIVATIONS, Family
from tinytf.checkpoints.table import Draft, Group, Key, Skip, Stored, Tensors
from tinytf.fields import Fields

_CONTEXT = 512
"""The length of a text in training; transformers sets no limit."""


def _require_width(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    fields.require("d_head", (None, draft["d_model"] // draft["n_heads"]))
    return {}


def _read_head(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    present = "lm_loss.bias" in tensors
    return {"head": "lm", "head_bias": True} if present else {"head": "none", "tied_head": True}


_ATTENTION = "layer.{n}.rel_attn"
_MATRICES = {"q": "q", "k": "k", "v": "v", "o": "o", "pos_k": "r"}
_BIASES = {"q_content": "r_w", "q_position": "r_r", "q_segment": "r_s"}

XLNET = Family(
    name="XLNet",
    model_type="xlnet",
    prefix="transformer.",
    classes={"none": "XLNetModel", "lm": "XLNetLMHeadModel"},
    only={"attn_type": ("bi",), "bi_data": (False,), "clamp_len": (-1, 0)},
    fixed={
        **dict.fromkeys(("causal", "qkv_bias", "o_bias"), False),
        **dict.fromkeys(("distance_keys", "distance_matrices", "distance_waves", "query_biases", "segments"), True),
        "norm_order": "post",
        "positions": "none",
        "context": _CONTEXT,
        "distances": _CONTEXT,
    },
    settings=(
        Key("vocab_size"),
        Key("d_model"),
        Key("n_layer", "n_layers"),
        Key("n_head", "n_heads"),
        Key("d_inner", "d_ff"),
        Key("ff_activation", "activation", "gelu", ACTIVATIONS),
        Key("layer_norm_eps", "norm_eps", 1e-12),
        Key("tie_word_embeddings", "tied_head", True),
        Group(_require_width),
        Group(_read_head),
    ),
    harmless=("untie_r", "mem_len", "reuse_len", "use_mems_eval", "use_mems_train", "same_length", "start_n_top",
              "end_n_top", "summary_last_dropout"),
    written={"dropout": 0.0},
    stored={
        "embed.tokens": Stored("word_embedding", beside=(("mask_emb", 0.0, 1, 1, "d_model"),)),
        **{
            f"blocks.{{n}}.attention.{ours}": Stored(
                f"{_ATTENTION}.{name}", transposed=ours != "o", headed="n_heads", bare=True
            )
            for ours, name in _MATRICES.items()
        },
        **{
            f"blocks.{{n}}.attention.{ours}": Stored(f"{_ATTENTION}.{name}", headed="n_heads", bare=True)
            for ours, name in _BIASES.items()
        },
        "blocks.{n}.attention.segments": Stored(f"{_ATTENTION}.seg_embed", headed="n_heads", bare=True),
        "blocks.{n}.norm1": Stored(f"{_ATTENTION}.layer_norm"),
        "blocks.{n}.ffn.up": Stored("layer.{n}.ff.layer_1"),
        "blocks.{n}.ffn.down": Stored("layer.{n}.ff.layer_2"),
        "blocks.{n}.norm2": Stored("layer.{n}.ff.layer_norm"),
        "head.decoder": Stored("lm_loss"),
    },
    skipped=(
        Skip(r"mask_emb", "the input of the stream of queries"),
        Skip(r"(sequence_summary|qa_outputs|classifier|logits_proj|\w+_logits|answer_class)\..*", "a task head",
             noted=True),
    ),
    copies={"lm_loss.weight": "word_embedding.weight"},
    outside=("lm_loss.", "sequence_summary.", "qa_outputs.", "classifier.", "logits_proj."),
)  # fmt: skip
