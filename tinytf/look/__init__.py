"""Look at a model: the numbers that it holds, and those that one run of it computes.

One file a question, imported on first use.
"""

from typing import TYPE_CHECKING

from tinytf import lazy_modules

if TYPE_CHECKING:  # the modules that Model uses
    from tinytf.look import (
        activations,
        arithmetic,
        attended,
        attribution,
        census,
        code,
        examples,
        experts,
        lens,
        neighbours,
        neurons,
        parameters,
        positions,
        rollout,
        tokens,
        traced,
    )

__getattr__ = lazy_modules.modules(__name__)
