"""What a recording will hold, known before it is made, and whether there is room for it."""

from collections.abc import Collection

import torch

from tinytf.config import ModelConfig
from tinytf.errors import MemoryShortage
from tinytf.memory import UNASKED, free_bytes, in_gib


def recording_bytes(config: ModelConfig, tokens: int, rows: int, itemsize: int, layers: Collection[int]) -> int:
    """Bytes that ``record`` keeps of ``tokens`` tokens: the embeddings, ``layers``, the last norm, ``rows`` of logits.

    What goes into a block is what came out of the one before; it is held once. The last block's output is always kept.
    """
    wide = tokens * config.d_model
    parts = 1 + (config.positions != "rotary") + (config.n_token_types > 0)
    plain = config.positions == "rotary" and not config.n_token_types and not config.embed_norm
    embeddings = wide * (parts + (not plain))  # with nothing added, the sum is the token embeddings themselves
    query, key = config.n_heads * config.d_head, config.n_kv_heads * config.d_head
    hidden = (1 + config.gated) * config.d_ff
    inside = tokens * (2 * query + 2 * key + hidden) + 2 * wide  # q, heads, k, v; attention and feed-forward output
    edges = {n for layer in layers for n in (layer, layer + 1)} | {config.n_layers}  # residual stream before block n
    last = wide if config.final_norm else 0
    logits = rows * config.vocab_size if config.head != "none" else 0
    return itemsize * (embeddings + len(layers) * inside + len(edges - {0}) * wide + last + logits)


def require_room(needed: int, one_layer: int, device: torch.device, tokens: int, layers: int) -> None:
    """Raise MemoryShortage, with both figures and what would fit, where a recording is larger than the free memory."""
    if needed < UNASKED or needed <= (free := free_bytes(device)):
        return
    words = f"{tokens:,} tokens through {layers} layer{'s' if layers > 1 else ''}"
    smaller = f"one layer holds {in_gib(one_layer)}: choose one, such as --layer 0 --step weights, or "
    fits = smaller if layers > 1 and one_layer < free else ""
    raise MemoryShortage(
        f"recording {words} holds {in_gib(needed)}, and {in_gib(free)} are free",
        f"{fits}cut the text with --truncate; --force records anyway",
    )
