"""T5 as a GGUF file: both stacks, or the encoder alone.

No key says whether logits are scaled: they are in the first T5, whose head is tied. llama.cpp never scales them.
"""

from dataclasses import replace
from typing import Any

from tinytf.checkpoints.gguf.keys import LAYER_NORM, ONLY, RMS_NORM, SIZES
from tinytf.checkpoints.table import Draft, FamilyTable, Group, Key, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields
from tinytf.model.transformer import ENCODER

_FIXED = {"positions": "none", "norm": "rmsnorm", "attention_divisor": 1.0}
_PLACES = {
    "embed.tokens": "token_embd",
    "final_norm": "{stack}.output_norm",
    "blocks.{n}.norm1": "{stack}.blk.{n}.attn_norm",
    **{f"blocks.{{n}}.attention.{name}": f"{{stack}}.blk.{{n}}.attn_{name}" for name in "qkvo"},
    "blocks.{n}.norm2": "{stack}.blk.{n}.ffn_norm",
    **{f"blocks.{{n}}.ffn.{name}": f"{{stack}}.blk.{{n}}.ffn_{name}" for name in ("gate", "up", "down")},
    "blocks.{n}.cross.norm": "{stack}.blk.{n}.cross_attn_norm",
    **{f"blocks.{{n}}.cross.{name}": f"{{stack}}.blk.{{n}}.cross_attn_{name}" for name in "qkvo"},
}


def _stack(name: str) -> dict[str, Stored]:
    bias = "blocks.{n}.attention.relative"
    shared = Stored(f"{name}.blk.0.attn_rel_b", instead=Stored(f"{name}.blk.{{n}}.attn_rel_b"))
    return {ours: Stored(place.replace("{stack}", name)) for ours, place in _PLACES.items()} | {bias: shared}


def _by_tensors(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    gated = "enc.blk.0.ffn_gate.weight" in tensors
    return {
        "gated": gated,
        "activation": "gelu_tanh" if gated else "relu",
        "relative_by_layer": "enc.blk.1.attn_rel_b.weight" in tensors,
    }


def _read_encoder(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """Both stacks: block_count is that of the encoder, and by default of the decoder too."""
    alike = {name: value for name, value in draft.items() if name not in ("tied_head", "by_layer")}
    encoder = ModelConfig.of(**alike, causal=False, head="none")
    return {
        "encoder": encoder,
        "d_source": encoder.d_model,
        "shares_embeddings": True,
        "n_layers": keys.whole("decoder_block_count", encoder.n_layers, least=1),
        "start_id": keys.whole("decoder_start_token_id", 0),
        "logit_scale": encoder.d_model**-0.5 if draft["tied_head"] else 1.0,
    }


T5_ENCODER = FamilyTable(
    name="t5encoder",
    settings=(
        *SIZES,
        RMS_NORM,
        LAYER_NORM,
        Key("attention.relative_buckets_count", "relative_buckets"),
        Group(_by_tensors),
    ),
    fixed={**_FIXED, "causal": False, "head": "none"},
    stored={ours: place for ours, place in _stack("enc").items() if ".cross." not in ours},
    only={name: values for name, values in ONLY.items() if name != "attention.causal"},
)
T5 = replace(
    T5_ENCODER,
    name="t5",
    settings=(*T5_ENCODER.settings, Group(_read_encoder)),
    fixed=_FIXED,
    stored={
        **_stack("dec"),
        **{ENCODER + ours: place for ours, place in T5_ENCODER.stored.items()},
        "head.decoder": Stored("output", gives="logits"),
    },
)
