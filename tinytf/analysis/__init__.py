"""Questions about a model: a file each, imported when it is first asked."""

from typing import TYPE_CHECKING

from tinytf import lazily

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
        neighbours,
        neurons,
        parameters,
        positions,
        prediction,
        rollout,
        tokens,
        traced,
    )

__all__ = [
    "activations", "alignment", "arithmetic", "attended", "attribution", "census", "code", "difference", "examples",
    "interventions", "left_out", "lens", "neighbours", "neurons", "parameters", "positions", "prediction", "rollout",
    "tokens", "traced",
]  # fmt: skip
__getattr__ = lazily.modules(__name__, __all__)
