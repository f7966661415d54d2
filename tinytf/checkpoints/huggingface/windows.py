"""Which layers of a model of transformers look through a window: ``layer_types`` and ``sliding_window``."""

from collections.abc import Callable
from typing import Any

from tinytf.checkpoints.huggingface.table import by_layer
from tinytf.checkpoints.table import Found, Group, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields

SLIDING, FULL = "sliding_attention", "full_attention"
Kinds = Callable[[Fields, Found], list[str]]
"""The kind of each layer: SLIDING or FULL."""
Pattern = Callable[[Fields, int], bool]
"""Whether the layer of a number has a window, where ``layer_types`` does not say."""


def kinds(pattern: Pattern) -> Kinds:
    """The kind of each layer, by the file or else by the family's pattern."""

    def read(fields: Fields, found: Found) -> list[str]:
        layers = range(found["n_layers"])
        given = fields.array("layer_types", str, None, count=len(layers))
        if given is None:
            return [SLIDING if pattern(fields, layer) else FULL for layer in layers]
        return [fields.meaning("layer_types", kind, {SLIDING: SLIDING, FULL: FULL}) for kind in given]

    return read


def every(key: str, default: int) -> Pattern:
    """A window in all layers but every ``key``-th."""
    return lambda fields, layer: (layer + 1) % (fields.whole(key, default, least=1)) != 0


def window_of(fields: Fields, default: int) -> int:
    """The sliding window in tokens; null is none."""
    return int(fields.whole("sliding_window", 0, least=0)) if "sliding_window" in fields.data else default


def windows(read_kinds: Kinds, default: int = 0) -> Group:
    """The window of each layer."""

    def read(fields: Fields, found: Found, tensors: Tensors) -> dict[str, Any]:
        window = window_of(fields, default)
        return by_layer("window", [window if kind == SLIDING else 0 for kind in read_kinds(fields, found)])

    def write(config: ModelConfig) -> dict[str, Any]:
        layers = [config.at(layer) for layer in range(config.n_layers)]
        return {
            "sliding_window": max(one.window for one in layers) or None,
            "layer_types": [kind_of(one) for one in layers],
        }

    return Group(read, write)


def kind_of(layer: ModelConfig) -> str:
    """The kind of a layer of ours."""
    return SLIDING if layer.window else FULL
