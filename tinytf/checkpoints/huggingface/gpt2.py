"""GPT-2 (Radford et al. 2019): pre-norm decoder, learned positions, joint and transposed matrices."""

from collections.abc import Collection
from typing import Any

from tinytf.checkpoints.huggingface.table import TRANSPOSED, Change, Family, Left, Place
from tinytf.checkpoints.huggingface.words import ACTIVATIONS, activation_word
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_PLACES = {
    "embed.tokens": Place("wte"),
    "embed.positions": Place("wpe"),
    "blocks.{n}.norm1": Place("h.{n}.ln_1"),
    "blocks.{n}.attention.q": Place("h.{n}.attn.c_attn", Change(True, 0, 3)),
    "blocks.{n}.attention.k": Place("h.{n}.attn.c_attn", Change(True, 1, 3)),
    "blocks.{n}.attention.v": Place("h.{n}.attn.c_attn", Change(True, 2, 3)),
    "blocks.{n}.attention.o": Place("h.{n}.attn.c_proj", TRANSPOSED),
    "blocks.{n}.norm2": Place("h.{n}.ln_2"),
    "blocks.{n}.ffn.up": Place("h.{n}.mlp.c_fc", TRANSPOSED),
    "blocks.{n}.ffn.down": Place("h.{n}.mlp.c_proj", TRANSPOSED),
    "final_norm": Place("ln_f"),
    "head.decoder": Place("lm_head"),
}


def _read(fields: Fields, names: Collection[str]) -> ModelConfig:
    fields.require("scale_attn_weights", (True,))
    fields.require("scale_attn_by_inverse_layer_idx", (False,))
    fields.require("add_cross_attention", (False,))
    width = fields.whole("n_embd")
    tied = fields.flag("tie_word_embeddings", True)
    return ModelConfig(
        vocab_size=fields.whole("vocab_size"),
        d_model=width,
        n_layers=fields.whole("n_layer"),
        n_heads=fields.whole("n_head"),
        d_ff=fields.whole("n_inner", 4 * width),
        context=fields.whole("n_positions", fields.data.get("n_ctx", 1024)),
        norm_eps=fields.number("layer_norm_epsilon", 1e-5),
        activation=fields.word("activation_function", ACTIVATIONS, "gelu_new"),
        tied_head=tied,
        head="lm" if tied or "lm_head.weight" in names else "none",
    )


def _write(config: ModelConfig) -> dict[str, Any] | None:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": config.vocab_size,
        "n_embd": config.d_model,
        "n_layer": config.n_layers,
        "n_head": config.n_heads,
        "n_inner": config.d_ff,
        "n_positions": config.context,
        "layer_norm_epsilon": config.norm_eps,
        "activation_function": activation_word(config.activation, gelu_tanh="gelu_new"),
        "tie_word_embeddings": config.tied_head,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
    }


GPT2 = Family(
    name="GPT-2",
    model_type="gpt2",
    prefix="transformer.",
    read=_read,
    write=_write,
    places=_PLACES,
    left=(
        Left(r"h\.\d+\.attn\.(bias|masked_bias)", "the causal mask, stored as a buffer"),
        Left(r"(score|classifier|multiple_choice_head\.summary)\..*", "a classification head", said=True),
    ),
    copies={"lm_head.weight": "wte.weight"},
    outside=("lm_head",),
)
