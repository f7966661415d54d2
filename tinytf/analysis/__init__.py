"""Questions about a model: a file each, imported when it is first asked."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinytf.analysis import (
        activations,
        alignment,
        arithmetic,
        attended,
        attribution,
        census,
        code,
        difference,
        examples,
        interventions,
        left_out,
        lens,
        neurons,
        positions,
        prediction,
        rollout,
        tokens,
        traced,
    )

__all__ = [
    "activations", "alignment", "arithmetic", "attended", "attribution", "census", "code", "difference", "examples",
    "interventions", "left_out", "lens", "neurons", "positions", "prediction", "rollout", "tokens", "traced",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
