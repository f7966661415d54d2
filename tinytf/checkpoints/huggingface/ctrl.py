"""CTRL (Keskar et al. 2019): a decoder whose fixed positions are all sines, then all cosines."""

import math
from dataclasses import replace

from tinytf.checkpoints.huggingface.heads import DECODER_HEADS
from tinytf.checkpoints.huggingface.table import Family, lm_head
from tinytf.checkpoints.table import Group, Key, Skip, Stored

_ATTENTION = "h.{n}.multi_head_attention"

CTRL = Family(
    name="CTRL",
    model_type="ctrl",
    prefix="transformer.",
    classes={"lm": "CTRLLMHeadModel"},
    only={"layer_norm_epsilon": (1e-6,)},  # that of the last norm; the others always use 1e-6
    fixed={"positions": "sinusoidal_concat", "activation": "relu", "norm_eps": 1e-6},
    settings=(
        Key("vocab_size"),
        Key("n_embd", "d_model"),
        Key("n_layer", "n_layers"),
        Key("n_head", "n_heads"),
        Key("dff", "d_ff"),
        Key("n_positions", "context", 256),
        Key("tie_word_embeddings", "tied_head", True),
        Group(lambda fields, draft, tensors: {"embed_scale": math.sqrt(draft["d_model"])}),
        lm_head(biased=True),
    ),
    written={"embd_pdrop": 0.0, "resid_pdrop": 0.0},
    stored={
        "embed.tokens": Stored("w"),
        "blocks.{n}.norm1": Stored("h.{n}.layernorm1"),
        "blocks.{n}.attention.q": Stored(f"{_ATTENTION}.Wq"),
        "blocks.{n}.attention.k": Stored(f"{_ATTENTION}.Wk"),
        "blocks.{n}.attention.v": Stored(f"{_ATTENTION}.Wv"),
        "blocks.{n}.attention.o": Stored(f"{_ATTENTION}.dense"),
        "blocks.{n}.norm2": Stored("h.{n}.layernorm2"),
        "blocks.{n}.ffn.up": Stored("h.{n}.ffn.0"),
        "blocks.{n}.ffn.down": Stored("h.{n}.ffn.2"),
        "final_norm": Stored("layernorm"),
        "head.decoder": Stored("lm_head"),
    },
    skipped=(Skip(r"classifier\..*", "a classification head", noted=True),),
    copies={"lm_head.weight": "w.weight"},
    outside=("lm_head", "classifier"),
    heads={
        "sequence": replace(DECODER_HEADS["sequence"], stored={"head.decoder": Stored("classifier")}),
    },
)
