"""What tinytf lacks for an unknown architecture, as far as the keys of its configuration show."""

import re
from collections.abc import Mapping
from typing import Any

_KEY_PATTERNS = (
    (
        r"is_encoder_decoder|decoder_start_token_id|decoder_block_count",
        "an encoder and a decoder, of a kind that tinytf has no table for",
    ),
    (
        r"(vision|audio|image|video|speech|codec|vq)\w*_config",
        "parts for images or sound, and tinytf opens models of text",
    ),
    (
        r"mamba|ssm|wkv|rwkv|lstm|lru|recurrent|shortconv|time_step|state_size|lightning|linear_(attn|att|num|key|value)",
        "layers that are not attention, of a kind or in an order that tinytf has no table for",
    ),
    (r"conv_(kernel|window|bias|dim|l_cache)", "convolutions between its tokens"),
    (r"index_topk|indexer|compress|attention_window|lsh|axial|num_landmarks|block_size", "sparse attention"),
    (r"expert|moe", "experts, and tinytf has no table of how it routes to them"),
)
"""Patterns of keys or layer_types, and what an architecture with them has; the first match is reported."""
_KINDS = {
    "a decoder that predicts several tokens ahead, each in a stream of its own beside that of the text": "prophetnet",
    "an encoder and a decoder, of a kind that tinytf has no table for": "trocr",
    "attention over a memory of earlier texts": "transfo-xl",
    "no softmax attention": "fnet rwkv xlstm retnet",
    "sparse attention": "big_bird longformer reformer nystromformer yoso mra",
    "tokens that are pooled, or bytes that are grouped, between its layers": "funnel perceiver blt",
    "positions on a page or in a table besides those in the text": "layoutlm tapas",
    "a delta rule with a decay for every channel": "bailing_hybrid",
    "layers with a narrower stream of their own, and several feed-forwards in a row": "mobilebert",
}


def classifies_two_stacks(keys: Mapping[str, Any]) -> bool:
    """Whether a configuration is that of two stacks under a head that classifies."""
    names = str(keys.get("architectures"))  # of any JSON type
    return keys.get("is_encoder_decoder") is True and bool(re.search(r"(Classification|QuestionAnswering)\b", names))


def explain_unsupported(kind: str, keys: Mapping[str, Any]) -> str:
    """What tinytf lacks for a model of this ``kind``, whose configuration has these ``keys``, in words."""
    if classifies_two_stacks(keys):
        return "it has an encoder and a decoder under a head that classifies"
    by_kind = next((text for text, kinds in _KINDS.items() if kind in kinds.split()), "")
    layers = keys.get("layer_types") or keys.get("layers_block_type") or ()
    used_keys = [name for name, value in keys.items() if value not in (None, False, 0)]
    evidence = " ".join([*used_keys, *map(str, layers if isinstance(layers, list) else ())]).lower()
    by_keys = next((text for pattern, text in _KEY_PATTERNS if re.search(pattern, evidence)), "")
    return f"it has {by_kind or by_keys}" if by_kind or by_keys else "there is no table of its settings and tensors yet"
