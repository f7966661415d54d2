"""GPT-2 (Radford et al. 2019): pre-norm decoder, learned positions, joint matrices, all of them (in, out)."""

from tinytf.checkpoints.huggingface.heads import DECODER_HEADS, ClassHead
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, Family, lm_head
from tinytf.checkpoints.table import Key, Left, Stored, fused

GPT2 = Family(
    name="GPT-2",
    model_type="gpt2",
    prefix="transformer.",
    classes={"lm": "GPT2LMHeadModel"},
    only={
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    },
    settings=(
        Key("vocab_size"),
        Key("n_embd", "d_model"),
        Key("n_layer", "n_layers"),
        Key("n_head", "n_heads"),
        Key("n_inner", "d_ff", lambda found: 4 * found["d_model"]),
        Key("n_ctx", "context", 1024),
        Key("n_positions", "context", lambda found: found["context"]),
        Key("layer_norm_epsilon", "norm_eps", 1e-5),
        Key("activation_function", "activation", "gelu_new", {"gelu_new": "gelu_tanh", **ACTIVATIONS}),
        Key("tie_word_embeddings", "tied_head", True),
        lm_head(),
    ),
    written={"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
    stored={
        "embed.tokens": Stored("wte"),
        "embed.positions": Stored("wpe"),
        "blocks.{n}.norm1": Stored("h.{n}.ln_1"),
        **fused("h.{n}.attn.c_attn", transposed=True),
        "blocks.{n}.attention.o": Stored("h.{n}.attn.c_proj", transposed=True),
        "blocks.{n}.norm2": Stored("h.{n}.ln_2"),
        "blocks.{n}.ffn.up": Stored("h.{n}.mlp.c_fc", transposed=True),
        "blocks.{n}.ffn.down": Stored("h.{n}.mlp.c_proj", transposed=True),
        "final_norm": Stored("ln_f"),
        "head.decoder": Stored("lm_head"),
    },
    left=(
        Left(r"h\.\d+\.attn\.(bias|masked_bias)", "the causal mask, stored as a buffer"),
        Left(r"(score|classifier|multiple_choice_head\.summary)\..*", "a classification head", said=True),
    ),
    copies={"lm_head.weight": "wte.weight"},
    outside=("lm_head", "score", "classifier"),
    heads={**DECODER_HEADS, "token": ClassHead({"head.decoder": Stored("classifier")})},
)
