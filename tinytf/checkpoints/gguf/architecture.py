"""From the metadata of a GGUF file to our configuration, one table an architecture; what is not known is refused."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tinytf.checkpoints.gguf.header import Header
from tinytf.checkpoints.gguf.rotary import FACTORS, scaling_from_factors, scaling_from_keys
from tinytf.checkpoints.gguf.values import read_vector
from tinytf.config import ModelConfig
from tinytf.errors import CheckpointError
from tinytf.fields import Fields, faults_of, quoted


@dataclass(frozen=True)
class Architecture:
    """``interleaved``: rows of q and k are stored in rotary pairs (0, D/2), (1, D/2 + 1) …, as llama.cpp turns them.

    ``factors``: a tensor of rotary factors belongs to it.
    """

    name: str
    interleaved: bool
    factors: bool


ARCHITECTURES = {
    "llama": Architecture("llama", interleaved=True, factors=True),
    "qwen2": Architecture("qwen2", interleaved=False, factors=False),
}

# Keys that other architectures use: here they have to say what is so anyway.
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "tensor_data_layout": ("Meta AI original pth",),
    "use_parallel_residual": (False,),
}
# Keys that change no number: what the scaling was trained at, and how a sentence vector would be made.
_HARMLESS = ("rope.scaling.finetuned", "rope.scaling.original_context_length", "pooling_type")


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
    prefix, keys = architecture.name, Fields(header.metadata, header.path)
    for key, only in _ONLY.items():
        keys.require(f"{prefix}.{key}", only)
    d_model, n_heads = keys.whole(f"{prefix}.embedding_length"), keys.whole(f"{prefix}.attention.head_count")
    d_head = keys.whole(f"{prefix}.attention.key_length", d_model // max(1, n_heads))
    for key in ("attention.value_length", "rope.dimension_count"):
        found = keys.whole(f"{prefix}.{key}", d_head)
        if found != d_head:
            raise CheckpointError(
                f"{header.path}: {key} {found:,} is not implemented beside a head width of {d_head:,}"
            )
    context = keys.whole(f"{prefix}.context_length")
    window = keys.whole(f"{prefix}.attention.sliding_window", 0)
    if 0 < window < context:
        raise CheckpointError(
            f"{header.path}: a sliding window of {window:,} tokens is not implemented for {prefix}",
            "llama.cpp attends to everything here, and the model was trained otherwise",
        )
    theta = keys.number(f"{prefix}.rope.freq_base", 10_000.0)
    with faults_of(header.path):
        config = ModelConfig(
            vocab_size=_vocab_size(header, keys, prefix),
            d_model=d_model,
            n_layers=keys.whole(f"{prefix}.block_count"),
            n_heads=n_heads,
            n_kv_heads=keys.whole(f"{prefix}.attention.head_count_kv", n_heads),
            d_head=d_head,
            d_ff=keys.whole(f"{prefix}.feed_forward_length"),
            context=context,
            norm="rmsnorm",
            norm_eps=keys.number(f"{prefix}.attention.layer_norm_rms_epsilon"),
            positions="rotary",
            rope_theta=theta,
            activation="silu",
            gated=True,
            qkv_bias="blk.0.attn_q.bias" in header.tensors,
            o_bias="blk.0.attn_output.bias" in header.tensors,
            ffn_bias="blk.0.ffn_up.bias" in header.tensors,
            tied_head="output.weight" not in header.tensors,
            **_scaling(header, keys, architecture, d_head, theta),
        )
    keys.refuse_unknown(f"{prefix}.", _HARMLESS)
    return config


def _vocab_size(header: Header, keys: Fields, prefix: str) -> int:
    """The rows of the embedding, where what the keys say is the same."""
    if "token_embd.weight" not in header.tensors:
        raise CheckpointError(f"{header.path} lacks token_embd.weight")
    rows = header.tensors["token_embd.weight"].shape[0]
    tokens = header.metadata.get("tokenizer.ggml.tokens", ())
    said = {f"{prefix}.vocab_size": keys.whole(f"{prefix}.vocab_size", rows)}
    said |= {"the vocabulary": len(tokens)} if isinstance(tokens, list) else {}
    for what, count in said.items():
        if count != rows:
            raise CheckpointError(f"{header.path}: token_embd.weight has {rows:,} rows, and {what} {count:,}")
    return rows


def _scaling(header: Header, keys: Fields, architecture: Architecture, d_head: int, theta: float) -> dict[str, Any]:
    said = scaling_from_keys(keys, architecture.name)
    stored = header.tensors.get(FACTORS)
    if stored is None or not architecture.factors:
        return said
    if stored.shape != (d_head // 2,):
        raise CheckpointError(f"{header.path}: {FACTORS} has shape {stored.shape}, and has to have {(d_head // 2,)}")
    found = scaling_from_factors(read_vector(header.path, stored).tolist(), d_head, theta) if theta > 0 else None
    if found is None or (found and said):
        raise CheckpointError(
            f"{header.path}: the rotary factors in {FACTORS} are not those of a Llama 3 scaling",
            "other tables of factors are not implemented",
        )
    return found or said
