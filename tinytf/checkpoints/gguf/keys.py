"""Keys of a GGUF file that several architectures have, and what they make of them."""

import math
from collections.abc import Callable
from typing import Any

from tinytf.checkpoints.table import Draft, Group, Key, Tensors
from tinytf.errors import CheckpointError
from tinytf.fields import Fields


def _vocab_size(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
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


def _value_width(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    width = keys.whole("attention.value_length", draft["d_head"])
    if width != draft["d_head"]:
        said = f"attention.value_length {width:,} is not implemented with a head width of {draft['d_head']:,}"
        raise keys.fault(said)
    return {}


def _rope_width(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    width = keys.whole("rope.dimension_count", draft["d_head"])
    return {"rope_width": 0 if width == draft["d_head"] else width}


def _no_window(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    window = keys.whole("attention.sliding_window", 0)
    if 0 < window < draft["context"]:
        raise keys.fault(
            f"a sliding window of {window:,} tokens is not implemented for {keys.prefix.removesuffix('.')}",
            "llama.cpp ignores the window, but the model was trained with it",
        )
    return {}


def _by_tensors(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """What a file says by having a tensor."""
    said = {
        "qkv_bias": "blk.0.attn_q.bias" in tensors or "blk.0.attn_qkv.bias" in tensors,
        "o_bias": "blk.0.attn_output.bias" in tensors,
        "ffn_bias": "blk.0.ffn_up.bias" in tensors or "blk.0.ffn_up_exps.bias" in tensors,
        "tied_head": "output.weight" not in tensors,
    }
    if draft["norm"] == "layernorm":
        said["norm_bias"] = "output_norm.bias" in tensors or "token_embd_norm.bias" in tensors
    return said


SIZES = (
    Key("embedding_length", "d_model"),
    Key("attention.head_count", "n_heads"),
    Key("attention.head_count_kv", "n_kv_heads", lambda draft: draft["n_heads"]),
    Key("attention.key_length", "d_head", lambda draft: draft["d_model"] // max(1, draft["n_heads"])),
    Group(_value_width),
    Key("context_length", "context"),
    Key("block_count", "n_layers"),
    Key("feed_forward_length", "d_ff"),
    Group(_vocab_size),
    Group(_by_tensors),
)
LAYER_NORM = Key("attention.layer_norm_epsilon", "norm_eps")
RMS_NORM = Key("attention.layer_norm_rms_epsilon", "norm_eps")
NO_WINDOW = Group(_no_window)
ROTARY = (Key("rope.freq_base", "rope_theta", 10_000.0), Group(_rope_width))
ONLY: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "tensor_data_layout": ("Meta AI original pth", "Reference"),
    "use_parallel_residual": (False,),
}


def except_keys(*names: str) -> dict[str, tuple[Any, ...]]:
    """ONLY without keys that an architecture reads."""
    return {key: values for key, values in ONLY.items() if key not in names}


HARMLESS = ("rope.scaling.finetuned", "rope.scaling.original_context_length", "pooling_type")
"""The context of training, and how a sentence vector would be made."""


def scores_of_gemma(layers_of_27b: int) -> Group:
    """Embeddings are multiplied by √d_model. Scores of the model of 27 B are divided by √(d_model / heads).

    No key says so: llama.cpp tells that model by its number of layers.
    """

    def read(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
        largest = draft["n_layers"] == layers_of_27b
        divisor = math.sqrt(draft["d_model"] / draft["n_heads"]) if largest else 0.0
        return {"embed_scale": math.sqrt(draft["d_model"]), "attention_divisor": divisor}

    return Group(read)


def windows(period: int, default: int = 0) -> Callable[[Fields, Draft], tuple[int, ...]]:
    """The window of each layer, 0 for none: of every ``period`` layers, all but the last have one."""

    def read(keys: Fields, draft: Draft) -> tuple[int, ...]:
        layers = range(draft["n_layers"])
        window = keys.whole("attention.sliding_window", default)
        name = "attention.sliding_window_pattern"
        if isinstance(keys.data.get(f"{keys.prefix}{name}"), (list, tuple)):
            sliding = keys.array(name, bool, count=len(layers))
        else:
            every = keys.whole(name, period, least=1)
            sliding = [layer % every < every - 1 for layer in layers]
        return tuple(window if slides else 0 for slides in sliding)

    return read


def by_layer(**values: tuple[Any, ...]) -> dict[str, Any]:
    """Fields with a value a layer: those with one value for all layers by themselves, the others ``by_layer``."""
    same = {name: each[0] for name, each in values.items() if len(set(each)) == 1}
    return {**same, "by_layer": tuple((name, each) for name, each in values.items() if name not in same)}
