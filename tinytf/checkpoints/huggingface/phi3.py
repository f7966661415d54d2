"""Phi-3 and Phi-4, with joint matrices and LongRoPE; StarCoder2, with LayerNorm and biases."""

from dataclasses import replace

from tinytf.checkpoints.huggingface.llama import FIXED, HEAD_AND_ACTIVATION, LLAMA, SHARED, UNTURNED, WINDOW
from tinytf.checkpoints.huggingface.rope import rope
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, lm_head
from tinytf.checkpoints.table import Key, Stored, fused

GATE_AND_UP = {
    f"blocks.{{n}}.ffn.{name}": Stored("layers.{n}.mlp.gate_up_proj", part=part, parts=("d_ff", "d_ff"))
    for part, name in enumerate(("gate", "up"))
}

PHI3 = replace(
    LLAMA,
    name="Phi-3",
    model_type="phi3",
    classes={"none": "Phi3Model", "lm": "Phi3ForCausalLM"},
    settings=(
        *UNTURNED,
        Key("rms_norm_eps", "norm_eps", 1e-5),
        Key("head_dim", "d_head", 0),
        rope(
            share=1.0,
            scalings={"default": "none", "longrope": "longrope", "su": "longrope", "yarn": "longrope"},
            original=4096,
        ),
        *HEAD_AND_ACTIVATION,
        WINDOW,
    ),
    only=dict.fromkeys(("attention_bias", "mlp_bias", "lm_head_bias"), (False,)),
    harmless=(
        "full_attn_mod",
        "interpolate_factor",
        "original_max_position_embeddings",
    ),  # of a scaling that is not there
    stored={**LLAMA.stored, **fused("layers.{n}.self_attn.qkv_proj"), **GATE_AND_UP},
)
"""Phi-3 and Phi-4 (Abdin et al. 2024)."""

STARCODER2 = replace(
    LLAMA,
    name="StarCoder2",
    model_type="starcoder2",
    classes={"none": "Starcoder2Model", "lm": "Starcoder2ForCausalLM"},
    fixed={**FIXED, "norm": "layernorm", "gated": False},
    settings=(
        *(setting for setting in SHARED if getattr(setting, "ours", "") != "norm_eps"),
        Key("norm_epsilon", "norm_eps", 1e-5),
        Key("head_dim", "d_head", 0),
        Key("hidden_act", "activation", "gelu_pytorch_tanh", ACTIVATIONS),
        Key("tie_word_embeddings", "tied_head", True),
        lm_head(),
        Key("use_bias", "qkv_bias o_bias ffn_bias", True),
        WINDOW,
    ),
    harmless=("residual_dropout", "embedding_dropout"),
    stored={
        **LLAMA.stored,
        "blocks.{n}.ffn.up": Stored("layers.{n}.mlp.c_fc"),
        "blocks.{n}.ffn.down": Stored("layers.{n}.mlp.c_proj"),
    },
)
"""StarCoder2 (Lozhkov et al. 2024)."""
