"""From the metadata of a GGUF file to our configuration, one table an architecture; what is not known is refused."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tinytf.checkpoints.gguf.header import Header
from tinytf.checkpoints.gguf.rotary import FACTORS, scaling_from_factors, scaling_from_keys
from tinytf.checkpoints.gguf.values import read_vector
from tinytf.checkpoints.table import Found, Group, Key, Stored, Table, Tensors
from tinytf.config import ModelConfig
from tinytf.errors import CheckpointError
from tinytf.fields import Fields, faults_of, quoted


@dataclass(frozen=True, kw_only=True)
class Architecture(Table):
    """``passed_over`` are tensors that the configuration is made of, beside the parameters."""

    passed_over: tuple[str, ...] = ()


def architecture_of(header: Header) -> Architecture:
    """The architecture of a file; CheckpointError with what was found and what is known."""
    keys = Fields(header.metadata, header.path)
    kind = keys.text("general.type", "model")
    if kind != "model":
        raise CheckpointError(f"{header.path} holds a {quoted(kind)}, not a model")
    if keys.whole("split.count", 0) > 1:
        count = keys.whole("split.count")
        raise CheckpointError(
            f"{header.path} is one of {count:,} parts of a model", "join them with llama.cpp: llama-gguf-split --merge"
        )
    name = keys.text("general.architecture")
    if name not in ARCHITECTURES:
        raise CheckpointError(
            f"{header.path}: the architecture {quoted(name)} is not one that tinytf opens from GGUF files",
            f"known: {', '.join(ARCHITECTURES)}",
        )
    return ARCHITECTURES[name]


def config_of(header: Header) -> ModelConfig:
    """The configuration of a file. Raises CheckpointError for whatever is missing, or would be computed otherwise."""
    architecture = architecture_of(header)
    keys = Fields(header.metadata, header.path, prefix=f"{architecture.name}.")
    with faults_of(header.path):
        config = architecture.read(keys, header.tensors)
    keys.refuse_unknown(architecture.harmless)
    return config


def _vocab_size(keys: Fields, found: Found, tensors: Tensors) -> dict[str, Any]:
    """The rows of the embedding, where what the keys say is the same."""
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
            raise keys.fault(f"{key} {width:,} is not implemented beside a head width of {found['d_head']:,}")
    return {}


def _no_window(keys: Fields, found: Found, tensors: Tensors) -> dict[str, Any]:
    window = keys.whole("attention.sliding_window", 0)
    if 0 < window < found["context"]:
        raise keys.fault(
            f"a sliding window of {window:,} tokens is not implemented for {keys.prefix.removesuffix('.')}",
            "llama.cpp attends to everything here, and the model was trained otherwise",
        )
    return {}


def _by_tensors(keys: Fields, found: Found, tensors: Tensors) -> dict[str, Any]:
    return {
        "qkv_bias": "blk.0.attn_q.bias" in tensors,
        "o_bias": "blk.0.attn_output.bias" in tensors,
        "ffn_bias": "blk.0.ffn_up.bias" in tensors,
        "tied_head": "output.weight" not in tensors,
    }


def _scaling(keys: Fields, found: Found, tensors: Tensors) -> dict[str, Any]:
    said = scaling_from_keys(keys)
    stored = tensors.get(FACTORS)
    if stored is None:
        return said
    d_head, theta = found["d_head"], found["rope_theta"]
    if stored.shape != (d_head // 2,):
        raise keys.fault(f"{FACTORS} has shape {stored.shape}, and has to have {(d_head // 2,)}")
    made = scaling_from_factors(read_vector(Path(keys.source), stored).tolist(), d_head, theta) if theta > 0 else None
    if made is None or (made and said):
        raise keys.fault(
            f"the rotary factors in {FACTORS} are not those of a Llama 3 scaling",
            "other tables of factors are not implemented",
        )
    return made or said


_QWEN2 = Architecture(
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
    # What the scaling was trained at, and how a sentence vector would be made.
    harmless=("rope.scaling.finetuned", "rope.scaling.original_context_length", "pooling_type"),
)
_LLAMA = replace(
    _QWEN2,
    name="llama",
    stored={
        **_QWEN2.stored,  # llama.cpp turns pairs of rows that lie side by side
        "blocks.{n}.attention.q": Stored("blk.{n}.attn_q", paired="n_heads"),
        "blocks.{n}.attention.k": Stored("blk.{n}.attn_k", paired="n_kv_heads"),
    },
    passed_over=(FACTORS,),
)
ARCHITECTURES = {architecture.name: architecture for architecture in (_LLAMA, _QWEN2)}
