"""Decoders that attend both ways: ``is_causal: false``, which transformers honours wherever it makes a causal mask."""

from typing import Any

from tinytf.checkpoints.table import Draft
from tinytf.config import ModelConfig
from tinytf.fields import Fields


def read_sight(fields: Fields, draft: Draft) -> dict[str, Any]:
    """Our fields that ``is_causal`` changes; a window then counts the tokens to each side, without the token itself.

    Raises CheckpointError for an encoder that is to be causal: there it depends on the kernel of attention.
    """
    causal = draft.get("causal", True)
    given = fields.flag("is_causal", "is_causal" not in fields.data)  # transformers takes null for false
    if given == causal or "is_causal" not in fields.data:
        return {}
    if given:
        raise fields.fault("is_causal true is not implemented for a model that attends both ways")
    if draft.get("encoder") is not None:
        raise fields.fault("is_causal False is not implemented for a model of two stacks")
    return {"causal": False, **_widened(draft, 1)}


def write_sight(config: ModelConfig) -> ModelConfig:
    """The causal configuration of which ``is_causal: false`` makes ``config``."""
    return config.but(causal=True, **_widened({"window": config.window, "by_layer": config.by_layer}, -1))


def _widened(draft: Draft, by: int) -> dict[str, Any]:
    """The windows of a draft, each wider by so many tokens."""
    by_layer = tuple(
        (name, tuple(value and value + by for value in values) if name == "window" else values)
        for name, values in draft.get("by_layer", ())
    )
    window = draft.get("window", 0)
    return {"window": window and window + by, "by_layer": by_layer}
