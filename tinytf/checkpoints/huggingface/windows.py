"""Which layers of a transformers model have a sliding window: ``layer_types`` and ``sliding_window``."""

from collections.abc import Callable
from typing import Any

from tinytf.checkpoints.huggingface.table import by_layer
from tinytf.checkpoints.table import Draft, Group, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields

SLIDING, FULL = "sliding_attention", "full_attention"
Kinds = Callable[[Fields, Draft], list[str]]
"""The kind of each layer: SLIDING or FULL."""
Pattern = Callable[[Fields, int], bool]
"""Whether the layer with this number has a window if there is no ``layer_types``."""


def layer_kinds(pattern: Pattern) -> Kinds:
    """The kind of each layer: as in the file, else by the family's pattern."""

    def read(fields: Fields, draft: Draft) -> list[str]:
        layers = range(draft["n_layers"])
        layer_types = fields.array("layer_types", str, None, count=len(layers))
        if layer_types is None:
            return [SLIDING if pattern(fields, layer) else FULL for layer in layers]
        return [fields.meaning("layer_types", kind, {SLIDING: SLIDING, FULL: FULL}) for kind in layer_types]

    return read


def all_but_nth(key: str, default: int) -> Pattern:
    """A window in all layers but every ``key``-th."""
    return lambda fields, layer: (layer + 1) % (fields.whole(key, default, least=1)) != 0


def window_of(fields: Fields, default: int) -> int:
    """The sliding window in tokens; null means no window, 0."""
    return int(fields.whole("sliding_window", 0, least=0)) if "sliding_window" in fields.data else default


def windows(read_kinds: Kinds, default: int = 0) -> Group:
    """The window of each layer."""

    def read(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
        window = window_of(fields, default)
        return by_layer("window", [window if kind == SLIDING else 0 for kind in read_kinds(fields, draft)])

    def write(config: ModelConfig) -> dict[str, Any]:
        layers = [config.at(layer) for layer in range(config.n_layers)]
        return {
            # a number even where no layer has a window: many configurations of transformers refuse null
            "sliding_window": max(layer.window for layer in layers) or config.context,
            "layer_types": [kind_of(layer) for layer in layers],
        }

    return Group(read, write)


def kind_of(layer: ModelConfig) -> str:
    """The kind of one of our layers."""
    return SLIDING if layer.window else FULL
