"""What is there: what a model holds and what one run of it computes, read off as it is.

A file each question, imported when it is first asked.
"""

from typing import TYPE_CHECKING

from tinytf import lazy_modules

if TYPE_CHECKING:  # those that Model has
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
