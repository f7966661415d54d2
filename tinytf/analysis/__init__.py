"""Questions about a model: a file each, imported when it is first asked."""

from typing import TYPE_CHECKING

from tinytf import lazily

if TYPE_CHECKING:  # those that Model has
    from tinytf.analysis import (
        activations,
        arithmetic,
        attended,
        attribution,
        blame,
        budget,
        census,
        code,
        difference,
        examples,
        experts,
        interventions,
        left_out,
        lens,
        neighbours,
        neurons,
        parameters,
        positions,
        restoring,
        rollout,
        step_errors,
        tokens,
        traced,
    )

__getattr__ = lazily.modules(__name__)
