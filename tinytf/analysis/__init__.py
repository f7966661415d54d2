"""Questions about a model: a file each, imported when it is first asked."""

from typing import TYPE_CHECKING

from tinytf import lazily

if TYPE_CHECKING:
    from tinytf.analysis import (
        arithmetic,
        attended,
        attribution,
        census,
        difference,
        examples,
        interventions,
        lens,
        neurons,
        rollout,
        tokens,
        traced,
    )  # fmt: skip

__all__ = [
    "arithmetic", "attended", "attribution", "census", "difference", "examples", "interventions", "lens", "neurons",
    "rollout", "tokens", "traced",
]  # fmt: skip
__getattr__ = lazily.modules(__name__, __all__)
