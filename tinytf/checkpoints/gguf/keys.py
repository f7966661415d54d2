"""Keys of a GGUF file that several architectures share, and how they are read."""

import math
from collections.abc import Callable
from typing import Any

from tinytf.checkpoints.table import Draft, Group, Key, Tensors
from tinytf.errors import CheckpointError
from tinytf.fields import Fields


def _vocab_size(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    """The rows of the embedding; the keys must agree with them."""
    if "token_embd.weight" not in tensors:
        raise CheckpointError(f"{keys.source} lacks token_embd.weight")
    rows = tensors["token_embd.weight"].shape[0]
    tokens = keys.data.get("tokenizer.ggml.tokens", ())
    counts = {f"{keys.prefix}vocab_size": keys.whole("vocab_size", rows)}
    counts |= {"the vocabulary": len(tokens)} if isinstance(tokens, list) else {}
    for source, count in counts.items():
        if count != rows:
            raise keys.fault(f"token_embd.weight has {rows:,} rows, and {source} {count:,}")
    return {"vocab_size": rows}


def _value_width(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    width = keys.whole("attention.value_length", draft["d_head"])
    if width != draft["d_head"]:
        message = f"attention.value_length {width:,} is not implemented with a head width of {draft['d_head']:,}"
        raise keys.fault(message)
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
    """Settings that are implied by the presence of a tensor."""
    values = {
        "qkv_bias": "blk.0.attn_q.bias" in tensors or "blk.0.attn_qkv.bias" in tensors,
        "o_bias": "blk.0.attn_output.bias" in tensors,
        "ffn_bias": "blk.0.ffn_up.bias" in tensors or "blk.0.ffn_up_exps.bias" in tensors,
        "tied_head": "output.weight" not in tensors,
    }
    if draft["norm"] == "layernorm":
        values["norm_bias"] = "output_norm.bias" in tensors or "token_embd_norm.bias" in tensors
    return values


VALUE_WIDTH = Group(_value_width)


_POOLING = {0: "none", 1: "mean", 2: "first", 3: "last", 4: "none"}
"""Our words for the numbers of llama.cpp; 4 is a rank by a task head, which is not read."""


def _pooling(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    kind = keys.whole("pooling_type", 0)
    if kind not in _POOLING:
        raise keys.fault(f"pooling_type {kind:,} is not implemented")
    return {"pooling": _POOLING[kind]}


SIZES = (
    Key("embedding_length", "d_model"),
    Key("attention.head_count", "n_heads"),
    Key("attention.head_count_kv", "n_kv_heads", lambda draft: draft["n_heads"]),
    Key("attention.key_length", "d_head", lambda draft: draft["d_model"] // max(1, draft["n_heads"])),
    VALUE_WIDTH,
    Key("context_length", "context"),
    Key("block_count", "n_layers"),
    Key("feed_forward_length", "d_ff"),
    Group(_vocab_size),
    Group(_by_tensors),
    Group(_pooling),
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
    """ONLY without the keys that an architecture reads."""
    return {key: values for key, values in ONLY.items() if key not in names}


HARMLESS = ("rope.scaling.finetuned", "rope.scaling.original_context_length")
"""The context of training."""


def scores_of_gemma(layers_of_27b: int) -> Group:
    """Embeddings are multiplied by √d_model. The 27 B model divides scores by √(d_model / heads).

    There is no key for this: like llama.cpp, we recognise that model by its number of layers.
    """

    def read(keys: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
        is_27b = draft["n_layers"] == layers_of_27b
        divisor = math.sqrt(draft["d_model"] / draft["n_heads"]) if is_27b else 0.0
        return {"embed_scale": math.sqrt(draft["d_model"]), "attention_divisor": divisor}

    return Group(read)


def windows(period: int, default: int = 0) -> Callable[[Fields, Draft], tuple[int, ...]]:
    """The window of each layer, 0 for none: all but the last of every ``period`` layers have one."""

    def read(keys: Fields, draft: Draft) -> tuple[int, ...]:
        layers = range(draft["n_layers"])
        window = keys.whole("attention.sliding_window", default)
        name = "attention.sliding_window_pattern"
        if isinstance(keys.data.get(f"{keys.prefix}{name}"), (list, tuple)):
            has_windows = keys.array(name, bool, count=len(layers))
        else:
            interval = keys.whole(name, period, least=1)
            has_windows = [layer % interval < interval - 1 for layer in layers]
        return tuple(window if has_window else 0 for has_window in has_windows)

    return read


def by_layer(**values: tuple[Any, ...]) -> dict[str, Any]:
    """Our fields with a value for each layer: a single value if they are all equal, else under ``by_layer``."""
    shared = {name: layer_values[0] for name, layer_values in values.items() if len(set(layer_values)) == 1}
    return {
        **shared,
        "by_layer": tuple((name, layer_values) for name, layer_values in values.items() if name not in shared),
    }
