"""nanochat (Karpathy 2025): norms without parameters, also on the embeddings, and RoPE in the opposite direction."""

from dataclasses import replace

from tinytf.checkpoints.huggingface.gemma import cap
from tinytf.checkpoints.huggingface.llama import BIASES, LLAMA, UNTURNED
from tinytf.checkpoints.huggingface.rope import rope
from tinytf.checkpoints.huggingface.table import ACTIVATIONS, lm_head
from tinytf.checkpoints.table import Key, Stored

NANOCHAT = replace(
    LLAMA,
    name="nanochat",
    model_type="nanochat",
    classes={"none": "NanoChatModel", "lm": "NanoChatForCausalLM"},
    fixed={
        "norm": "rmsnorm",
        "norm_gain": False,
        "embed_norm": True,
        "positions": "rotary",
        "qk_norm": True,
        "qk_norm_last": True,
        "qk_norm_gain": False,
        "gated": False,
        "ffn_bias": False,
    },
    settings=(
        *UNTURNED,
        rope(scalings={"default": "reversed"}),
        Key("hidden_act", "activation", "relu2", ACTIVATIONS),
        Key("tie_word_embeddings", "tied_head", False),
        lm_head(),
        BIASES,
        cap("final_logit_softcapping", "logit_cap", 15.0),
    ),
    stored={
        **{name: layout for name, layout in LLAMA.stored.items() if "norm" not in name and ".ffn." not in name},
        "blocks.{n}.ffn.up": Stored("layers.{n}.mlp.fc1"),
        "blocks.{n}.ffn.down": Stored("layers.{n}.mlp.fc2"),
    },
)
