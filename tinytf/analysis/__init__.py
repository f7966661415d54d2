"""Questions about a model: a file each, imported when it is first asked."""

from typing import TYPE_CHECKING

from tinytf import lazily

__all__ = [
    "alignment", "arithmetic", "attended", "attribution", "census", "difference", "examples", "interventions", "lens",
    "neurons", "prediction", "rollout", "tokens", "traced",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__ = lazily.modules(__name__, __all__)
else:  # so mypy knows these before it reads what asks them
    from tinytf.analysis import (
        alignment,
        arithmetic,
        attended,
        attribution,
        census,
        difference,
        examples,
        interventions,
        lens,
        neurons,
        prediction,
        rollout,
        tokens,
        traced,
    )
