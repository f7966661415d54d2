"""What a model of an architecture that is not opened would need, told by the keys of its configuration."""

import re
from collections.abc import Mapping
from typing import Any

_TRAITS = (
    (
        r"is_encoder_decoder|decoder_start_token_id|decoder_block_count",
        "an encoder and a decoder, and tinytf opens one stack",
    ),
    (
        r"(vision|audio|image|video|speech|codec|vq)\w*_config",
        "parts for images or sound, and tinytf opens models of text",
    ),
    (
        r"mamba|ssm|wkv|rwkv|lstm|lru|recurrent|shortconv|time_step|state_size|lightning|linear_(attn|att|num|key|value)",
        "layers that are not attention: state-space, recurrent, linear or convolution",
    ),
    (r"conv_(kernel|window|bias|dim|l_cache)", "convolutions between its tokens"),
    (r"index_topk|indexer|compress|attention_window|lsh|axial|num_landmarks|block_size", "sparse attention"),
    (r"per_layer_input|altup|laurel", "embeddings of its own for each layer"),
    (r"expert|moe", "experts that are routed in another way"),
)
"""What a key, or a word of layer_types, tells of an architecture; the first that fits is said."""
_KINDS = {
    "an encoder and a decoder, and tinytf opens one stack": "t5 mt5 umt5 bart trocr",
    "attention of two streams, or over a memory of earlier texts": "xlnet transfo-xl",
    "no softmax attention": "fnet rwkv xlstm retnet",
    "sparse attention": "big_bird longformer reformer nystromformer yoso mra",
    "tokens that are pooled or bytes that are grouped inside it": "funnel perceiver blt",
    "positions of a page or a table beside those of the text": "layoutlm tapas",
    "the difference of two softmaxes": "diffllama",
    "disentangled attention, of content and of positions": "deberta",
    "queries and keys that are normed after their rotation": "hunyuan_v1_moe",
    "an activation with numbers that it learns": "apertus",
}


def lacking(kind: str, keys: Mapping[str, Any]) -> str:
    """In words what tinytf would need for a model of this kind, whose configuration has these keys."""
    known = next((words for words, kinds in _KINDS.items() if kind in kinds.split()), "")
    layers = keys.get("layer_types") or keys.get("layers_block_type") or ()
    said = [name for name, value in keys.items() if value not in (None, False, 0)]
    told = " ".join([*said, *map(str, layers if isinstance(layers, list) else ())]).lower()
    trait = next((words for pattern, words in _TRAITS if re.search(pattern, told)), "")
    return f"it has {known or trait}" if known or trait else "no table of its settings and tensors is written yet"
