"""Why: something in a model is taken out or replaced, and what becomes of its predictions.

A file each question, imported when it is first asked.
"""

from typing import TYPE_CHECKING

from tinytf import lazy_modules

if TYPE_CHECKING:  # those that Model has
    from tinytf.cause import blame, budget, compare_without, interventions, restoring, step_errors

__getattr__ = lazy_modules.modules(__name__)
