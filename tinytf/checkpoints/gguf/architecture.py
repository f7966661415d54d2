"""From the metadata of a GGUF file to our configuration, one table per architecture; unknown keys are refused."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tinytf.checkpoints.gguf.weights import read_tensor
from tinytf.checkpoints.table import FamilyTable, Found, Group, Key, Left, Stored, Tensors
from tinytf.config import Rope
from tinytf.errors import CheckpointError
from tinytf.fields import Fields
from tinytf.steps.operations.rotate import rotary_frequencies

FACTORS = "rope_freqs.weight"
_TYPES = ("none", "linear")
_LOW, _HIGH = 1.0, 4.0  # of every Llama 3.1 to 3.3
_CONTEXTS = tuple(2**power for power in range(4, 21))
_TOLERANCE = 1e-4


def _vocab_size(keys: Fields, found: Found, tensors: Tensors) -> dict[str, Any]:
    """The rows of the embedding, which the keys have to agree with."""
    if "token_embd.weight" not in tensors:
        raise CheckpointError(f"{keys.source} lacks token_embd.weight")
    rows = tensors["token_embd.weight"].shape[0]
    tokens = keys.data.get("tokenizer.ggml.tokens", ())
    said = {f"{keys.prefix}vocab_size": keys.whole("vocab_size", rows)}
    said |= {"the vocabulary": len(tokens)} if isinstance(tokens, list) else {}
    for what, count in said.items():
        if count != rows:
            raise keys.fault(f"token_embd.weight has {rows:,} rows, and {what} {count:,}")
    return {"vocab_size": rows}


def _one_head_width(keys: Fields, found: Found, tensors: Tensors) -> dict[str, Any]:
    for key in ("attention.value_length", "rope.dimension_count"):
        width = keys.whole(key, found["d_head"])
        if width != found["d_head"]:
            raise keys.fault(f"{key} {width:,} is not implemented with a head width of {found['d_head']:,}")
    return {}


def _no_window(keys: Fields, found: Found, tensors: Tensors) -> dict[str, Any]:
    window = keys.whole("attention.sliding_window", 0)
    if 0 < window < found["context"]:
        raise keys.fault(
            f"a sliding window of {window:,} tokens is not implemented for {keys.prefix.removesuffix('.')}",
            "llama.cpp ignores the window, but the model was trained with it",
        )
    return {}


def _by_tensors(keys: Fields, found: Found, tensors: Tensors) -> dict[str, Any]:
    return {
        "qkv_bias": "blk.0.attn_q.bias" in tensors,
        "o_bias": "blk.0.attn_output.bias" in tensors,
        "ffn_bias": "blk.0.ffn_up.bias" in tensors,
        "tied_head": "output.weight" not in tensors,
    }


def scaling_from_keys(keys: Fields) -> dict[str, Any]:
    """The scaling that the keys of an architecture name; CheckpointError for one that is not implemented.

    As llama.cpp reads them: a factor without a type is linear, and a type of none makes a factor void.
    """
    kind = keys.text("rope.scaling.type", "linear")
    if kind not in _TYPES:
        raise keys.fault(f"rope.scaling.type {kind!r} is not implemented", f"implemented: {', '.join(_TYPES)}")
    factor = keys.number("rope.scaling.factor", 0.0) or keys.number("rope.scale_linear", 0.0)
    keys.require("rope.scaling.attn_factor", (1.0,))
    if kind == "none" or factor in (0.0, 1.0):
        return {}
    return {"rope_scaling": "linear", "rope_factor": factor}


def scaling_from_factors(factors: Sequence[float], d_head: int, theta: float) -> dict[str, Any] | None:
    """The Llama 3 scaling that has these factors, nothing for factors of 1; None where there is no such scaling.

    A file has the factors that divide the frequencies of RoPE, without the numbers that they were made from.
    """
    if all(factor == 1.0 for factor in factors):
        return {}
    largest = max(factors)
    if not (math.isfinite(largest) and largest > 1):
        return None
    for context in _CONTEXTS:
        rope = Rope(d_head, theta, "llama3", largest, _LOW, _HIGH, context)
        expected = rotary_frequencies(rope._replace(scaling="none")) / rotary_frequencies(rope)
        if all(math.isclose(a, b, rel_tol=_TOLERANCE) for a, b in zip(factors, expected.tolist(), strict=True)):
            return {
                "rope_scaling": "llama3",
                "rope_factor": largest,
                "rope_low_frequency": _LOW,
                "rope_high_frequency": _HIGH,
                "rope_original_context": context,
            }
    return None


def _scaling(keys: Fields, found: Found, tensors: Tensors) -> dict[str, Any]:
    said = scaling_from_keys(keys)
    stored = tensors.get(FACTORS)
    if stored is None:
        return said
    d_head, theta = found["d_head"], found["rope_theta"]
    if stored.shape != (d_head // 2,):
        raise keys.fault(f"{FACTORS} has shape {stored.shape}, and has to have {(d_head // 2,)}")
    made = scaling_from_factors(read_tensor(stored).tolist(), d_head, theta) if theta > 0 else None
    if made is None or (made and said):
        raise keys.fault(
            f"the rotary factors in {FACTORS} are not those of a Llama 3 scaling",
            "other tables of factors are not implemented",
        )
    return made or said


_QWEN2 = FamilyTable(
    name="qwen2",
    settings=(
        Key("embedding_length", "d_model"),
        Key("attention.head_count", "n_heads"),
        Key("attention.head_count_kv", "n_kv_heads", lambda found: found["n_heads"]),
        Key("attention.key_length", "d_head", lambda found: found["d_model"] // max(1, found["n_heads"])),
        Group(_one_head_width),
        Key("context_length", "context"),
        Group(_no_window),
        Key("rope.freq_base", "rope_theta", 10_000.0),
        Key("block_count", "n_layers"),
        Key("feed_forward_length", "d_ff"),
        Key("attention.layer_norm_rms_epsilon", "norm_eps"),
        Group(_vocab_size),
        Group(_by_tensors),
        Group(_scaling),
    ),
    fixed={"norm": "rmsnorm", "positions": "rotary", "activation": "silu", "gated": True},
    stored={
        "embed.tokens": Stored("token_embd"),
        "blocks.{n}.norm1": Stored("blk.{n}.attn_norm"),
        "blocks.{n}.attention.q": Stored("blk.{n}.attn_q"),
        "blocks.{n}.attention.k": Stored("blk.{n}.attn_k"),
        "blocks.{n}.attention.v": Stored("blk.{n}.attn_v"),
        "blocks.{n}.attention.o": Stored("blk.{n}.attn_output"),
        "blocks.{n}.norm2": Stored("blk.{n}.ffn_norm"),
        "blocks.{n}.ffn.gate": Stored("blk.{n}.ffn_gate"),
        "blocks.{n}.ffn.up": Stored("blk.{n}.ffn_up"),
        "blocks.{n}.ffn.down": Stored("blk.{n}.ffn_down"),
        "final_norm": Stored("output_norm"),
        "head.decoder": Stored("output"),
    },
    only={
        "attention.causal": (True,),
        "attention.clamp_kqv": (0.0,),
        "attention.max_alibi_bias": (0.0,),
        "expert_count": (0,),
        "expert_used_count": (0,),
        "tensor_data_layout": ("Meta AI original pth",),
        "use_parallel_residual": (False,),
    },
    # The context of training, and how a sentence vector would be made.
    harmless=("rope.scaling.finetuned", "rope.scaling.original_context_length", "pooling_type"),
)
_LLAMA = replace(
    _QWEN2,
    name="llama",
    stored={
        **_QWEN2.stored,  # llama.cpp's RoPE turns pairs of adjacent rows
        "blocks.{n}.attention.q": Stored("blk.{n}.attn_q", paired="n_heads"),
        "blocks.{n}.attention.k": Stored("blk.{n}.attn_k", paired="n_kv_heads"),
    },
    left=(Left(re.escape(FACTORS), "made into the scaling of RoPE"),),
)
ARCHITECTURES = {architecture.name: architecture for architecture in (_LLAMA, _QWEN2)}
